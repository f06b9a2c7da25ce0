"""Where models are: an embedded voice, a folder, or a hub id.

The network is used at start-up or by command only, never because of a request.
"""

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from ..bus.errors import StartError
from .joined import joined

EMBEDDED = "embedded"
SHIPPED = {
    EMBEDDED: (EMBEDDED,),
    "embedded-base": ("embedded-base", EMBEDDED),
    "embedded-design": ("embedded-design", EMBEDDED),
}
"""The models in this package, and the folders in `voices` with their files; where several have one, the first
folder's counts."""
SPEECH = "qwen3_tts"


class _Kind(msgspec.Struct):
    model_type: str


def split_name(source: str) -> tuple[str, str]:
    """`name=source` as (name, source); without a name the last part of the source is the name."""
    name, given, where = source.partition("=")
    if given:
        return name, where
    return Path(source).name, source


def find(source: str, *, download: bool = True) -> Path:
    """Folder of a model. A hub id that is not on disk is downloaded, with a progress bar, if `download`.

    Raises StartError in one sentence: no such folder, no such model, or no way to the hub.
    """
    if source in SHIPPED:
        voices = Path(str(resources.files("vivavoce.configs") / "voices"))
        return joined(source, [voices / name for name in SHIPPED[source]])
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise StartError(
            f"no model folder {source!r}: give a folder, a hub id such as owner/name, or {' or '.join(SHIPPED)}"
        )
    try:
        return Path(snapshot_download(source, local_files_only=True))
    except LocalEntryNotFoundError:
        if not download:
            raise StartError(
                f"model {source!r} is not on this machine: `vivavoce download {source}` gets it"
            ) from None
    except HFValidationError as error:
        raise StartError(f"{source!r} is neither a folder nor a hub id: {error}") from None
    try:
        return Path(snapshot_download(source))
    except RepositoryNotFoundError:
        raise StartError(f"the hub has no model {source!r} that this machine may read") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise StartError(
            f"no model {source!r} on this machine, and the hub cannot be reached ({type(error).__name__}): "
            f"check the network, or give a folder or {EMBEDDED!r}"
        ) from None


def kind(folder: Path) -> str | None:
    """`model_type` of a model's config.json, None where that cannot be read, which the model's loader tells."""
    try:
        return msgspec.json.decode((folder / "config.json").read_bytes(), type=_Kind).model_type
    except (OSError, msgspec.DecodeError):
        return None


def refuse_other(folder: Path, family: Literal["speech", "chat"]) -> None:
    """Raises StartError for a model of the other family."""
    found = kind(folder)
    if family == "speech" and found not in (None, SPEECH):
        raise StartError(
            f"{folder / 'config.json'} is not that of a Qwen3-TTS model but of {found!r}: a chat model is given "
            "with --chat-model"
        )
    if family == "chat" and found == SPEECH:
        raise StartError(
            f"{folder} holds a speech model, which cannot chat: `serve` takes it with --speech-model"
        )
