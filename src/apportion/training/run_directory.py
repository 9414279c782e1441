"""A run directory in use: locked, with its ledger open, its keys on record and its checkpoint at hand."""

import io
import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import canonical, durable, ledger
from apportion.adaptive import Plan
from apportion.bundle.files import LEDGER, PLAN, WEIGHTS
from apportion.errors import RunError
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.training import checkpoint
from apportion.training.checkpoint import Checkpoint

METRICS = "metrics.jsonl"
KEYS = "keys.log"
LOCK = "lock"
CHECKPOINT = Path("checkpoints") / "latest.pt"
COMPONENTS = Path("components")


class RunDirectory:
    """Made by `create` or `reopen`; close it to let go of the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger: LedgerWriter
        self.saved: Checkpoint | None = None
        self._lock = durable.lock(path / LOCK)

    @classmethod
    def create(
        cls,
        path: Path,
        plan: Plan,
        *,
        randomness: ledger.Randomness,
        declared: Mapping[str, str],
        keep: Mapping[str, bytes],
    ) -> "RunDirectory":
        durable.make_directory(path)
        directory = cls(path)
        try:
            durable.make_directory(path / CHECKPOINT.parent)
            for name, content in {**keep, PLAN: canonical.pretty(plan.to_json()).encode()}.items():
                durable.replace_file(path / name, content)
            directory.ledger = LedgerWriter.create(
                path / LEDGER, the_plan=plan, randomness=randomness, declared=declared
            )
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def reopen(cls, path: Path, plan: Plan, *, seeded: bool, declared: Mapping[str, str]) -> "RunDirectory":
        """Continue a run. Nothing is changed on disk until everything has been found to fit together."""
        if not (path / LEDGER).exists():
            raise RunError(f"{path} holds no run to resume (no {LEDGER}): nothing was spent there; start a new run")
        directory = cls(path)
        try:
            recorded = ledger.parse_intact_part((path / LEDGER).read_bytes())
            if recorded.plan.to_json() != plan.to_json():
                raise RunError(f"{path} was begun with another plan; resume it with its own ({PLAN})")
            if recorded.released:
                raise RunError(f"{path} is finished: its weights are released")
            if recorded.randomness == "secure" and seeded:
                raise RunError("a run begun with secure randomness cannot be resumed with a seed")
            refuse_other_declarations(path, recorded.declared, declared, may_differ={"software", "starting point"})
            directory.saved = checkpoint.load(path / CHECKPOINT, recorded.run, recorded.used_slots)
            directory.ledger = LedgerWriter.reopen(path / LEDGER)
        except BaseException:
            directory.close()
            raise
        return directory

    def new_stream(self, seed: int | None) -> RandomStream:
        """A stream under a key that this run has never used. Its fingerprint is on disk before its first number is."""
        path = self.path / KEYS
        known = path.read_text().split() if path.exists() else []
        stream = RandomStream(seed, start=len(known))
        if stream.fingerprint in known:
            raise RunError("the operating system gave a random key for the second time: do not train on this machine")
        with durable.Appender(path) as file:
            file.append(f"{stream.fingerprint}\n".encode())
        return stream

    def save_component(self, number: int, result: Mapping[str, NDArray[np.float64]]) -> None:
        """What a component released, so that a resumed run need not pay for it again."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **result)
        if not (self.path / COMPONENTS).is_dir():
            durable.make_directory(self.path / COMPONENTS)
        durable.replace_file(self.path / COMPONENTS / f"{number}.npz", buffer.getvalue())

    def load_component(self, number: int) -> dict[str, NDArray[np.float64]]:
        path = self.path / COMPONENTS / f"{number}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise RunError(
                f"component {number} of this run is recorded and paid for, but {path} is missing or damaged: the run was "
                f"killed just then, and cannot go on without paying twice. Start a new run ({error})"
            ) from error

    def save(self, state: Checkpoint) -> None:
        checkpoint.save(self.path / CHECKPOINT, state)

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Private: computed from private data without noise."""
        with durable.Appender(self.path / METRICS) as file:
            file.append(json.dumps(line).encode() + b"\n")

    def release(self, weights: bytes) -> None:
        durable.replace_file(self.path / WEIGHTS, weights)
        self.ledger.append_release(canonical.sha256(weights))

    def close(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
        self._lock.close()


def refuse_other_declarations(
    path: Path, before: Mapping[str, str], now: Mapping[str, str], *, may_differ: Collection[str]
) -> None:
    """What was declared at the start is on the certificate, so it must still be true when the run goes on."""
    changed = sorted(name for name in {*before, *now}.difference(may_differ) if before.get(name) != now.get(name))
    if changed:
        raise RunError(f"{path} was begun with another {', '.join(changed)}; resume it with what it was begun with")
