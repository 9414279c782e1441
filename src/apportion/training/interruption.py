"""Ctrl-C that finishes the epoch first: its slot is spent already, so its result is worth keeping."""

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self


class PauseOnInterrupt:
    """While active, the first Ctrl-C only sets `requested`; the second one interrupts at once.

    Leaves alone a handler that somebody else installed, and does nothing outside the main thread.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        sys.stderr.write("\nfinishing this epoch, which is paid for; press Ctrl-C again to stop at once\n")
