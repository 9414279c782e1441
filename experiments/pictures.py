"""Means with their extremes as SVG text: the paper's min–max bars, one line per row, or over a budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from apportion.drawing import Axis, standalone
from experiments.spread import Spread, short

_WIDTH, _RIGHT, _TOP, _LINE = 640, 24, 38, 24
_LETTER = 6.6  # of a name, at most so wide


def ranges(rows: Mapping[str, Spread], *, title: str) -> str:
    """A bar from the smallest to the largest trial, a dot at the mean."""
    ends = [value for row in rows.values() for value in (row.low, row.high)]
    left = 24 + _LETTER * max(map(len, rows))
    axis = Axis.over(ends, left, float(_WIDTH - _RIGHT), from_zero=False)
    bottom = _TOP + _LINE * len(rows)
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 30}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect class="paper" width="{_WIDTH}" height="{bottom + 30}"/>',
        f'<text class="title" x="12" y="20">{escape(title)}</text>',
    ]
    for tick in axis.ticks:
        at = axis.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{short(tick)}</text>')
    for index, (name, row) in enumerate(rows.items()):
        y = _TOP + _LINE * (index + 0.5)
        low, mean, high = (f"{axis.place(value):.1f}" for value in (row.low, row.mean, row.high))
        parts.append(f'<text x="{left - 10:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<path class="line s0" d="M{low} {y - 4:.1f}v8M{low} {y:.1f}H{high}M{high} {y - 4:.1f}v8"/>')
        parts.append(
            f'<circle class="line s1" cx="{mean}" cy="{y:.1f}" r="4"><title>{escape(f"{name}: {row}")}</title></circle>'
        )
    return standalone("\n".join([*parts, "</svg>"]))


_HEIGHT, _SIDE, _FOOT = 400, 64, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What trials at one place of the horizontal axis came to."""

    at: float
    spread: Spread


def against(
    ours: Mapping[str, Sequence[Shown]],
    others: Mapping[str, tuple[float, float]],
    levels: Mapping[str, float],
    *,
    title: str,
    x: str,
) -> str:
    """Lines through our means with their min–max bars; what others print as named squares; levels as dashed lines."""
    shown = [point for points in ours.values() for point in points]
    ends = [value for point in shown for value in (point.spread.low, point.spread.high)]
    heights = [*ends, *levels.values(), *(value for _, value in others.values())]
    along = Axis.over(heights, float(_HEIGHT - _FOOT), float(_TOP), from_zero=False)
    places = [0.0, *(point.at for point in shown), *(place for place, _ in others.values())]
    across = Axis.over(places, float(_SIDE), float(_WIDTH - _RIGHT), from_zero=False)
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_SIDE}" y="20">{escape(title)}</text>',
        f'<text x="{(across.start + across.end) / 2:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>',
        *_frame(across, along),
    ]
    labels = _Labels()
    for name, level in levels.items():
        y = along.place(level)
        parts.append(f'<path class="line s5" stroke-dasharray="2 3" d="M{across.start} {y:.1f}H{across.end}"/>')
        parts.append(labels.beside(across.end, y, f"{name}: {short(level)}", on_line=True))
    for index, (name, points) in enumerate(ours.items()):
        parts += _with_bars(name, sorted(points, key=lambda point: point.at), f"s{index}", across, along, labels)
    for name, (place, value) in others.items():
        left, top = across.place(place), along.place(value)
        parts.append(f'<path class="line s2" d="M{left - 4:.1f} {top - 4:.1f}h8v8h-8z"/>')
        parts.append(labels.beside(left, top, f"{name}: {short(value)}"))
    return standalone("\n".join([*parts, "</svg>"]))


class _Labels:
    """Names beside points, where no other name stands yet."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float, float]] = []

    def beside(self, x: float, y: float, text: str, on_line: bool = False) -> str:
        """At the first place around the point that is free and inside the picture, else at the first; off a line."""
        wide = _LETTER * len(text)
        places = [
            (at, y + down) for down in ((-7, 17, -19) if on_line else (4, -7, 17)) for at in (x + 9, x - 9 - wide)
        ]
        left, base = next((place for place in places if self._is_free(*place, wide)), places[0])
        self._taken.append((left, left + wide, base - 11, base + 3))
        return _label(left, base, text, "start") if left > x else _label(left + wide, base, text, "end")

    def _is_free(self, left: float, base: float, wide: float) -> bool:
        right, top, bottom = left + wide, base - 11, base + 3
        inside = left >= _SIDE and right <= _WIDTH
        return inside and all(
            right < start or end < left or bottom < upper or lower < top for start, end, upper, lower in self._taken
        )


def _frame(across: Axis, along: Axis) -> list[str]:
    parts = []
    for tick in along.ticks:
        y = along.place(tick)
        parts.append(f'<line class="grid" x1="{across.start}" y1="{y:.1f}" x2="{across.end}" y2="{y:.1f}"/>')
        parts.append(_label(across.start - 6, y + 4, short(tick), "end"))
    return parts + [_label(across.place(tick), along.start + 16, f"{tick:g}", "middle") for tick in across.ticks]


def _with_bars(
    name: str, points: Sequence[Shown], colour: str, across: Axis, along: Axis, labels: _Labels
) -> list[str]:
    places = [(across.place(point.at), along.place(point.spread.mean)) for point in points]
    parts = [f'<path class="line {colour}" d="M{" L".join(f"{left:.1f} {y:.1f}" for left, y in places)}"/>']
    for (left, y), point in zip(places, points, strict=True):
        low, high = along.place(point.spread.low), along.place(point.spread.high)
        parts.append(f'<path class="line {colour}" d="M{left - 4:.1f} {low:.1f}h8M{left:.1f} {low:.1f}V{high:.1f}"/>')
        hint = escape(f"{name}, {point.at:g}: {point.spread}")
        parts.append(f'<circle class="line {colour}" cx="{left:.1f}" cy="{y:.1f}" r="4"><title>{hint}</title></circle>')
        named = f"{name}: " if point is points[0] else ""
        parts.append(labels.beside(left, y, f"{named}{short(point.spread.mean)}", on_line=True))
    return parts


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
