"""mlx-audio's side: its own streaming loop with one-frame chunks, and the same pieces of it one by one."""

import io
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Self

from .. import device
from .records import About, Pieces, Plan, Run, Waits

CHUNK_S = 0.08
"""`streaming_interval` of one frame, the smallest that its loop knows."""


class Theirs:
    """Loads on entering, on this thread, which also runs everything."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __enter__(self) -> Self:
        start = time.perf_counter()
        self._blas = device.load_blas()
        # Not mlx_audio.tts.generate: that one needs PortAudio.
        from mlx_audio.tts.models.qwen3_tts import qwen3_tts
        from mlx_audio.tts.utils import load

        # It guesses from a weight's shape whether it is transposed already, wrongly for narrow convolutions.
        # A checkpoint in the released layout never is.
        qwen3_tts.check_array_shape_qwen3 = lambda _weight: False
        printed = io.StringIO()
        with redirect_stdout(printed):
            self._model: Any = load(Path(self._plan.folder))
        # Where its tokenizer or codec fails to load it prints a warning and goes on without.
        if self._model.tokenizer is None or self._model.speech_tokenizer is None:
            said = [line.strip() for line in printed.getvalue().splitlines() if line.strip()]
            raise RuntimeError(
                f"mlx-audio cannot use the checkpoint: {'; '.join(said) or 'it does not say why'}"
            )
        self._load_s = time.perf_counter() - start
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def about(self) -> About:
        from importlib.metadata import version

        import mlx.core as mx

        info = mx.device_info()
        name = str(info.get("device_name") or info.get("architecture") or "")
        return About(device.backend(), name, self._blas, version("mlx-audio"), self._load_s)

    def run(self) -> Run:
        import mlx.core as mx

        mx.random.seed(1)
        mx.reset_peak_memory()
        cpu = time.process_time()
        frames, ttfa, total = self._speak()
        return Run(frames, ttfa, total, time.process_time() - cpu, mx.get_peak_memory())

    def count(self) -> Waits:
        from .counting import Counting

        with Counting() as counting:
            frames, _, _ = self._speak()
        return Waits(counting.reads / frames, counting.barriers / frames)

    def _speak(self) -> tuple[int, float, float]:
        plan, frames, first = self._plan, 0, 0.0
        start = time.perf_counter()
        for chunk in self._model.generate_custom_voice(
            plan.text, plan.voice, max_tokens=plan.frames, stream=True, streaming_interval=CHUNK_S
        ):
            first = first or time.perf_counter()
            frames += chunk.samples // 1920
        return frames, first - start, time.perf_counter() - start

    def pieces(self) -> Pieces:
        """The calls that its loop makes for a frame, with a barrier after each stage."""
        import mlx.core as mx

        from .stopwatch import Stopwatch

        plan, model = self._plan, self._model
        config, options = (
            model.config.talker_config,
            model._resolve_generation_options(None, None, None, None, None),
        )
        sampling = {name: options[name] for name in ("temperature", "top_k", "top_p")}
        suppressed = model._suppress_codec_tokens(config.codec_eos_token_id)
        decoder = model.speech_tokenizer.decoder
        decoder.reset_streaming_state()
        talker, predictor, codec = Stopwatch(), Stopwatch(), Stopwatch()
        rows, _, pad = model._prepare_generation_inputs(plan.text, speaker=plan.voice)
        cache, code_cache = model.talker.make_cache(), model.talker.code_predictor.make_cache()
        history: list[int] = []

        def talk() -> tuple[mx.array, mx.array]:
            logits, hidden = model.talker(rows, cache=cache)
            code0 = model._sample_token(
                logits,
                repetition_penalty=options["repetition_penalty"],
                generated_tokens=history or None,
                suppress_tokens=suppressed,
                **sampling,
            )
            return code0, hidden

        def predict() -> tuple[mx.array, mx.array]:
            parts, codes = model._predict_code_tokens(code0, hidden, code_cache=code_cache, **sampling)
            return codes, pad + model._codec_embeds_for_tokens(parts)

        code0, hidden = talk()
        mx.eval(code0, hidden)  # the prompt's own pass is no frame's work
        for _ in range(plan.frames):
            history.append(int(code0[0, 0]))
            codes, rows = predictor(predict)
            codec(lambda: decoder.streaming_step(codes[:, :, None]))  # noqa: B023
            code0, hidden = talker(talk)
        decoder.reset_streaming_state()
        return Pieces(talker.piece, predictor.piece, codec.piece)
