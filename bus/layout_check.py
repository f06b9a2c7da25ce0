"""What is wrong with a layout that decodes but cannot run."""

import math
import re
from collections.abc import Iterator

import msgspec

from .layout import Layout
from .messages import FAMILIES, LINKS
from .schedule import FRAME_S

TCP = re.compile(r"tcp://(?:\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})")
STAGES = ("api", *(stage for family in FAMILIES.values() for stage in family))


def is_tcp(address: str) -> bool:
    """Whether it is tcp://HOST:PORT, of a port that there can be."""
    found = TCP.fullmatch(address)
    return found is not None and 0 < int(found[1]) < 1 << 16


def find_problem(layout: Layout) -> str | None:
    """The first problem as `key: why; what is allowed`, None for a layout that can run."""
    for check in (_placement, _families, _models, _links, _network, _finite, _numbers, _cycle):
        for problem in check(layout):
            return problem
    return None


def _placement(layout: Layout) -> Iterator[str]:
    for process in layout.process:
        for stage in (*process.loop, *process.device):
            if stage not in STAGES:
                yield f"process.{process.name}: unknown stage {stage!r}; allowed: {', '.join(STAGES)}"
        for stage in ("api", "encoder"):
            if stage in process.device:
                yield f"process.{process.name}: {stage!r} does not touch the device: place it in `loop`"
        for stage in process.loop:
            if stage not in ("api", "encoder"):
                yield f"process.{process.name}: {stage!r} works on the device: place it in `device`"
    if len({process.name for process in layout.process}) < len(layout.process):
        yield "process: two processes have the same name"
    for process in layout.process:
        if not process.loop and not process.device:
            yield f"process.{process.name}: it runs no stages; place some in `loop` or `device`, or remove it"
    stages = layout.stages()
    for stage in stages:
        if stages.count(stage) > 1:
            yield f"process: stage {stage!r} is placed {stages.count(stage)} times, once is allowed"
    if "api" not in stages:
        yield "process: no process runs the stage 'api'"


def _families(layout: Layout) -> Iterator[str]:
    stages = layout.stages()
    for family, members in FAMILIES.items():
        missing = [stage for stage in members if stage not in stages]
        if missing and len(missing) < len(members):
            yield f"process: {family} needs {', '.join(members)}; not placed: {', '.join(missing)}"
    if set(stages) == {"api"}:
        yield f"process: nothing to serve: place the stages of {' or '.join(FAMILIES)}"


def _models(layout: Layout) -> Iterator[str]:
    # Late: it brings the hub's client, which other commands do without.
    from ..configs.models import split_name

    speech, chat = layout.place("talker") is not None, layout.place("chat") is not None
    if speech and not layout.speech.models:
        yield "speech.models: there is none; name one, such as embedded"
    if layout.chat.models and not chat:
        yield "chat.models: no process runs the stage 'chat'; place it in `device`, or remove them"
    sources = (layout.speech.models if speech else ()) + layout.chat.models
    names = [split_name(source)[0] for source in sources]
    for name in names:
        if names.count(name) > 1:
            yield f"speech.models, chat.models: {names.count(name)} are named {name!r}; give one as NAME=SOURCE"
    for alias in layout.api.model_aliases:
        meant, seen = alias, set[str]()
        while meant in layout.api.model_aliases and meant not in seen:
            seen.add(meant)
            meant = layout.api.model_aliases[meant]
        if meant in seen:
            yield f"api.model_aliases: {alias!r} leads back to itself; give the name of a model"


def _links(layout: Layout) -> Iterator[str]:
    stages = ("api", *(stage for members in FAMILIES.values() for stage in members))
    seen: set[tuple[str, str]] = set()
    for link in layout.link:
        edge = (link.source, link.target)
        name = f"link.{link.source}→{link.target}"
        if edge not in LINKS:
            known = [stages.index(end) for end in edge if end in stages]
            backward = len(known) == 2 and known[0] >= known[1]
            why = "would close a cycle that the stages do not have" if backward else "joins nothing"
            yield f"{name}: {why}; allowed: {', '.join(f'{source}→{target}' for source, target in LINKS)}"
        elif edge in seen:
            yield f"{name}: given twice"
        elif not set(edge) <= set(layout.stages()):
            yield f"{name}: dangling, not both ends are placed"
        seen.add(edge)


def _network(layout: Layout) -> Iterator[str]:
    """What goes over TCP, and that nothing does so without keys."""
    api = layout.place("api")
    addresses = {
        **{f"link.{link.source}→{link.target}.address": link.address for link in layout.link},
        **{f"process.{process.name}.control": process.control for process in layout.process},
        "taps.address": layout.taps.address,
        "taps.collect": layout.taps.collect,
    }
    given = {key: address for key, address in addresses.items() if address is not None}
    for key, address in given.items():
        if not is_tcp(address):
            yield f"{key}: {address!r} is no address; allowed: tcp://HOST:PORT, PORT up to 65535"
        if layout.keys is None:
            yield f"{key}: {address} would be open to all; make `keys` with `vivavoce keys` and name their file"
    if len(set(given.values())) < len(given):
        yield f"two of {', '.join(given)} are the same address"
    for process in layout.process:
        if api is not None and process.name == api[0] and (process.control or process.python):
            yield f"process.{process.name}: it runs the API and starts the others; remove control and python"
    for link in layout.links():
        source, target = layout.place(link.source), layout.place(link.target)
        assert source is not None
        assert target is not None
        if source[0] == target[0]:
            if link.address is not None:
                yield f"link.{link.source}→{link.target}.address: both ends are in process {source[0]!r}; remove it"
        elif link.address is None and any(layout.find(end[0]).control for end in (source, target)):
            yield (
                f"link.{link.source}→{link.target}: one end is on another machine; "
                'give the link an address = "tcp://HOST:PORT" of the machine that runs its target'
            )


