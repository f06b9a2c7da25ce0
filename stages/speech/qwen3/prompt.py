"""Text, voice, language, instructions → the rows that the talker is started with.

Every row is a text row (projected text embedding) plus a codec row (talker embedding), as in the official code:

    [instruction turn]   text only
    role                 text only: the three tokens <|im_start|>assistant\n
    codec prefix         think, think_bos, LANGUAGE, think_eos  or  nothink, think_bos, think_eos; then the voice's
                         row, then pad; beside tts_pad … tts_bos
    full text            every text token and tts_eos beside pad, then tts_pad beside codec bos;
                         each later frame adds tts_pad
    or streaming text    the first text token beside codec bos; each later frame adds the next one, tts_eos, tts_pad
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

import mlx.core as mx

from ....bus.errors import RequestError
from ....configs import languages

if TYPE_CHECKING:
    from .model import Qwen3TTS


class Prompt(NamedTuple):
    prefill: mx.array
    """[1, L, H]"""
    trailing: mx.array
    """[1, n, H]: text rows of the next frames, one per frame; n is 0 with full text."""
    pad: mx.array
    """[1, 1, H]: the text row of every frame after those."""
    text_tokens: int
    static: int = 0
    """How many of the first prefill rows do not depend on the text."""


def build(
    model: "Qwen3TTS",
    text: str,
    *,
    voice: str | None,
    language: str | None,
    instructions: str | None,
    full_text: bool = True,
) -> Prompt:
    """The prompt of a whole text. `full_text` puts all of it before the first frame (steadier pace).

    The 0.6B custom-voice model has never seen instructions; they are left out for it, as in the official code
    (`model.takes_instructions` tells).

    :raises RequestError: empty text, or an unknown voice or language.
    """
    role, ids = model.templates.spoken(text)
    if not ids:
        raise RequestError("The text to speak is empty.", "input", code="empty_input")
    prefix = prefix_rows(model, role, voice=voice, language=language, instructions=instructions)
    return spoken_after(model, prefix, ids, full=full_text)


def spoken_after(model: "Qwen3TTS", prefix: mx.array, ids: list[int], *, full: bool) -> Prompt:
    """The prompt of text `ids` behind the rows of a voice, [1, L, H]."""
    pad, end = model.rows.pad, model.rows.end
    words = text_rows(model, ids)
    if full:
        spoken = mx.concatenate([words, end], axis=1) + model.rows.codec_pad
        prefill = mx.concatenate([prefix, spoken, pad + model.rows.codec_bos], axis=1)
        trailing = mx.zeros((1, 0, prefill.shape[2]), prefill.dtype)
    else:
        prefill = mx.concatenate([prefix, words[:, :1] + model.rows.codec_bos], axis=1)
        trailing = mx.concatenate([words[:, 1:], end], axis=1)
    return Prompt(prefill, trailing, pad, len(ids), prefix.shape[1])


def text_rows(model: "Qwen3TTS", ids: list[int]) -> mx.array:
    """Projected text embeddings, [1, n, H]."""
    return model.rows.text(mx.array([ids], mx.int32))


def prefix_rows(
    model: "Qwen3TTS",
    role: list[int],
    *,
    voice: str | None,
    language: str | None,
    instructions: str | None = None,
    x_vector: mx.array | None = None,
) -> mx.array:
    """The rows before the text, [1, L, H]: they depend on voice, language and instructions only.

    `x_vector` [H] is the row of a voice that is not a preset.

    :raises RequestError: unknown voice or language.
    """
    config, rows = model.config.talker_config, model.rows
    speaker = resolve_voice(model, voice)
    spoken = resolve_language(model, language, speaker)
    if spoken is None:
        codec = [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
    else:
        codec = [config.codec_think_id, config.codec_think_bos_id, spoken, config.codec_think_eos_id]
    codec_rows = [rows.codec(codec)]
    if x_vector is not None:
        codec_rows.append(x_vector.astype(rows.pad.dtype)[None, None])
    elif speaker is not None:
        codec_rows.append(rows.codec([config.speaker(speaker)]))
    codec_rows.append(rows.codec_pad)
    beside = mx.concatenate(codec_rows, axis=1)
    pads = mx.broadcast_to(rows.pad, (1, beside.shape[1] - 1, rows.pad.shape[2]))
    parts = [text_rows(model, role), mx.concatenate([pads, rows.begin], axis=1) + beside]
    if instructions and model.takes_instructions:
        parts.insert(0, text_rows(model, model.templates.instruction(instructions)))
    return mx.concatenate(parts, axis=1)


def resolve_voice(model: "Qwen3TTS", voice: str | None) -> str | None:
    """The checkpoint's own spelling of a preset voice; None only where the model has no presets.

    :raises RequestError: the model has no such voice, or presets and none was named.
    """
    names = model.config.talker_config.spk_id
    if not names:
        if voice:
            raise RequestError(
                f"This model has no preset voices, so voice {voice!r} cannot be used.", "voice"
            )
        return None
    listed = ", ".join(sorted(names))
    if not voice:
        raise RequestError(f"Name a voice; this model has {listed}.", "voice")
    for name in names:
        if name.lower() == voice.strip().lower():
            return name
    raise RequestError(f"There is no voice {voice!r}; this model has {listed}.", "voice")


def resolve_language(model: "Qwen3TTS", language: str | None, speaker: str | None) -> int | None:
    """The codec id of a language, or None to let the model find out.

    `language` is a name, an ISO code (also with a region, `pt-BR`), `auto` or None. A voice that speaks a dialect
    keeps it when the language is Chinese or automatic.

    :raises RequestError: the model does not speak it.
    """
    config = model.config.talker_config
    name = languages.find(language or "auto", model.languages)
    if name is None:
        raise RequestError(languages.unknown(language or "", model.languages), "language")
    dialect = config.spk_is_dialect.get(speaker) if speaker else None
    if isinstance(dialect, str) and name in ("chinese", "auto"):
        name = dialect
    return None if name == "auto" else config.codec_language_id[name]


class TextFeed:
    """Text that arrives while it is spoken: the first token starts the talker, one more goes in per frame.

    A word is cut into tokens once what follows it (or the end) is known, so that the way a text was split on its
    way here does not change its tokens.
    """

    def __init__(
        self, model: "Qwen3TTS", prefix: mx.array, beside: mx.array, before: Sequence[int] = ()
    ) -> None:
        """
        :param prefix: the rows before the text, [1, L, H].
        :param beside: the codec row of its first token, [1, 1, H].
        :param before: tokens that come before those of the text.
        """
        self._model = model
        self._prefix, self._beside, self._before = prefix, beside, list(before)
        self._pending = ""
        self._ids: list[int] = []
        self._final = False
        self.started = False

    def add(self, text: str, *, final: bool, words: bool = False) -> None:
        """More text; `final` says that there is no more after it, `words` that it ends no word before its end."""
        self._pending += text
        whole = final or (words and self._pending[-1:].isalnum())
        cut = len(self._pending) if whole else _boundary(self._pending)
        if cut > 0:
            self._ids += self._model.tokenizer.encode(self._pending[:cut])
            self._pending = self._pending[cut:]
        self._final = final

    @property
    def ready(self) -> bool:
        """Whether `prompt` can be called."""
        return bool(self._ids) or self._final

    def prompt(self) -> Prompt:
        """The prefill with the first token, and the rows known so far.

        :raises RequestError: the text has ended without a token.
        """
        if not self._ids:
            raise RequestError("The text to speak is empty.", "input", code="empty_input")
        self.started = True
        tokens = len(self._ids)
        self._ids = self._before + self._ids
        first = text_rows(self._model, [self._ids.pop(0)]) + self._beside
        prefill = mx.concatenate([self._prefix, first], axis=1)
        return Prompt(prefill, self.rows()[0], self._model.rows.pad, tokens, self._prefix.shape[1])

    def rows(self) -> tuple[mx.array, int]:
        """The text rows [1, n, H] that have become known, tts_eos behind the last, and how many tokens they are."""
        ids, self._ids = self._ids, []
        words = text_rows(self._model, ids) if ids else self._model.rows.pad[:, :0]
        return (mx.concatenate([words, self._model.rows.end], axis=1) if self._final else words), len(ids)


def _boundary(text: str) -> int:
    """Where the last word that something follows ends: no token crosses it, whatever comes after `text`."""
    for end in range(len(text) - 1, 0, -1):
        follower = text[end]
        if text[end - 1].isalnum() and not follower.isalnum() and not category(follower).startswith("M"):
            return end
    return 0
