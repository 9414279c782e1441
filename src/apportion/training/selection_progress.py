"""What a person watching a terminal sees of a selection: of repeated runs only that they go on, not how many there are."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from apportion.selection_plan import RepeatRuns, SelectionPlan


class Display:
    """A bar on standard error where the number of trainings is public, a spinner where it is secret."""

    def __init__(self, plan: SelectionPlan, *, shown: bool) -> None:
        self._shown, self._secret = shown, isinstance(plan.method, RepeatRuns)
        self._total = len(plan.candidates)
        columns = [SpinnerColumn()] if self._secret else [BarColumn(), MofNCompleteColumn()]
        self._bar = Progress(
            TextColumn("{task.description}"), *columns, TimeElapsedColumn(), console=Console(stderr=True)
        )
        words = "training candidates; how many is secret" if self._secret else "training candidates"
        self._task = self._bar.add_task(words, total=None if self._secret else self._total)

    def tick(self, pending: int) -> None:
        if not self._secret:
            self._bar.update(self._task, completed=self._total - pending)

    def __enter__(self) -> Self:
        if self._shown:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._bar.stop()
