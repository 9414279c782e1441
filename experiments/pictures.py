"""Means with their extremes, one line per row, as SVG text: the paper's min–max bars."""

from collections.abc import Mapping
from html import escape

from apportion.drawing import Axis, standalone
from experiments.spread import Spread, short

_WIDTH, _LEFT, _RIGHT, _TOP, _LINE = 640, 170, 24, 38, 24


def ranges(rows: Mapping[str, Spread], *, title: str) -> str:
    """A bar from the smallest to the largest trial, a dot at the mean."""
    ends = [value for row in rows.values() for value in (row.low, row.high)]
    axis = Axis.over(ends, float(_LEFT), float(_WIDTH - _RIGHT), from_zero=False)
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
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<path class="line s0" d="M{low} {y - 4:.1f}v8M{low} {y:.1f}H{high}M{high} {y - 4:.1f}v8"/>')
        parts.append(
            f'<circle class="line s1" cx="{mean}" cy="{y:.1f}" r="4"><title>{escape(f"{name}: {row}")}</title></circle>'
        )
    return standalone("\n".join([*parts, "</svg>"]))
