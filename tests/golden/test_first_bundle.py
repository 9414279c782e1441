"""A bundle that was published by the first version of format 1 verifies for ever, to the last word."""

from pathlib import Path

import apportion as ap

BUNDLE = Path(__file__).parent / "first-bundle"


def test_a_bundle_of_the_first_days_still_verifies() -> None:
    result = ap.verify(BUNDLE, strict=True)
    assert result.verified, result.problems


def test_a_plan_with_nothing_new_is_written_as_it_was() -> None:
    """New choices are absent from a plan's JSON where they have their default, so that its digest stays."""
    from apportion import canonical, ledger, plan

    recorded = ledger.read(BUNDLE / "ledger.jsonl").plan
    assert isinstance(recorded, ap.TrainingPlan)
    written = canonical.loads((BUNDLE / "plan.json").read_bytes())
    assert recorded.to_json() == written == plan.from_json(written).to_json()
