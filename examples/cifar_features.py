"""CIFAR-10 under a budget, well: a linear head on frozen ImageNet convolutions, published with its certificate.

    python examples/cifar_features.py [--epsilon 3] [--data-dir DIR] [--out runs/objects] [--to published/objects]

The convolutions (`imagenet_features.py` beside this file) were trained by others on public images, so features cost
nothing; they are computed once, in a quarter of an hour of one core, and kept beside the data. Settings were chosen on
training records: see `experiments/README.md`. The published model is the head: whoever uses it computes the features of
an image first.
"""

import argparse
from pathlib import Path

import torch
from imagenet_features import FEATURES, directions, features
from safetensors.torch import load_file

import apportion as ap
from apportion.data import cifar10
from apportion.training import fit

DELTA, SIDE, MOMENTUM = 1e-5, 192, 0.9
BATCHES, EPOCHS, CLIP, RATE = 1, 80, 1.0, 200.0  # RATE for ε up to 1; more budget bears longer steps
EXAMPLES = 50_000  # declared, from what is public about CIFAR-10: the length of private data is private, too


def rate_for(epsilon: float) -> float:
    return RATE * min(5.0, max(1.0, epsilon**0.75))


def head() -> torch.nn.Linear:
    model = torch.nn.Linear(FEATURES, 10, bias=False)
    torch.nn.init.zeros_(model.weight)  # a random start would be noise, too
    return model


def train(records, labels, epsilon: float, out: Path):
    """`records` are `directions` of features, of length 1 each: then no gradient is longer than √2."""
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
        head(),
        (records, labels),
        plan,
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM),
        out=out,
        declared={"pre-trained weights": "public: EfficientNet-Lite0, trained on ImageNet"},
    )


@torch.no_grad()
def predict(bundle: Path, records) -> torch.Tensor:
    """Classes of images, given the directions of their features, as a receiver of the bundle finds them."""
    model = head()
    model.load_state_dict(load_file(bundle / "model.safetensors"))
    return model(torch.as_tensor(records)).argmax(1)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epsilon", type=float, default=3.0)
    options.add_argument(
        "--data-dir", type=Path, help="where CIFAR-10 is, or is downloaded to; features are kept there"
    )
    options.add_argument("--out", type=Path, default=Path("runs/objects"))
    options.add_argument("--to", type=Path, default=Path("published/objects"))
    asked = options.parse_args(arguments)
    private, test = cifar10(asked.data_dir)
    records, scored = (directions(features(d.inputs, side=SIDE, directory=asked.data_dir)) for d in (private, test))
    run = train(records, private.targets, asked.epsilon, asked.out)
    run.publish(
        asked.to,
        name="objects",
        hyperparameters="tuned-on-this-data",
        intended_use="Ten kinds of objects in photographs. Takes features of EfficientNet-Lite0, not pixels.",
    )
    verified = ap.verify(asked.to).verified
    right = float((predict(asked.to, scored) == torch.as_tensor(test.targets)).double().mean())
    print(f"{asked.to}: ε = {run.certificate().epsilon:g}, δ = {DELTA:g}, verified: {verified}")
    print(f"{right:.4f} of {len(test)} public test images are told right")


if __name__ == "__main__":
    main()
