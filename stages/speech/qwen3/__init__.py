"""Qwen3-TTS as pure MLX computation: no actors, no clocks, no host reads.

    checkpoint.load(path) / random_weights(size, dtype)  → model.Qwen3TTS
    prompt.build(model, text, …)                         → Prompt
    model.talker.start(prefill, sampling, seed)          → state, code0, hidden      (frame 0)
    model.predictor.frame(hidden, code0, sub_sampling, state.key, state.frame) → codes [1, 16], embedding
    model.talker.step(state, embedding, text)            → state, code0, hidden      (next frame)
    model.codec.step(codes[:, None], codec_state)        → pcm, codec_state          ([1, n, 16] for n frames)

`state.frame` is the index of the frame whose code 0 was chosen last, `state.key` the request's key. States are
functional: rebind them, and the buffers of the old ones are reused.
"""

# Importing mlx without a real BLAS makes the CPU backend ten times slower, and nothing would say so.
from ...device import load_blas

load_blas()
