"""Fresh memory from the operating system is slow: touching a page for the first time costs microseconds."""

import torch

_LARGEST_ADAPTED_TO = 2**25 - 2**16  # bytes; the C library's own limit is 2²⁵
_done = False


def keep_freed_memory() -> None:
    """Make the C library keep what a step frees for the next step, instead of returning it and asking again.

    glibc does so for blocks up to the size of the largest block that it has seen freed, and keeps up to twice that; so it
    is shown one of 32 MiB, once, which is never touched. It costs nothing, changes nothing where the user has set limits
    (`MALLOC_TRIM_THRESHOLD_`), and has no effect with other C libraries.
    """
    global _done
    if not _done:
        _done = True
        torch.empty(_LARGEST_ADAPTED_TO, dtype=torch.uint8)
