"""Law 1 for the components of a pipeline: on record before their noise is drawn, and never drawn twice for one record."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import sgd, tiny_data, tiny_plan
from crashing import Crash, FailingDisk

import apportion as ap
from apportion import durable, ledger
from apportion.components.release import Releaser
from apportion.errors import ApportionError, LedgerError
from apportion.training import Projection, Standardise, compatibility, fit, ready

PLAN = tiny_plan(
    budget=ap.Budget(epsilon=9.0, delta=1e-5),
    batching=ap.Shuffle(batches=1),
    epochs=1,
    spare_epochs=1,
    components=(ap.PrincipalComponents(dimensions=2, sigma=5.0), ap.Scaling(sigma=5.0)),
)


class Pipeline:
    """A run directory, and how many components were noised: counted outside of the code under test."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.out, self.noised = root / "run", 0

    def start(self, monkeypatch: Any, resume: bool, fail_at: int | None = None, how: str = "before") -> FailingDisk:
        disk = FailingDisk(self.out, fail_at, how)
        model = torch.nn.Sequential(Projection(4, 2), Standardise(2), torch.nn.Linear(2, 2))
        record = Releaser.record

        def recorded_and_counted(releaser: Releaser, *arguments: Any) -> None:
            record(releaser, *arguments)
            self.noised += 1  # what follows draws the noise

        with monkeypatch.context() as patch:
            patch.setattr(durable, "os", disk)
            patch.setattr(ready, "self_test", lambda *_: None)  # what takes time, and writes nothing
            patch.setattr(compatibility, "check_model", lambda *_: None)
            patch.setattr(Releaser, "record", recorded_and_counted)
            fit(
                model, tiny_data(), PLAN, loss=torch.nn.functional.cross_entropy, optimizer=sgd, out=self.out,
                progress=False, resume=resume,
            )  # fmt: skip
        return disk

    @property
    def ledger(self) -> ledger.Ledger:
        return ledger.parse_intact_part((self.out / "ledger.jsonl").read_bytes())


@pytest.mark.parametrize("how", ["before", "half", "power", "full"])
def test_a_crash_at_any_operation_never_draws_a_component_that_is_not_paid_for(
    tmp_path: Path, monkeypatch: Any, how: str
) -> None:
    every = Pipeline(tmp_path / "count").start(monkeypatch, resume=False).operations
    lost = finished = 0
    for number, operation in enumerate(every):
        if how == "half" and operation != "write":
            continue
        found = Pipeline(tmp_path / f"{how}-{number}")
        with pytest.raises((Crash, ApportionError)):
            found.start(monkeypatch, resume=False, fail_at=number, how=how)
        try:
            recorded = found.ledger
        except (LedgerError, FileNotFoundError):
            assert found.noised == 0
            continue
        assert recorded.used_components >= found.noised
        if not recorded.released:
            if all((found.out / "components" / f"{n}.npz").exists() for n in range(recorded.used_components)):
                found.start(monkeypatch, resume=True)
                finished += 1
            else:
                with pytest.raises(ApportionError, match="paid for"):
                    found.start(monkeypatch, resume=True)
                lost += 1
        assert found.ledger.used_components >= found.noised
        event = found.ledger.certified_event
        assert ap.certify(found.ledger).guarantee.epsilon >= PLAN.guarantee.epsilon * (1 - 1e-9), event
    assert finished > lost > 0
