"""Both kinds of private selection on the built-in table, at one and the same total cost, beside a guess made beforehand.

    python examples/selection.py --repeats 5

Test accuracies are computed without noise: the built-in table is public. On private records they would have to be paid for.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

import apportion as ap
from apportion.components.selection import expected_runs, law_of_mean
from apportion.components.selection_solver import Draft, Wish, solve_selection
from apportion.data import wisconsin
from apportion.training import Configuration, fit, select

BUDGET = ap.Budget(epsilon=3.0, delta=1e-5)
EXAMPLES = 560
SCHEDULES = {"uniform": ap.Uniform(), "exponential": ap.ExponentialDecay(decay=0.05)}
LEARNING_RATES = (0.02, 0.2, 2.0)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def optimizer(rate: float, parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate)


def plan(schedule, epochs: int, budget: ap.Budget, examples: int) -> ap.TrainingPlan:
    batching = ap.Partition(batches=4)
    return ap.solve(budget=budget, examples=examples, batching=batching, schedule=schedule, epochs=epochs, clip=1.0)


def candidates(epochs: int) -> tuple[tuple[Draft, ...], list[Configuration]]:
    drafts, configurations = [], []
    for name, schedule in SCHEDULES.items():
        for rate in LEARNING_RATES:
            text = f"{name} noise, learning rate {rate:g}"
            drafts.append(Draft(name=text, description=text, open=True, plan=partial(plan, schedule, epochs)))
            loss = torch.nn.functional.cross_entropy
            configurations.append(Configuration(model=network, optimizer=partial(optimizer, rate), loss=loss))
    return tuple(drafts), configurations


def accuracy(weights: Path, data) -> float:
    model = network()
    model.load_state_dict(load_file(weights / "model.safetensors"))
    return float((model(torch.tensor(data.inputs).float()).argmax(1) == torch.tensor(data.targets)).double().mean())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--processes", type=int, default=1)
    asked = options.parse_args()
    train, test = wisconsin()
    records = (train.inputs, train.targets)
    drafts, configurations = candidates(asked.epochs)
    wish = partial(Wish, budget=BUDGET, examples=EXAMPLES, adjacency="add-remove", drafts=drafts)
    law = law_of_mean(6.0, eta=0.0)
    plans = {
        "repeat: best of a secret number": solve_selection(wish(runs=law, sigma=5.0)),
        "split: parts, then trained again": solve_selection(wish(retrain_share=0.7)),
    }
    print(f"{'method':34} {'ε':>6} {'trainings':>10} {'ρ of the released':>18} {'test accuracy':>14}")
    with tempfile.TemporaryDirectory() as directory:
        for number, (name, selection) in enumerate(plans.items()):
            scores = []
            for repeat in range(asked.repeats):
                out = Path(directory) / f"{number}-{repeat}"
                select(configurations, records, selection, out=out, processes=asked.processes, progress=False)
                scores.append(accuracy(out, test))
            trainings = expected_runs(law) if number == 0 else len(drafts) + 1
            rho, epsilon = selection.candidates[0].released.rho, selection.guarantee.epsilon
            print(f"{name:34} {epsilon:6.3f} {trainings:10.3g} {rho:18.4f} {statistics.mean(scores):14.3f}")
        single = plan(SCHEDULES["uniform"], asked.epochs, BUDGET, EXAMPLES)
        for rate in LEARNING_RATES:
            out = Path(directory) / f"guess-{rate}"
            how = configurations[LEARNING_RATES.index(rate)]
            fit(network(), records, single, loss=how.loss, optimizer=how.optimizer, out=out, progress=False)
            name = f"no selection: learning rate {rate:g}"
            print(f"{name:34} {single.guarantee.epsilon:6.3f} {1:10} {single.rho:18.4f} {accuracy(out, test):14.3f}")


if __name__ == "__main__":
    main()
