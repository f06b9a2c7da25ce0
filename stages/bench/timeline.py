"""Who used the device when, as a picture (SVG)."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from .cohost_records import Span

WIDTH, LEFT, LANE, GAP = 1200, 150, 22, 6
COLOURS = {"speech": "#2b6cb0", "chat": "#dd8a1d", "nothing to play": "#c53030"}


class Picture(NamedTuple):
    """One part of the plot, with a time axis of its own length."""

    title: str
    begun: float
    ended: float
    lanes: Mapping[str, Sequence[Span]]
    """By what has a colour in COLOURS."""


def draw(pictures: Sequence[Picture]) -> str:
    """All on one scale, one below the other."""
    longest = max(picture.ended - picture.begun for picture in pictures)
    scale = (WIDTH - LEFT - 20) / longest
    parts: list[str] = []
    y = 20
    for picture in pictures:
        parts.append(f'<text x="8" y="{y + 4}" font-weight="bold">{escape(picture.title)}</text>')
        y += 12
        for name, spans in picture.lanes.items():
            parts.append(f'<text x="8" y="{y + 15}">{escape(name)}</text>')
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{longest * scale:.1f}" height="{LANE}" fill="#f1f1f1"/>'
            )
            for begun, ended in _joined(spans, picture, 0.3 / scale):
                x, width = LEFT + (begun - picture.begun) * scale, max((ended - begun) * scale, 0.3)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" fill="{COLOURS[name]}"/>'
                )
            y += LANE + GAP
        y += 16
    seconds = range(int(longest) + 1)
    parts += [f'<text x="{LEFT + second * scale:.1f}" y="{y}">{second} s</text>' for second in seconds]
    style = 'font-family="sans-serif" font-size="13"'
    size = f'width="{WIDTH}" height="{y + 12}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _joined(spans: Sequence[Span], picture: Picture, nearer_s: float) -> list[Span]:
    """Those within the picture; what would touch is one."""
    found: list[Span] = []
    for begun, ended in sorted(spans):
        begun, ended = max(begun, picture.begun), min(ended, picture.ended)
        if begun >= ended:
            continue
        if found and begun - found[-1][1] < nearer_s:
            found[-1] = found[-1][0], max(ended, found[-1][1])
        else:
            found.append((begun, ended))
    return found
