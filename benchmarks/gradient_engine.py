"""One engine, in a process of its own, told by its standard input what to do.

    gradient_engine.py ENGINE      then lines on standard input, each answered by a line of JSON:
    start WORKLOAD THREADS         a fresh child process takes over: added memory, deviation from the loop, or an error
    run K                          the child runs K steps: seconds per step, by the wall clock and of the processor
    stop                           the child ends: which workload it was

Engines: `stock` (eager PyTorch, no privacy), `layout` (the same with our memory layouts, no privacy), `kept` (`layout`,
and freed memory is kept as ours keeps it), `ours` (the product's own step: guard, batch selection, clipping, secure noise,
optimizer), `opacus-MODE` for every mode of Opacus that runs on one machine. Opacus gets
ready-made batches instead of its own loader, which would only be slower.
"""

import copy
import ctypes
import gc
import json
import os
import re
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from gradient_workloads import WORKLOADS, Workload
from torch import Tensor, nn
from torch.nn import functional

BATCHES = 4
CLIP, SIGMA, RATE = 1.0, 1.0, 0.05
PROCESSES = 3  # in which memory is measured
# Per-example gradients beyond this would not fit the machine; the engine is then reported as not run.
MOST_BYTES = 3 * 2**30

WITHOUT_PRIVACY = ("stock", "layout", "kept")


