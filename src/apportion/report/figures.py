"""Figures as files: .svg, .png or .pdf by the ending."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apportion.accounting.comparison import compare
from apportion.accounting.interpretation import Profile
from apportion.adaptive import AdaptivePlan
from apportion.batching import Batching
from apportion.errors import InvalidArgument, RunError
from apportion.events import Adjacency
from apportion.outlook import noise_kept, noise_lowered
from apportion.plan import TrainingPlan, rho_of

ENDINGS = (".svg", ".png", ".pdf")
_POINTS = 24  # along the epochs; each is a full accounting of its prefix


def plot_noise(plan: TrainingPlan, path: Path) -> None:
    """The noise multiplier of each epoch, and the budget spent up to it."""
    figure, (noise, spent) = new_figure(path, columns=2)
    epochs = range(len(plan.sigmas))
    noise.step(epochs, plan.sigmas, where="mid")
    noise.set(xlabel="epoch", ylabel="noise multiplier σ", ylim=(0, None), title=f"{plan.schedule.kind} schedule")
    total, curve = 0.0, []
    for slot in plan.slots:
        total += rho_of(slot.event, plan.neighbours)
        curve.append(total)
    spent.plot(epochs, curve)
    spent.set(xlabel="epoch", ylabel="ρ spent", ylim=(0, None), title=f"ε = {plan.guarantee.epsilon:.4g} at the end")
    save(figure, path)


def plot_courses(plan: AdaptivePlan, path: Path) -> None:
    """The noise of an adaptive plan if every check finds an improvement, and if none does."""
    figure, axis = new_figure(path)
    for label, course in (("always improving", noise_kept(plan)), ("never improving", noise_lowered(plan))):
        axis.step(range(len(course.sigmas)), course.sigmas, where="mid", label=label)
    axis.set(xlabel="epoch", ylabel="noise multiplier σ", ylim=(0, None), title="Between which the noise will go")
    axis.legend()
    save(figure, path)


def plot_accountants(
    batching: Batching, sigmas: Sequence[float], delta: float, adjacency: Adjacency, path: Path
) -> None:
    """ε against epochs for every accountant: valid ones solid, invalid ones dashed and labelled so."""
    figure, axis = new_figure(path, width=8.5)
    epochs = sorted({max(1, round(len(sigmas) * (i + 1) / _POINTS)) for i in range(_POINTS)})
    curves: dict[tuple[str, bool, str], list[tuple[int, float]]] = {}
    for count in epochs:
        for entry in compare(batching, sigmas[:count], delta, adjacency, everything=True):
            if entry.epsilon is not None:
                curves.setdefault((entry.accountant, entry.valid, entry.status), []).append((count, entry.epsilon))
    for (name, valid, status), points in curves.items():
        label = name + ("" if status == "proven" else " (estimate)") + ("" if valid else " (not valid here)")
        axis.plot(
            *zip(*points, strict=True), "-" if valid else "--", marker="." if len(points) == 1 else "", label=label
        )
    axis.set(
        xlabel="epochs", ylabel=f"ε at δ = {delta:g}", yscale="log", title=f"{batching.kind} batching, {adjacency}"
    )
    axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    save(figure, path)


def plot_tradeoff(profile: Profile, epsilon: float, delta: float, path: Path) -> None:
    """The attacker's best true-positive rate at each false-positive rate, on logarithmic axes."""
    figure, axis = new_figure(path)
    rates = [10 ** (-4 + 4 * i / 200) for i in range(201)]
    axis.plot(rates, profile.tradeoff(rates), label=f"at most, (ε, δ) = ({epsilon:g}, {delta:g})")
    axis.plot(rates, rates, "--", color="gray", label="guessing")
    axis.set(xlabel="false-positive rate", ylabel="true-positive rate", xscale="log", yscale="log", xlim=(1e-4, 1))
    axis.set(ylim=(1e-4, 1.05), title="What an attacker can tell about one person")
    axis.legend(loc="lower right")
    save(figure, path)


def new_figure(path: Path, columns: int = 1, width: float = 5.5) -> tuple[Any, Any]:
    """A blank figure that `save` can write to `path`; refuses early what could not be written later."""
    if path.suffix.lower() not in ENDINGS:
        raise InvalidArgument(f"a picture's name must end in {', '.join(ENDINGS)}; got {str(path)!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError("drawing needs matplotlib: pip install 'apportion[plot]'") from error
    figure = Figure(figsize=(width * columns, 4), layout="constrained")
    axes = figure.subplots(1, columns)
    for axis in axes if columns > 1 else (axes,):
        axis.grid(alpha=0.3)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error
