"""`vivavoce layout`: what a layout would start, where, linked how, and in how much memory. Starts nothing."""

import argparse
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_terminal import columns, size

if TYPE_CHECKING:
    from ..bus.layout import Layout

TRANSPORTS = {
    "memory": "memory (same loop, by reference)",
    "inproc": "ZeroMQ inproc (another thread)",
    "ipc": "ZeroMQ ipc (another process)",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("layout", parents=[common], help="list layouts, or explain one")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listed = actions.add_parser("list", parents=[common], help="the layouts that ship with the package")
    listed.set_defaults(run=run_list)
    explain = actions.add_parser(
        "explain", parents=[common], help="processes, stages, links, models, settings and memory of a layout"
    )
    explain.add_argument("layout", metavar="NAME|FILE")
    explain.add_argument("--model", action="append", default=[], help="as for `vivavoce serve`; repeatable")
    explain.set_defaults(run=run_explain)


def run_list(_args: argparse.Namespace) -> int:
    from ..bus.layout import load, names

    print(columns([(name, load(name).description) for name in names()], indent=""))
    return 0


def run_explain(args: argparse.Namespace) -> int:
    from ..bus.layout import load
    from .cli_speak import with_models

    layout = with_models(load(args.layout), args.model)
    print(f"{layout.name}: {layout.description}" if layout.description else layout.name)
    print(f"\nProcesses\n{columns(_processes(layout))}")
    print(f"\nLinks\n{columns(_links(layout))}")
    print(f"\nSettings\n{columns(_settings(layout, args.layout, bool(args.model)))}")
    _print_models(layout)
    return 0


def _processes(layout: "Layout") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for process in layout.process:
        rows.append((process.name, "event loop", ", ".join(process.loop) or "(nothing)"))
        if process.device:
            rows.append(("", "device thread", ", ".join(process.device)))
    return rows


def _links(layout: "Layout") -> list[tuple[str, ...]]:
    return [
        (f"{link.source} → {link.target}", TRANSPORTS[layout.transport(link)], f"{link.capacity} messages")
        for link in layout.links()
    ]


def _settings(layout: "Layout", given: str, models_given: bool) -> list[tuple[str, ...]]:
    """Every setting with its value and where that came from."""
    import msgspec

    file = Path(given)
    shipped = resources.files("vivavoce.configs") / f"{given}.toml"
    name, text = (str(file), file.read_text()) if file.is_file() else (f"{given}.toml", shipped.read_text())
    written = msgspec.toml.decode(text)
    rows: list[tuple[str, ...]] = []
    for section in ("api", "speech", "device"):
        for key, value in msgspec.structs.asdict(getattr(layout, section)).items():
            source = name if key in written.get(section, {}) else "default"
            if models_given and (section, key) == ("speech", "models"):
                source = "command line"
            shown = msgspec.json.encode(value).decode() if key != "api_key" or value is None else "(set)"
            rows.append((f"{section}.{key}", shown, source))
    return rows


def _print_models(layout: "Layout") -> None:
    from .cli_plan import machine, mlx_cache, model_plan

    place = layout.place("talker")
    if place is None:
        return
    plans = [model_plan(source, layout) for source in layout.speech.models]
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
    print(f"\nModels\n{columns(rows)}")
    requests = layout.api.max_concurrent
    memory: list[tuple[str, ...]] = []
    least = most = mlx_cache(layout)
    for plan in plans:
        memory.append((f"{plan.name}: weights as {plan.dtype}", size(plan.weights)))
        memory.append((f"{plan.name}: cache of one request, 15 s", size(plan.sentence)))
        memory.append((f"{plan.name}: cache of one request, longest", size(plan.longest)))
        least += plan.weights + plan.sentence
        most += plan.weights
    most += requests * max(plan.longest for plan in plans)
    memory.append(("MLX's cache of freed buffers, at most", size(mlx_cache(layout))))
    memory.append(("all, with one request of 15 s", size(least)))
    memory.append((f"all, with {requests} requests at their longest", size(most)))
    print(f"\nMemory of process {place[0]}\n{columns(memory)}")
    total = machine()
    verdict = (
        "fits"
        if most <= total
        else "fits only with fewer or shorter requests"
        if least <= total
        else "is too large"
    )
    print(f"  this machine has {size(total)}: the layout {verdict}")
