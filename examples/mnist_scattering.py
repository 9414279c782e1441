"""MNIST under a budget, well: a linear model on a public scattering transform, published with its certificate.

    python -m examples.mnist_scattering [--epsilon 3] [--data-dir DIR] [--out runs/digits] [--to published/digits]

The transform (`scattering.py` beside this file) is fixed and known to everybody, so features cost nothing; under noise, a
linear model on them learns more than a network from scratch. Settings were chosen on the last 10,000 training records: see
`experiments/README.md`, which has the measured accuracies. The published model is the linear one: whoever uses it
computes the features of an image first, as `predict` below does.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

import apportion as ap
from apportion.data import mnist
from apportion.training import fit
from examples.scattering import FEATURES, features

DELTA, MOMENTUM = 1e-5, 0.9
BATCHES, EPOCHS, CLIP = 30, 8, 0.1
EXAMPLES = 60_000  # declared, from what is public about MNIST: the length of private data is private, too


def rate_for(epsilon: float) -> float:
    """Of a step without momentum. Large, because clipped gradients are short; less noise bears longer steps."""
    return min(1800.0, 500.0 * max(1.0, epsilon) ** 0.8)


def linear() -> torch.nn.Linear:
    model = torch.nn.Linear(FEATURES, 10, bias=False)  # features are centred
    torch.nn.init.zeros_(model.weight)  # a random start would be noise, too
    return model


def train(images, labels, epsilon: float, out: Path, keep: Path | None = None):
    plan = ap.solve(
        budget=ap.Budget(epsilon=epsilon, delta=DELTA),
        examples=EXAMPLES,
        batching=ap.Partition(batches=BATCHES),
        schedule=ap.Uniform(),
        epochs=EPOCHS,
        clip=CLIP,
    )
    rate = rate_for(epsilon) * (1 - MOMENTUM)
    return fit(
        linear(),
        (features(images, keep), labels),
        plan,
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM),
        out=out,
        declared={"inputs": "public scattering transform of 28 × 28 pixels from 0 to 1: examples/scattering.py"},
    )


@torch.no_grad()
def predict(bundle: Path, images) -> torch.Tensor:
    """Digits of images, as a receiver of the bundle finds them."""
    model = linear()
    model.load_state_dict(load_file(bundle / "model.safetensors"))
    return model(features(images)).argmax(1)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epsilon", type=float, default=3.0)
    options.add_argument("--data-dir", type=Path, help="where MNIST is, or is downloaded to")
    options.add_argument("--out", type=Path, default=Path("runs/digits"))
    options.add_argument("--to", type=Path, default=Path("published/digits"))
    options.add_argument("--keep", type=Path, help="keep features here; as private as the images")
    asked = options.parse_args(arguments)
    private, test = mnist(asked.data_dir)
    run = train(private.inputs, private.targets, asked.epsilon, asked.out, asked.keep)
    run.publish(
        asked.to,
        name="digits",
        hyperparameters="tuned-on-this-data",
        intended_use="Reading digits. Features: examples/scattering.py of Apportion.",
    )
    verified = ap.verify(asked.to).verified
    right = float((predict(asked.to, test.inputs) == torch.as_tensor(test.targets)).double().mean())
    print(f"{asked.to}: ε = {run.certificate().epsilon:g}, δ = {DELTA:g}, verified: {verified}")
    print(f"{right:.4f} of {len(test)} public test images are read right")


if __name__ == "__main__":
    main()
