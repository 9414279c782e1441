"""A disk that fails on command, and a witness of updates that the code under test knows nothing about."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conftest import sgd, tiny_data, tiny_model

from apportion import durable, ledger
from apportion.training import Run, compatibility, fit, ready

torch.set_num_threads(1)


class Crash(BaseException):
    """The process is dead: nothing of the code under test may catch this."""


class FailingDisk:
    """Stands in for `os` in `apportion.durable`; counts every operation that changes the disk and fails at one of them.

    how: "before" or "half" (of a write): the process dies there; "power": it dies there, and whatever was not synced is
    lost; "full": the operation fails with ENOSPC, half done, and the process lives on. Syncing is only simulated.
    """

    def __init__(self, root: Path, fail_at: int | None = None, how: str = "before") -> None:
        self.operations: list[str] = []
        self.dead = False
        self._root, self._fail_at, self._how = root, fail_at, how
        self._paths: dict[int, Path] = {}
        self._synced: dict[Path, bytes] = {}
        self._durable = {path: path.read_bytes() for path in self._files()}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _files(self) -> list[Path]:
        return [path for path in self._root.rglob("*") if path.is_file()] if self._root.exists() else []

    def _operate(self, name: str, operation: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        if self.dead:
            raise Crash
        number = len(self.operations)
        self.operations.append(name)
        if number != self._fail_at:
            return operation()
        if self._how == "full":
            half()
            raise OSError(errno.ENOSPC, "No space left on device")
        self.dead = True
        if self._how == "half":
            half()
        elif self._how == "power":
            half()
            self._lose_power()
        raise Crash

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if not flags & os.O_CREAT:
            descriptor = os.open(path, flags, mode)
        else:
            descriptor = self._operate("open", lambda: os.open(path, flags, mode))
        self._paths[descriptor] = Path(path)
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        return int(
            self._operate(
                "write",
                lambda: os.write(descriptor, data),
                lambda: os.write(descriptor, bytes(data)[: len(data) // 2]),
            )
        )

    def ftruncate(self, descriptor: int, length: int) -> None:
        self._operate("truncate", lambda: os.ftruncate(descriptor, length))

    def fsync(self, descriptor: int) -> None:
        self._operate("sync", lambda: self._sync(descriptor))

    def _sync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        if path.is_dir():
            self._durable = {known: data for known, data in self._durable.items() if known.parent != path}
            self._durable |= {p: self._synced.get(p, b"") for p in path.iterdir() if p.is_file()}
        else:
            self._synced[path] = path.read_bytes()
            if path in self._durable:
                self._durable[path] = self._synced[path]

    def replace(self, source: Any, target: Any) -> None:
        def operation() -> None:
            os.replace(source, target)
            self._synced[Path(target)] = self._synced.pop(Path(source), b"")

        self._operate("rename", operation)

    def _lose_power(self) -> None:
        for path in self._files():
            if path.name != "lock":
                path.unlink()
        for path, data in self._durable.items():
            path.write_bytes(data)


class Witness(torch.optim.SGD):
    """One byte per update, in a file of its own."""

    path: Path

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with open(self.path, "ab") as file:
            file.write(b".")
        return super().step(closure)


class Scene:
    """A run directory, its witness, and the number of epochs that each start was seen to begin."""

    def __init__(self, root: Path, plan: Any, **options: Any) -> None:
        self.out, self.seen, self.plan = root / "run", root / "witness", plan
        self.epochs_seen = 0
        self._options = options
        self.seen.touch()

    def start(self, monkeypatch: Any, resume: bool, fail_at: int | None = None, how: str = "before") -> FailingDisk:
        """Run, or go on; the disk that was used. A `Crash` or an error passes through."""
        disk = FailingDisk(self.out, fail_at, how)
        before = self.seen.stat().st_size

        def witness(parameters: Any) -> Witness:
            optimizer = Witness(parameters, lr=0.1)
            optimizer.path = self.seen
            return optimizer

        with monkeypatch.context() as patch:
            patch.setattr(durable, "os", disk)
            patch.setattr(ready, "self_test", lambda *_: None)  # what takes time, and writes nothing
            patch.setattr(compatibility, "check_model", lambda *_: None)
            try:
                fit(
                    tiny_model(), tiny_data(), self.plan, loss=torch.nn.functional.cross_entropy, optimizer=witness,
                    out=self.out, progress=False, resume=resume, max_physical_batch=100, **self._options,
                )  # fmt: skip
            finally:
                updates = self.seen.stat().st_size - before
                self.epochs_seen += -(-updates // self.plan.batching.steps)
        return disk

    @property
    def used_slots(self) -> int:
        """As the ledger on disk says, a torn last line not counted."""
        return ledger.parse_intact_part((self.out / "ledger.jsonl").read_bytes()).used_slots

    @property
    def keys(self) -> list[str]:
        path = self.out / "keys.log"
        return path.read_text().split() if path.exists() else []


def begin_run(out: Path, plan: Any, **options: Any) -> Run:
    """The loop is the test's own."""
    return Run(
        tiny_model(), tiny_data(), plan, optimizer=sgd, loss=torch.nn.functional.cross_entropy, out=out, **options
    )  # fmt: skip
