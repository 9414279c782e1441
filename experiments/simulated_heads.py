"""Many linear heads at once, for choosing settings fast: `python -m experiments.simulated_heads NAME < configurations`.

The mechanism of `best-mnist`'s and `best-cifar`'s linear models in plain arrays: clipped gradients of unit-length records,
Gaussian noise as the plan has it, momentum, and an exponential average of the weights. Configurations with as many batches
share their passes over the records. No ledger, no secure noise, and of the batching only its noise (batches are those of a
partition whatever is asked for), so nothing of it may be released. It trains on the training records less those that are
scored, with the noise per record that all of them would have. What is tried is appended to results/NAME/tuning.jsonl.
"""

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from types import ModuleType
from typing import Any

import numpy as np

from apportion import canonical
from apportion.plan import NonPrivatePlan
from experiments.tuning import TUNED

CLASSES, MOMENTUM, AVERAGING = 10, 0.9, 0.9


def noise_of(module: ModuleType, settings: dict[str, Any], records: int) -> list[float]:
    """Deviation of the noise on a batch's mean gradient, epoch by epoch: the plan's, as if all records were there."""
    plan = module.plan_of(settings, records)
    if isinstance(plan, NonPrivatePlan):
        return [0.0] * settings["epochs"]
    batch = plan.batching.at(0).nominal_batch_size(records)
    return [slot.sigma * settings["clip"] / batch for slot in plan.slots]


def train(
    inputs: Any, targets: Any, tried: Sequence[dict[str, Any]], noises: Sequence[Sequence[float]], *, seed: int = 0
) -> list[tuple[Any, Any]]:
    """(last weights, averaged weights) of each configuration; all have as many batches."""
    stream, labels = np.random.default_rng(seed), np.eye(CLASSES, dtype=np.float32)[targets]
    shape = (len(tried), inputs.shape[1], CLASSES)
    weights, velocity, average = (np.zeros(shape, np.float32) for _ in range(3))
    batches = tried[0]["batches"]
    for epoch in range(max(one["epochs"] for one in tried)):
        left = [index for index, one in enumerate(tried) if epoch < one["epochs"]]
        order = stream.permutation(len(inputs)) if batches > 1 else np.arange(len(inputs))
        for number, batch in enumerate(np.array_split(order, batches)):
            own, step = inputs[batch] if batches > 1 else inputs, epoch * batches + number
            scores = own @ weights[left].transpose(1, 0, 2).reshape(own.shape[1], -1)
            clips = [tried[index]["clip"] for index in left]
            slopes = _clipped(scores.reshape(len(own), len(left), CLASSES), labels[batch], clips)
            sums = (own.T @ slopes.reshape(len(own), -1)).reshape(own.shape[1], len(left), CLASSES)
            for place, index in enumerate(left):
                one = tried[index]
                momentum = one.get("momentum", MOMENTUM)
                noise = np.float32(noises[index][epoch]) * stream.standard_normal(sums[:, place].shape, np.float32)
                velocity[index] = momentum * velocity[index] + sums[:, place] / len(own) + noise
                weights[index] -= one["learning_rate"] * (1 - momentum) * velocity[index]
                kept = min(one.get("averaging") or AVERAGING, (2 + step) / (11 + step))
                average[index] = kept * average[index] + (1 - kept) * weights[index]
    return list(zip(weights, average, strict=True))


def _clipped(scores: Any, labels: Any, clips: Sequence[float | None]) -> Any:
    """Gradients by the scores; a record has length 1, so they are as long as the gradient by the weights."""
    powers = np.exp(scores - scores.max(2, keepdims=True))
    slopes = powers / powers.sum(2, keepdims=True) - labels[:, None, :]
    lengths = np.linalg.norm(slopes, axis=2)
    bounds = np.array([np.inf if clip is None else clip for clip in clips], np.float32)
    return slopes * np.minimum(1, bounds / np.maximum(lengths, 1e-12))[:, :, None]


def main(name: str) -> None:
    module, records = TUNED[name]
    tried = [{"records": records, **json.loads(line), "part": "validation"} for line in sys.stdin]
    kinds = groupby(sorted(tried, key=lambda one: _kind(module, one)), key=lambda one: _kind(module, one))
    for _, group in kinds:
        same = list(group)
        private, scored = module.divided(same[0])
        inputs, targets, unseen, right = (tensor.numpy() for tensor in (*private, *scored))
        noises = [noise_of(module, one, records) for one in same]
        for one, (last, averaged) in zip(same, train(inputs, targets, same, noises), strict=True):
            for weights, averaging in ((last, None), (averaged, one.get("averaging") or AVERAGING)):
                accuracy = float(((unseen @ weights).argmax(1) == right).mean())
                kept = {**one, "how": "simulated", "averaging": averaging, "accuracy": round(accuracy, 4)}
                with module.TUNING.open("a") as file:
                    file.write(canonical.dumps(kept) + "\n")
                print(json.dumps(kept, ensure_ascii=False), flush=True)


def _kind(module: ModuleType, settings: dict[str, Any]) -> str:
    """What configurations must have in common to be trained together: records, their features, and batches."""
    return json.dumps([settings.get(name) for name in (*module.DIVIDED_BY, "batches")])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TUNED:
        sys.exit(f"usage: python -m experiments.simulated_heads {{{','.join(TUNED)}}} < configurations")
    TUNED[sys.argv[1]][0].TUNING.parent.mkdir(parents=True, exist_ok=True)
    main(sys.argv[1])
