"""The noise's sampler: the slices cover the bell curve exactly, and what is drawn from them is normal.

Every statistical bound has a false-alarm rate of at most 1e-9.
"""

import math
import sys

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from apportion import bell
from apportion.errors import RunError
from apportion.randomness import RandomStream

N = 2_000_000
ERRORS = 6.2  # standard errors: a normal exceeds this with probability 6e-10
KOLMOGOROV = math.sqrt(math.log(2 / 1e-9) / 2)  # √N·D exceeds this with probability below 1e-9 (Massart)


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return RandomStream().normals(N)


NOBODY, EVERYBODY = 0, 2**64 - 1  # words that put the next rare value 61,000 values ahead, or right after the last


def of_words(words: list[int], scale: float = 1.0, *, rare: int = NOBODY) -> np.ndarray:
    """What these words give when all distances between rare values are drawn from the word `rare`."""
    stream = RandomStream(3)

    def fill(buffer: np.ndarray) -> None:
        if len(buffer) == 8 * len(words):
            buffer[:] = np.array(words, np.int64).view(np.uint8)
        else:
            stream.fill(buffer)
            buffer.view(np.uint64).reshape(4, -1)[3] = rare

    values = np.zeros(len(words))
    bell.Bell().add(values, scale, fill)
    return values


def heights() -> list[mp.mpf]:
    """The tops of the rectangles, from their widths alone: every area is the same."""
    tops, height = [], mp.mpf(0)
    for width in bell.widths():
        height += mp.mpf(1) / (bell.SLICES + 3) / (2 * mp.mpf(float(width)))
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
    inside = np.minimum(1.0, t / bell.widths()).sum() * bell.AREA
    drawn = np.abs(bell.outside(RandomStream().words(3 * 400_000).reshape(3, -1)))
    counted = bell.RARE * float((drawn < t).mean())
    assert abs(inside + counted - special.erf(t / math.sqrt(2))) < ERRORS * bell.RARE * 0.5 / math.sqrt(len(drawn))


def test_outside_has_the_law_of_what_the_rectangles_leave() -> None:
    drawn = np.sort(np.abs(bell.outside(RandomStream().words(3 * 400_000).reshape(3, -1))))
    widths = bell.widths()[::-1]
    inverse = np.concatenate([[0.0], np.cumsum(1 / widths[::-1])])[::-1]  # Σ 1/w over the rectangles wider than t
    narrower = np.searchsorted(widths, drawn)
    inside = (narrower + drawn * inverse[narrower]) * bell.AREA
    law = (special.erf(drawn / math.sqrt(2)) - inside) / bell.RARE
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_the_loop_gives_what_it_says_and_what_numpy_gives(dtype: type[np.floating]) -> None:
    edges = [0, 1, 4095, 4096, 2**53 + 1, 2**63 - 1, -1, -(2**53) - 1, -(2**63)]
    words = np.concatenate([np.array(edges, np.int64), RandomStream().words(3000).view(np.int64)])
    scaled_widths, factor = bell.widths() * (3.0 * 2.0**-63), dtype(1 / 600)
    sums = (5 * RandomStream().normals(len(words))).astype(dtype)
    by_loop, compiled = sums.copy(), sums.copy()
    bell.add_words(by_loop, words, scaled_widths, factor)
    bell.compiled()(compiled, words, scaled_widths, factor)
    noisy = sums.astype(np.float64) + words.astype(np.float64) * scaled_widths[words & (bell.SLICES - 1)]
    np.testing.assert_array_equal(compiled, by_loop)
    np.testing.assert_array_equal(compiled, noisy.astype(dtype) * factor)


def test_without_numba_noise_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(RunError, match=r"apportion\[train\]"):
        bell.compiled.__wrapped__()


def test_the_last_bits_choose_among_all_rectangles_and_the_rest_is_rare() -> None:
    assert len(bell.widths()) == bell.SLICES
    assert abs(bell.SLICES * bell.AREA + bell.RARE - 1) < 1e-15


def test_rare_values_are_drawn_outside_and_instead_of_the_rectangles() -> None:
    values = of_words([5 + (1 << 62)] * 10_000, rare=EVERYBODY)
    np.testing.assert_array_equal(values, of_words([99] * 10_000, rare=EVERYBODY))
    assert float((np.abs(values) > 3.5).mean()) > 0.02  # a thousand times more often than a normal
    assert len(np.unique(values)) == len(values), "each of them is used once"


