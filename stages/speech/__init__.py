"""The speech family: prompt → talker → code_predictor → codec_decoder → encoder, one actor a file."""
