"""The whole model: what a checkpoint holds, ready to be stepped by the stages."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from ...device import on_cpu
from .clone import Clone, build_clone
from .code_predictor import CodePredictor
from .codec_decoder import STEPS, CodecDecoder, to_int16
from .codec_encoder import PIECE, CodecEncoder
from .config import GenerationConfig, ModelConfig, SpeechTokenizerConfig
from .launch import widths
from .ops import silu
from .prompt import build, prefix_rows, spoken_after
from .sampling import request_key
from .speaker_encoder import SpeakerEncoder
from .talker import WARM, Talker, doubled
from .tokenizer import Templates, Tokenizer
from .weights import Linear, Weights

PARTS = frozenset(("prompt", "talker", "code_predictor", "codec_decoder"))
"""The stages that a model serves; a process that runs only some of them loads what these need."""


class PromptRows:
    """The rows that prompts are made of: text embeddings projected to the talker's width, codec embeddings."""

    def __init__(self, config: ModelConfig, weights: Weights, codec_table: mx.array) -> None:
        talker = config.talker_config
        width = talker.text_hidden_size
        # The table is large and a request reads a few rows: it stays as stored, only what is read is converted.
        self._table = weights.stored_table("talker.model.text_embedding", talker.text_vocab_size, width)
        self._dtype = weights.dtype
        name = "talker.text_projection"
        self._widen: Linear = weights.linear(f"{name}.linear_fc1", width, width, bias=True)
        self._project: Linear = weights.linear(f"{name}.linear_fc2", width, talker.hidden_size, bias=True)
        self._codec_table = codec_table
        special = self.text(
            mx.array([[config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]])
        )
        self.begin, self.end, self.pad = mx.split(special, 3, axis=1)
        self.codec_pad = self.codec([talker.codec_pad_id])
        self.codec_bos = self.codec([talker.codec_bos_id])
        mx.eval(self.begin, self.end, self.pad, self.codec_pad, self.codec_bos)

    def text(self, ids: mx.array) -> mx.array:
        """int [1, n] → [1, n, H]"""
        count = ids.shape[1]
        # For each new number of rows a GPU's library would choose its kernels anew, which may take milliseconds.
        size = count if on_cpu() else doubled(1, count)
        padded = mx.pad(ids[0], (0, size - count))
        wide = self._widen(mx.take(self._table, padded, axis=0).astype(self._dtype))
        return self._project(silu(wide))[None, :count]

    def codec(self, ids: list[int]) -> mx.array:
        """Rows of the talker's own table, [1, n, H]."""
        return mx.take(self._codec_table, mx.array([ids], mx.int32), axis=0)


