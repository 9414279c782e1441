"""What a person watching a terminal sees while training: epoch, σ, ρ spent, ε so far, time left."""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from apportion import accounting, stages
from apportion.adaptive import AdaptivePlan, Plan
from apportion.events import Composed
from apportion.plan import NonPrivatePlan, rho_of
from apportion.stages import PrivateEvaluation

_PRICED = 20  # ε is recomputed at most this often in a run: composing distributions is not free


class Watcher(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def epoch(self, index: int, sigma: float) -> None: ...
    def step(self) -> None: ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def epoch(self, index: int, sigma: float) -> None:
        pass

    def step(self) -> None:
        pass


class Progress:
    """A bar on standard error, so that standard output stays free for results."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(
            " and ".join(c.kind for c in plan.components if not isinstance(c, PrivateEvaluation)) or "starting",
            total=None if plan.epochs is None else sum(plan.batching.at(i).steps for i in range(plan.epochs)),
        )
        self._epsilon = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def epoch(self, index: int, sigma: float) -> None:
        self._bar.update(self._task, description=self._describe(index, sigma))

    def step(self) -> None:
        self._bar.advance(self._task)

    def _describe(self, index: int, sigma: float) -> str:
        plan = self._plan
        if isinstance(plan, NonPrivatePlan):
            return f"epoch {index + 1}/{plan.epochs}  NOT PRIVATE"
        if isinstance(plan, AdaptivePlan):
            promise = "under the cap" if plan.floor is None else "above the floor"
            return f"epoch {index + 1}  σ {sigma:.3g}, {promise}"
        epochs = (slot.event for slot in plan.slots[: index + 1])
        spent = Composed(events=(*stages.events_of(plan.components), *epochs))
        if index % max(1, len(plan.slots) // _PRICED) == 0 or index == len(plan.slots) - 1:
            self._epsilon = f"{accounting.certifying_epsilon(spent, plan.delta, plan.neighbours):.3f}"
        rho = rho_of(spent, plan.neighbours)
        return f"epoch {index + 1}/{plan.epochs}  σ {plan.slots[index].sigma:.3g}  ρ {rho:.4f}  ε {self._epsilon}"
