"""Builds the stages of a loop. `device_main` is the life of the device thread; `loop_stages` needs no MLX."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from ..bus.channel import Stage
from ..bus.control import Loading, ModelInfo, Notice, Progress, Ready
from ..bus.device_thread import Commands
from ..bus.errors import StartError
from ..bus.layout import Layout
from ..bus.lease import Parties, parties
from ..bus.loop import Station, Wiring
from ..bus.messages import FAMILIES
from ..bus.run_folder import Alone, starting
from ..bus.turns import Party, SpeechParty
from ..configs.joined import cache_folder
from ..configs.models import find, refuse_other, split_name
from ..configs.voice_store import VoiceStore
from .device import Device
from .speech.encoder import EncoderStage


def loop_stages(names: tuple[str, ...]) -> dict[str, Stage]:
    """The stages of a process's own event loop, other than the API itself."""
    return {name: EncoderStage() for name in names if name == "encoder"}


async def device_main(
    station: Station, progress: Progress, notify: Callable[[Notice], None], commands: Commands
) -> None:
    """Load, warm up and serve until the commands end. Raises a VivavoceError where a model cannot be had."""
    from . import device

    settings = station.layout.device
    machine = device.setup(
        cache_limit_bytes=settings.cache_limit_bytes, wired_limit_bytes=settings.wired_limit_bytes
    )
    try:
        async with parties(station, _drain) as shared, Wiring(station) as wiring:
            with starting(station.folder) as alone:
                models, stages = _load(station, progress, notify, shared, machine, alone)
            progress.active = lambda: {name: len(stage.open_requests()) for name, stage in stages.items()}
            progress.waiting_s = lambda: max(party.waiting_s for party in shared)
            wiring.run(stages)
            for party in shared:
                party.join()
            notify(Ready(backend=machine.name, models=models, hints=tuple(machine.hints)))
            async for command in commands:
                wiring.relink(command.process, command.epoch, command.failure)
    finally:
        device.release()


def _drain() -> None:
    import mlx.core as mx

    mx.synchronize()


def _report(notify: Callable[[Notice], None], what: str, done: float) -> None:
    notify(Loading(what, done))


Loaded = tuple[tuple[ModelInfo, ...], dict[str, Stage]]


def _load(
    station: Station,
    progress: Progress,
    notify: Callable[[Notice], None],
    shared: Parties,
    machine: Device,
    alone: Alone,
) -> Loaded:
    """The stages of a device thread and their models."""
    chat: Loaded = ((), {})
    if "chat" in station.stages:
        chat = _chat(station, progress, notify, shared.chat, machine, alone)
    speech: Loaded = ((), {})
    if any(name in FAMILIES["speech"] for name in station.stages):
        speech = _speech(station, progress, notify, shared.speech)
    return speech[0] + chat[0], speech[1] | chat[1]


def _chat(
    station: Station,
    progress: Progress,
    notify: Callable[[Notice], None],
    party: Party,
    machine: Device,
    alone: Alone,
) -> Loaded:
    import mlx.core as mx

    from . import device
    from .chat.engine import Engine, EngineOptions
    from .chat.model import KvOptions, load_model
    from .chat.prefix_disk import ChunkFiles
    from .chat.slices import slice_tokens
    from .chat.stage import ChatStage
    from .chat.warm import warm_up

    if device.on_cpu():
        # mlx-lm compiles parts of its models; on a CPU that needs a C++ compiler and is slower.
        mx.disable_compile()
    layout = station.layout
    settings = layout.chat
    if not settings.models:
        raise StartError(
            "no chat model: give one with --chat-model, or name it in [chat] models of the layout"
        )
    if settings.draft_model is not None and len(settings.models) > 1:
        raise StartError("a draft model guesses for one chat model: leave out the others, or --draft-model")
    kv = KvOptions(bits=settings.kv_bits, group_size=settings.kv_group_size, max_size=settings.max_kv_size)
    options = EngineOptions(
        chunk=settings.chunk,
        rows=settings.rows,
        cache_bytes=settings.cache_bytes,
        draft_tokens=settings.draft_tokens,
    )
    draft = None
    if settings.draft_model is not None:
        notify(Loading("loading the draft model"))
        path = find(split_name(settings.draft_model)[1])
        refuse_other(path, "chat")
        draft = load_model(str(path), kv)
    files = None
    if settings.prompt_cache is not None:
        files = ChunkFiles(Path(settings.prompt_cache).expanduser(), settings.prompt_cache_bytes)
    engines: dict[str, Engine] = {}
    infos: list[ModelInfo] = []
    for source in settings.models:
        name, where = split_name(source)
        notify(Loading(f"loading {name}"))
        path = find(where)
        refuse_other(path, "chat")
        model = load_model(str(path), kv)
        if layout.sharing(station.process) is not None:
            most = settings.slice_tokens
            if most == "measured":
                notify(Loading(f"measuring {name}"))
                most = slice_tokens(
                    cache_folder() / "slices",
                    f"{machine.name}, {machine.description}, {machine.blas}",
                    [model] if draft is None else [model, draft],
                    chunk=settings.chunk,
                    slice_s=layout.schedule.slice_s,
                    alone=partial(
                        alone, partial(notify, Loading(f"measuring {name} when the others are ready"))
                    ),
                )
            options = msgspec.structs.replace(options, slice_tokens=most)
        if not device.on_cpu():
            notify(Loading(f"warming up {name}"))
            warm_up(model, options, draft)
        engines[name] = Engine(model, options, draft, files)
        infos.append(
            ModelInfo(
                name=name,
                family="chat",
                kind=model.name,
                size=model.size,
                source=where,
                context=model.context,
            )
        )
    return tuple(infos), {"chat": ChatStage(engines, progress, party)}


def _speech(
    station: Station, progress: Progress, notify: Callable[[Notice], None], party: SpeechParty
) -> Loaded:
    from .speech.code_predictor import CodePredictorStage
    from .speech.codec_decoder import CodecDecoderStage
    from .speech.prompt import PromptStage
    from .speech.qwen3.checkpoint import load
    from .speech.qwen3.model import PARTS
    from .speech.talker import TalkerStage

    layout: Layout = station.layout
    rows = layout.speech.rows
    models, infos = {}, []
    for source in layout.speech.models:
        name, where = split_name(source)
        notify(Loading(f"loading {name}"))
        path = find(where)
        refuse_other(path, "speech")
        dtype = None if layout.speech.dtype == "auto" else layout.speech.dtype
        model = load(path, dtype=dtype, parts=frozenset(station.stages) & PARTS)
        model.warm_up(partial(_report, notify, f"warming up {name}"), rows)
        models[name] = model
        infos.append(
            ModelInfo(
                name=name,
                family="speech",
                kind=model.kind,
                size=model.size,
                source=where,
                voices=tuple(model.voices),
                languages=tuple(model.languages),
                max_frames=model.max_frames,
                instructions=model.takes_instructions,
            )
        )
    files = VoiceStore(layout.api.voices_folder).files
    makers: dict[str, Callable[[], Stage]] = {
        "prompt": lambda: PromptStage(models, progress, layout.speech, party, files),
        "talker": lambda: TalkerStage(models, layout.speech, progress, party, files, rows),
        "code_predictor": lambda: CodePredictorStage(models, progress, party, rows),
        "codec_decoder": lambda: CodecDecoderStage(models, layout.speech, progress, party, files),
    }
    return tuple(infos), {name: makers[name]() for name in station.stages if name in makers}