class Qwen3TTS:
    fingerprint = ""
    """Of all that what this model computes depends on; none for random weights."""
    talker: Talker
    predictor: CodePredictor
    rows: PromptRows
    codec: CodecDecoder

    def __init__(
        self,
        config: ModelConfig,
        codec_config: SpeechTokenizerConfig,
        generation: GenerationConfig,
        tokenizer: Tokenizer,
        weights: Weights,
        codec_weights: Weights,
        parts: frozenset[str] = PARTS,
    ) -> None:
        """:param parts: the stages to be served; nothing is read of the others, nor are they set."""
        self.config = config
        self.tokenizer = tokenizer
        self.templates = Templates(tokenizer, config)
        self.sampling = generation.talker
        self.sub_sampling = generation.predictor
        self.max_frames = generation.max_new_tokens
        self.sample_rate = codec_config.output_sample_rate
        self.kind = config.tts_model_type
        self.size = config.size
        self.voices = sorted(config.talker_config.spk_id)
        self.languages = ["auto", *sorted(config.talker_config.codec_language_id)]
        # Of the custom-voice models only the largest has learnt from instructions.
        self.takes_instructions = self.kind != "custom_voice" or self.size == "1.7B"
        self.parts = parts
        if "prompt" in parts and self.kind == "base":
            self.parts |= {"code_predictor"}  # whose tables turn the codes of a reference into rows
        talker = config.talker_config
        self._empty = mx.zeros((1, 16, talker.hidden_size), weights.dtype)
        """Rows to warm up with."""
        if self.parts & {"prompt", "talker", "code_predictor"}:
            table = weights.table("talker.model.codec_embedding", talker.vocab_size, talker.hidden_size)
            if "talker" in self.parts:
                self.talker = Talker(config, weights)
                table = self.talker.embedding
            if "code_predictor" in self.parts:
                self.predictor = CodePredictor(config, weights, table)
            if "prompt" in self.parts:
                self.rows = PromptRows(config, weights, table)
        if "codec_decoder" in self.parts:
            self.codec = CodecDecoder(codec_config.decoder_config, codec_weights)
        self.speaker_encoder: SpeakerEncoder | None = None
        self.codec_encoder: CodecEncoder | None = None
        # Read and converted now, on this thread, not by the first request.
        for name in ("talker", "predictor", "rows", "codec"):
            if name in vars(self):
                mx.eval(vars(vars(self)[name]))

    def add_encoders(
        self, codec_config: SpeechTokenizerConfig, weights: Weights, codec_weights: Weights
    ) -> None:
        """Let a base model hear references; `weights` and `codec_weights` are of dtype float32.

        The codes of a reference follow from nearest neighbours: fewer bits would give others.
        """
        self.speaker_encoder = SpeakerEncoder(self.config.speaker_encoder_config, weights)
        if codec_config.encoder_config is not None:
            self.codec_encoder = CodecEncoder(
                codec_config.encoder_config,
                self.config.talker_config.num_code_groups,
                codec_config.decoder_config.samples,
                codec_weights,
            )
        mx.eval(vars(self.speaker_encoder), vars(self.codec_encoder) if self.codec_encoder else [])

    def warm_up(self, progress: Callable[[float], None] = lambda done: None, rows: int = 1) -> None:
        """Run every trace that requests can need once; `progress` hears the share done, 0 to 1.

        :param rows: requests computed together, at most.
        """
        steps = [step for part in sorted(self.parts) for step in self._warming(part, rows)]
        if self.kind == "custom_voice" and self.parts >= PARTS and not on_cpu():
            # The most tokens of each size and the fewest of the next: they come to all sizes of prompts.
            sizes = [1 << i for i in range((WARM // 2).bit_length() - 1)]
            steps += [partial(self._warm_first_frame, n) for size in sizes for n in (size, size + 1)]
        for done, step in enumerate(steps, 1):
            mx.eval(step())
            progress(done / len(steps))

    def _warming(self, part: str, rows: int) -> list[Callable[[], Any]]:
        row, codes, frame = self._empty[:, :1], mx.zeros((1, 16), mx.int32), mx.zeros(1, mx.int32)
        voice = self.voices[0] if self.voices else None
        match part:
            case "prompt" if self.kind == "base":
                return [*self._warming_encoders(), lambda: self._warm_clone(codes)]
            case "prompt":
                return [
                    lambda: build(self, "Hello there.", voice=voice, language=None, instructions=None).prefill
                ]
            case "talker":
                prefixes = self.kind != "custom_voice"
                return [*self.talker.warming(self.sampling, row.shape[2], rows, prefixes=prefixes)]
            case "code_predictor":
                one = row, codes[:, :1], request_key(0), frame
                return [
                    partial(self._warm_predictor, *one, wide)
                    for wide in widths(min(rows, self.predictor.widest))
                ]
            case _:
                counts = [mx.tile(codes[:, None], (1, count, 1)) for count in STEPS]
                return [partial(self._warm_codec, some) for some in counts]

    def _warming_encoders(self) -> list[Callable[[], Any]]:
        """A reference of one piece and the beginning of another."""
        sound, encoders = np.zeros(PIECE + 1920, np.float32), list[Callable[[], Any]]()
        if self.speaker_encoder is not None:
            encoders.append(partial(self.speaker_encoder, sound))
        if self.codec_encoder is not None:
            encoders.append(partial(self.codec_encoder, mx.array(sound)))
        return encoders

    def _warm_clone(self, codes: mx.array) -> Any:
        clone = Clone(self._empty[0, 0], codes, "Hello.")
        return build_clone(self, "Hello there.", clone, language=None).prefill

    def _warm_first_frame(self, tokens: int) -> mx.array:
        """As the stages queue it: a GPU's graph is of all that comes in a row, and made when that first comes."""
        role, ids = self.templates.spoken("Hello there.")
        prefix = prefix_rows(self, role, voice=self.voices[0], language=None)
        prompt = spoken_after(self, prefix, (ids * tokens)[:tokens], full=True)
        state, code0, hidden = self.talker.start(prompt.prefill, self.sampling, 0)
        codes, _ = self.predictor.frame(hidden, code0, self.sub_sampling, state.key, state.frame)
        return to_int16(self.codec.step(codes[:, None], self.codec.start())[0])

    def _warm_predictor(
        self, hidden: mx.array, code0: mx.array, key: mx.array, frame: mx.array, wide: int
    ) -> Any:
        return self.predictor.frames(
            [hidden] * wide, [code0] * wide, self.sub_sampling, [key] * wide, [frame] * wide
        )

    def _warm_codec(self, codes: mx.array) -> Any:
        pcm, state = self.codec.step(codes, self.codec.start())
        return to_int16(pcm), state
