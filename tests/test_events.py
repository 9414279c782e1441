import pytest

from apportion import events
from apportion.errors import InvalidArgument
from apportion.events import (
    Composed,
    DisjointParts,
    ExponentialMechanism,
    GaussianRelease,
    NonPrivate,
    PartitionEpoch,
    PoissonEpoch,
    PoissonLaw,
    RepeatAndSelect,
    Repeated,
    ShuffleEpoch,
    TruncatedNegativeBinomial,
)

EXAMPLES = [
    GaussianRelease(sigma=2.0, purpose="pca"),
    ShuffleEpoch(sigma=2.0, batches=5),
    PartitionEpoch(sigma=2.0, batches=5),
    PoissonEpoch(sigma=2.0, rate=0.1, steps=10),
    ExponentialMechanism(epsilon=1.0, counts=True),
    RepeatAndSelect(base=GaussianRelease(sigma=3.0), runs=PoissonLaw(mean=10.0)),
    RepeatAndSelect(base=GaussianRelease(sigma=3.0), runs=TruncatedNegativeBinomial(eta=0.0, gamma=0.1)),
    NonPrivate(),
    Composed(events=(GaussianRelease(sigma=2.0), Repeated(event=ShuffleEpoch(sigma=1.0, batches=2), count=3))),
    DisjointParts(parts=(GaussianRelease(sigma=2.0), GaussianRelease(sigma=1.0))),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_json_round_trip(event: events.Event) -> None:
    assert events.from_json(events.to_json(event)) == event


def test_every_class_of_the_grammar_has_one_tag() -> None:
    assert len(set(events.TAGS.values())) == len(events.TAGS)
    assert {type(event) for event in EXAMPLES} <= set(events.TAGS.values())


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "laplace", "scale": 1.0},
        {"kind": "gaussian-release", "sigma": 1.0},
        {"kind": "gaussian-release", "sigma": 1.0, "replace_one": 2.0, "purpose": "", "extra": 0},
        {"kind": "gaussian-release", "sigma": -1.0, "replace_one": 2.0, "purpose": ""},
        {"kind": "gaussian-release", "sigma": 1.0, "replace_one": 0.5, "purpose": ""},
        {"kind": "gaussian-release", "sigma": 1.0, "replace_one": 2.0, "purpose": "mean age 57.31"},
        {"kind": "gaussian-release", "sigma": "1", "replace_one": 2.0, "purpose": ""},
        {"kind": "shuffle-epoch", "sigma": 1.0, "batches": 1.5},
        {"kind": "poisson-epoch", "sigma": 1.0, "rate": 1.5, "steps": 1},
        {"kind": "poisson-law", "mean": 3.0},
        {"kind": "composed", "events": [3]},
        {"kind": ["composed"]},
        [],
        None,
    ],
    ids=str,
)
def test_what_is_not_an_event_is_refused(data: object) -> None:
    with pytest.raises(InvalidArgument):
        events.from_json(data)


def test_deep_nesting_is_refused() -> None:
    data = events.to_json(GaussianRelease(sigma=1.0))
    for _ in range(events.MAX_NESTING):
        data = {"kind": "composed", "events": [data]}
    with pytest.raises(InvalidArgument, match="nested"):
        events.from_json(data)
