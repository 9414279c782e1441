"""How many examples are worked on at once: as many as fit into a memory limit, measured on random data.

The answer depends on the model, on the shape of its data and on the machine, never on the records, so it may be used
freely; and all it changes is how a sum is rounded.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from apportion import _checks
from apportion.training import compatibility
from apportion.training.records import Part

SHARE = 0.25  # of the memory there is, where no limit is given
_FEW, _MORE = 16, 32  # of which the memory of small models is a multiple
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def physical_batch(
    model: torch.nn.Module,
    compute: Callable[[Tensor, Tensor], object],
    like: Part,
    *,
    most: int | None,
    limit: int | None,
) -> int:
    """The most examples to handle at once: `most` if given, otherwise what `compute` can take within `limit` bytes.

    `compute` is what a step does with the inputs and targets of a part; it is tried on random data of the shape of `like`.
    The result is a power of two, so that it does not waver with small differences.
    """
    if most is not None:
        return _checks.count("max_physical_batch", most)
    available = default_limit(like[0].device) if limit is None else _checks.count("memory_limit", limit)
    fixed, each = _needs(model, compute, like)
    fitting = int((available - fixed) / each) if available > fixed else 1
    return 1 << max(0, fitting.bit_length() - 1)


def default_limit(device: torch.device) -> int:
    """A quarter of the device's memory; of the container's, if it has less than the machine.

    Not of what happens to be free: that would depend on how much private data is loaded.
    """
    if device.type == "cuda":
        return int(SHARE * torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 4 << 30
    return int(SHARE * min([machine, *_container_limits()]))


def _container_limits() -> Iterator[int]:
    for path in _CONTAINER_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def _needs(model: torch.nn.Module, compute: Callable[[Tensor, Tensor], object], like: Part) -> tuple[float, float]:
    """Bytes of memory that do not depend on the number of examples, and bytes per example."""
    with compatibility.isolated(model):
        inputs, targets = compatibility.random_examples(model, *like)

        def peak(examples: int) -> int:
            rows = torch.arange(examples) % len(inputs)
            with PeakMemory() as memory:
                compute(inputs[rows], targets[rows])
            return int(memory.peak)

        compute(inputs, targets)  # what is done only once is not counted
        few, more = peak(_FEW), peak(_MORE)
    each = max(1.0, (more - few) / (_MORE - _FEW))
    return max(0.0, few - _FEW * each), each


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's stub
    """While active, counts the bytes of tensors made by torch operations; `peak` is the most that were alive at a time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What an operation was given is either counted already or was there before.
        for tensor in _tensors((args, kwargs)):
            self._known.add(tensor.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
