"""Random pen strokes: public stand-ins for handwriting, to learn from them what all handwriting has in common.

Nobody wrote them. Up to three curves of random shape, centred, drawn with a pen of random width. The numbers come from a
generator whose stream NumPy keeps for good, so that everybody draws the same strokes.
"""

import numpy as np

SIDE, REACH, POINTS = 28, 9.0, 40
PRESENT = (1.0, 0.6, 0.25)  # how probable a first, second and third curve is
PEN = (0.8, 1.4)  # in pixels


def strokes(count: int, seed: int = 1) -> np.ndarray:
    """`count` images of 28 × 28 pixels from 0 to 1."""
    random = np.random.RandomState(seed)
    return np.stack([_image(random) for _ in range(count)]).astype(np.float32)


def _image(random: np.random.RandomState) -> np.ndarray:
    corners = random.uniform(-REACH, REACH, (len(PRESENT), 4, 2))  # of cubic Bézier curves
    corners[1, 0] = corners[0, 3]  # the second goes on where the first ends
    present = random.uniform(size=len(PRESENT)) < PRESENT
    pen = random.uniform(*PEN)
    t = np.linspace(0, 1, POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], 1)
    points = (weights @ corners[present]).reshape(-1, 2)
    points += (SIDE - 1) / 2 - points.mean(0)
    pixels = np.arange(SIDE)
    down, right = ((pixels - points[:, axis, None]) ** 2 for axis in (0, 1))
    distances = (down[:, :, None] + right[:, None, :]).min(0)
    return np.minimum(1, 1.5 * np.exp(-distances / (2 * pen**2)))
