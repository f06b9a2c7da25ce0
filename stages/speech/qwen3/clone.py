"""Prompts in a cloned voice: from an x-vector alone, or with the reference as context (ICL).

With an x-vector alone the prompt is a preset's, with the x-vector as the voice's row. With the reference, its
transcript R, the text T and the codec rows C (codec bos, then one row a reference frame) lie thus:

    streaming        text  R T eos pad pad …   beside C, one for one; text that is longer than C goes on a token a
                     frame. The official default.
    full             text  R T eos  beside codec pad, then  pad  beside C. The official `non_streaming_mode`.
    reference_first  text  R pad pad …  beside C, and T begins beside the last row of C; all before that depends on
                     the reference alone, so that its keys and values serve every text.

What reference_first gains: the second request of a voice computes one row instead of those behind R. With the
released 0.6B dimensions and 6 s of reference that is 0.2 s instead of 1.1 s of processor time; where a prompt is
one wait for the device, as on a large GPU, it is next to nothing. What it costs: in the official layouts the model
has read much or all of T before the first frame, here one token, and then one a frame, as when text is still
arriving; presets speak less steadily so. How near a clone's voice stays has not been measured: it takes the
released weights.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

import mlx.core as mx

from ....bus.errors import RequestError
from .prompt import Prompt, prefix_rows, spoken_after, text_rows

if TYPE_CHECKING:
    from .model import Qwen3TTS

Layout = Literal["streaming", "full", "reference_first"]


class Clone(NamedTuple):
    """A voice taken from a reference."""

    x_vector: mx.array
    """float32 [H]"""
    codes: mx.array | None = None
    """int32 [T, 16] of the reference; None for the x-vector alone."""
    text: str | None = None
    """What is said in the reference; there where `codes` are."""


def build_clone(
    model: "Qwen3TTS", text: str, clone: Clone, *, language: str | None, layout: Layout = "streaming"
) -> Prompt:
    """The prompt of a whole text in the voice of `clone`.

    :raises RequestError: empty text, or unknown language.
    """
    role, ids = model.templates.spoken(text)
    if not ids:
        raise RequestError("The text to speak is empty.", "input")
    if clone.codes is None:
        prefix = prefix_rows(model, role, voice=None, language=language, x_vector=clone.x_vector)
        return spoken_after(model, prefix, ids, full=layout == "full")
    said = model.templates.spoken(clone.text or "")[1]
    if layout == "reference_first":
        prefix, beside, waiting = reference_prefix(model, clone, language)
        words = text_rows(model, waiting + ids)
        prefill = mx.concatenate([prefix, words[:, :1] + beside], axis=1)
        trailing = mx.concatenate([words[:, 1:], model.rows.end], axis=1)
        return Prompt(prefill, trailing, model.rows.pad, len(ids), prefix.shape[1])
    prefix = prefix_rows(model, role, voice=None, language=language, x_vector=clone.x_vector)
    words = mx.concatenate([text_rows(model, said + ids), model.rows.end], axis=1)
    frames, pad = _frames(model, clone.codes), model.rows.pad
    if layout == "full":
        parts = [prefix, words + model.rows.codec_pad, pad + frames]
        spare, static = 0, len(said)
    else:
        # The last row is never static: it is what a remembered prefix is resumed with.
        spare, static = words.shape[1] - frames.shape[1], min(len(said), frames.shape[1] - 1)
        parts = [prefix, _padded(words, frames.shape[1], pad) + frames]
    trailing = words[:, words.shape[1] - max(spare, 0) :]
    return Prompt(mx.concatenate(parts, axis=1), trailing, pad, len(ids), prefix.shape[1] + static)


def reference_prefix(
    model: "Qwen3TTS", clone: Clone, language: str | None
) -> tuple[mx.array, mx.array, list[int]]:
    """Layout `reference_first`: the rows before the text [1, L, H], the codec row beside its first token [1, 1, H],
    and the ids of a transcript longer than its sound, which come before the text.

    Without reference codes: the prompt's prefix and codec bos.
    """
    role, said = model.templates.spoken(clone.text or "")
    prefix = prefix_rows(model, role, voice=None, language=language, x_vector=clone.x_vector)
    if clone.codes is None:
        return prefix, model.rows.codec_bos, []
    frames = _frames(model, clone.codes)
    past = frames.shape[1] - 1
    beside = _padded(text_rows(model, said[:past]), past, model.rows.pad) + frames[:, :past]
    return mx.concatenate([prefix, beside], axis=1), frames[:, past:], said[past:]


def _frames(model: "Qwen3TTS", codes: mx.array) -> mx.array:
    """Codec bos and the summed embeddings of codes [T, 16]: [1, T + 1, H]."""
    return mx.concatenate([model.rows.codec_bos, model.predictor.embed(codes).swapaxes(0, 1)], axis=1)


def _padded(rows: mx.array, length: int, pad: mx.array) -> mx.array:
    """The first `length` of rows [1, n, H], or all and `pad` [1, 1, H] behind them."""
    missing = length - rows.shape[1]
    if missing <= 0:
        return rows[:, :length]
    return mx.concatenate([rows, mx.broadcast_to(pad, (1, missing, pad.shape[2]))], axis=1)
