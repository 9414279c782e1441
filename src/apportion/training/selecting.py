"""A private selection, from the plan to the released winner.

    select(configurations, data, plan, out=…)

One event is on record before the first candidate is trained; it covers every trial. How many trials there are, of which
candidates, and into which part each record fell is drawn once and kept in the run directory, which is private: a resumed
selection goes on with the same draws, and runs afresh what was interrupted. What is released is the winner.
"""

import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion import _checks, canonical, durable, ledger
from apportion._version import VERSION
from apportion.bundle.files import LEDGER, PLAN, WEIGHTS
from apportion.components.selection import best, draw_candidates, draw_parts, exponential_mechanism
from apportion.errors import InvalidArgument, RunError
from apportion.ledger import Choice
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.selection_plan import RepeatRuns, SelectionPlan, SplitParts
from apportion.training.finished import FinishedRun
from apportion.training.run import Run
from apportion.training.run_directory import LOCK, refuse_other_declarations
from apportion.training.selection_progress import Display
from apportion.training.sources import Data
from apportion.training.tensors import PrivateData
from apportion.training.trials import Configuration, Trials, counts, run_all, train

TRIALS = "trials"  # private: how often and which candidates were tried, and all that they learned
RETRAINING = "retraining"
_DRAWN, _PARTS = "drawn.json", "parts.npy"
_LOST = (
    "the choice is on record, but the results it was made of are not all there: the weights of another run would be a "
    "second output, which is not paid for. Put the files back, or start a new selection"
)


def select(
    configurations: Sequence[Configuration],
    data: Data,
    plan: SelectionPlan,
    *,
    out: str | Path,
    processes: int = 1,
    keep_private: bool = False,
    declared: Mapping[str, str] | None = None,
    keep: Mapping[str, bytes] | None = None,
    keep_of_winner: Sequence[Mapping[str, bytes]] | None = None,
    progress: bool = True,
    resume: bool = False,
) -> FinishedRun:
    """Choose one of `configurations`, in the order of `plan.candidates`, privately; release the model that it trained.

    `data` is (inputs, targets), the targets class numbers. `processes` train at the same time; with more than one,
    configurations must be picklable and the calling program guarded by `if __name__ == "__main__"`. The models that lost,
    and how often was tried, are deleted in the end unless `keep_private`. `keep` are further private files for the run
    directory, `keep_of_winner` those of each candidate if it wins.

    Guarantees: what leaves (the winner's weights, which candidate it is, and for repeated runs its noisy score) is the
    output of `plan.event`, on record before any of it exists. The number of repeated runs is drawn once and not shown.
    """
    selection = _Selection(Path(out), plan, tuple(configurations), data, _checks.count("processes", processes))
    if resume and not keep_private:
        _forget_losers_if_finished(selection.out)  # what a kill right after the release has left
    selection.check(resume)
    public = {"software": f"apportion {VERSION}, torch {torch.__version__}", **(declared or {})}
    with selection.opened(public, dict(keep or {}), resume) as writer:
        with Display(plan, shown=progress) as display:
            chosen = selection.chosen(writer, display)
        if chosen is None:
            raise RunError(
                "the Poisson law drew no run at all: there is nothing to release, and the cost is spent. A truncated "
                "negative binomial law always runs at least once"
            )
        weights = selection.weights(writer, chosen, progress)
        candidate = selection.drawn[chosen]
        for name, content in (keep_of_winner[candidate] if keep_of_winner else {}).items():
            durable.replace_file(selection.out / name, content)
        durable.replace_file(selection.out / WEIGHTS, weights)
        writer.append_release(canonical.sha256(weights))
    if not keep_private:
        forget_losers(selection.out)
    return FinishedRun(selection.out)


def forget_losers(run: Path) -> None:
    """Delete everything private that a finished selection needed: the losing models, their number and their scores."""
    for name in (TRIALS, RETRAINING):
        shutil.rmtree(run / name, ignore_errors=True)
    durable.sync_directory(run)
    if left := [name for name in (TRIALS, RETRAINING) if (run / name).exists()]:
        raise RunError(
            f"the winner is released, but {', '.join(left)} in {run} could not be deleted: how often was tried, and what "
            "lost, is still there. Delete it by hand"
        )


def _forget_losers_if_finished(run: Path) -> None:
    if not (run / LEDGER).exists():
        return
    with durable.lock(run / LOCK):
        if ledger.parse_intact_part((run / LEDGER).read_bytes()).released:
            forget_losers(run)


