"""How much slower than ordinary training is private training, for us and for Opacus?

    python benchmarks/gradients.py --opacus-python PATH/TO/PYTHON [--threads 1 2] [--rounds 9] [--workloads W1 W3] [--resume]

Every engine runs in its own process; a round asks each in turn to work for a moment, so that whatever else the machine
does hits all alike. A ratio is taken within a round; printed are median and quartiles over rounds. With one thread, time
is that of the processor, which other work on the machine disturbs least; with more, that of the wall clock. Before it is
timed, every engine has to reproduce the loop over single examples. Writes `results/gradients.json` and `.md` after every
workload; `--resume` keeps the workloads that are there already and measures the others.
"""

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from gradient_workloads import WORKLOADS

HERE = Path(__file__).parent
OPACUS = ["opacus-hooks", "opacus-functorch", "opacus-ew", "opacus-ghost"]
OWN = ["stock", "layout", "kept", "ours"]
ENGINES = [*OWN, *OPACUS]
SECONDS_PER_TURN = 0.12
# An engine whose one step takes longer than this is timed in so many rounds only.
VERY_SLOW, FEW_ROUNDS = 3.0, 3
# From the loop over single examples. In float32 a ReLU whose input is nearly zero may flip when a batch is computed in
# another order, and one that does moves a gradient by up to some 1e-3 (with smooth activations the same steps agree to
# 3e-6). In float64 that does not happen; there Opacus differs by the 1e-6 that it adds to norms.
LARGEST_DEVIATION = {"deviation": 1e-2, "deviation_in_float64": 1e-5}

# Workload → most that ours may take, relative to the layout baseline; least that the best Opacus mode must take,
# relative to ours; least that its default must take.
BOUNDS = {
    "W1": (1.15, 2.0, 30.0),
    "W2": (1.40, 2.0, None),
    "W3": (1.25, 2.0, None),
    "W4a": (1.40, 1.5, 30.0),
    "W4b": (1.15, 1.5, None),
    "W5": (1.25, 1.5, None),
    "U1": (None, 1.0, None),
    "U2": (None, 1.0, None),
    "U3": (None, 1.0, None),
}
MOST_MEMORY, RESOLUTION = 1.7, 1.0  # times that of ordinary training; MiB, what cannot be told from nothing


class Worker:
    """An engine's process; see `gradient_engine.py` for what it understands."""

    def __init__(self, python: str, engine: str) -> None:
        command = [python, str(HERE / "gradient_engine.py"), engine]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, **pipes)

    def ask(self, line: str) -> dict[str, Any]:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else {"error": "the process ended"}


def measure(workload: str, threads: int, rounds: int, workers: dict[str, Worker]) -> dict[str, Any]:
    """Engine → seconds per step in every round, or why it did not run."""
    result = {engine: worker.ask(f"start {workload} {threads}") for engine, worker in workers.items()}
    turns = {}
    for engine, found in result.items():
        if any(not found.get(which, 0) <= most for which, most in LARGEST_DEVIATION.items()):
            found["error"] = "deviates from the loop over single examples"
        if "error" not in found:
            seconds = workers[engine].ask("run 1")["wall"]
            turns[engine] = max(1, min(100, round(SECONDS_PER_TURN / seconds)))
            found["wall"], found["processor"] = [], []
            found["rounds"] = FEW_ROUNDS if seconds > VERY_SLOW else rounds
    for turn in range(rounds):
        for engine, steps in turns.items():
            if turn >= result[engine]["rounds"]:
                continue
            taken = workers[engine].ask(f"run {steps}")
            for clock in ("wall", "processor"):
                result[engine][clock].append(taken[clock])
    for worker in workers.values():
        worker.ask("stop")
    for found in result.values():
        if "wall" in found:
            found["seconds"] = found["processor" if threads == 1 else "wall"]
    return result


def ratios(numerator: dict[str, Any], denominator: dict[str, Any]) -> list[float] | None:
    if "seconds" not in numerator or "seconds" not in denominator:
        return None
    # Very slow engines were timed in the first rounds only.
    return [a / b for a, b in zip(numerator["seconds"], denominator["seconds"], strict=False)]


def spread(values: list[float] | None) -> str:
    if values is None:
        return "–"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def best_opacus(result: dict[str, Any]) -> str | None:
    ran = [engine for engine in OPACUS if "seconds" in result.get(engine, {})]
    return min(ran, key=lambda engine: statistics.median(result[engine]["seconds"]), default=None)


