import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import canonical
from apportion.errors import InvalidArgument

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_reading_what_was_written_gives_it_back(value: object) -> None:
    assert canonical.loads(canonical.dumps(value)) == value
    assert canonical.loads(canonical.pretty(value)) == value


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', "NaN", "[Infinity]", "-Infinity", "1e999", "{", b"\xff", "[" * 40 + "]" * 40, "[" * 100_000, ""],
)
def test_what_has_no_single_meaning_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument):
        canonical.loads(text)


def test_brackets_inside_strings_are_not_nesting() -> None:
    assert canonical.loads('["' + "[{" * 100 + '\\""]')
