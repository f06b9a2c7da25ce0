"""How the embedded voice is made: speech of free engines in, a small checkpoint in the Qwen3-TTS format out."""