def verdicts(workload: str, result: dict[str, Any]) -> list[str]:
    """Every bound of this workload, met or missed."""
    most, best_least, default_least = BOUNDS[workload]
    found = []
    best = best_opacus(result)
    checks = [
        ("ours ÷ layout", ratios(result["ours"], result["layout"]), most, "≤"),
        (f"{best} ÷ ours", ratios(result[best], result["ours"]) if best else None, best_least, "≥"),
        ("opacus-hooks ÷ ours", ratios(result.get("opacus-hooks", {}), result["ours"]), default_least, "≥"),
    ]
    for what, values, bound, sign in checks:
        if bound is not None and values is not None:
            middle = statistics.median(values)
            met = middle <= bound if sign == "≤" else middle >= bound
            found.append(f"{what} = {spread(values)} {sign} {bound}: {'met' if met else '**missed**'}")
    own, ordinary = result["ours"].get("mebibytes"), result["stock"].get("mebibytes")
    if own is not None and ordinary is not None:
        ratio = max(own, RESOLUTION) / max(ordinary, RESOLUTION)
        found.append(f"memory ÷ stock = {ratio:.2f} ≤ {MOST_MEMORY}: {'met' if ratio <= MOST_MEMORY else '**missed**'}")
    return found


def memory_table(engines: list[str], results: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "Added memory of a step, MiB (in brackets: of the very first, on two examples, with the rules' proof):",
        "",
    ]
    lines += ["| workload | " + " | ".join(engines) + " |", "| --- " * (len(engines) + 1) + "|"]
    for name, result in results.items():
        used = [(found.get("mebibytes"), found.get("at_first")) for found in (result.get(e, {}) for e in engines)]
        cells = ["–" if memory is None else f"{memory:.1f} ({first:.1f})" for memory, first in used]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def table(threads: int, results: dict[str, Any]) -> str:
    engines = [engine for engine in ENGINES if any(engine in result for result in results.values())]
    lines = [
        f"## {threads} thread{'s' * (threads > 1)}: time of one step ÷ stock eager PyTorch, median (quartiles)",
        "",
        "| workload | batch | stock, ms | ours ÷ layout | ours ÷ kept | " + " | ".join(engines[1:]) + " |",
        "| --- " * (len(engines) + 4) + "|",
    ]
    for name, result in results.items():
        cells = [spread(ratios(result.get(engine, {}), result["stock"])) for engine in engines[1:]]
        milliseconds = 1000 * statistics.median(result["stock"].get("seconds", [math.nan]))
        against = [spread(ratios(result["ours"], result.get(baseline, {}))) for baseline in ("layout", "kept")]
        what = f"{name}: {WORKLOADS[name].what} | {WORKLOADS[name].batch} | {milliseconds:.2f} | {' | '.join(against)}"
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    lines += memory_table(engines, results)
    lines += ["", "Bounds:", ""]
    lines += [f"- {name}: {verdict}" for name, result in results.items() for verdict in verdicts(name, result)]
    errors = [(n, e, r["error"]) for n, result in results.items() for e, r in result.items() if "error" in r]
    lines += ["", "Not run:", ""] + [f"- {name}, {engine}: {error}" for name, engine, error in errors] if errors else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--opacus-python", help="interpreter of an environment with the same PyTorch and Opacus")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--resume", action="store_true", help="keep the workloads that the output file has already")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gradients", help="without suffix")
    arguments = parser.parse_args()
    pythons = dict.fromkeys(OWN, sys.executable)
    if arguments.opacus_python:
        pythons |= dict.fromkeys(OPACUS, arguments.opacus_python)
    everything = earlier(arguments.out) if arguments.resume else {}
    everything |= {"processor": platform.processor() or platform.machine(), "rounds": arguments.rounds}
    workers = {engine: Worker(python, engine) for engine, python in pythons.items()}
    for threads in arguments.threads:
        results = everything.setdefault(f"threads={threads}", {})
        for workload in arguments.workloads:
            if workload not in results:
                results[workload] = measure(workload, threads, arguments.rounds, workers)
                save(arguments.out, everything)
            print(workload, threads, *verdicts(workload, results[workload]), sep="\n  ", flush=True)
    for worker in workers.values():
        worker.process.stdin.close()
    print(save(arguments.out, everything))


def earlier(out: Path) -> dict[str, Any]:
    saved = out.with_suffix(".json")
    return json.loads(saved.read_text()) if saved.exists() else {}


def save(out: Path, everything: dict[str, Any]) -> str:
    """Numbers and verdicts as JSON, and the page made of them, which is returned."""
    text = "# Time and memory of one training step\n\nSee `docs/performance.md` for how to read this.\n"
    everything["verdicts"] = {}
    for key, results in everything.items():
        if key.startswith("threads="):
            ordered = {name: results[name] for name in WORKLOADS if name in results}
            text += "\n" + table(int(key.removeprefix("threads=")), ordered)
            everything["verdicts"][key] = {name: verdicts(name, result) for name, result in ordered.items()}
    out.with_suffix(".json").write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    out.with_suffix(".md").write_text(text)
    return text


if __name__ == "__main__":
    main()
