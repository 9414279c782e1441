"""The noise's sampler: the slices cover the bell curve exactly, and what is drawn from them is normal.

Every statistical bound has a false-alarm rate of at most 1e-9.
"""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from apportion import bell
from apportion.randomness import RandomStream

N = 2_000_000
ERRORS = 6.2  # standard errors: a normal exceeds this with probability 6e-10
KOLMOGOROV = math.sqrt(math.log(2 / 1e-9) / 2)  # √N·D exceeds this with probability below 1e-9 (Massart)
AREA = 1 / bell.SLICES


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return RandomStream().normals(N)


def of_words(words: list[int], scale: float = 1.0) -> np.ndarray:
    """What these words give when they are drawn first, before others that are random."""
    stream, given = RandomStream(), [np.array(words, np.int64).view(np.uint8)]

    def fill(buffer: np.ndarray) -> None:
        if given:
            buffer[:] = given.pop()
        else:
            stream.fill(buffer)

    values = np.zeros(len(words))
    bell.Bell().add(values, scale, fill)
    return values


def heights() -> list[mp.mpf]:
    """The tops of the rectangles, from their widths alone: every area is the same."""
    tops, height = [], mp.mpf(0)
    for width in bell.widths():
        height += mp.mpf(AREA) / (2 * mp.mpf(float(width)))
        tops.append(height)
    return tops


def test_every_rectangle_reaches_up_to_the_curve_and_no_further() -> None:
    with mp.workdps(30):
        gaps = [abs(mp.npdf(mp.mpf(float(x))) - top) for x, top in zip(bell.widths(), heights(), strict=True)]
        assert max(gaps) < 1e-15
    assert np.all(np.diff(bell.widths()) < 0)


@pytest.mark.parametrize("t", [0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0])
def test_rectangles_and_outside_together_have_the_normal_law(t: float) -> None:
    """P(|x| < t) from the rectangles exactly, from outside by counting, against the error function."""
    inside = np.minimum(1.0, t / bell.widths()).sum() * AREA
    drawn = np.abs(bell.outside(RandomStream().words(3 * 400_000).reshape(3, -1)))
    share = (bell.SLICES - len(bell.widths())) * AREA
    counted = share * float((drawn < t).mean())
    assert abs(inside + counted - special.erf(t / math.sqrt(2))) < ERRORS * share * 0.5 / math.sqrt(len(drawn))


def test_outside_has_the_law_of_what_the_rectangles_leave() -> None:
    drawn = np.sort(np.abs(bell.outside(RandomStream().words(3 * 400_000).reshape(3, -1))))
    share = (bell.SLICES - len(bell.widths())) * AREA
    widths = bell.widths()[::-1]
    inverse = np.concatenate([[0.0], np.cumsum(1 / widths[::-1])])[::-1]  # Σ 1/w over the rectangles wider than t
    narrower = np.searchsorted(widths, drawn)
    inside = (narrower + drawn * inverse[narrower]) * AREA
    law = (special.erf(drawn / math.sqrt(2)) - inside) / share
    steps = np.arange(len(drawn) + 1) / len(drawn)
    distance = max(np.max(steps[1:] - law), np.max(law - steps[:-1]))
    assert math.sqrt(len(drawn)) * distance < KOLMOGOROV


def test_the_tail_is_normal_far_beyond_the_rectangles() -> None:
    drawn = bell.outside(RandomStream().words(3 * 4_000_000).reshape(3, -1))
    edge = bell.widths()[0]
    tail = np.sort(np.abs(drawn[np.abs(drawn) > edge]))
    assert len(tail) > 20_000
    law = 1 - special.erfc(tail / math.sqrt(2)) / special.erfc(edge / math.sqrt(2))
    steps = np.arange(len(tail) + 1) / len(tail)
    assert math.sqrt(len(tail)) * max(np.max(steps[1:] - law), np.max(law - steps[:-1])) < KOLMOGOROV
    assert tail[-1] > 5.5
    assert abs(float(np.sign(drawn).mean())) < ERRORS / math.sqrt(len(drawn))


@pytest.mark.parametrize("t", [4.4, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0])
def test_chosen_words_give_every_value_of_the_tail_with_its_own_weight(t: float) -> None:
    """e^(−edge(x − edge)) is the share of words that go beyond x; of those at x, e^(−(x − edge)²/2) are kept."""
    edge = float(bell.widths()[0])
    place, kept = math.exp(-edge * (t - edge)), math.exp(-((t - edge) ** 2) / 2)
    last = [2**64 - 2, 2**64 - 1]  # the last box is the tail; the last bit is the sign
    for first, sign in zip(last, (1, -1), strict=True):
        for share, found in ((kept * (1 - 1e-6), 1), (kept * (1 + 1e-6), 0)):
            words = [[first], [int(place * 2**64)], [min(int(share * 2**64), 2**64 - 1)]]
            values = bell.outside(np.array(words, np.uint64))
            assert len(values) == found
            assert values == pytest.approx([sign * t] * found, rel=1e-9)


