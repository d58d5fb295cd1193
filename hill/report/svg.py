"""Small charts as SVG that is part of a page: lines and bars with axes, in the page's own colours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 48
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


@dataclass(frozen=True)
class Line:
    """A line of a chart; its number chooses the colour and the dashes."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    number: int = 0
    sizes: Sequence[int] = ()
    """Makes points dots, larger where this is more; it is told where the pointer rests on one."""


def line_chart(
    lines: Sequence[Line],
    title: str,
    axes: tuple[str, str],
    diagonal: bool = False,
    mark: tuple[float, str] | None = None,
) -> str:
    """Lines over axes from 0 to 1; a diagonal where they should be equal, and a mark at a place of the x axis."""
    ticks = [place / 5 for place in range(6)]
    parts = [*_rulers(ticks, [f"{tick:.1f}" for tick in ticks]), *_bottom(ticks, [f"{tick:.1f}" for tick in ticks])]
    if diagonal:
        parts.append(f'<line class="guide" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>')
    if mark:
        side = "end" if mark[0] > 0.6 else "start"
        shift = -5 if side == "end" else 5
        parts.append(f'<line class="guide" x1="{_x(mark[0])}" y1="{_y(0)}" x2="{_x(mark[0])}" y2="{_y(1)}"/>')
        parts.append(_text(_x(mark[0]) + shift, _y(1) + 12, mark[1], side))
    parts += [part for line in lines for part in _line(line)]
    return _figure(parts, title, axes, [(line.name, line.number) for line in lines])


def bar_chart(
    names: Sequence[str], bars: Sequence[tuple[str, Sequence[int]]], title: str, axes: tuple[str, str]
) -> str:
    """Bars side by side for each name; the y axis begins at 0."""
    highest = max(max(values) for _, values in bars)
    step = _nice(highest / 4)
    most = step * max(1, -(-highest // step))
    ticks = range(0, most + 1, step)
    parts = list(_rulers([tick / most for tick in ticks], [f"{tick:,}" for tick in ticks]))
    room = INNER_WIDTH / len(names)
    wide = 0.8 * room / len(bars)
    for number, (name, values) in enumerate(bars):
        for place, value in enumerate(values):
            left, top = LEFT + room * (place + 0.1) + wide * number, _y(value / most)
            told = escape(f"{name} {names[place]}: {value:,}".strip())
            parts.append(
                f'<rect class="f{number}" x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{_y(0) - top:.1f}">'
                f"<title>{told}</title></rect>"
            )
    parts += _bottom([(place + 0.5) / len(names) for place in range(len(names))], names)
    return _figure(parts, title, axes, [(name, number) for number, (name, _) in enumerate(bars)], filled=True)


def _x(value: float) -> float:
    return round(LEFT + value * INNER_WIDTH, 1)


def _y(value: float) -> float:
    return round(TOP + (1 - value) * INNER_HEIGHT, 1)


def _nice(least: float) -> int:
    """The next of 1, 2, 5, 10, 20, ..."""
    step = 1
    while step < least:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rulers(ticks: Iterable[float], names: Sequence[str]) -> Iterable[str]:
    """Horizontal rulers with their names, at places from 0 to 1."""
    for tick, name in zip(ticks, names, strict=True):
        yield f'<line class="ruler" x1="{LEFT}" y1="{_y(tick)}" x2="{WIDTH - RIGHT}" y2="{_y(tick)}"/>'
        yield _text(LEFT - 6, _y(tick) + 4, name, "end")


def _bottom(ticks: Iterable[float], names: Sequence[str]) -> Iterable[str]:
    return [_text(_x(tick), _y(0) + 16, name, "middle") for tick, name in zip(ticks, names, strict=True)]


def _line(line: Line) -> Iterable[str]:
    places = [(_x(x), _y(y)) for x, y in zip(line.x, line.y, strict=True)]
    yield f'<polyline class="l{line.number}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'
    for (x, y), size in zip(places if line.sizes else [], line.sizes, strict=True):
        radius = 2 + 0.8 * log10(max(size, 1))
        told = f"{size:,} at {(x - LEFT) / INNER_WIDTH:.3f}"
        yield f'<circle class="f{line.number}" cx="{x}" cy="{y}" r="{radius:.1f}"><title>{told}</title></circle>'


def _figure(
    parts: Iterable[str], title: str, axes: tuple[str, str], names: Iterable[tuple[str, int]], filled: bool = False
) -> str:
    swatch = '<rect class="f{0}" width="22" height="10"/>' if filled else '<path class="l{0}" d="M0 5H22"/>'
    legend = "".join(
        f'<li><svg width="22" height="10" aria-hidden="true">{swatch.format(number)}</svg> {escape(name)}</li>'
        for name, number in names
        if name
    )
    across = _text(LEFT + INNER_WIDTH / 2, HEIGHT - 8, axes[0], "middle")
    turn = f"translate(13 {TOP + INNER_HEIGHT / 2}) rotate(-90)"
    up = f'<text transform="{turn}" text-anchor="middle">{escape(axes[1])}</text>'
    return (
        f'<figure><figcaption>{escape(title)}</figcaption>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}{across}{up}</svg>\n<ul class="legend">{legend}</ul></figure>\n'
    )
