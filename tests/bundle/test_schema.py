"""The validator is as strict as the schemas say, and the schemas leave nothing open."""

import json
from pathlib import Path
from typing import Any

import pytest

from apportion.bundle import files, schema
from apportion.errors import BundleError

KINDS = ("certificate", "manifest", "model", "signature")
# Fields that only some bundles have; verification compares which ones with what follows from the ledger.
SOMETIMES = {"selection", "person", "tables", "confusion", "calibration", "auroc", "projection", "standardised"}


def objects(part: Any) -> list[dict[str, Any]]:
    found = [part] if isinstance(part, dict) and part.get("type") == "object" else []
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return found + [entry for value in inner for entry in objects(value)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_closed_and_every_property_required(kind: str) -> None:
    for entry in objects(schema.load(kind, 1)):
        if "properties" in entry:
            assert entry["additionalProperties"] is False
            assert set(entry["required"]) == set(entry["properties"]) - SOMETIMES
        else:
            assert isinstance(entry["additionalProperties"], dict)
            assert entry["maxProperties"] <= 64


@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_is_anchored(kind: str) -> None:
    text = json.dumps(schema.load(kind, 1))
    assert text.count('"pattern": "') == text.count('"pattern": "^')


def test_a_keyword_that_is_not_known_is_an_error_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "load", lambda kind, number: {"type": "object", "uniqueItems": True})
    with pytest.raises(KeyError):
        schema.check({}, "certificate")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"epsilon": True}, "certificate.epsilon"),
        ({"epsilon": -1.0}, "certificate.epsilon"),
        ({"examples": 60.0}, "certificate.examples"),
        ({"sigmas": [8.0, "8"]}, "certificate.sigmas[1]"),
        ({"schedule": {"kind": "uniform", "sigma0": 0}}, "certificate.schedule.sigma0"),
        ({"batching": {"kind": "poisson", "rate": 2.0}}, "certificate.batching.rate"),
        ({"declared": {"a": 1}}, "certificate.declared.a"),
        ({"weights": "A" * 64}, "certificate.weights"),
        ({"weights": "a" * 64 + "\n"}, "certificate.weights"),
        ({"accuracy": 0.93}, "unknown field 'accuracy'"),
    ],
    ids=str,
)
def test_the_place_of_a_problem_is_named(bundle: Path, change: dict[str, Any], where: str) -> None:
    certificate = json.loads((bundle / files.CERTIFICATE).read_bytes()) | change
    with pytest.raises(BundleError) as caught:
        schema.check(certificate, "certificate")
    assert where in str(caught.value)
