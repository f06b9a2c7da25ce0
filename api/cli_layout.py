"""`vivavoce layout`: what a layout would start, where, linked how, and in how much memory. Starts nothing."""

import argparse
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cli_serve
from .cli_terminal import columns, size

if TYPE_CHECKING:
    from ..bus.layout import Layout

TRANSPORTS = {
    "memory": "memory (same loop, by reference)",
    "inproc": "ZeroMQ inproc (another thread)",
    "ipc": "ZeroMQ ipc (another process)",
    "tcp": "ZeroMQ tcp (another machine)",
}

SHARING = {"thread": "decided in the thread", "lease": "by lease from the process that runs the API"}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("layout", parents=[common], help="list layouts, show or explain one")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listed = actions.add_parser("list", parents=[common], help="the layouts that ship with the package")
    listed.set_defaults(run=run_list)
    show = actions.add_parser(
        "show", parents=[common], help="print the file of one that ships with the package, to be changed"
    )
    show.add_argument("layout", metavar="NAME")
    show.set_defaults(run=run_show)
    explain = actions.add_parser(
        "explain",
        parents=[common],
        help="processes, stages, links, models, settings and memory of what `vivavoce serve` would start",
    )
    explain.add_argument("layout", metavar="NAME|FILE")
    cli_serve.add_settings(explain)
    explain.set_defaults(run=run_explain)


def run_list(_args: argparse.Namespace) -> int:
    from ..bus.layout import load, names

    print(columns([(name, load(name).description) for name in names()], indent=""))
    return 0


def run_show(args: argparse.Namespace) -> int:
    from ..bus.layout import shipped

    print(shipped(args.layout), end="")
    return 0


def run_explain(args: argparse.Namespace) -> int:
    from ..bus import keys

    layout = cli_serve.configured(args)
    if layout.keys is not None:
        keys.read(layout.keys)
    print(f"{layout.name}: {layout.description}" if layout.description else layout.name)
    print(f"\nProcesses\n{columns(_processes(layout))}")
    print(f"\nLinks\n{columns(_links(layout))}")
    print(f"\nSettings\n{columns(_settings(layout, args.layout))}")
    _print_models(layout)
    return 0


def _processes(layout: "Layout") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for process in layout.process:
        rows.append((process.name, "event loop", ", ".join(process.loop) or "(nothing)"))
        if process.device:
            rows.append(("", "device thread", ", ".join(process.device)))
        if (how := layout.sharing(process.name)) is not None:
            rows.append(("", "device turns", f"{layout.schedule.policy}, {SHARING[how]}"))
        if process.control is not None:
            rows.append(("", "elsewhere", process.control))
        if process.python:
            rows.append(("", "interpreter", " ".join(process.python)))
    return rows


def _links(layout: "Layout") -> list[tuple[str, ...]]:
    return [
        (f"{link.source} → {link.target}", TRANSPORTS[layout.transport(link)], f"{link.capacity} messages")
        for link in layout.links()
    ]


def _settings(layout: "Layout", given: str) -> list[tuple[str, ...]]:
    """Every setting of what the layout runs, with its value and where that came from."""
    import msgspec

    from ..bus.layout import load
    from ..bus.messages import FAMILIES

    file = Path(given)
    shipped = resources.files("vivavoce.configs") / f"{given}.toml"
    name, text = (str(file), file.read_text()) if file.is_file() else (f"{given}.toml", shipped.read_text())
    written, stored = _flat(msgspec.toml.decode(text)), _flat(msgspec.to_builtins(load(given)))
    rows: list[tuple[str, ...]] = []
    idle = tuple(f"{family}." for family, stages in FAMILIES.items() if layout.place(stages[0]) is None)
    for key, value in _flat(msgspec.to_builtins(layout)).items():
        if key.startswith(idle):
            continue
        source = "command line" if value != stored[key] else name if key in written else "default"
        shown = msgspec.json.encode(value).decode() if key != "api.api_key" or value is None else "(set)"
        rows.append((key, shown, source))
    return rows


def _flat(layout: dict[str, Any]) -> dict[str, Any]:
    """Settings by their names in messages, such as `api.port`; processes and links are shown elsewhere."""
    flat = {key: layout[key] for key in ("keys",) if key in layout}
    for section, part in layout.items():
        if isinstance(part, dict):
            flat |= {f"{section}.{key}": value for key, value in part.items()}
    return flat


def _print_models(layout: "Layout") -> None:
    from ..configs.models import find, kind, split_name
    from .cli_checkpoint import on_disk
    from .cli_plan import machine, model_plan, needs

    plans = [model_plan(source, layout) for source in layout.speech.models] if layout.place("talker") else []
    rows = [
        (
            plan.name,
            plan.source,
            f"{plan.config.tts_model_type} {plan.config.size}",
            f"{size(plan.disk)} on disk",
            str(plan.folder),
        )
        for plan in plans
    ]
    for name, source in map(split_name, layout.chat.models):
        folder = find(source, download=False)
        rows.append(
            (name, source, kind(folder) or "unknown", f"{size(on_disk(folder))} on disk", str(folder))
        )
    print(f"\nModels\n{columns(rows)}")
    least = most = 0
    for need in needs(layout, plans):
        rows = [(what, size(count)) for what, count in need.rows]
        if need.least == need.most:
            rows.append(("all", size(need.most)))
        else:
            rows.append(("all, with one request of 15 s", size(need.least)))
            rows.append((f"all, with {layout.api.max_concurrent} requests at their longest", size(need.most)))
        print(f"\nMemory of process {need.process}\n{columns(rows)}")
        least, most = least + need.least, most + need.most
    total = machine()
    verdict = (
        "fits"
        if most <= total
        else "fits fewer or shorter requests only"
        if least <= total
        else "is too large"
    )
    print(f"\nThis machine has {size(total)}: the layout {verdict}")
