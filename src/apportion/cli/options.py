"""Options that several verbs share, and what they build. Messages name the option, not the field."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from apportion import by_epoch
from apportion.batching import Batching, Partition, Poisson, Shuffle
from apportion.budget import Budget
from apportion.by_epoch import ByEpoch
from apportion.clipping import FLAT, Automatic, Clipping, LayerNoise, PerLayer
from apportion.errors import InvalidArgument
from apportion.events import Adjacency
from apportion.schedules import (
    ExponentialDecay,
    PolynomialDecay,
    Schedule,
    StepDecay,
    TimeDecay,
    Uniform,
    ValidationDecay,
)
from apportion.settings import Settings

BatchingKind = Literal["shuffle", "partition", "poisson"]
ScheduleKind = Literal["uniform", "time", "exponential", "step", "polynomial", "validation"]

ClippingKind = Literal["flat", "per-layer", "automatic"]

_NOISE, _BATCHES, _BUDGET, _CLIPPING, _SIGNAL = "Noise", "Batching", "Budget", "Clipping", "Noise against signal"
VALIDATION = "Noise that follows public scores (--schedule validation)"

BatchingOption = Annotated[
    BatchingKind,
    typer.Option(
        help="How batches are formed: 'partition' (each record falls into a random bin; amplified), 'poisson' (each step "
        "samples; amplified) or 'shuffle' (a permutation cut into pieces; not amplified).",
        rich_help_panel=_BATCHES,
    ),
]
BatchesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Batches per epoch (shuffle, partition); by epoch as 0:100,20:50.",
        rich_help_panel=_BATCHES,
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Sampling rate (poisson): the chance of a record to be in a batch. An epoch is round(1/rate) steps. By epoch "
        "as 0:0.01,20:0.02.",
        rich_help_panel=_BATCHES,
    ),
]
ClippingOption = Annotated[
    ClippingKind | None,
    typer.Option(
        help="What is clipped to --clip: the whole gradient (flat, the default), every layer's part of it (per-layer), or "
        "nothing, every gradient being scaled to about that length (automatic).",
        rich_help_panel=_CLIPPING,
        show_default=False,
    ),
]
LayerNoiseOption = Annotated[
    LayerNoise | None,
    typer.Option(
        help="Per-layer clipping of L layers: noise √L times larger (scaled, the default), or an epoch charged as L (each).",
        rich_help_panel=_CLIPPING,
        show_default=False,
    ),
]
LayersOption = Annotated[
    int | None,
    typer.Option(help="The number of layers, for per-layer clipping.", rich_help_panel=_CLIPPING, show_default=False),
]
ScheduleOption = Annotated[
    ScheduleKind,
    typer.Option(
        help="How the noise multiplier changes from epoch to epoch (t = 0, 1, …). uniform: σ0. time: σ0/(1+kt). "
        "exponential: σ0·e^(-kt). step: σ0·k^⌊t/period⌋. polynomial: (σ0-σend)(1-t/period)^k + σend. validation: σ ← k·σ "
        "whenever a score on public data stops improving; certified is a cap on the whole.",
        rich_help_panel=_NOISE,
    ),
]
Sigma0Option = Annotated[
    float | None, typer.Option(help="Initial noise multiplier σ0.", rich_help_panel=_NOISE, show_default=False)
]
DecayOption = Annotated[
    float | None, typer.Option(help="Decay k of the schedule.", rich_help_panel=_NOISE, show_default=False)
]
PeriodOption = Annotated[
    int | None,
    typer.Option(
        help="Epochs per stair (step; optional for time and exponential), until the end value (polynomial), or scores from "
        "one check to the next (validation).",
        rich_help_panel=_NOISE,
        show_default=False,
    ),
]
SigmaEndOption = Annotated[
    float | None,
    typer.Option(help="Final noise multiplier (polynomial).", rich_help_panel=_NOISE, show_default=False),
]
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        help="The noise falls when the score has improved by at most this since the last check (default 0.01).",
        rich_help_panel=VALIDATION,
        show_default=False,
    ),
]
AverageOption = Annotated[
    int | None,
    typer.Option(
        help="A check compares means of this many scores (default 5).",
        rich_help_panel=VALIDATION,
        show_default=False,
    ),
]
EveryOption = Annotated[
    int | None,
    typer.Option(
        help="Score the model after every so many epochs (default 1).",
        rich_help_panel=VALIDATION,
        show_default=False,
    ),
]
FloorOption = Annotated[
    float | None,
    typer.Option(
        help="The noise never falls below this, and the floor is certified, by any accountant, instead of a cap; needs "
        "--epochs.",
        rich_help_panel=VALIDATION,
        show_default=False,
    ),
]
OrderOption = Annotated[
    float | None,
    typer.Option(
        help="The Rényi order at which the cap is set (default: chosen now, from public values).",
        rich_help_panel=VALIDATION,
        show_default=False,
    ),
]
EpochsOption = Annotated[int | None, typer.Option(help="Number of epochs.", rich_help_panel=_NOISE, show_default=False)]
RhoOption = Annotated[float | None, typer.Option(help="A zCDP budget.", rich_help_panel=_BUDGET, show_default=False)]
EpsilonOption = Annotated[
    float | None, typer.Option(help="An (ε, δ) budget, with --delta.", rich_help_panel=_BUDGET, show_default=False)
]
DeltaOption = Annotated[
    float | None,
    typer.Option(
        help="δ of the budget; with --rho, where ε is stated (default 1e-5).",
        rich_help_panel=_BUDGET,
        show_default=False,
    ),
]
AdjacencyOption = Annotated[
    Adjacency | None,
    typer.Option(
        help="What neighbouring data sets differ in; by default what the batching supports best.",
        rich_help_panel=_BATCHES,
        show_default=False,
    ),
]
ModelExamplesOption = Annotated[
    int | None,
    typer.Option(
        "--examples",
        help="Number of training records: with --parameters, shows how the noise compares with the signal.",
        rich_help_panel=_SIGNAL,
        show_default=False,
    ),
]
ParametersOption = Annotated[
    int | None,
    typer.Option(help="Number of the model's trainable parameters.", rich_help_panel=_SIGNAL, show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
PlotOption = Annotated[
    Path | None, typer.Option(help="Also draw a picture to this file (.svg, .png or .pdf).", show_default=False)
]


def batches_of(text: str | None) -> int | ByEpoch[int] | None:
    return None if text is None else by_epoch.parse(text, int, "--batches")


def rate_of(text: str | None) -> float | ByEpoch[float] | None:
    return None if text is None else by_epoch.parse(text, float, "--rate")


def batching_of(kind: str, batches: int | ByEpoch[int] | None, rate: float | ByEpoch[float] | None) -> Batching:
    if kind == "poisson":
        _refuse("batches", batches, "poisson batching takes --rate")
        return Poisson(rate=_require("rate", rate, "poisson batching"))
    _refuse("rate", rate, f"{kind} batching takes --batches")
    count = _require("batches", batches, f"{kind} batching")
    return Shuffle(batches=count) if kind == "shuffle" else Partition(batches=count)


def clipping_of(kind: str | None, layers: int | None, layer_noise: LayerNoise | None) -> Clipping:
    if kind != PerLayer.kind:
        _refuse("layers", layers, "it belongs to --clipping per-layer")
        _refuse("layer-noise", layer_noise, "it belongs to --clipping per-layer")
        return Automatic() if kind == Automatic.kind else FLAT
    return PerLayer(layers=_require("layers", layers, "per-layer clipping"), noise=layer_noise or "scaled")


def schedule_of(
    kind: str, sigma0: float | None, decay: float | None, period: int | None, sigma_end: float | None
) -> Schedule:
    if kind != "polynomial":
        _refuse("sigma-end", sigma_end, f"a {kind} schedule has no end value")
    match kind:
        case "uniform":
            _refuse("decay", decay, "a uniform schedule has no decay")
            _refuse("period", period, "a uniform schedule has no period")
            return Uniform(sigma0=sigma0)
        case "time":
            return TimeDecay(sigma0=sigma0, decay=decay, period=1 if period is None else period)
        case "exponential":
            return ExponentialDecay(sigma0=sigma0, decay=decay, period=1 if period is None else period)
        case "step":
            return StepDecay(sigma0=sigma0, decay=decay, period=_require("period", period, "a step schedule"))
        case "polynomial":
            return PolynomialDecay(
                sigma0=sigma0,
                decay=decay,
                period=_require("period", period, "a polynomial schedule"),
                sigma_end=_require("sigma-end", sigma_end, "a polynomial schedule"),
            )
        case "validation":
            raise InvalidArgument(
                "the noise of a validation schedule is not known beforehand, so it has no price of its own: certified is "
                "the cap of the plan; see apportion plan --schedule validation"
            )
        case _:
            raise InvalidArgument(f"schedule must be one of {', '.join(get_args(ScheduleKind))}; got {kind!r}")


def validation_decay_of(
    sigma0: float | None,
    decay: float | None,
    period: int | None,
    sigma_end: float | None = None,
    *,
    threshold: float | None,
    average: int | None,
    every: int | None,
) -> ValidationDecay:
    """The adaptive schedule. Nothing is solved for: the budget is a cap, and scores decide how far it reaches."""
    _refuse("sigma-end", sigma_end, "a validation schedule has no end value; use --floor")
    given = {"window": average, "threshold": threshold, "every": every}
    return ValidationDecay(
        sigma0=_require("sigma0", sigma0, "a validation schedule"),
        decay=_require("decay", decay, "a validation schedule"),
        period=_require("period", period, "a validation schedule"),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]  # checked there
    )


def refuse_validation_options(kind: str, **given: Any) -> None:
    for name, value in given.items():
        _refuse(name.replace("_", "-"), value, f"a {kind} schedule does not follow scores; use --schedule validation")


def schedule_of_settings(chosen: Settings) -> Schedule | ValidationDecay:
    values = (chosen.sigma0, chosen.decay, chosen.period, chosen.sigma_end)
    if chosen.schedule == "validation":
        return validation_decay_of(*values, threshold=chosen.threshold, average=chosen.average, every=chosen.every)
    return schedule_of(chosen.schedule, *values)


def budget_of(rho: float | None, epsilon: float | None, delta: float | None) -> Budget:
    if (rho is None) == (epsilon is None):
        found = "neither" if rho is None else "both"
        raise InvalidArgument(f"give a budget: either --rho, or --epsilon with --delta; found {found}")
    if epsilon is not None and delta is None:
        raise InvalidArgument("--epsilon needs --delta, for example --delta 1e-5")
    return Budget(rho=rho, epsilon=epsilon, delta=delta)


def refuse_beside_resume(config: Path | None, out: Path | None, dry_run: bool, settings: Iterable[str] = ()) -> None:
    """A resumed run goes on as it was planned, and spends: what would say otherwise is not passed over in silence."""
    found = [name for name, given in (("CONFIG", config), ("--out", out), ("--dry-run", dry_run)) if given]
    found += [f"--{'range' if name == 'ranges' else name.replace('_', '-')}" for name in settings]
    if found:
        raise InvalidArgument(f"--resume DIR takes everything from the run directory: leave out {', '.join(found)}")


def _require(name: str, value: Any, who: str) -> Any:
    if value is None:
        raise InvalidArgument(f"{who} needs --{name}")
    return value


def _refuse(name: str, value: Any, why: str) -> None:
    if value is not None:
        raise InvalidArgument(f"--{name} does not belong here: {why}")