@pytest.mark.parametrize("k", [1, 2, 10, 1000, 20_000])
def test_chosen_words_give_every_distance_with_its_own_weight(k: int) -> None:
    """A rare value is more than k after the last with probability (1 − RARE)^k."""
    with mp.workdps(40):
        share = (1 - mp.mpf(3) / (bell.SLICES + 3)) ** k
        words = [int(share * (1 - mp.mpf(10) ** -12) * 2**64), int(share * (1 + mp.mpf(10) ** -12) * 2**64) + 1]
    beyond, within = bell.distances(np.array(words, np.uint64))
    assert beyond == k + 1
    assert within == k


def test_the_guide_leads_to_the_box_that_a_search_finds() -> None:
    ends = bell._boxes()[-1]
    cells = np.arange(1 << bell.GUIDE, dtype=np.uint64) << np.uint64(64 - bell.GUIDE)
    last = np.uint64((1 << 64 - bell.GUIDE) - 1)
    near = np.rint(ends[:-1] / ends[-1] * 2.0**53).astype(np.int64)[:, None] + np.arange(-4, 5)
    around = near.reshape(-1).astype(np.uint64) << np.uint64(11)
    for words in (cells, cells + last, around, RandomStream().words(100_000)):
        area = bell.unit_interval(words) * ends[-1]
        assert np.array_equal(bell.chosen_boxes(words, area), np.searchsorted(ends, area))


def test_every_value_is_rare_with_the_same_probability_wherever_calls_begin_and_end() -> None:
    drawing, fill = bell.Bell(), RandomStream().fill
    sizes = RandomStream().below(20_000, 500)
    places = []
    for size, before in zip(sizes, np.cumsum(sizes) - sizes, strict=True):
        at, rare = drawing._rare_among(int(size), fill)
        assert len(at) == len(rare)
        assert np.all((at >= 0) & (at < size))
        places.append(before + at)
    found, total = np.concatenate(places), int(sizes.sum())
    assert np.all(np.diff(found) > 0)
    assert abs(len(found) - total * bell.RARE) < ERRORS * math.sqrt(total * bell.RARE) + 10
    gaps = np.diff(found)
    law, steps = -np.expm1(gaps * math.log1p(-bell.RARE)), np.arange(1, len(gaps) + 1) / len(gaps)
    distance = np.max(np.abs(np.sort(law) - steps))
    assert math.sqrt(len(gaps)) * (distance - 2 * bell.RARE) < KOLMOGOROV  # the law of whole numbers, as if of all


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


@pytest.mark.parametrize("size", [0, 1, 2, 3, bell.PIECE - 1, bell.PIECE, bell.PIECE + 1])
def test_every_size_is_filled(size: int) -> None:
    assert np.all(RandomStream().normals(size) != 0)


def test_noise_of_any_scale_is_added_to_what_is_there() -> None:
    stream, same = RandomStream(5), RandomStream(5)
    for scale in (2.0, 0.5, 1e30, 2.0):
        out = np.full(100_001, 7.0)
        stream.add_normals(out, scale)
        np.testing.assert_allclose(out, 7.0 + scale * same.normals(len(out)), rtol=1e-14, atol=1e-13)


def test_noise_on_float32_is_added_in_float64_and_rounded_once() -> None:
    single = np.linspace(-9, 9, 200_001, dtype=np.float32)
    double = single.astype(np.float64)
    for out in (single, double):
        RandomStream(5).add_normals(out, 0.3)
    np.testing.assert_array_equal(single, double.astype(np.float32))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("call", range(5))
def test_after_an_interruption_anywhere_noise_has_its_scale_and_rare_values_their_places(call: int) -> None:
    stream, calls = np.random.default_rng(call), iter(range(10**6))

    def fill(buffer: np.ndarray) -> None:
        if next(calls) == call:
            raise Interrupted
        buffer[:] = np.frombuffer(stream.bytes(len(buffer)), np.uint8)

    drawing, rare = bell.Bell(), 0
    with pytest.raises(Interrupted):
        for scale in (1.0, 100.0, 1e-3, 3.0):
            drawing.add(np.zeros(3000), scale, fill)
    for _ in range(100):
        at, _values = drawing._rare_among(3000, fill)
        assert np.all((at >= 0) & (at < 3000))
        assert np.all(np.diff(at) > 0)
        rare += len(at)
    assert rare == pytest.approx(300_000 * bell.RARE, abs=6 * math.sqrt(300_000 * bell.RARE))
    found = np.zeros(200_000)
    drawing.add(found, 2.0, fill)
    assert found.std() == pytest.approx(2.0, rel=0.02)