def _finite(layout: Layout) -> Iterator[str]:
    # A process is told its layout as JSON, which knows no other numbers.
    for section, settings in msgspec.structs.asdict(layout).items():
        if isinstance(settings, msgspec.Struct):
            for key, value in msgspec.structs.asdict(settings).items():
                if isinstance(value, float) and not math.isfinite(value):
                    yield f"{section}.{key}: {value} is no number to reckon with; allowed: finite ones"


def _numbers(layout: Layout) -> Iterator[str]:
    least = {
        "api.max_concurrent": layout.api.max_concurrent,
        "speech.lookahead_frames": layout.speech.lookahead_frames,
        "speech.max_chunk_frames": layout.speech.max_chunk_frames,
        "speech.rows": layout.speech.rows,
        "speech.repeat_limit_frames": layout.speech.repeat_limit_frames,
        "speech.frames_floor": layout.speech.frames_floor,
        "chat.rows": layout.chat.rows,
        "chat.chunk": layout.chat.chunk,
        "chat.slice_tokens": 1 if layout.chat.slice_tokens == "measured" else layout.chat.slice_tokens,
        "chat.draft_tokens": layout.chat.draft_tokens,
        "chat.lookahead_tokens": layout.chat.lookahead_tokens,
        "chat.max_concurrent": layout.chat.max_concurrent,
        "taps.backlog": layout.taps.backlog,
        **{f"link.{link.source}→{link.target}.capacity": link.capacity for link in layout.link},
    }
    for key, value in least.items():
        if value < 1:
            yield f"{key}: {value} is too small; allowed: 1 or more"
    slice_tokens, chunk = layout.chat.slice_tokens, layout.chat.chunk
    if slice_tokens != "measured" and slice_tokens > chunk:
        yield f"chat.slice_tokens: {slice_tokens} is too large; allowed: up to chat.chunk ({chunk})"
    for section, settings in (("api", layout.api), ("chat", layout.chat)):
        for key, value in msgspec.structs.asdict(settings).items():
            if key.endswith("_s") and not (value > 0 or (value == 0 and key == "drain_s")):
                yield f"{section}.{key}: {value} is too small; allowed: above 0"
    for key, value in msgspec.structs.asdict(layout.supervision).items():
        if value < 0 or (value == 0 and key != "max_restarts"):
            yield f"supervision.{key}: {value} is too small; allowed: above 0"
    for key, value in msgspec.structs.asdict(layout.schedule).items():
        if isinstance(value, float) and value <= 0 and key != "reserve":
            yield f"schedule.{key}: {value} is too small; allowed: above 0"
    for key in ("silence_limit_s", "frames_per_token", "reference_silence_s"):
        if (value := getattr(layout.speech, key)) < 0:
            yield f"speech.{key}: {value} is too small; allowed: 0 or more"
    if not 0 <= layout.schedule.reserve < 1:
        yield f"schedule.reserve: {layout.schedule.reserve} is out of range; allowed: 0 or more, below 1"
    chunk_s = layout.speech.max_chunk_frames * FRAME_S
    if layout.schedule.policy == "pace" and layout.schedule.lead_s <= chunk_s:
        # Until a chunk is whole nothing of it is heard.
        yield f"schedule.lead_s: {layout.schedule.lead_s} is too small; allowed: more than a chunk ({chunk_s:g} s)"
    if layout.supervision.silence_s < 2 * layout.supervision.beat_s:
        least = 2 * layout.supervision.beat_s
        yield f"supervision.silence_s: less than two beats is too small; allowed: {least:g} or more"
    if layout.speech.lookahead_frames <= layout.speech.max_chunk_frames:
        # A chunk is handed out when the frame after it has been begun: with less the two would wait for each other.
        yield (
            f"speech.lookahead_frames: {layout.speech.lookahead_frames} is too small; allowed: more than "
            f"speech.max_chunk_frames ({layout.speech.max_chunk_frames})"
        )
    if not 0 < layout.speech.chunk_rtf <= 1:
        yield f"speech.chunk_rtf: {layout.speech.chunk_rtf} is out of range; allowed: above 0, up to 1"
    if layout.api.api_key == "":
        yield "api.api_key: it is empty, which would let everybody in; give a key, or leave it out to ask for none"
    if not 0 <= layout.api.port <= 65535:
        yield f"api.port: {layout.api.port} is out of range; allowed: 0 to 65535"


def _cycle(layout: Layout) -> Iterator[str]:
    # talker → code_predictor → talker holds one message for each request: with fewer places than requests, each
    # could wait for the other for ever.
    for link in layout.links():
        cycle = {link.source, link.target} == {"talker", "code_predictor"}
        if cycle and link.capacity < layout.api.max_concurrent:
            name = f"link.{link.source}→{link.target}.capacity"
            least = f"api.max_concurrent ({layout.api.max_concurrent})"
            yield f"{name}: {link.capacity} could lock up the cycle; allowed: {least} or more"
