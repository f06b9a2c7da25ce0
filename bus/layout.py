"""Layouts: which stages run in which process and loop, and with which settings. TOML, checked before any weight is read."""

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from .errors import LayoutError
from .messages import FAMILIES, LINKS

STAGES = ("api", *(stage for family in FAMILIES.values() for stage in family))


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    loop: tuple[str, ...] = ()
    """Stages on the process's own event loop."""
    device: tuple[str, ...] = ()
    """Stages on the device thread, where everything that touches MLX runs."""


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one link of the graph; links that are not named have the defaults."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    capacity: int = 64
    """Messages that the target's inbox holds before senders wait."""


class Api(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8000
    max_concurrent: int = 32
    """Speech requests in the pipeline at once."""
    max_queued: int = 128
    """Requests that wait for a place; beyond that the answer is 429."""
    max_text_letters: int = 20_000
    max_body_bytes: int = 16 * 1024 * 1024
    first_audio_timeout_s: float = 120.0
    """How long a request may wait for its first audio before it ends with an error."""


class Speech(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    models: tuple[str, ...] = ("embedded",)
    """`embedded`, a folder, or a hub id already downloaded; `name=source` gives it a name of your own."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    lookahead_frames: int = 64
    """Frames made ahead of a client that does not read (64 are 5.1 s)."""
    chunk_rtf: float = 0.5
    """Chunks of the codec grow only as far as a player never starves while RTF stays below this."""
    max_chunk_frames: int = 8
    silence_limit_s: float = 6.0
    """A request that has been silent this long ends with `length`."""
    repeat_limit_frames: int = 50
    """A request that repeats code 0 this often in a row ends with `length`."""
    frames_per_token: float = 8.0
    """Frame budget for each text token, on top of `frames_floor`."""
    frames_floor: int = 75


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cache_limit_bytes: int | None = None
    """MLX's cache of freed buffers; by default a quarter of the device's memory, at most 2 GiB."""
    wired_limit_bytes: int | None = None


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    description: str = ""
    process: tuple[Process, ...]
    link: tuple[LinkSettings, ...] = ()
    api: Api = Api()
    speech: Speech = Speech()
    device: Device = Device()

    def place(self, stage: str) -> tuple[str, str] | None:
        """(process, "loop" or "device") of a stage, None where the layout does not run it."""
        for process in self.process:
            if stage in process.loop:
                return process.name, "loop"
            if stage in process.device:
                return process.name, "device"
        return None

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

    def transport(self, link: LinkSettings) -> Literal["memory", "inproc", "ipc"]:
        source, target = self.place(link.source), self.place(link.target)
        if source == target:
            return "memory"
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
    if str(name) not in names():
        raise LayoutError(f"no layout {str(name)!r}: give a .toml file or one of {', '.join(names())}")
    return parse((resources.files("vivavoce.configs") / f"{name}.toml").read_text(), f"{name}.toml")


def parse(text: str, file: str) -> Layout:
    """Decode and check a layout's text; `file` is named in errors."""
    try:
        layout = msgspec.toml.decode(text, type=Layout)
    except msgspec.ValidationError as error:
        raise LayoutError(f"{file}: {_explain(str(error))}") from None
    except msgspec.DecodeError as error:
        raise LayoutError(f"{file}: not valid TOML: {error}") from None
    _check(layout, file)
    return layout


def _explain(error: str) -> str:
    """Add the allowed keys to msgspec's message about an unknown one."""
    if "unknown field" not in error:
        return error
    path = error.rpartition("`$")[2].strip("`") if "`$" in error else ""
    part = path.strip(".").split(".")[-1].split("[")[0]
    kinds: dict[str, Any] = {"process": Process, "link": LinkSettings, "api": Api, "speech": Speech, "device": Device}
    fields = msgspec.structs.fields(kinds.get(part, Layout))
    return f"{error}; allowed: {', '.join(field.encode_name for field in fields)}"


def _check(layout: Layout, file: str) -> None:
    def refuse(key: str, why: str) -> LayoutError:
        return LayoutError(f"{file}: {key}: {why}")

    stages = layout.stages()
    for process in layout.process:
        for stage in (*process.loop, *process.device):
            if stage not in STAGES:
                raise refuse(f"process.{process.name}", f"unknown stage {stage!r}; allowed: {', '.join(STAGES)}")
    if len({process.name for process in layout.process}) != len(layout.process):
        raise refuse("process", "two processes have the same name")
    for stage in set(stages):
        if stages.count(stage) > 1:
            raise refuse("process", f"stage {stage!r} is placed {stages.count(stage)} times, once is allowed")
    if layout.place("api") is None:
        raise refuse("process", "no process runs the stage 'api'")
    for stage in ("api", "encoder"):
        if any(stage in process.device for process in layout.process):
            raise refuse("process", f"{stage!r} does not touch the device: place it in `loop`")
    for family, members in FAMILIES.items():
        missing = [stage for stage in members if stage not in stages]
        if missing and len(missing) < len(members):
            raise refuse("process", f"{family} needs {', '.join(members)}; not placed: {', '.join(missing)}")
    if not any(member in stages for members in FAMILIES.values() for member in members):
        raise refuse("process", f"nothing to serve: place the stages of {' or '.join(FAMILIES)}")
    seen: set[tuple[str, str]] = set()
    for link in layout.link:
        edge = (link.source, link.target)
        if edge not in LINKS:
            raise refuse("link", f"{link.source} → {link.target} {_why_no_link(edge)}; allowed: {_edges()}")
        if link not in layout.links() or edge in seen:
            raise refuse("link", f"{link.source} → {link.target}: {'given twice' if edge in seen else 'dangling: not both ends are placed'}")
        seen.add(edge)
    settings = {
        "api.max_concurrent": layout.api.max_concurrent,
        "speech.lookahead_frames": layout.speech.lookahead_frames,
        "speech.max_chunk_frames": layout.speech.max_chunk_frames,
        **{f"link.{link.source}→{link.target}.capacity": link.capacity for link in layout.link},
    }
    for key, value in settings.items():
        if value < 1:
            raise refuse(key, f"{value} is too small, 1 or more is allowed")
    if not 0 < layout.speech.chunk_rtf <= 1:
        raise refuse("speech.chunk_rtf", f"{layout.speech.chunk_rtf} is out of range, above 0 up to 1 is allowed")
    # The loop talker → code_predictor → talker holds one message a request: with fewer places than requests both
    # could wait for each other for ever.
    for link in layout.links():
        if {link.source, link.target} == {"talker", "code_predictor"} and link.capacity < layout.api.max_concurrent:
            raise refuse(
                f"link.{link.source}→{link.target}.capacity",
                f"{link.capacity} could lock up the cycle; at least api.max_concurrent = {layout.api.max_concurrent}",
            )


def _edges() -> str:
    return ", ".join(f"{source} → {target}" for source, target in LINKS)


def _why_no_link(edge: tuple[str, str]) -> str:
    order = ("api", *FAMILIES["speech"])
    if edge[0] in order and edge[1] in order and order.index(edge[0]) >= order.index(edge[1]):
        return "would close a cycle that the stages do not have"
    return "joins nothing"
