"""The settings of a training run on a table, checked all at once."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from apportion import _checks, by_epoch, clipping
from apportion.by_epoch import ByEpoch
from apportion.clipping import FLAT, Automatic, Clipping, LayerNoise, PerLayer
from apportion.data.named import NAMED
from apportion.errors import ConfigError, InvalidArgument
from apportion.units import EXAMPLE, Person, PersonGradient, Unit

# The components of a pipeline and what each has beside its share or its sigma.
COMPONENTS = {
    "pca": ("dimensions",),
    "scaling": ("method", "low", "high", "bins"),
    "class_weights": ("most",),
    "evaluation": ("measures", "bins"),
}
FILE = "settings.json"  # in a run directory: private, because it names the data file
DATASETS = tuple(NAMED)
NOISES = ("float", "grid")
TEST_PART = "test"  # of a named data set, declared public, instead of a file
BY_EPOCH = ("batches", "rate", "clip")  # may change with the epoch
_SCORE_OPTIONS = ("threshold", "average", "every", "floor", "order")
ACTIVATIONS = ("relu", "tanh")
OPTIMIZERS = ("sgd", "adam")
GIVE_THE_DATA = "give the data: either --dataset NAME (wisconsin, mnist, cifar10), or --data FILE with --target COLUMN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything public that defines a run, as a person writes it. `None` means: not given."""

    dataset: str | None = None
    data: str | None = None
    data_dir: str | None = None
    stream_to: str | None = None
    holdout: float = 0.0
    ignore: tuple[str, ...] = ()
    target: str | None = None
    classes: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rho: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    examples: int | None = None
    batching: str = "partition"
    batches: int | ByEpoch[int] | None = None
    rate: float | ByEpoch[float] | None = None
    schedule: str = "uniform"
    sigma0: float | None = None
    decay: float | None = None
    period: int | None = None
    sigma_end: float | None = None
    threshold: float | None = None
    average: int | None = None
    every: int | None = None
    floor: float | None = None
    order: float | None = None
    public_validation: str | None = None
    pay_per_look: float | None = None
    epochs: int | None = None
    spare_epochs: int = 0
    clip: float | ByEpoch[float] = 1.0
    clipping: str = "flat"
    layer_noise: LayerNoise | None = None
    unit: str | None = None
    records_per_unit: int | None = None
    unit_gradient: PersonGradient | None = None
    noise: str = "float"
    hidden: tuple[int, ...] = (16,)
    activation: str = "tanh"
    optimizer: str = "sgd"
    lr: float = 0.5
    momentum: float = 0.0
    lr_end: float | None = None
    lr_epochs: int | None = None
    average_weights: float | None = None
    max_physical_batch: int | None = None
    training_share: float | None = None
    pca_share: float | None = None
    pca_sigma: float | None = None
    pca_dimensions: int | None = None
    scaling_share: float | None = None
    scaling_sigma: float | None = None
    scaling_method: str = "standard"
    scaling_low: float = -1.0
    scaling_high: float = 1.0
    scaling_bins: int = 64
    class_weights_share: float | None = None
    class_weights_sigma: float | None = None
    class_weights_most: float = 10.0
    evaluation_share: float | None = None
    evaluation_sigma: float | None = None
    evaluation_measures: tuple[str, ...] = ()
    evaluation_bins: int = 10

    def __post_init__(self) -> None:
        problems = [problem for check in self._checks() if (problem := _problem(check))]
        problems += self._source_problems() + self._validation_problems() + self._unit_problems()
        problems += self._pipeline_problems()
        if self.layer_noise is not None and self.clipping != PerLayer.kind:
            problems.append("layer_noise belongs to --clipping per-layer")
        if (self.lr_end is None) != (self.lr_epochs is None):
            problems.append(
                "lr_end and lr_epochs belong together: the learning rate falls to lr_end over lr_epochs epochs"
            )
        if problems:
            raise ConfigError(problems)

    def _checks(self) -> list[Any]:
        return [
            lambda: self.dataset is None or _checks.choice("dataset", self.dataset, DATASETS),
            lambda: _checks.choice("noise", self.noise, NOISES),
            lambda: _checks.choice("clipping", self.clipping, clipping.KINDS),
            lambda: self.layer_noise is None or _checks.choice("layer_noise", self.layer_noise, get_args(LayerNoise)),
            lambda: (
                self.unit_gradient is None or _checks.choice("gradient", self.unit_gradient, get_args(PersonGradient))
            ),
            lambda: self.records_per_unit is None or _checks.count("records", self.records_per_unit),
            lambda: _checks.choice("activation", self.activation, ACTIVATIONS),
            lambda: _checks.choice("optimizer", self.optimizer, OPTIMIZERS),
            lambda: _checks.positive("lr", self.lr),
            lambda: _checks.at_least("momentum", self.momentum, 0),
            lambda: self.lr_end is None or _checks.positive("lr_end", self.lr_end),
            lambda: self.lr_epochs is None or _checks.count("lr_epochs", self.lr_epochs),
            lambda: self.average_weights is None or _checks.probability("average_weights", self.average_weights),
            lambda: self.max_physical_batch is None or _checks.count("max_physical_batch", self.max_physical_batch),
            lambda: [_checks.count("hidden", width) for width in self.hidden],
            lambda: self.holdout == 0 or _checks.probability("holdout", self.holdout),
        ]

    def _source_problems(self) -> list[str]:
        if self.dataset is None and self.data is None:
            return []  # enough for a plan; see `settings_file.load`
        if self.dataset is not None and self.data is not None:
            return [GIVE_THE_DATA]
        if self.dataset is not None:
            given = [
                name
                for name in ("target", "classes", "ranges", "ignore", "holdout", "stream_to")
                if getattr(self, name)
            ]
            return [f"{name} does not belong to --dataset {self.dataset}, which brings its own" for name in given]
        problems = []
        if self.data_dir is not None:
            problems.append("data_dir: a directory of files belongs to --dataset; --data names a file itself")
        if self.target is None:
            problems.append("target: name the column to predict (--target COLUMN, or column in [target])")
        if not self.classes:
            problems.append(
                "classes: declare them (--classes a,b, or classes in [target]); they are never read off the data"
            )
        if self.stream_to is not None and (self.unit is not None or self.pay_per_look is not None):
            problems.append(
                "stream_to: persons (--unit) and paid looks need the table in memory; leave --stream-to out"
            )
        if not self.ranges:
            problems.append("features: declare each feature's range (--range name=LOW:HIGH, or [features])")
        return problems

    def _unit_problems(self) -> list[str]:
        if self.unit is None:
            given = [name for name in ("records_per_unit", "unit_gradient") if getattr(self, name) is not None]
            return [f"{name} belongs to --unit COLUMN, which says whose each record is" for name in given]
        problems = []
        if self.dataset is not None:
            problems.append(f"unit: --dataset {self.dataset} names no persons; --unit COLUMN belongs to --data FILE")
        if self.unit == self.target or self.unit in self.ranges:
            problems.append(f"unit: the column {self.unit} names persons, so it is neither target nor feature")
        if self.pay_per_look is not None:
            problems.append("unit: looks are priced for one record, not for a person; use --public-validation")
        return problems

    def _validation_problems(self) -> list[str]:
        sources = [name for name in ("public_validation", "pay_per_look") if getattr(self, name) is not None]
        if self.schedule != "validation":
            named = [*sources, *(name for name in _SCORE_OPTIONS if getattr(self, name) is not None)]
            return [f"{name} belongs to --schedule validation, where scores steer the noise" for name in named]
        if len(sources) != 1:
            found = "both are" if sources else "neither is"
            return [
                "--schedule validation is steered by scores, which would leak private records through the weights. Either "
                "declare the scored data public (--public-validation FILE, if nobody's record is in it; 'test' for the test "
                "part of a named data set), or pay per look at held-out records (--pay-per-look SIGMA: a noisy count, "
                f"paid for under the cap); {found} given"
            ]
        problems = []
        if self.public_validation == TEST_PART and self.dataset is None:
            problems.append(
                "public_validation: 'test' means the test part of a --dataset; of your own data, name a file"
            )
        if self.pay_per_look is not None and self.dataset is None and not self.holdout:
            problems.append("pay_per_look: the looks are at held-out records; give --holdout SHARE")
        if self.spare_epochs:
            problems.append(
                "spare_epochs: an adaptive plan has none to buy; an interrupted epoch is paid under its cap"
            )
        return problems

    def has(self, section: str) -> bool:
        """Whether this component is part of the pipeline."""
        return getattr(self, f"{section}_share") is not None or getattr(self, f"{section}_sigma") is not None

    def _pipeline_problems(self) -> list[str]:
        problems, shares = [], []
        for section, keys in COMPONENTS.items():
            share, sigma = getattr(self, f"{section}_share"), getattr(self, f"{section}_sigma")
            names = [f"{section}_{key}" for key in keys]
            given = [name for name in names if getattr(self, name) != _DEFAULTS[name]]
            if (share is None) == (sigma is None) and (given or share is not None):
                problems.append(f"[{section}] needs either share (of the budget) or sigma (its noise multiplier)")
            shares += [] if share is None else [share]
        if self.has("pca") and self.pca_dimensions is None:
            problems.append("[pca] needs dimensions")
        if self.has("evaluation") and self.data is not None and not self.holdout:
            problems.append("[evaluation] is of held-out records: give holdout in [data]")
        return problems + self._share_problems(shares)

    def _share_problems(self, shares: list[float]) -> list[str]:
        if not all(0 < share < 1 for share in (*shares, 0.5 if self.training_share is None else self.training_share)):
            return ["a share of the budget lies strictly between 0 and 1"]
        if math.fsum(shares) >= 1:
            return [f"the shares of the components add up to {math.fsum(shares):g}: nothing is left for training"]
        if self.training_share is not None:
            if any(getattr(self, f"{section}_sigma") is not None for section in COMPONENTS):
                return ["[training] share is what the components leave: leave it out where one of them gives sigma"]
            if abs(math.fsum([*shares, self.training_share]) - 1) > 1e-9:
                return [f"the shares must add up to 1, got {math.fsum([*shares, self.training_share]):g}"]
        return []

    def to_json(self) -> dict[str, Any]:
        """Ranges as a list, because their order is the order of the network's inputs, and objects are written sorted."""
        ranges = [[name, low, high] for name, (low, high) in self.ranges.items()]
        values = {name: by_epoch.to_json(getattr(self, name)) for name in BY_EPOCH}
        return {**asdict(self), **values, "ranges": ranges}

    def to_clipping(self) -> Clipping:
        """Of the network that these settings describe."""
        if self.clipping == PerLayer.kind:
            return PerLayer(layers=len(self.hidden) + 1, noise=self.layer_noise or "scaled")
        return Automatic() if self.clipping == Automatic.kind else FLAT

    def to_unit(self) -> Unit:
        if self.unit is None:
            return EXAMPLE
        return Person(gradient=self.unit_gradient or "mean", most_records=self.records_per_unit)


def from_json(data: Mapping[str, Any]) -> Settings:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    values |= {name: by_epoch.from_json(data[name]) for name in BY_EPOCH if name in data}
    values["ranges"] = {name: (low, high) for name, low, high in data["ranges"]}
    return Settings(**values)


_DEFAULTS = {field.name: field.default for field in fields(Settings)}


def _problem(check: Any) -> str | None:
    try:
        check()
    except InvalidArgument as error:
        return str(error)
    return None
