"""The official PyTorch implementation (qwen-tts), loaded in float32 for numbers to hold ours to."""

import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers  # looks for torchaudio when imported, so it comes before the stand-ins


def _stand_in_for(*names: str) -> None:
    # Only the 25 Hz tokenizer uses these; the package imports them all the same.
    for name in names:
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)  # find_spec is asked for it
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


_stand_in_for("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")

from qwen_tts import Qwen3TTSModel  # noqa: E402
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration  # noqa: E402
from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram  # noqa: E402
from qwen_tts.core.tokenizer_12hz import configuration_qwen3_tts_tokenizer_v2 as codec_configuration  # noqa: E402
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model  # noqa: E402
from tiny import codec  # noqa: E402
from transformers.masking_utils import create_sliding_window_causal_mask  # noqa: E402
from transformers.models.mimi import modeling_mimi  # noqa: E402

MimiEuclideanCodebook = modeling_mimi.MimiEuclideanCodebook
Qwen3TTSTokenizerV2Config = codec_configuration.Qwen3TTSTokenizerV2Config
__all__ = [
    "MimiEuclideanCodebook",
    "Qwen3TTSConfig",
    "Qwen3TTSForConditionalGeneration",
    "Qwen3TTSModel",
    "Qwen3TTSTokenizerV2Config",
    "Qwen3TTSTokenizerV2Model",
    "load",
    "mel_spectrogram",
    "windowed_encoder",
    "without_talker",
]

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
torch.set_num_threads(1)  # sums in one order, whatever the machine
torch.use_deterministic_algorithms(True)


# Without `encoder_config` the official code would draw 90 million random weights for an encoder that is not there.
_MimiConfig = codec_configuration.MimiConfig
codec_configuration.MimiConfig = lambda **fields: _MimiConfig(
    **(fields or codec(encoder=True)["encoder_config"])
)


class _EnoughError(Exception):
    """Ends a call to the official code once what is wanted has been seen."""


def load(folder: Path) -> Qwen3TTSModel:
    """The checkpoint in `folder`, talker and codec, in float32 on the CPU."""
    tts = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, device_map="cpu")
    tts.model.eval()
    tts.model.speech_tokenizer.model.eval()
    return tts


def without_talker(tts: Qwen3TTSModel, call: Callable[[], Any]) -> dict[str, Any]:
    """What `call` (one of the official generate functions) hands to the talker, which is then not run.

    Returns `inputs_embeds` [1, L, H], `trailing_text_hidden` [1, T, H], `tts_pad_embed` [1, 1, H] and the settings.
    """
    seen: dict[str, Any] = {}

    def catch(**arguments: Any) -> None:
        seen.update(arguments)
        raise _EnoughError

    with patch.object(tts.model.talker, "generate", catch), suppress(_EnoughError):
        call()
    return seen


def windowed_encoder() -> AbstractContextManager[Any]:
    """Gives the codec encoder's attention the window of its config, which transformers 4.57.3 leaves out."""
    return patch.object(modeling_mimi, "create_causal_mask", create_sliding_window_causal_mask)
