"""What a run leaves behind."""

from pathlib import Path
from typing import Unpack

from apportion import ledger
from apportion.bundle.files import LEDGER
from apportion.certificate import Certificate, certify
from apportion.training.publishing import PublishOptions, publish


class FinishedRun:
    """A run directory whose weights are released."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def certificate(self, delta: float | None = None) -> Certificate:
        return certify(ledger.read(self.directory / LEDGER), delta)

    def publish(self, to: str | Path, **options: Unpack[PublishOptions]) -> Certificate:
        """Write the bundle; the options are those of `apportion.training.publishing.publish`."""
        return publish(self.directory, Path(to), **options)
