import math
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

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


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9), st.booleans())
def test_an_axis_holds_all_values(values: list[float], from_zero: bool) -> None:
    axis = Axis.over(values, 0.0, float(WIDTH), from_zero=from_zero)
    assert 2 <= len(axis.ticks) <= 13
    for value in values:
        place = axis.place(value)
        assert math.isfinite(place)
        assert -1e-3 <= place <= WIDTH + 1e-3
