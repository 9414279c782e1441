"""One training run through the real trainer and its ledger, watched from outside: accuracy after every epoch."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apportion import ledger
from apportion.adaptive import AdaptivePlan, Plan
from apportion.bundle.files import LEDGER
from apportion.events import Composed
from apportion.plan import NonPrivatePlan, rho_of
from experiments.experiment import Result

if TYPE_CHECKING:
    import torch

Data = tuple[Any, Any]
_PIECE = 10_000


def why_not() -> str | None:
    """What training needs and this machine lacks, if anything."""
    from importlib.util import find_spec

    return None if find_spec("torch") else "training needs torch: pip install 'apportion[train]'"


def accuracy(model: "torch.nn.Module", data: Data) -> float:
    import torch

    inputs, targets = data
    right = 0
    with torch.no_grad():
        for start in range(0, len(inputs), _PIECE):
            outputs = model(inputs[start : start + _PIECE])
            right += int((outputs.argmax(1) == targets[start : start + _PIECE]).sum())
    return round(right / len(inputs), 6)


def tensors(inputs: np.ndarray, targets: np.ndarray) -> Data:
    import torch

    return torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets)


def train(
    model: "torch.nn.Module",
    data: Data,
    plan: Plan,
    *,
    learning_rate: float,
    out: Path,
    watched: Mapping[str, Data],
    public: Data | None = None,
    frozen: int = 0,
    **steering: Any,
) -> Result:
    """Accuracy on each of `watched` after each epoch (nothing depends on it), and what the ledger says was spent.

    `public` is what an adaptive plan is steered by. The first `frozen` layers do not change: what is watched passes them
    once. `steering` is as in `start`.
    """
    import torch

    from apportion.training import Public, start

    curves: dict[str, list[float]] = {name: [] for name in watched}
    with start(
        model,
        data,
        plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=learning_rate),
        loss=torch.nn.functional.cross_entropy,
        out=out,
        **({} if public is None else {"validation": Public(public)}),
        **steering,
    ) as run:
        head, rest = (model[:frozen], model[frozen:]) if frozen else (torch.nn.Identity(), model)
        with torch.no_grad():
            passed = {name: (head(inputs), targets) for name, (inputs, targets) in watched.items()}
        for epoch in run:
            for batch in epoch:
                run.step(batch)
            for name, watching in passed.items():
                curves[name].append(accuracy(rest, watching))
    return {**curves, **spent(plan, out)}


def fit_and_score(
    model: "torch.nn.Module",
    data: Data,
    plan: Plan,
    scored: Data,
    *,
    out: Path,
    learning_rate: float,
    momentum: float,
    averaging: float | None,
    **options: Any,
) -> Result:
    """Accuracy at the end, and what was spent. The learning rate is that of a step without momentum."""
    import torch

    from apportion.training import fit

    rate = learning_rate * (1 - momentum)
    fit(
        model,
        data,
        plan,
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum),
        weights="last" if averaging is None else "averaged",
        averaging=averaging,
        out=out,
        progress=False,
        **options,
    )
    sigma = None if isinstance(plan, NonPrivatePlan) else plan.slots[0].sigma
    return {"accuracy": accuracy(model, scored), "sigma": sigma, **spent(plan, out)}


def spent(plan: Plan, out: Path) -> Result:
    """ρ of what was recorded, and what is certified; of an adaptive plan that is its cap."""
    recorded = ledger.read(out / LEDGER)
    slots = [event.event for event in recorded.events if event.slot is not None]
    if isinstance(plan, NonPrivatePlan):
        return {"epochs": len(slots)}
    from apportion.certificate import certify

    certificate = certify(recorded)
    events = Composed(events=tuple(event.event for event in recorded.events))
    return {
        "epochs": len(slots),
        "sigmas": [round(event.sigma, 6) for event in slots] if isinstance(plan, AdaptivePlan) else None,
        "rho": rho_of(events, certificate.adjacency),
        "rho_certified": certificate.to_json()["rho"],
        "epsilon": certificate.epsilon,
        "adjacency": certificate.adjacency,
        "accountant": certificate.guarantee.accountant,
    }