def test_the_tail_is_reached_by_53_bits() -> None:
    """The smallest uniform gives the outermost point, whose probability no run can notice."""
    words = np.array([[2**64 - 1], [0], [0]], np.uint64)
    assert -float(bell.outside(words)[0]) > 12
    smallest, largest = bell.unit_interval(np.array([0, 2**64 - 1], np.uint64))
    assert smallest == 2.0**-54
    assert 1 - largest == pytest.approx(2.0**-54, rel=1)


def test_a_word_is_a_slice_and_a_place_in_it() -> None:
    words = [5, 5 + (1 << 62), 5 - (1 << 62), -(1 << 63) + 5, (1 << 63) - bell.SLICES + 5, 4092 + (1 << 62)]
    values = of_words(words, scale=3.0)
    width = 3.0 * bell.widths()
    np.testing.assert_allclose(
        values, [5 * width[5] / 2**63, width[5] / 2, -width[5] / 2, -width[5], width[5], width[4092] / 2], rtol=1e-15
    )


def test_slices_that_are_no_rectangles_are_drawn_outside() -> None:
    first = len(bell.widths())
    values = of_words([slice + (1 << 62) for slice in range(first, bell.SLICES)] * 1000)
    assert np.all(values != 0)
    assert float((np.abs(values) > 3.5).mean()) > 0.02  # a thousand times more often than a normal


def test_moments_up_to_the_sixth(sample: np.ndarray) -> None:
    double_factorials = {1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: 15}
    for power, expected in double_factorials.items():
        second = math.prod(range(1, 2 * power, 2))  # E[x^(2·power)]
        error = math.sqrt((second - expected**2) / N)
        assert abs(float((sample**power).mean()) - expected) < ERRORS * error, power


def test_kolmogorov_smirnov(sample: np.ndarray) -> None:
    probabilities = special.ndtr(np.sort(sample))
    steps = np.arange(N + 1) / N
    distance = max(np.max(steps[1:] - probabilities), np.max(probabilities - steps[:-1]))
    assert math.sqrt(N) * distance < KOLMOGOROV


@pytest.mark.parametrize("edge", [3.0, 4.0, 4.5])
def test_large_values_are_as_frequent_as_they_should(sample: np.ndarray, edge: float) -> None:
    expected = N * special.erfc(edge / math.sqrt(2))
    assert abs(int((np.abs(sample) > edge).sum()) - expected) < 7 * math.sqrt(expected) + 12


def test_neighbours_and_neighbouring_pieces_are_independent(sample: np.ndarray) -> None:
    for lag in (1, 2, 3, bell.PIECE):
        first, second = sample[:-lag], sample[lag:]
        for power in (1, 2):
            a, b = first**power - (power - 1), second**power - (power - 1)
            assert abs(float((a * b).mean())) < ERRORS * power / math.sqrt(N - lag), (lag, power)


def test_the_last_bits_of_the_noise_are_random(sample: np.ndarray) -> None:
    """Noise from a coarser set than float64's could be recognised: only the true sum, subtracted, leaves one of the set."""
    ordinary = sample[np.abs(sample) > 2.0**-9]
    last = ordinary.view(np.uint64) & np.uint64(255)
    counts = np.bincount(last.astype(np.int64), minlength=256)
    expected = len(ordinary) / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert special.chdtrc(255, statistic) > 1e-9


def test_each_outside_point_is_used_once() -> None:
    words = [4095] * 10_000
    assert len(np.unique(of_words(words))) == len(words)


@pytest.mark.parametrize("size", [0, 1, 2, 3, bell.PIECE - 1, bell.PIECE, bell.PIECE + 1])
def test_every_size_is_filled(size: int) -> None:
    assert np.all(RandomStream().normals(size) != 0)


def test_noise_of_any_scale_is_added_to_what_is_there() -> None:
    stream, same = RandomStream(5), RandomStream(5)
    for scale in (2.0, 0.5, 1e30, 2.0):
        out = np.full(100_001, 7.0)
        stream.add_normals(out, scale)
        np.testing.assert_allclose(out, 7.0 + scale * same.normals(len(out)), rtol=1e-14, atol=1e-13)