class _Selection:
    def __init__(
        self, out: Path, plan: SelectionPlan, configurations: tuple[Configuration, ...], data: Data, processes: int
    ) -> None:
        if len(configurations) != len(plan.candidates):
            raise InvalidArgument(f"{len(plan.candidates)} candidates are planned, {len(configurations)} were given")
        self.out, self._plan, self._configurations, self._processes = out, plan, configurations, processes
        self._data = PrivateData.of(data, configurations[0].model())
        self.drawn: tuple[int, ...] = ()
        self._parts: NDArray[np.int64] = np.empty(0, np.int64)

    def check(self, resume: bool) -> None:
        """Everything that can be refused is refused before anything is written or spent: each candidate once."""
        if resume and not (self.out / LEDGER).exists():
            raise RunError(f"{self.out} holds no selection to resume (no {LEDGER}): nothing was spent, start a new one")
        if not resume and (self.out.exists() or self.out.is_symlink()):
            raise RunError(f"{self.out} exists already; choose another directory, or resume the selection in it")
        nowhere = self.out.with_name(f".{self.out.name}.checked")
        for configuration, candidate in zip(self._configurations, self._plan.candidates, strict=True):
            model = configuration.model()
            Run(
                model,
                (self._data.inputs, self._data.targets),
                candidate.trial,
                optimizer=configuration.optimizer,
                loss=configuration.loss,
                out=nowhere,
                **configuration.options,
            )
            counts(model, self._data.inputs[:1], self._data.targets[:1])

    @contextmanager
    def opened(self, declared: Mapping[str, str], keep: Mapping[str, bytes], resume: bool) -> Iterator[LedgerWriter]:
        """The locked directory with its draws at hand and its first event on record."""
        if not resume:
            durable.make_directory(self.out)
        with durable.lock(self.out / LOCK):
            writer = self._reopened(declared) if resume else self._created(declared, keep)
            with writer:
                if writer.used_slots == 0:
                    writer.take_slot()  # record, then release: one event for all trials, before the first
                yield writer

    def _created(self, declared: Mapping[str, str], keep: Mapping[str, bytes]) -> LedgerWriter:
        durable.make_directory(self.out / TRIALS)
        plan = self._plan
        groups = 1 if isinstance(plan.method, RepeatRuns) else len(plan.candidates)
        self._parts = draw_parts(len(self._data), groups, plan.score_share, RandomStream(), RandomStream())
        self.drawn = draw_candidates(plan, RandomStream())
        buffer = io.BytesIO()
        np.save(buffer, self._parts)
        files = {
            f"{TRIALS}/{_PARTS}": buffer.getvalue(),
            f"{TRIALS}/{_DRAWN}": canonical.pretty({"candidates": list(self.drawn)}).encode(),
            PLAN: canonical.pretty(plan.to_json()).encode(),
            **keep,
        }
        for name, content in files.items():
            durable.replace_file(self.out / name, content)
        return LedgerWriter.create(self.out / LEDGER, the_plan=plan, randomness="secure", declared=declared)

    def _reopened(self, declared: Mapping[str, str]) -> LedgerWriter:
        recorded = ledger.parse_intact_part((self.out / LEDGER).read_bytes())
        if recorded.released:
            raise RunError(f"{self.out} is finished: its weights are released")
        if recorded.plan.to_json() != self._plan.to_json():
            raise RunError(f"{self.out} was begun with another plan; resume it with its own ({PLAN})")
        refuse_other_declarations(self.out, recorded.declared, declared, may_differ={"software"})
        try:
            drawn = canonical.loads((self.out / TRIALS / _DRAWN).read_bytes())["candidates"]
            self._parts = np.load(self.out / TRIALS / _PARTS, allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"what {self.out} has drawn is gone or damaged ({error}). It must not be drawn a second time: put the "
                "files back, or start a new selection, which is paid for anew"
            ) from error
        if len(self._parts) != len(self._data):
            raise RunError(f"the data has {len(self._data)} records, but {len(self._parts)} when the selection began")
        self.drawn = tuple(drawn)
        return LedgerWriter.reopen(self.out / LEDGER)

    @property
    def _trials(self) -> Trials:
        return Trials(
            directory=self.out / TRIALS,
            plan=self._plan,
            configurations=self._configurations,
            inputs=self._data.inputs,
            targets=self._data.targets,
            drawn=self.drawn,
            parts=self._parts,
        )

    def chosen(self, writer: LedgerWriter, display: Display) -> int | None:
        """The number of the winning trial; None if there was no trial. The choice is made once and recorded."""
        trials = self._trials
        recorded = ledger.read(writer.path).choice
        if recorded is not None and isinstance(self._plan.method, SplitParts):
            return recorded.candidate  # trial i is that of candidate i
        if not trials.drawn:
            if recorded is None:
                writer.append_choice(Choice(candidate=None, right=None, wrong=None))
            return None
        if recorded is not None and trials.pending:
            raise RunError(_LOST)
        run_all(trials, self._processes, lambda: display.tick(len(trials.pending)))
        results = trials.results
        if isinstance(self._plan.method, SplitParts):
            wrong = [result[1] for result in results]
            chosen = exponential_mechanism(wrong, self._plan.method.epsilon, RandomStream())
            writer.append_choice(Choice(candidate=chosen, right=None, wrong=None))
            return chosen
        chosen = best(results)
        choice = Choice(candidate=self.drawn[chosen], right=results[chosen][0], wrong=results[chosen][1])
        if recorded is None:
            writer.append_choice(choice)
        elif choice != recorded:
            raise RunError(_LOST)
        return chosen

    def weights(self, writer: LedgerWriter, chosen: int, progress: bool) -> bytes:
        """The winner's; after training it again on everything, if that is planned."""
        candidate = self.drawn[chosen]
        retraining = self._plan.candidates[candidate].retraining
        place = self._trials.place(chosen)
        if retraining is not None:
            place = self.out / RETRAINING
            if writer.used_slots == 1:
                writer.take_slot()  # record, then release: the dearest of what could follow
            begun = (place / LEDGER).exists()
            if not begun or not ledger.parse_intact_part((place / LEDGER).read_bytes()).released:
                if not begun:
                    shutil.rmtree(place, ignore_errors=True)
                data: Any = (self._data.inputs, self._data.targets)
                train(self._configurations[candidate], data, retraining, place, progress=progress, resume=begun)
        return (place / WEIGHTS).read_bytes()