class Engine:
    """A model with its optimizer, a step on given examples, and an endless source of batches."""

    def __init__(self, workload: Workload, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.workload = workload
        self.model = workload.model().to(dtype)
        self.inputs, self.targets = workload.data(BATCHES)
        self.inputs = self.inputs.to(dtype) if self.inputs.is_floating_point() else self.inputs
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.source = self.batches()

    def step(self, inputs: Tensor, targets: Tensor, sigma: float) -> None:
        self.optimizer.zero_grad()
        (functional.cross_entropy(self.model(inputs), targets, reduction="sum") / self.workload.batch).backward()
        self.optimizer.step()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for rows in torch.randperm(len(self.inputs)).split(self.workload.batch):
                yield self.inputs[rows], self.targets[rows]


class Layout(Engine):
    """No privacy, but images channels-last and attention with the examples outermost, as ours holds them."""

    def __init__(self, workload: Workload, dtype: torch.dtype) -> None:
        super().__init__(workload, dtype)
        from apportion.training.gradients.attention import noting_attention
        from apportion.training.gradients.convolution import channels_last

        class NoNotes:
            def note(self, site: str, rule: object, inputs: Tensor, output: Tensor, *rest: object) -> Tensor:
                return output

        self.plain = copy.deepcopy(self.model)
        for module in self.model.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(lambda module, args: (channels_last(args[0]),))
            if isinstance(module, nn.MultiheadAttention):
                module.forward = noting_attention(NoNotes(), "", module)


class Kept(Layout):
    def __init__(self, workload: Workload, dtype: torch.dtype) -> None:
        super().__init__(workload, dtype)
        from apportion.training.gradients.allocation import keep_freed_memory

        keep_freed_memory()


class Ours(Engine):
    def __init__(self, workload: Workload, dtype: torch.dtype) -> None:
        super().__init__(workload, dtype)
        from apportion import Shuffle
        from apportion.randomness import RandomStream
        from apportion.training.guard import Guard
        from apportion.training.losses import per_example
        from apportion.training.step import private_step
        from apportion.training.tensors import PrivateData

        self.private_step, self.loss, self.stream = private_step, per_example(functional.cross_entropy), RandomStream()
        self.guard = Guard(self.model, self.optimizer)
        self.shuffle, self.data = Shuffle(batches=BATCHES), PrivateData(inputs=self.inputs, targets=self.targets)

    def step(self, inputs: Tensor, targets: Tensor, sigma: float) -> None:
        self.guard.before_step()
        self.private_step(
            self.model,
            self.loss,
            self.optimizer,
            inputs,
            targets,
            clip=CLIP,
            sigma=sigma or 1e-12,
            nominal_batch_size=self.workload.batch,
            stream=self.stream,
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for rows in self.shuffle.draw(len(self.data), self.stream):
                yield self.data.batch(rows)


class Opacus(Engine):
    def __init__(self, workload: Workload, dtype: torch.dtype, mode: str) -> None:
        super().__init__(workload, dtype)
        from opacus import PrivacyEngine
        from opacus.validators import ModuleValidator
        from torch.utils.data import DataLoader, TensorDataset

        self.check_memory(mode)
        self.model = ModuleValidator.fix(self.model).to(dtype)  # what it replaces comes as float32
        self.plain = copy.deepcopy(self.model)
        made = PrivacyEngine().make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=RATE),
            data_loader=DataLoader(TensorDataset(self.inputs, self.targets), batch_size=workload.batch),
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        self.model, self.optimizer = made[0], made[1]
        self.criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def check_memory(self, mode: str) -> None:
        needed = 4 * self.workload.batch * sum(p.numel() for p in self.model.parameters())
        if mode != "ghost" and needed > MOST_BYTES:
            raise MemoryError(f"per-example gradients of {needed / 2**30:.0f} GiB")

    def step(self, inputs: Tensor, targets: Tensor, sigma: float) -> None:
        self.optimizer.noise_multiplier = sigma
        self.optimizer.zero_grad()
        self.criterion(self.model(inputs), targets).backward()
        self.optimizer.step()


def engine(name: str, workload: Workload, dtype: torch.dtype = torch.float32) -> Engine:
    if name.startswith("opacus-"):
        return Opacus(workload, dtype, name.removeprefix("opacus-"))
    return {"stock": Engine, "layout": Layout, "kept": Kept, "ours": Ours}[name](workload, dtype)


def deviation(running: Engine, private: bool, examples: int = 24) -> float:
    """Largest difference, over parameters, between a noiseless step and the loop over single examples: relative, but to
    at least a hundredth of the whole gradient, because what is much smaller drowns in the rounding of the parameters."""
    inputs, targets = running.inputs[:examples], running.targets[:examples]
    reference = getattr(running, "plain", None) or copy.deepcopy(running.model)
    parameters = list(reference.parameters())
    for parameter, current in zip(parameters, running.model.parameters(), strict=True):
        parameter.data.copy_(current.data)
    expected = [torch.zeros_like(parameter) for parameter in parameters]
    for i in range(examples):
        value = functional.cross_entropy(reference(inputs[i : i + 1]), targets[i : i + 1])
        gradients = torch.autograd.grad(value, parameters)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for total, gradient in zip(expected, gradients, strict=True):
            total += gradient * (min(1.0, CLIP / float(norm)) if private else 1.0)
    before = [parameter.detach().clone() for parameter in running.model.parameters()]
    running.optimizer.param_groups[0]["lr"] = 100.0
    running.step(inputs, targets, 0.0)
    running.optimizer.param_groups[0]["lr"] = RATE
    worst, overall = 0.0, torch.cat([total.flatten() for total in expected]).norm()
    for old, parameter, total in zip(before, running.model.parameters(), expected, strict=True):
        moved = (old - parameter.detach()) * running.workload.batch / 100
        worst = max(worst, float((moved - total).norm() / torch.maximum(total.norm(), 0.01 * overall)))
        parameter.data.copy_(old)
    return worst


def memory_of(field: str) -> float:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def added_memory(name: str, workload: Workload) -> tuple[float, float]:
    """Of the first step and of those after it: medians over several processes, because what the C library can use again of
    what was freed is a matter of luck."""
    found = []
    for _ in range(PROCESSES):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, json.dumps(_added_memory(engine(name, workload))).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.set_blocking(reading, False)
        found.append(json.loads(os.read(reading, 1000)))
        os.close(reading)
        os.close(writing)
    first, later = zip(*found, strict=True)
    return statistics.median(first), statistics.median(later)


def _added_memory(running: Engine) -> tuple[float, float]:
    """Peak resident memory of the very first step, on two examples, and of three steps after it, both over what model,
    data and libraries hold before. What the first step only used for a moment is returned before the others begin; what it
    keeps counts. Pages of the libraries' code do not: they are read when a function is first called."""
    return_freed_memory()
    before = memory_of("VmRSS") - memory_of("RssFile")
    peaks = []
    for steps in (lambda: running.step(running.inputs[:2], running.targets[:2], SIGMA), partial(work, running, 3)):
        return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        steps()
        peaks.append(memory_of("VmHWM") - memory_of("RssFile") - before)
    return peaks[0], peaks[1]


def return_freed_memory() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def work(running: Engine, steps: int) -> None:
    for _ in range(steps):
        running.step(*next(running.source), SIGMA)


def answer(values: dict[str, object]) -> None:
    print(json.dumps(values), flush=True)


def serve(name: str, workload: str, threads: int) -> None:
    """One workload, until told to stop."""
    torch.set_num_threads(1)  # for memory, which is measured in forks of this process: threads do not survive a fork
    private = name not in WITHOUT_PRIVACY
    try:
        small = engine(name, WORKLOADS[workload].shrunk())  # the libraries' own first use is not what is measured
        work(small, 2)
        del small
        engine(name, WORKLOADS[workload])  # what cannot be run says so here
        first, memory = added_memory(name, WORKLOADS[workload])
        torch.set_num_threads(threads)
        running = engine(name, WORKLOADS[workload])
        found = deviation(running, private)
        exact = deviation(engine(name, WORKLOADS[workload], torch.float64), private)
        work(running, 1)
        answer({"mebibytes": memory, "at_first": first, "deviation": found, "deviation_in_float64": exact})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"[:200]})
    while (line := sys.stdin.readline().split()) and line[0] == "run":
        steps = int(line[1])
        wall, processor = time.perf_counter(), time.process_time()
        work(running, steps)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        answer({"wall": wall / steps, "processor": processor / steps})


def main() -> None:
    warnings.simplefilter("ignore")
    name = sys.argv[1]
    if name.startswith("opacus-"):  # imported here so that children need not
        import opacus  # noqa: F401
    else:
        import apportion.training  # noqa: F401
    while line := sys.stdin.readline().split():
        child = os.fork()
        if child == 0:
            serve(name, line[1], int(line[2]))
            os._exit(0)
        os.waitpid(child, 0)
        answer({"stopped": line[1]})  # nothing may be sent before: the child would read it, and lose it


if __name__ == "__main__":
    main()
