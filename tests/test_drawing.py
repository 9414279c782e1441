import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.bundle.pictures import trade_off
from apportion.drawing import WIDTH, Axis, Series, chart, standalone

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), max_size=3), st.text(max_size=20))
def test_any_numbers_and_any_title_give_valid_svg(points: list[list[tuple[float, float]]], title: str) -> None:
    title = "".join(character for character in title if character.isprintable())
    series = [Series(label=title, points=p, steps=i % 2 == 0) for i, p in enumerate(points)]
    drawn = chart(series, title=title, x=title, y=title)
    ElementTree.fromstring(standalone(drawn))
    assert "nan" not in drawn.replace(title, "")
    assert drawn == chart(series, title=title, x=title, y=title)
    powers = chart(series, title=title, x=title, y=title, logarithmic=True)
    ElementTree.fromstring(standalone(powers))
    assert "nan" not in powers.replace(title, "")


def test_on_logarithmic_axes_powers_of_ten_are_equally_far_apart() -> None:
    axis = Axis.over_powers([0.0012, 0.7], 0.0, 300.0)
    assert [axis.place(value) for value in (0.001, 0.01, 0.1, 1.0)] == pytest.approx([0, 100, 200, 300])
    assert axis.ticks == pytest.approx((0.001, 0.01, 0.1, 1.0))


def test_logarithmic_axes_reach_over_all_numbers_with_a_few_ticks() -> None:
    axis = Axis.over_powers([1e-280, 1e280], 0.0, 300.0)
    assert 3 <= len(axis.ticks) <= 10
    assert axis.place(axis.ticks[0]) == 0
    assert 0 <= axis.place(1e-280) < axis.place(1.0) < axis.place(1e280) <= 300


def legend_of(drawn: str) -> tuple[float, float]:
    """Where the first sample of a line stands: the only paths that are 26 wide."""
    found = re.search(r'd="M([\d.]+) ([\d.]+)h26"', drawn)
    assert found is not None
    return float(found[1]), float(found[2])


def test_a_legend_goes_where_no_curve_is_if_there_is_such_a_place() -> None:
    """Curves through all four corners leave room in the middle."""
    lines = {"upper": (14.0, 14.0), "lower": (1.0, 1.0), "rising": (0.5, 2.0)}
    series = [Series(label=name, points=[(0.0, a), (1.0, b)]) for name, (a, b) in lines.items()]
    left, top = legend_of(chart(series, title="", x="", y=""))
    axis = Axis.over([0.0, 14.0], 294, 34, from_zero=True)
    assert axis.place(14.0) < top - 12
    assert top + 20 * len(series) < axis.place(2.0)
    assert 64 < left < left + 40 + 7 * len("rising") <= WIDTH - 16


@given(st.floats(0, 200), st.floats(1e-12, 0.5))
def test_the_legend_of_a_bundles_picture_stands_in_a_corner_as_ever(epsilon: float, delta: float) -> None:
    """Receivers redraw it and compare, so the place must not depend on how legends are laid out elsewhere."""
    left, top = legend_of(trade_off({"epsilon": epsilon, "delta": delta}))
    assert left in (72.0, 424.0)
    assert top in (50.0, 256.0)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9), st.booleans())
def test_an_axis_holds_all_values(values: list[float], from_zero: bool) -> None:
    axis = Axis.over(values, 0.0, float(WIDTH), from_zero=from_zero)
    assert 2 <= len(axis.ticks) <= 13
    for value in values:
        place = axis.place(value)
        assert math.isfinite(place)
        assert -1e-3 <= place <= WIDTH + 1e-3
