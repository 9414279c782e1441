"""Line charts as SVG text, drawn here so that a picture is a pure function of its numbers and needs no plotting library.

Equal numbers give equal bytes: a receiver redraws a bundle's pictures and compares. Colours are CSS classes (`s0`, `s1`,
…), told apart by dashes as well, for print and for eyes that see colours differently.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_LEGEND_WIDTH = 200
_LONGEST_LABEL = 24
_MOST_MARKS = 64
_MOST_TRIED = 1000
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 5", "4 2")

STYLE = """
.chart { --ink: #1b1f24; --faint: #d5d9de; --paper: #fff; }
.chart { --s0: #0b5fa5; --s1: #b3400f; --s2: #237a3b; --s3: #7a3aa0; --s4: #8a6d00; --s5: #555; }
@media (prefers-color-scheme: dark) {
  .chart { --ink: #e6e9ec; --faint: #3b424a; --paper: #15181c; }
  .chart { --s0: #6cb6ff; --s1: #ff9d6b; --s2: #7ddc92; --s3: #d2a6f5; --s4: #e8cf6a; --s5: #aaa; }
}
.chart text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.chart .title { font-size: 14px; font-weight: 600; }
.chart .paper { fill: var(--paper); }
.chart .grid { stroke: var(--faint); stroke-width: 1; }
.chart .axis { stroke: var(--ink); stroke-width: 1; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .mark { stroke: none; fill: transparent; }
.chart .s0 { stroke: var(--s0); } .chart .s1 { stroke: var(--s1); } .chart .s2 { stroke: var(--s2); }
.chart .s3 { stroke: var(--s3); } .chart .s4 { stroke: var(--s4); } .chart .s5 { stroke: var(--s5); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points from left to right; `steps` holds each value until the next point."""

    label: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The part of the number line that is shown, and where it is on the paper."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    @staticmethod
    def over_powers(values: Sequence[float], start: float, end: float) -> "Axis":
        """Logarithmic, from one power of ten to another. The values are positive."""
        low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
        step = max(1, math.ceil((high - low) / 8))
        powers = range(low, max(high, low + 1) + step, step)
        ticks = tuple(10.0**power for power in powers)
        return Axis(low=ticks[0], high=ticks[-1], start=start, end=end, ticks=ticks, logarithmic=True)

    @staticmethod
    def over(values: Sequence[float], start: float, end: float, *, from_zero: bool) -> "Axis":
        low, high = min(values), max(values)
        low = min(low, 0.0) if from_zero else low
        largest = max(abs(low), abs(high))
        if high - low <= max(1e-9 * largest, 1e-280):  # too narrow to be divided: show some room around it
            room = 0.1 * largest if largest > 1e-9 else 1.0
            low, high = (low, low + room) if from_zero and low >= 0 else (low - room, high + room)
        step = _nice_step((high - low) / 5)
        low = math.floor(low / step + 1e-9) * step
        count = max(1, math.ceil((high - low) / step - 1e-9))
        ticks = tuple(low + i * step for i in range(count + 1))
        return Axis(low=low, high=ticks[-1], start=start, end=end, ticks=ticks)

    def place(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(value) - math.log(self.low)  # of numbers whose quotient may overflow
            share /= math.log(self.high) - math.log(self.low)
            return self.start + share * (self.end - self.start)
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def chart(
    series: Sequence[Series], *, title: str, x: str, y: str, from_zero: bool = True, logarithmic: bool = False
) -> str:
    """An `<svg>` element; its style is `STYLE`, given once per page or by `standalone`.

    With `logarithmic` both axes are, and points that are not positive are left out.
    """
    drawn = [s for s in (_finite(s, positive=logarithmic) for s in series) if s.points]
    points = [point for s in drawn for point in s.points] or [(1.0, 1.0) if logarithmic else (0.0, 0.0)]
    xs, ys = zip(*points, strict=True)
    if logarithmic:
        across, along = Axis.over_powers(xs, _LEFT, WIDTH - _RIGHT), Axis.over_powers(ys, HEIGHT - _BOTTOM, _TOP)
    else:
        across = Axis.over(xs, _LEFT, WIDTH - _RIGHT, from_zero=False)
        along = Axis.over(ys, HEIGHT - _BOTTOM, _TOP, from_zero=from_zero)
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>',
        *_grid(across, along),
        f'<text x="{(across.start + across.end) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>',
        f'<text transform="translate(14 {(along.start + along.end) / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y)}</text>",
        *(part for index, s in enumerate(drawn) for part in _curve(s, index, across, along)),
        *(_legend(drawn, _emptiest_place(drawn, across, along)) if len(drawn) > 1 else ()),
        "</svg>",
    ]
    return "\n".join(parts)


def standalone(svg: str) -> str:
    """The chart as a file of its own."""
    head, rest = svg.split(">", 1)
    return f"{head}>\n<style>{STYLE}</style>{rest}\n"


def _grid(across: Axis, along: Axis) -> list[str]:
    lines = []
    for tick in across.ticks:
        at = across.place(tick)
        lines.append(f'<line class="grid" x1="{at:.1f}" y1="{along.start}" x2="{at:.1f}" y2="{along.end}"/>')
        lines.append(f'<text x="{at:.1f}" y="{along.start + 16}" text-anchor="middle">{_short(tick)}</text>')
    for tick in along.ticks:
        at = along.place(tick)
        lines.append(f'<line class="grid" x1="{across.start}" y1="{at:.1f}" x2="{across.end}" y2="{at:.1f}"/>')
        lines.append(f'<text x="{across.start - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    corner = f"M{across.start} {along.end}V{along.start}H{across.end}"
    return [*lines, f'<path class="axis" fill="none" d="{corner}"/>']


def _curve(series: Series, index: int, across: Axis, along: Axis) -> list[str]:
    places = [(across.place(x), along.place(y)) for x, y in series.points]
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}" if series.steps else f"L{x:.1f} {y:.1f}"
    colour, dash = f"s{index % len(DASHES)}", DASHES[index % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    marks = []
    if len(places) <= _MOST_MARKS:
        for (x, y), (at, value) in zip(places, series.points, strict=True):
            label = escape(f"{series.label}: {_short(at)}, {value:.4g}")
            marks.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="7"><title>{label}</title></circle>')
    return [f'<path class="line {colour}" d="{path}"{dashes}/>', *marks]


def _emptiest_place(series: Sequence[Series], across: Axis, along: Axis) -> tuple[float, float]:
    """Where a legend covers the fewest points of curves, the upper left point of its box: a corner if one is free."""
    height = 20 * len(series) + 6
    places = [(across.place(x), along.place(y)) for s in series for x, y in _dense(s.points)]
    top, bottom = along.end + 4, along.start - height - 4
    corners = [(x, y) for y in (top, bottom) for x in (across.end - _LEGEND_WIDTH, across.start + 8)]
    corner = min(corners, key=partial(_covered, places, _LEGEND_WIDTH, height))
    if not _covered(
        places, _LEGEND_WIDTH, height, corner
    ):  # always so in the pictures of a bundle, which stay as they are
        return corner
    width = 40 + 7 * max(len(s.label[:_LONGEST_LABEL]) for s in series)
    lefts = range(int(across.end - width), int(across.start) + 8, -20)
    inside = [(float(x), float(y)) for x in lefts for y in range(int(top), int(bottom), 6)]
    some = places[:: 1 + len(places) // _MOST_TRIED]
    return min([*inside, corner], key=partial(_covered, some, width, height))


def _covered(places: Sequence[tuple[float, float]], width: float, height: float, corner: tuple[float, float]) -> int:
    left, top = corner
    return sum(left <= x <= left + width and top <= y <= top + height for x, y in places)


def _dense(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on the lines between points, too."""
    parts = [i / 20 for i in range(20)]
    return [(a + t * (c - a), b + t * (d - b)) for (a, b), (c, d) in pairwise(points) for t in parts]


def _legend(series: Sequence[Series], corner: tuple[float, float]) -> list[str]:
    parts = []
    left, top = corner
    for index, s in enumerate(series):
        y, dash = top + 12 + 20 * index, DASHES[index % len(DASHES)]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        colour = f"s{index % len(DASHES)}"
        parts.append(f'<path class="line {colour}" d="M{left:.1f} {y:.1f}h26"{dashes}/>')
        parts.append(f'<text x="{left + 32:.1f}" y="{y + 4:.1f}">{escape(s.label[:_LONGEST_LABEL])}</text>')
    return parts


def _finite(series: Series, *, positive: bool) -> Series:
    # Beyond that, spans overflow. Comparisons with NaN are false, which leaves those out, too.
    kept = tuple((x, y) for x, y in series.points if abs(x) < 1e290 and abs(y) < 1e290)
    if positive:
        kept = tuple((x, y) for x, y in kept if x > 1e-290 and y > 1e-290)
    return Series(label=series.label, points=kept, steps=series.steps)


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _short(value: float) -> str:
    return f"{value:.10g}" if abs(value) < 1e6 and f"{value:.10g}" == f"{value:.4g}" else f"{value:.3g}"
