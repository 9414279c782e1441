"""Random numbers for noise and batching: keys from the operating system, expanded by AES-256 in counter mode.

Global seeds (`torch.manual_seed`, `numpy.random.seed`, `random.seed`) do not reach this module. Every stream has a key of
its own, and a stream refuses to continue in a forked process, where it would repeat its parent's numbers.
"""

import hashlib
import math
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from apportion import _checks
from apportion.bell import Bell
from apportion.errors import RunError

_ZEROS = memoryview(bytes(1 << 20))  # encrypted to give the key stream, a piece that stays in cache at a time
_FEW, _AHEAD = 1 << 10, 1 << 12  # up to so many normals are taken from so many that were drawn together


class RandomStream:
    """An endless stream of independent random numbers under one fresh 256-bit key."""

    def __init__(self, seeded_for_research_only: int | None = None, start: int = 0) -> None:
        """Secure unless a seed is given. A seeded stream is repeatable, hence not private: see `secure`.

        `start` tells the streams of one seed apart, so that a resumed run does not repeat its first part.
        """
        self.secure = seeded_for_research_only is None
        key = os.urandom(32) if seeded_for_research_only is None else _key_of_seed(seeded_for_research_only, start)
        self.fingerprint = hashlib.sha256(b"apportion key fingerprint " + key).hexdigest()[:32]
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._bell, self._ahead = Bell(), _Ahead()
        self._process = os.getpid()

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        words = np.empty(count, np.uint64)
        self.fill(words.view(np.uint8))
        return words

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        """Overwrite `buffer` with uniform bytes."""
        self._require_own_process()
        for start in range(0, len(buffer), len(_ZEROS)):
            piece = buffer[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)  # type: ignore[arg-type]  # takes any buffer

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RunError("a random stream must not be used in a forked process: it would repeat its parent's numbers")

    def below(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` whole numbers, exactly uniform on 0 … bound − 1 (words past the last whole multiple are redrawn)."""
        bound = _checks.count("bound", bound)
        limit = (1 << 64) // bound * bound
        words = self.words(count)
        while limit < 1 << 64 and (rejected := np.flatnonzero(words >= np.uint64(limit))).size:
            words[rejected] = self.words(rejected.size)
        words %= np.uint64(bound)
        return words.view(np.int64)

    def permutation(self, length: int) -> NDArray[np.int64]:
        """A uniformly random permutation of 0 … length − 1: the order of distinct random keys."""
        while True:
            keys = self.words(length)
            order = np.argsort(keys, kind="stable")
            sorted_keys = keys[order]
            if not np.any(sorted_keys[1:] == sorted_keys[:-1]):  # a tie would favour the earlier index
                return order

    def coins(self, probability: float, count: int) -> NDArray[np.bool_]:
        """`count` independent coins, their probability rounded down to a multiple of 2⁻⁶⁴: never more than asked."""
        threshold = int(_checks.rate("probability", probability) * 2.0**64)
        if threshold >= 1 << 64:
            return np.ones(count, np.bool_)
        return self.words(count) < np.uint64(threshold)

    def normals(self, count: int) -> NDArray[np.float64]:
        """`count` independent standard normals in float64."""
        values = np.zeros(count)
        self.add_normals(values, 1.0)
        return values

    def add_normals(self, out: NDArray[np.floating], scale: float, factor: float = 1.0) -> None:
        """Add independent N(0, scale²) to `out`, in float64, round the sum to what `out` is, and multiply it by `factor`.

        A few numbers cost as much as thousands; so where a few of one scale are asked for again and again, as a small
        model's steps do, thousands are drawn, and each is used once.
        """
        if len(out) > _FEW or not self._ahead.has_been_asked_for(scale):
            self._bell.add(out, scale, self.fill, factor)
            return
        self._require_own_process()
        if self._ahead.left < len(out):
            fresh = np.zeros(_AHEAD)
            self._bell.add(fresh, scale, self.fill)
            self._ahead.refill(fresh)
        self._ahead.add(out)
        if factor != 1:
            out *= factor


class _Ahead:
    """Normals of one scale that were drawn before they were needed.

    In every method the order of assignments is such that after an interruption between any two of them nothing is used
    twice, and nothing at another scale than its own.
    """

    def __init__(self) -> None:
        self.scale, self.normals, self.used = math.nan, np.empty(0), 0

    @property
    def left(self) -> int:
        return len(self.normals) - self.used

    def has_been_asked_for(self, scale: float) -> bool:
        """Whether this scale is the one that was asked for last; if not, it is now, and what was drawn is thrown away."""
        if scale == self.scale:
            return True
        self.refill(np.empty(0))
        self.scale = scale
        return False

    def refill(self, normals: NDArray[np.float64]) -> None:
        self.normals = normals
        self.used = 0

    def add(self, out: NDArray[np.floating]) -> None:
        first = self.used
        self.used = first + len(out)
        out += self.normals[first : self.used]


def _key_of_seed(seed: int, start: int) -> bytes:
    _checks.count("seeded_for_research_only", seed, least=0)
    return hashlib.sha256(f"apportion research seed {seed} start {start}".encode()).digest()
