"""The options of `apportion train`, and the settings that they overrule."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion import by_epoch
from apportion.cli import options as o
from apportion.errors import InvalidArgument
from apportion.settings import Settings
from apportion.units import PersonGradient

_DATA, _MODEL, _UNIT = "Data", "Model and optimizer", "Unit of privacy"

ConfigOption = Annotated[
    Path | None, typer.Argument(help="A TOML file with the settings; options overrule it.", show_default=False)
]
OutOption = Annotated[
    Path | None, typer.Option(help="The run directory to create; it must not exist.", show_default=False)
]
ResumeOption = Annotated[
    Path | None, typer.Option(help="Continue the run in this directory instead.", show_default=False)
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show plan, cost, compatibility, noise and time; spend and write nothing.")
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        help="A public data set: wisconsin (built in), mnist or cifar10 (from --data-dir, or downloaded once).",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Where the files of --dataset lie, or shall be kept (default: APPORTION_DATA, else a cache).",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Your own table: .csv, .parquet or .npz.", rich_help_panel=_DATA, show_default=False),
]
TargetOption = Annotated[
    str | None, typer.Option(help="The column to predict.", rich_help_panel=_DATA, show_default=False)
]
ClassesOption = Annotated[
    str | None,
    typer.Option(help="The classes in that column, as a,b,c.", rich_help_panel=_DATA, show_default=False),
]
RangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        help="A feature's public range, name=LOW:HIGH (repeat). Values outside are clipped; scaling by the data's own "
        "range would leak it.",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
StreamToOption = Annotated[
    str | None,
    typer.Option(
        help="For a .csv or .parquet larger than memory: a directory with room for its numbers twice over. They lie there "
        "in nameless files, as private as the table, until training ends.",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option(help="A column to leave out (repeat).", rich_help_panel=_DATA, show_default=False),
]
HoldoutOption = Annotated[
    float | None,
    typer.Option(help="Share of records held out, by independent coins.", rich_help_panel=_DATA, show_default=False),
]
ExamplesOption = Annotated[
    int | None,
    typer.Option(
        help="The declared number of training records. Left out: len(data), treated as public.",
        rich_help_panel=_DATA,
        show_default=False,
    ),
]
BatchingOption = Annotated[
    o.BatchingKind | None,
    typer.Option(help="How batches are formed (default: partition).", rich_help_panel="Batching", show_default=False),
]
ScheduleOption = Annotated[
    o.ScheduleKind | None,
    typer.Option(
        help="The noise schedule, as in `apportion plan` (default: uniform).",
        rich_help_panel="Noise",
        show_default=False,
    ),
]
PublicValidationOption = Annotated[
    str | None,
    typer.Option(
        help="A table in which nobody's record is, to score the model on; 'test': the test part of a --dataset.",
        rich_help_panel=o.VALIDATION,
        show_default=False,
    ),
]
PayPerLookOption = Annotated[
    float | None,
    typer.Option(
        help="Instead: score the model on the held-out records, each time a count of right answers with Gaussian noise of "
        "this standard deviation, paid for under the cap.",
        rich_help_panel=o.VALIDATION,
        show_default=False,
    ),
]
SpareEpochsOption = Annotated[
    int | None,
    typer.Option(
        help="Extra epochs paid for beforehand, used if the run is interrupted.",
        rich_help_panel="Noise",
        show_default=False,
    ),
]
ClipOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Clipping norm (default 1); by epoch as 0:1,10:0.5.",
        rich_help_panel="Clipping",
        show_default=False,
    ),
]
UnitOption = Annotated[
    str | None,
    typer.Option(
        help="The column that says whose each record is: persons are protected then, with all of their records, and "
        "--examples counts persons.",
        rich_help_panel=_UNIT,
        show_default=False,
    ),
]
RecordsPerUnitOption = Annotated[
    int | None,
    typer.Option(
        help="At most this many records of one person at a time, drawn afresh.",
        rich_help_panel=_UNIT,
        show_default=False,
    ),
]
UnitGradientOption = Annotated[
    PersonGradient | None,
    typer.Option(
        help="What is clipped: the mean (default) or the sum over a person's records.",
        rich_help_panel=_UNIT,
        show_default=False,
    ),
]
NoiseOption = Annotated[
    str | None,
    typer.Option(
        help="float (default), or grid: sums and noise on a public grid, so that floating point is covered; slower.",
        rich_help_panel="Noise",
        show_default=False,
    ),
]
HiddenOption = Annotated[
    str | None,
    typer.Option(
        help="Widths of hidden layers, as 10,20,10; '' for none (default 16).",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
ActivationOption = Annotated[
    str | None, typer.Option(help="tanh (default) or relu.", rich_help_panel=_MODEL, show_default=False)
]
OptimizerOption = Annotated[
    str | None, typer.Option(help="sgd (default) or adam.", rich_help_panel=_MODEL, show_default=False)
]
LrOption = Annotated[
    float | None, typer.Option(help="Learning rate (default 0.5).", rich_help_panel=_MODEL, show_default=False)
]
MomentumOption = Annotated[
    float | None, typer.Option(help="Momentum of sgd (default 0).", rich_help_panel=_MODEL, show_default=False)
]
LrEndOption = Annotated[
    float | None,
    typer.Option(
        help="The learning rate falls linearly from --lr to this over --lr-epochs, then stays.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
LrEpochsOption = Annotated[
    int | None,
    typer.Option(help="Epochs over which it falls to --lr-end.", rich_help_panel=_MODEL, show_default=False),
]
AverageWeightsOption = Annotated[
    float | None,
    typer.Option(
        help="Release the exponential moving average of the weights over the steps, with this decay (0.99, say); costs "
        "no budget.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
MaxPhysicalBatchOption = Annotated[
    int | None,
    typer.Option(
        help="Work on at most so many examples at once; changes memory, not the result (default: what fits in a quarter "
        "of the memory).",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
SeededForResearchOnlyOption = Annotated[
    int | None,
    typer.Option(
        help="Repeatable noise: NOT PRIVATE against whoever knows the seed; publish refuses such a run.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of all options of a verb those that were given and are settings, as `Settings` holds them."""
    names = [field.name for field in fields(Settings) if options.get(field.name) not in (None, [])]
    return {name: _READ[name](options[name]) if name in _READ else options[name] for name in names}


def _ranges_of(texts: list[str]) -> dict[str, tuple[float, float]]:
    """`name=low:high` → {name: (low, high)}."""
    ranges = {}
    for text in texts:
        name, equals, bounds = text.rpartition("=")
        low, colon, high = bounds.partition(":")
        try:
            ranges[name] = (float(low), float(high))
        except ValueError:
            equals = ""
        if not (equals and colon and name):
            raise InvalidArgument(f"--range must look like name=LOW:HIGH, got {text!r}")
    return ranges


def _classes_of(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _widths_of(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in text.split(",") if item.strip())
    except ValueError:
        raise InvalidArgument(f"--hidden must look like 10,20,10; got {text!r}") from None


_READ: Mapping[str, Callable[[Any], Any]] = {
    "data": str,
    "data_dir": str,
    "ignore": tuple,
    "classes": _classes_of,
    "ranges": _ranges_of,
    "hidden": _widths_of,
    "batches": o.batches_of,
    "rate": o.rate_of,
    "clip": lambda text: by_epoch.parse(text, float, "--clip"),
}
