"""Writing a ledger: each line is on disk before anything computed with its noise is used."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apportion import adaptive, canonical, durable, events, stages
from apportion.adaptive import AdaptivePlan
from apportion.errors import BudgetExhausted, RunError
from apportion.events import Event
from apportion.ledger import (
    FORMAT,
    NOT_FOR_PERSONS,
    START,
    Choice,
    Randomness,
    RecordedPlan,
    intact_part,
    parse,
    protects_persons,
    seal,
)
from apportion.plan import Noise, NonPrivatePlan, Slot
from apportion.selection_plan import SelectionPlan
from apportion.stages import Component


class LedgerWriter:
    """Appends to a ledger on disk. When a method returns, the line is durable."""

    def __init__(self, path: Path, *, run: str, the_plan: RecordedPlan, randomness: Randomness) -> None:
        self.path = path
        self.run = run
        self.randomness = randomness
        self.scores: list[float] = []
        self.scored_slot: int | None = None
        self.used_slots = 0
        self.used_components = 0
        self._spent: list[Event] = []
        self._plan = the_plan
        self._index = 0
        self._head = START
        self._file = durable.Appender(path)

    @classmethod
    def create(
        cls, path: Path, *, the_plan: RecordedPlan, randomness: Randomness, declared: Mapping[str, str]
    ) -> "LedgerWriter":
        if path.exists():
            raise FileExistsError(f"{path} exists already")
        run = secrets.token_hex(16)
        writer = cls(path, run=run, the_plan=the_plan, randomness=randomness)
        writer._append(
            "plan",
            {
                "format": FORMAT,
                "run": run,
                "plan": the_plan.to_json(),
                "randomness": randomness,
                "declared": dict(declared),
            },
        )
        return writer

    @classmethod
    def reopen(cls, path: Path) -> "LedgerWriter":
        """Continue a ledger. A torn last line is replaced by the record of the slot it may have been: it is used up.

        A selection's is just taken away: nothing is done with an event before its line is durable, and its slots are not
        alike, so that one could stand for another.
        """
        whole, torn = intact_part(path.read_bytes())
        ledger = parse(whole)
        if torn:
            durable.shorten(path, len(whole))
        writer = cls(path, run=ledger.run, the_plan=ledger.plan, randomness=ledger.randomness)
        writer.scores = [score.score for score in ledger.scores]
        writer.scored_slot = ledger.scores[-1].slot if ledger.scores else None
        writer.used_slots = ledger.used_slots
        writer.used_components = ledger.used_components
        writer._spent = [recorded.event for recorded in ledger.events]
        writer._index = whole.count(b"\n")
        writer._head = ledger.head
        replaced = torn and not ledger.released and not isinstance(ledger.plan, SelectionPlan)
        if replaced and writer.next_slot() is not None:
            writer.take_slot()
        return writer

    @property
    def noise(self) -> Noise:
        """How the plan says that noise is made."""
        return "float" if isinstance(self._plan, NonPrivatePlan) else self._plan.noise

    @property
    def examples(self) -> int:
        """The number of records (or persons) that the plan declares."""
        return self._plan.examples

    def next_slot(self) -> Slot | None:
        """What `take_slot` would record; None if the plan's slots, or its cap, are used up."""
        if isinstance(self._plan, SelectionPlan):
            return self._plan.slots[self.used_slots] if self.used_slots < len(self._plan.slots) else None
        return adaptive.next_slot(self._plan, self._reserved(), self.scores, self.used_slots)

    def take_slot(self) -> Slot:
        """Record the next slot as used, and return it."""
        slot = self.next_slot()
        if slot is None:
            raise BudgetExhausted("the plan is used up: no slot is left")
        self._append("event", {"slot": slot.index, "event": events.to_json(slot.event)})
        self.used_slots += 1
        self._spent.append(slot.event)
        return slot

    def take_component(self, component: Component) -> None:
        """Record the plan's next component as used; it must be this one."""
        planned = self._plan.components[self.used_components :]
        if not planned or planned[0] != component:
            expected = f"the plan's next component is {planned[0]}" if planned else "the plan has no further component"
            raise RunError(
                f"{expected}, not {component}: declare it in the plan (components=…), so that it is paid for"
            )
        event = events.to_json(component.event)
        self._append("event", {"slot": None, "component": self.used_components, "event": event})
        self.used_components += 1
        self._spent.append(component.event)

    def _reserved(self) -> list[Event]:
        """What is spent, and what is kept back for components that have not run."""
        return [*stages.events_of(self._plan.components[self.used_components :]), *self._spent]

    def append_score(self, score: float) -> None:
        """Record what the model scored, on public data, after the latest slot."""
        self._append("score", {"slot": self.used_slots - 1, "score": float(score)})
        self.scores.append(float(score))
        self.scored_slot = self.used_slots - 1

    def append_event(self, event: Event) -> None:
        """Record a mechanism that is not one of the plan's slots.

        It is paid for on top of a fixed plan; in an adaptive one it counts towards the cap.
        """
        if protects_persons(self._plan):
            raise RunError(NOT_FOR_PERSONS)
        if isinstance(self._plan, AdaptivePlan) and (
            self._plan.floor or not self._plan.admits(event, self._reserved())
        ):
            raise BudgetExhausted("this event does not fit under the plan's cap (beside a floor, none does)")
        self._append("event", {"slot": None, "event": events.to_json(event)})
        self._spent.append(event)

    def append_choice(self, choice: Choice) -> None:
        """What a selection has chosen; its event was recorded before the first candidate was trained."""
        self._append("choice", {"candidate": choice.candidate, "right": choice.right, "wrong": choice.wrong})

    def append_release(self, weights: str) -> None:
        self._append("release", {"what": "final-weights", "weights": weights})

    def append_evaluation(self, right: int, wrong: int, tables: Mapping[str, Any]) -> None:
        """The noisy counts; the event that pays for them was appended just before."""
        self._append("evaluation", {"right": right, "wrong": wrong, "tables": dict(tables)})

    def _append(self, kind: str, body: Mapping[str, Any]) -> None:
        content = {"index": self._index, "previous": self._head, "kind": kind, "body": body}
        record = {**content, "hash": seal(content)}
        self._file.append(canonical.dumps(record).encode() + b"\n")
        self._index += 1
        self._head = str(record["hash"])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
