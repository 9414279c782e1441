"""Many linear heads at once, for choosing settings fast: `python -m experiments.simulated_heads < configurations`.

The mechanism of `best-cifar` with one batch per epoch in plain arrays: clipped gradients of unit-length records, Gaussian
noise, momentum, and an exponential average of the weights. All configurations share one pass over the records per epoch.
No ledger, no secure noise, so nothing of it may be released. It trains on part of the training records with the noise per
record that 50,000 would have, and scores the last fifth. What is tried is appended to results/best-cifar/tuning.jsonl.
"""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from apportion import canonical
from apportion.accounting.conversions import mu_of_epsilon
from experiments import best_cifar, cifar

CLASSES, PRETENDED = 10, 50_000


def noise_multiplier(epsilon: float | None, epochs: int) -> float:
    """One batch per epoch is a plain Gaussian: exact."""
    return 0.0 if epsilon is None else math.sqrt(epochs) / mu_of_epsilon(epsilon, best_cifar.DELTA)


def train(inputs: Any, targets: Any, tried: Sequence[dict[str, Any]], *, seed: int = 0) -> list[tuple[Any, Any]]:
    """(last weights, averaged weights) of each configuration."""
    stream, labels = np.random.default_rng(seed), np.eye(CLASSES, dtype=np.float32)[targets]
    shape = (len(tried), inputs.shape[1], CLASSES)
    weights, velocity, average = (np.zeros(shape, np.float32) for _ in range(3))
    found: dict[int, tuple[Any, Any]] = {}
    sigmas = [noise_multiplier(one["epsilon"], one["epochs"]) for one in tried]
    for epoch in range(max(one["epochs"] for one in tried)):
        left = [index for index, one in enumerate(tried) if epoch < one["epochs"]]
        scores = inputs @ weights[left].transpose(1, 0, 2).reshape(inputs.shape[1], -1)
        slopes = _clipped(scores.reshape(len(inputs), len(left), CLASSES), labels, [tried[i]["clip"] for i in left])
        sums = (inputs.T @ slopes.reshape(len(inputs), -1)).reshape(inputs.shape[1], len(left), CLASSES)
        for place, index in enumerate(left):
            one = tried[index]
            spread = sigmas[index] * (one["clip"] or 0.0) / PRETENDED
            noise = spread * stream.standard_normal(sums[:, place].shape, np.float32)
            velocity[index] = one["momentum"] * velocity[index] + sums[:, place] / len(inputs) + noise
            weights[index] -= one["learning_rate"] * (1 - one["momentum"]) * velocity[index]
            kept = min(one.get("averaging") or 0.9, (2 + epoch) / (11 + epoch))
            average[index] = kept * average[index] + (1 - kept) * weights[index]
            if epoch + 1 == one["epochs"]:
                found[index] = weights[index].copy(), average[index].copy()
    return [found[index] for index in range(len(tried))]


def _clipped(scores: Any, labels: Any, clips: Sequence[float | None]) -> Any:
    """Gradients by the scores; a record has length 1, so they are as long as the gradient by the weights."""
    powers = np.exp(scores - scores.max(2, keepdims=True))
    slopes = powers / powers.sum(2, keepdims=True) - labels[:, None, :]
    lengths = np.linalg.norm(slopes, axis=2)
    bounds = np.array([np.inf if clip is None else clip for clip in clips], np.float32)
    return slopes * np.minimum(1, bounds / np.maximum(lengths, 1e-12))[:, :, None]


def main() -> None:
    tried = [json.loads(line) for line in sys.stdin]
    for how in sorted({(one["records"], one["side"], one["mirrored"], one["scaling"]) for one in tried}):
        same = [one for one in tried if (one["records"], one["side"], one["mirrored"], one["scaling"]) == how]
        inputs, targets = (tensor.numpy() for tensor in cifar.features("train", *how))
        split = len(inputs) * 4 // 5
        for one, (last, averaged) in zip(same, train(inputs[:split], targets[:split], same), strict=True):
            for weights, averaging in ((last, None), (averaged, one.get("averaging") or 0.9)):
                right = (inputs[split:] @ weights).argmax(1) == targets[split:]
                facts = {"how": "simulated", "part": "validation", "bias": False, "batches": 1, **one}
                kept = {**facts, "averaging": averaging, "accuracy": round(float(right.mean()), 4)}
                with best_cifar.TUNING.open("a") as file:
                    file.write(canonical.dumps(kept) + "\n")
                print(json.dumps(kept), flush=True)


if __name__ == "__main__":
    best_cifar.TUNING.parent.mkdir(parents=True, exist_ok=True)
    main()
