"""The result for people."""

from .records import Result, Side, Spread

ROWS = {
    "talker": "talker, alone",
    "code_predictor": "code predictor, alone",
    "codec_decoder": "codec decoder, alone, 1 frame a call",
    "codec_decoder_8": "codec decoder, alone, 8 frames a call",
}


def table(result: Result) -> str:
    """Aligned text: one row a figure, one column a side, and theirs ÷ ours."""
    sides = [side for side in (result.vivavoce, result.mlx_audio) if side is not None]
    rows = [
        [
            "",
            *(f"{name} {side.version}" for name, side in zip(("vivavoce", "mlx-audio"), sides, strict=False)),
        ]
    ]
    ratio = result.ratio
    if ratio is not None:
        rows[0].append("theirs ÷ ours")

    def add(label: str, cells: list[str], share: float | None = None) -> None:
        rows.append([label, *cells, *([f"{share:.2f}" if share else ""] if ratio else [])])

    add("ms per frame, pipelined", _spreads(sides, "ms_per_frame"), ratio and ratio.ms_per_frame)
    shown = {stage for side in sides for stage in side.stage_ms}
    for stage, label in ROWS.items():
        if stage not in shown:
            continue
        cells = [_spread(side.stage_ms[stage]) if stage in side.stage_ms else "–" for side in sides]
        medians = [side.stage_ms[stage].median for side in sides if stage in side.stage_ms]
        add(f"  {label}", cells, medians[1] / medians[0] if len(medians) == 2 else None)
    add("  Python (graph building)", [f"{side.python_ms_per_frame:.2f}" for side in sides])
    add("host reads per frame", [f"{side.host_reads_per_frame:.2f}" for side in sides])
    add("barriers per frame", [f"{side.barriers_per_frame:.2f}" for side in sides])
    if any(side.retraces is not None for side in sides):
        cells = ["–" if side.retraces is None else f"{side.retraces}" for side in sides]
        add("steps traced after the warm-up", cells)
    add("first audio, ms", _spreads(sides, "ttfa_ms"), ratio and ratio.ttfa)
    add("RTF", _spreads(sides, "rtf"), ratio and ratio.rtf)
    add("processor ms per frame", _spreads(sides, "cpu_ms_per_frame"), ratio and ratio.cpu_ms_per_frame)
    memory = [f"{side.peak_memory_bytes / 2**20:.0f}" for side in sides]
    add("peak memory of MLX, MiB", memory, ratio and ratio.peak_memory)
    head = [
        f"{result.model}, {result.frames} frames of 80 ms, {result.runs} runs each, in alternation; "
        "medians (95th percentiles)",
        result.hardware,
        "",
    ]
    return "\n".join([*head, *aligned(rows)])


def _spreads(sides: list[Side], name: str) -> list[str]:
    return [_spread(getattr(side, name)) for side in sides]


def _spread(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.p95:.2f})"


def aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        (
            row[0].ljust(widths[0])
            + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        ).rstrip()
        for row in rows
    ]
