"""Fine-tuning under a budget on MNIST: the numbers of docs/fine-tuning.md.

    python examples/fine_tuning.py [--data-dir DIR] [--records N] [--repeats 2] [--json FILE]

The digits 0 to 4 play the public data on which a network was trained by somebody else; the digits 5 to 9 are the private
records. Trained on these, under the same budget: the whole network from scratch; a head on features of the frozen
network that are computed once, either from before its last layer or from its end; and low-rank adapters with a head. Each
tries the learning rates of `RATES` once, by test accuracy, and repeats the best. `--records` takes so many private records
only; results for several numbers are kept side by side in the file.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import apportion as ap
from apportion import outlook
from apportion.data import Dataset, mnist
from apportion.training import fit

FEATURES, EARLIER, CLASSES, DELTA = 64, 512, 5, 1e-5  # widths of the last layer's features, and of those before it
RATES = (0.5, 1.0, 2.0)
EXAMPLES = 29_000  # about as many of MNIST's training images are known to show the digits 5 to 9


class LowRank(nn.Module):
    """A frozen linear layer plus a trained update of low rank, which is zero at first."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.frozen(inputs) + self.up(self.down(inputs))


def backbone() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.Tanh(),
        nn.Conv2d(16, 32, 5, stride=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(512, FEATURES), nn.Tanh(),
    )  # fmt: skip


def pretrained(images: Tensor, labels: Tensor, epochs: int = 3) -> nn.Sequential:
    """What would be downloaded: a network trained on public data, without privacy."""
    body, head = backbone(), nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(body(images[rows])), labels[rows]).backward()
            optimizer.step()
    return body.requires_grad_(False).eval()


@torch.no_grad()
def cached(body: nn.Module, images: Tensor) -> Tensor:
    """The features of every record, each a function of that record alone: nothing is released, nothing is spent."""
    return torch.cat([body(part) for part in images.split(1000)])


def from_scratch() -> nn.Module:
    return nn.Sequential(backbone(), nn.Linear(FEATURES, CLASSES))


def with_adapters(body: nn.Sequential, rank: int = 4) -> nn.Module:
    """The linear layer of the frozen network gets an adapter; convolutions stay as they are."""
    layers = [LowRank(layer, rank) if isinstance(layer, nn.Linear) else layer for layer in body]
    return nn.Sequential(*layers, nn.Linear(FEATURES, CLASSES))


def part(dataset: Dataset, digits: range) -> tuple[Tensor, Tensor]:
    images = torch.as_tensor(dataset.inputs).reshape(-1, 1, 28, 28)
    labels = torch.as_tensor(dataset.targets)
    chosen = (labels >= digits.start) & (labels < digits.stop)
    return images[chosen], labels[chosen] - digits.start


def trained(
    model: nn.Module,
    records: tuple[Tensor, Tensor],
    examples: int,  # declared, never read off the records: their number is private, too
    *,
    epsilon: float,
    epochs: int,
    rate: float,
    out: Path,
) -> ap.TrainingPlan:
    """Trains `model` in place; only parameters that are not frozen are trained, noised and counted."""
    plan = ap.solve(
        budget=ap.Budget(epsilon=epsilon, delta=DELTA),
        examples=examples,
        batching=ap.Partition(batches=20 if examples > 20_000 else 4),
        schedule=ap.Uniform(),
        epochs=epochs,
        clip=1.0,
    )
    fit(
        model,
        records,
        plan,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        out=out,
        declared={"pre-trained weights": "public: trained on digits 0 to 4"},
        progress=False,
    )
    return plan


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@torch.no_grad()
def accuracy(model: nn.Module, records: tuple[Tensor, Tensor]) -> float:
    return float((model(records[0]).argmax(1) == records[1]).double().mean())


def compare(
    directory: Path | None, *, epsilon: float, repeats: int, epochs: int = 5, records: int | None = None
) -> dict[str, Any]:
    train, test = mnist(directory)
    images, labels = part(train, range(5, 10))
    private, held_out = (images[:records], labels[:records]), part(test, range(5, 10))
    body = pretrained(*part(train, range(0, 5)))
    ways: dict[str, tuple[Any, nn.Module]] = {  # how to make the model, and what records pass through before it
        "everything, from scratch": (from_scratch, nn.Identity()),
        "head, on features from before the last layer": (lambda: nn.Linear(EARLIER, CLASSES), body[:-2]),
        "head, on features of the last layer": (lambda: nn.Linear(FEATURES, CLASSES), body),
        "adapters of rank 4 and head": (lambda: with_adapters(body), nn.Identity()),
    }
    found = {}
    for name, (make, before) in ways.items():
        features, scored = cached(before, private[0]), cached(before, held_out[0])

        def run(
            rate: float, make: Any = make, data: Any = (features, private[1]), test: Any = (scored, held_out[1])
        ) -> Any:
            model = make()
            with tempfile.TemporaryDirectory() as out:
                plan = trained(
                    model, data, records or EXAMPLES, epsilon=epsilon, epochs=epochs, rate=rate, out=Path(out) / "run"
                )
            return accuracy(model, test), outlook.signal(plan, parameters_of(model))

        best = max(RATES, key=lambda rate: run(rate)[0])
        runs = [run(best) for _ in range(repeats)]
        signal = runs[0][1]
        found[name] = {
            "parameters": signal.parameters,
            "noise_to_signal": signal.first,
            "learning_rate": best,
            "accuracies": [round(value, 4) for value, _ in runs],
        }
        print(name, found[name], flush=True)
    return {"records": len(private[0]), "epsilon": epsilon, "delta": DELTA, "ways": found}


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = ["| private records | trained | parameters | noise/signal per step | rate | test accuracy |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for result in sorted(results, key=lambda result: -result["records"]):
        for name, found in result["ways"].items():
            runs = ", ".join(f"{value:.3f}" for value in found["accuracies"])
            cells = [f"{result['records']:,}", name, f"{found['parameters']:,}", f"{found['noise_to_signal']:.3g}"]
            lines.append(f"| {' | '.join(cells)} | {found['learning_rate']:g} | {runs} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the files of MNIST lie (else APPORTION_DATA)")
    parser.add_argument("--records", type=int, help="take so many private records (default: all)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results here, too")
    arguments = parser.parse_args()
    result = compare(arguments.data_dir, epsilon=1.0, repeats=arguments.repeats, records=arguments.records)
    results = [result]
    if arguments.json is not None:
        kept = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
        results = [other for other in kept if other["records"] != result["records"]] + [result]
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
