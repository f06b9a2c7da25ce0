"""Layouts: which stages run in which process and loop, and with which settings.

TOML, checked whole (see `layout_check`) before any weight is read.
"""

from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from .errors import LayoutError
from .messages import FAMILIES, LINKS


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    loop: tuple[str, ...] = ()
    """Stages on the process's own event loop."""
    device: tuple[str, ...] = ()
    """Stages on the device thread, where everything that touches MLX runs."""
    python: tuple[str, ...] = ()
    """Command that runs Python, by default the one that runs the server; `["ssh", "box", "/opt/vv/bin/python"]`
    starts the process on another machine, where the same version is installed."""
    control: str | None = None
    """`tcp://HOST:PORT` of this machine, where a process on another one finds its supervisor."""


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one link of the graph; links that are not named have the defaults."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    capacity: int = 64
    """Messages that the target's inbox holds before senders in the same loop wait."""
    address: str | None = None
    """`tcp://HOST:PORT` on the target's machine, for a link between machines; needs `keys`."""


class Api(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    """Asked of every inference route, as `Authorization: Bearer` or `x-api-key`."""
    cors_origins: tuple[str, ...] = ()
    """Web origins that may call, such as `http://localhost:3000`; `*` allows all."""
    model_aliases: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """More names for models, beside `tts-1`, `tts-1-hd`, `gpt-4o-mini-tts`: these mean the first speech model."""
    voice_aliases: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """More names for voices, or other ones for OpenAI's thirteen."""
    max_concurrent: int = 32
    """Speech requests in the pipeline at once."""
    max_queued: int = 128
    """Requests that wait for a place; beyond that the answer is 429."""
    max_text_letters: int = 20_000
    voices_folder: str | None = None
    """Where stored voices are kept; by default in the user's data folder."""
    reference_urls: bool = False
    """Whether a reference may be fetched from an http or https address that a client gives."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Of a request, of a WebSocket message, and of a recording read on the command line."""
    max_batch_items: int = 32
    first_audio_timeout_s: float = 120.0
    """How long a request may wait for its next audio before it ends with an error."""
    body_timeout_s: float = 60.0
    """How long a client may take to send its body."""
    idle_timeout_s: float = 60.0
    """How long a connection may be open without a request, or with half of one's headers."""
    stall_timeout_s: float = 600.0
    """How long a client may take nothing of its stream before it is let go."""
    keep_alive_s: float = 10.0
    """Silence on an event stream before a comment line is sent."""
    drain_s: float = 30.0
    """How long open requests may go on when the server is told to stop."""


class Speech(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    models: tuple[str, ...] = ("embedded",)
    """`embedded`, a folder, or a hub id already downloaded; `name=source` gives it a name of your own."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    lookahead_frames: int = 64
    """Frames made ahead of a client that does not read (64 are 5.1 s)."""
    chunk_rtf: float = 0.5
    """Chunks of the codec grow only as far as a player never starves while RTF stays below this."""
    max_chunk_frames: int = 8
    rows: int = 8
    """Requests whose frames are computed together, at most: on a CPU, and on CUDA (no more than 8 there). Apple
    GPUs compute each alone: there a product's width changes its rounding, and bytes would depend on the
    neighbours."""
    silence_limit_s: float = 6.0
    """A request that has been silent this long ends with `length`."""
    repeat_limit_frames: int = 50
    """A request that repeats code 0 this often in a row ends with `length`."""
    frames_per_token: float = 8.0
    """Frame budget for each text token, on top of `frames_floor`."""
    frames_floor: int = 75
    clean_text: bool = True
    """Whether Markdown, tags, addresses and emoji are taken out of texts; a request may say otherwise."""
    part_letters: int = 500
    """Longer texts are cut at sentence ends into parts of at most so many letters; not in described voices, which
    would change from part to part."""
    instruction_tokens: int = 2048
    """Longest description or instruction: it is read in one piece, in a time that grows with its square."""
    clone_layout: Literal["official", "reference_first"] = "official"
    """Prompt of a clone with transcript: as in the official code, or with all of the reference before the text, so
    that its keys and values are computed once for all texts."""
    reference_silence_s: float = 0.5
    """Silence put behind a reference, against its last words in the new audio."""
    voice_cache_bytes: int = 512 * 1024 * 1024
    """Bound of what is kept of voices between requests (keys and values of their prompt rows); 0 keeps nothing."""


class Chat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    models: tuple[str, ...] = ()
    """Folders in mlx-lm's form, or hub ids; `name=source` gives one a name of your own."""
    draft_model: str | None = None
    """A small model with the same vocabulary that guesses tokens ahead; it needs exactly one chat model."""
    draft_tokens: int = 3
    """Tokens that it guesses at a time."""
    kv_bits: Literal[4, 8] | None = None
    """Keeps keys and values quantised."""
    kv_group_size: Literal[32, 64, 128] = 64
    max_kv_size: int | None = None
    """Tokens that are kept; the oldest but the first few make room."""
    rows: int = 8
    """Choices that are decoded at once; more requests wait."""
    chunk: int = 256
    """Prompt tokens that are the unit of the prompt cache, and without speech beside it of a slice of work."""
    slice_tokens: int | Literal["measured"] = "measured"
    """Prompt tokens that are read in one slice where speech shares the device. `measured` takes the most, of a
    chunk and its even parts, that need no longer than `schedule.slice_s`: found at the first start and remembered
    in the user's cache (`slices`), as other sizes round differently. With a number, machines of one kind answer
    alike."""
    cache_bytes: int = 2 << 30
    """Bound of a model's prompt cache; a draft model has as much again."""
    prompt_cache: str | None = None
    """Folder where the prompt cache is kept beyond its bound and from one start to the next."""
    prompt_cache_bytes: int = 8 << 30
    """Bound of that folder."""
    lookahead_tokens: int = 256
    """Tokens made ahead of a client that does not read."""
    max_concurrent: int = 32
    """Chat requests that are open at once, decoded or waiting for a row."""
    max_queued: int = 128
    """Requests that wait for that; beyond it the answer is 429."""
    token_timeout_s: float = 600.0
    """How long a request may wait for its next token before it ends with an error."""
    max_responses: int = 1000
    """Answers of `/v1/responses` that are remembered, for `previous_response_id`."""
    max_responses_bytes: int = 64 * 1024 * 1024


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    policy: Literal["race", "pace", "deadline"] = "deadline"
    """How chat and speech share a device. `race`: by turns in one thread, as it comes between processes. `pace`: by
    turns, and speech is made no faster than it is played. `deadline`: chat has all that speech does not need for
    its listeners never to wait."""
    slice_s: float = 0.03
    """The longest that a slice of a prompt may take, where `chat.slice_tokens` is measured and a slice can be made
    so short. When it begins, up to a quarter of the one before may be left to do."""
    slack_s: float = 0.12
    """`deadline`: how long before a listener would run dry the next audio has to be there."""
    reserve: float = 0.5
    """`deadline`: the share of the time to spare that is not chat's, but lets speech get ahead of play-out."""
    burst_s: float = 0.06
    """`deadline`: about how long speech uses the device at a time, while chat has work and listeners can wait."""
    lead_s: float = 1.5
    """`pace`: how far ahead of play-out speech is made; more than `speech.max_chunk_frames` frames of 80 ms."""
    patience_s: float = 0.5
    """`deadline`: chat gets a slice after waiting this long, even where speech falls behind."""
    timeout_s: float = 1.0
    """A process that holds the device, is asked for it, and gives no sign for this long, has lost it."""
    trace: str | None = None
    """A folder that exists, for files of who had the device when, `PROCESS-FAMILY.jsonl`: a line
    `[what, from, until]` for each `use` of it, `hold` from grant to release, `handover` from recall to release, and
    `wait` for it."""


class Supervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    beat_s: float = 1.0
    """How often a stage process says that it lives."""
    silence_s: float = 10.0
    """Silence after which it is killed and started again."""
    wedged_s: float = 60.0
    """The longest that one step of its device may take."""
    device_wait_s: float = 30.0
    """How long a process may wait for a device that it shares before /health says so, until it has it."""
    start_timeout_s: float = 600.0
    """How long it may be silent while it loads."""
    stacks_s: float = 0.5
    """Time to write its stacks before it is killed."""
    grace_s: float = 5.0
    """Time to end when asked to."""
    backoff_s: float = 0.5
    """Wait before the first restart in a row; it doubles each time."""
    backoff_max_s: float = 30.0
    stable_s: float = 60.0
    """A process that has served this long begins a new row of restarts when it ends."""
    max_restarts: int = 5
    """Restarts in a row after which a process is given up."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cache_limit_bytes: int | None = None
    """MLX's cache of freed buffers; by default a quarter of the device's memory, at most 2 GiB."""
    wired_limit_bytes: int | None = None


class Taps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: bool = True
    """Whether outside programs of the same user may listen; without a listener it costs nothing."""
    address: str | None = None
    """`tcp://HOST:PORT` to be listened at from other machines as well; needs `keys`."""
    collect: str | None = None
    """`tcp://HOST:PORT` here, where the processes of other machines hand in what their stages send; needs `keys`.
    Without it only the stages of this machine are heard."""
    backlog: int = 1000
    """Messages kept for a listener that does not read; what comes after is lost to it."""


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    description: str = ""
    keys: str | None = None
    """File of keys for all that goes over TCP, made with `vivavoce keys`."""
    process: tuple[Process, ...]
    link: tuple[LinkSettings, ...] = ()
    api: Api = Api()
    speech: Speech = Speech()
    chat: Chat = Chat()
    device: Device = Device()
    schedule: Schedule = Schedule()
    supervision: Supervision = Supervision()
    taps: Taps = Taps()

    def place(self, stage: str) -> tuple[str, str] | None:
        """(process, "loop" or "device") of a stage, None where the layout does not run it."""
        for process in self.process:
            if stage in process.loop:
                return process.name, "loop"
            if stage in process.device:
                return process.name, "device"
        return None

    def find(self, process: str) -> Process:
        return next(found for found in self.process if found.name == process)

    def families(self, process: str) -> tuple[str, ...]:
        """Families with a stage on the process's device."""
        device = set(self.find(process).device)
        return tuple(family for family, stages in FAMILIES.items() if device & {*stages})

    def lessees(self) -> dict[str, tuple[str, ...]]:
        """Processes that share this machine's device by lease, with their families. None need one to be alone."""
        here = {process.name: self.families(process.name) for process in self.process if not process.control}
        here = {process: families for process, families in here.items() if families}
        both = {family for families in here.values() for family in families} == {*FAMILIES}
        return here if both and len(here) > 1 and self.schedule.policy != "race" else {}

    def sharing(self, process: str) -> Literal["thread", "lease"] | None:
        """Where the turns of a process's device are decided; None: its device thread goes on as it likes."""
        if process in self.lessees():
            return "lease"
        return "thread" if len(self.families(process)) == len(FAMILIES) else None

    def stages(self) -> tuple[str, ...]:
        return tuple(stage for process in self.process for stage in (*process.loop, *process.device))

    def links(self) -> tuple[LinkSettings, ...]:
        """Every link between stages of this layout, with its settings."""
        named = {(link.source, link.target): link for link in self.link}
        present = set(self.stages())
        return tuple(
            named.get((source, target), LinkSettings(source=source, target=target))
            for source, target in LINKS
            if source in present and target in present
        )

    def transport(self, link: LinkSettings) -> Literal["memory", "inproc", "ipc", "tcp"]:
        source, target = self.place(link.source), self.place(link.target)
        if source == target:
            return "memory"
        if link.address is not None:
            return "tcp"
        return "inproc" if source and target and source[0] == target[0] else "ipc"


def names() -> list[str]:
    """Names of the layouts that ship with the package."""
    folder = resources.files("vivavoce.configs")
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load(name: str | Path) -> Layout:
    """A shipped layout by name, or a file. Raises LayoutError naming file, key and what is allowed."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise LayoutError(f"{path}: no such layout file")
        return parse(path.read_text(), str(path))
    return parse(shipped(str(name)), f"{name}.toml")


def shipped(name: str) -> str:
    """The text of a layout that ships with the package. Raises LayoutError."""
    if name not in names():
        raise LayoutError(f"no layout {name!r}: give a .toml file or one of {', '.join(names())}")
    return (resources.files("vivavoce.configs") / f"{name}.toml").read_text()


def parse(text: str, file: str) -> Layout:
    """Decode and check a layout's text; `file` is named in errors."""
    from .layout_check import find_problem

    try:
        layout = msgspec.toml.decode(text, type=Layout)
    except msgspec.ValidationError as error:
        raise LayoutError(f"{file}: {_explain(str(error))}") from None
    except msgspec.DecodeError as error:
        raise LayoutError(f"{file}: not valid TOML: {error}") from None
    if problem := find_problem(layout):
        raise LayoutError(f"{file}: {problem}")
    return layout


def _explain(error: str) -> str:
    """Add what is allowed to msgspec's message about an unknown key or word."""
    unknown = "unknown field" in error
    if not unknown and "Invalid enum value" not in error:
        return error
    path = error.rpartition("`$")[2].strip("`") if "`$" in error else ""
    parts = [part.split("[")[0] for part in path.strip(".").split(".")]
    part = parts[-1] if unknown else parts[0]
    kinds: dict[str, Any] = {
        "process": Process,
        "link": LinkSettings,
        "api": Api,
        "speech": Speech,
        "chat": Chat,
        "device": Device,
        "schedule": Schedule,
        "supervision": Supervision,
        "taps": Taps,
    }
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kinds.get(part, Layout))}
    return f"{error}; allowed: {', '.join(fields if unknown else _words(fields[parts[-1]]))}"


def _words(kind: Any) -> list[str]:
    """The words that a type admits, and the names of its other members."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    members = get_args(kind)
    return [word for member in members for word in _words(member)] or [kind.__name__]
