"""Voices to imitate on the command line: recordings in files, and the user's stored voices."""

import argparse
import io
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from .cli_terminal import size, words

if TYPE_CHECKING:
    from ..bus.control import ModelInfo
    from ..bus.layout import Layout
    from ..configs.voice_store import VoiceStore
    from .cloning import Likeness


def add(actions: Any) -> None:
    """`vivavoce voices add` and `remove`."""
    adding = actions.add_parser("add", help="store a voice, for Base models to imitate")
    adding.add_argument("name", metavar="NAME")
    adding.add_argument("file", metavar="FILE", help="a recording of 0.5 to 30 s")
    adding.add_argument("--text", type=words, help="what is said in it")
    adding.add_argument("--consent", type=words, help="who allowed the use of the voice")
    adding.add_argument("--description", type=words)
    adding.set_defaults(run=run_add)
    removing = actions.add_parser("remove", help="forget a stored voice")
    removing.add_argument("name", metavar="NAME")
    removing.set_defaults(run=run_remove)


def run_add(args: argparse.Namespace) -> int:
    _refuse_preset(args.name)
    voice = _store().add(
        args.name, recording(args.file), text=args.text, consent=args.consent, description=args.description
    )
    print(f"{voice.name}: {voice.seconds:.1f} s, {'with' if voice.text else 'without'} transcript")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    from ..bus.errors import VivavoceError

    if not _store().remove(args.name):
        raise VivavoceError(f"there is no stored voice {args.name!r}: see `vivavoce voices`")
    return 0


def show(kind: str) -> None:
    """List the stored voices."""
    store = _store()
    voices = store.all()
    if voices:
        print("stored voices:" if kind == "base" else "stored voices (this model cannot imitate them):")
    for voice in voices:
        print(f"  {voice.name} ({voice.seconds:.1f} s, {'with' if voice.text else 'without'} transcript)")
    for name in store.refused():
        print(f"  {store.folder / name} is damaged: remove it and add the voice again")


def summary(layout: "Layout", models: "tuple[ModelInfo, ...]") -> list[str]:
    """What a server says of the stored voices when it starts; nothing where there are none."""
    store = _store(layout)
    names, refused = [voice.name for voice in store.all()], store.refused()
    able = [model.name for model in models if model.kind == "base"]
    told: list[str] = []
    if names:
        told.append(f"stored voices: {', '.join(names)}{'' if able else ' (no model here can imitate them)'}")
    if refused:
        told.append(f"damaged voices in {store.folder}: {', '.join(refused)}")
    return told


async def chosen(args: argparse.Namespace, layout: "Layout") -> "Likeness | None":
    """The voice that `--ref-audio`, `--speaker-embedding` or a stored voice's name asks to imitate."""
    from ..bus.errors import VivavoceError
    from .cloning import Likeness

    if args.save_voice is not None:
        _check_free(args.save_voice, layout)
    given = [
        option
        for option in ("--voice", "--ref-audio", "--speaker-embedding")
        if getattr(args, option[2:].replace("-", "_")) is not None
    ]
    if len(given) > 1:
        raise VivavoceError(f"{' and '.join(given)} are {len(given)} voices: give one of them")
    if args.ref_audio is None:
        if args.ref_text is not None:
            raise VivavoceError("--ref-text says what is in --ref-audio, which is missing")
        if args.speaker_embedding is not None:
            return Likeness(x_vector=_embedding(args.speaker_embedding, layout))
        stored = _store(layout).find(args.voice) if args.voice else None
        if stored is None:
            return None
        return Likeness(stored.pcm, None if args.x_vector else stored.text, stored=stored.name)
    return Likeness(recording(args.ref_audio, layout), None if args.x_vector else args.ref_text)


def _check_free(name: str, layout: "Layout") -> None:
    """Raises VivavoceError where no voice can be stored by this name: better before the speech than after it."""
    from ..bus.errors import VivavoceError
    from ..configs.voice_store import check_name

    check_name(name)
    _refuse_preset(name)
    if _store(layout).find(name) is not None:
        raise VivavoceError(f"there is a voice {name!r} already: choose another name, or remove it first")


def _embedding(file: str, layout: "Layout") -> bytes:
    """float32 numbers of a speaker embedding in a NumPy or JSON file. Raises VivavoceError for anything else."""
    import numpy as np

    from ..bus.errors import VivavoceError

    data = _read(file, layout)
    try:
        if file.endswith(".npy"):
            values = np.load(io.BytesIO(data), allow_pickle=False)
        else:
            values = np.array(json.loads(data), np.float32)
        packed = values.astype("<f4").squeeze()
    except (ValueError, TypeError, EOFError):
        raise VivavoceError(f"{file} holds no numbers: give a .npy file, or a JSON list") from None
    if packed.ndim != 1 or not np.isfinite(packed).all():
        raise VivavoceError(f"{file} holds no list of finite numbers, which a speaker embedding is")
    return packed.tobytes()


def recording(file: str, layout: "Layout | None" = None) -> bytes:
    """PCM of an audio file. Raises VivavoceError where it cannot be read or used."""
    from . import references

    return references.decode(_read(file, layout), file)


def _read(file: str, layout: "Layout | None") -> bytes:
    """A regular file, as large as what a client may send. Raises VivavoceError."""
    from ..bus.errors import VivavoceError
    from ..bus.layout import Api

    most = (layout.api if layout is not None else Api()).max_body_bytes
    try:
        mode = os.stat(file).st_mode  # before it is opened: that alone may wait, or do something
        if not stat.S_ISREG(mode):
            raise VivavoceError(f"{file} is no regular file")
        with open(file, "rb") as opened:
            data = opened.read(most + 1)
    except OSError as error:
        raise VivavoceError(f"{file}: {error.strerror}") from None
    if len(data) > most:
        raise VivavoceError(f"{file} is too large: at most {size(most)} are taken")
    return data


def save(
    name: str, layout: "Layout", voice: "Likeness | None", heard: bytes, kind: str, text: str, reason: str
) -> None:
    """Store the voice that was imitated; else the one that was heard, with the text that it spoke."""
    import numpy as np

    from ..bus.errors import VivavoceError
    from . import references

    store = _store(layout)
    if voice is not None and voice.pcm is not None:
        store.add(name, voice.pcm, text=voice.text)
        return
    if reason != "stop":
        raise VivavoceError(
            f"the voice is not stored as {name!r}: its speech was cut, so it does not fit the text"
        )
    if kind == "pcm":
        pcm = references.usable(np.frombuffer(heard, "<i2").astype(np.float32) * np.float32(2**-15), name)
    else:
        pcm = references.decode(heard, name)
    store.add(name, pcm, text=text, description="made by vivavoce")


def _refuse_preset(name: str) -> None:
    """A stored voice of the released presets' names would hide one of them."""
    from ..bus.errors import VivavoceError
    from ..configs.models import EMBEDDED, find
    from .cli_checkpoint import read_config

    if name.lower() in read_config(find(EMBEDDED)).talker_config.spk_id:
        raise VivavoceError(f"{name!r} is a preset voice: choose another name")


def _store(layout: "Layout | None" = None) -> "VoiceStore":
    from ..configs.voice_store import VoiceStore

    return VoiceStore(layout.api.voices_folder if layout is not None else None)
