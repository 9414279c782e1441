"""MNIST twice: as the paper words it, and with the budget that it states truly spent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from apportion.accounting.conversions import epsilon_of_rho_classic
from apportion.drawing import Series, chart
from experiments import mnist, paper, words
from experiments.experiment import Experiment, Record, Report, Row, Table
from experiments.pictures import ranges
from experiments.spread import Spread, curve, final, percent, share_of_gap, short, spread
from experiments.trained import why_not

TRIALS = 10
UNIFORM = "uniform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The records of one experiment, by what they are."""

    private: dict[str, list[Record]]
    same_epochs: dict[str, list[Record]]
    non_private: list[Record]

    @staticmethod
    def among(records: Sequence[Record]) -> "Found":
        def of(kind: str) -> dict[str, list[Record]]:
            chosen = [record for record in records if record.settings["kind"] == kind]
            names = dict.fromkeys(record.settings["schedule"] for record in chosen)
            return {name: [r for r in chosen if r.settings["schedule"] == name] for name in names}

        plain = [record for record in records if record.settings["kind"] == "non-private"]
        return Found(private=of("private"), same_epochs=of("uniform"), non_private=plain)

    def without_noise(self, epochs: float, part: str) -> float | None:
        """Accuracy of training without privacy after so many epochs, read off its curve."""
        known = [record.result[part] for record in self.non_private]
        return fmean(values[min(round(epochs), len(values)) - 1] for values in known) if known else None


def all_training(records: Sequence[Record]) -> Spread:
    return spread([record.result["train_all"] for record in records])


def epochs_of(records: Sequence[Record]) -> str:
    found = sorted({record.result["epochs"] for record in records})
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


def _both(pair: tuple[float, float] | None) -> str:
    return "–" if pair is None else f"{short(pair[0])}/{short(pair[1])}"


def _accuracies(found: Found) -> str:
    base, best = final(found.private[UNIFORM], "test").mean, found.without_noise(100, "test")
    printed = paper.SCHEDULES
    lines = []
    for name, records in found.private.items():
        test, theirs = final(records, "test"), printed[name]["private"][1]
        epochs = fmean(record.result["epochs"] for record in records)
        plain = found.without_noise(epochs, "test")
        same = found.same_epochs.get(name)
        share = None if name == UNIFORM or best is None else share_of_gap(test.mean, base, best)
        their_gap = share_of_gap(theirs, printed[UNIFORM]["private"][1], printed[UNIFORM]["non-private"][1])
        lines.append([
            name, epochs_of(records), test.count, all_training(records), test, _both(printed[name]["private"]),
            "–" if same is None else final(same, "test"), _both(printed[name]["uniform"]),
            "–" if plain is None else short(plain), _both(printed[name]["non-private"]),
            percent(share), "–" if name == UNIFORM else percent(their_gap),
        ])  # fmt: skip
    columns = [
        "schedule", "epochs", "trials", "train", "test", "*paper*", "uniform, same epochs: test", "*paper*",
        "no privacy, same epochs: test", "*paper*", "share of the gap", "*paper*",
    ]  # fmt: skip
    return words.table(columns, lines)


def _costs(found: Found) -> str:
    lines = []
    for name, records in found.private.items():
        first = records[0]
        result, charged = first.result, first.settings["rho"]
        spent = max(record.result["rho"] for record in records)
        cap = result["rho_certified"]
        lines.append([
            name, f"{charged:g}", words.number(epsilon_of_rho_classic(charged, paper.DELTA)), f"{spent:.4f}", f"{cap:g}",
            words.number(epsilon_of_rho_classic(cap, paper.DELTA)), words.number(result["epsilon"]),
        ])  # fmt: skip
    columns = [
        "schedule", "ρ as the paper charges", "its ε", "ρ of the ledger, PCA included", "ρ certified",
        "ε, paper's conversion", "ε certified (exact)",
    ]  # fmt: skip
    return words.table(columns, lines)


def _comparison(found: Found, why: str) -> str:
    """What can be said whatever the numbers are, said with the numbers."""
    base = final(found.private[UNIFORM], "test")
    dynamic = {name: final(records, "test") for name, records in found.private.items() if name != UNIFORM}
    higher = [name for name, test in dynamic.items() if test.mean > base.mean]
    always = [name for name, test in dynamic.items() if test.low > base.high]
    differences = {
        name: 100 * (final(records, "test").mean - paper.SCHEDULES[name]["private"][1])
        for name, records in found.private.items()
    }
    gains = {name: 100 * (test.mean - base.mean) for name, test in dynamic.items()}
    theirs = [100 * (paper.SCHEDULES[name]["private"][1] - paper.SCHEDULES[UNIFORM]["private"][1]) for name in dynamic]
    plain = found.without_noise(100, "test")
    repeated = min(base.count, *(test.count for test in dynamic.values())) > 1
    clearly = f" ({len(always)} of them in every trial better than uniform noise in its best)" if repeated else ""
    return f"""
**On the claim, that noise should fall while training:** {len(higher)} of {len(dynamic)} schedules have a higher mean
test accuracy than
uniform noise over its 100 epochs{clearly}, by {min(gains.values()):+.1f} to {max(gains.values()):+.1f} points; for
these the paper
prints {min(theirs):+.1f} to {max(theirs):+.1f}.
{_against_same_epochs(found)}

**On the numbers:** our test accuracies differ from the printed ones by {min(differences.values()):+.1f} to
{max(differences.values()):+.1f} points
({", ".join(f"{name} {value:+.1f}" for name, value in differences.items())}){_plain(plain)}. {why}
Nothing was tuned: every setting is the paper's, or a default named here.
"""


def _against_same_epochs(found: Found) -> str:
    paired = {
        name: 100 * (final(found.private[name], "test").mean - final(records, "test").mean)
        for name, records in found.same_epochs.items()
        if name in found.private
    }
    if not paired:
        return ""
    better = [name for name, difference in paired.items() if difference > 0]
    listed = ", ".join(f"{name} {difference:+.1f}" for name, difference in paired.items())
    return f"""
Against uniform noise *for the same number of epochs* {len(better)} of {len(paired)} are better in the mean ({listed}
points):
the part of the gain that is due to the falling noise and not to stopping earlier.
"""


def _unfinished(found: Found) -> str:
    """What this page lacks, so that nobody takes a gap for a result."""
    dynamic = [name for name in paper.SCHEDULES if name != UNIFORM]
    missing = [name for name in paper.SCHEDULES if name not in found.private]
    missing += [f"uniform noise for the epochs of {name}" for name in dynamic if name not in found.same_epochs]
    missing += [] if found.non_private else ["training without privacy, and with it the share of the gap"]
    fewest = min(len(records) for records in (*found.private.values(), *found.same_epochs.values()))
    most = max(len(records) for records in (*found.private.values(), *found.same_epochs.values()))
    parts = [f"**Not run yet: {', '.join(missing)}.**"] if missing else []
    if fewest < TRIALS:
        count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        one = " With a single trial there is no spread: a few tenths of a point may be chance." if fewest == 1 else ""
        parts.append(f"**The paper ran {TRIALS} trials; here are {count} per row.**{one}")
    return " ".join(parts)


def _plain(accuracy: float | None) -> str:
    printed = paper.SCHEDULES[UNIFORM]["non-private"][1]
    return "" if accuracy is None else f"; without privacy {short(accuracy)} where it prints {short(printed)}"


def _validation(found: Found) -> str:
    if "validation" not in found.private:
        return ""
    first = found.private["validation"][0]
    result, held = first.result, first.settings["records"] - first.result["examples"]
    # The ledger states what is charged: with noise σ on each of L layers that is σ/√L.
    factor = math.sqrt(mnist.LAYERS) if first.settings["noise"] == "each" else 1.0
    steps = ", ".join(f"{factor * sigma:.3g} for {len(list(group))}" for sigma, group in groupby(result["sigmas"]))
    theirs = ", ".join(f"{sigma:g} for {count}" for sigma, count in paper.VALIDATION_SIGMAS)
    return f"""
The validation-based row trains on {result["examples"]:,} images and is steered by the other {held:,}, **declared
public, which
in truth they are not**: its guarantee covers the {result["examples"]:,} only, and is that of its cap. In its first trial σ
was {steps} epochs; the paper's: {theirs}.
"""


def _report(name: str, records: Sequence[Record], says: str, why: str) -> Report:
    found = Found.among(records)
    shown = {n: final(r, "test") for n, r in found.private.items()}
    shown |= {f"uniform, epochs of {n}": final(r, "test") for n, r in found.same_epochs.items() if n in found.private}
    curves = [Series(label=n, points=curve(r, "test")) for n, r in found.private.items()]
    text = f"""
{says}

{words.picture(name, "curves", "test accuracy by epoch")}
{words.picture(name, "final", "test accuracy at the end")}

{_accuracies(found)}

{_unfinished(found)}

Accuracy is the mean over trials with the smallest and the largest; the paper's pairs are training/testing. The share of the
gap is that between uniform noise and no privacy, both after 100 epochs, on test images. "Train" is measured on the private
images, which is for this page only: a release of it would need noise of its own. Accuracy on test images was looked at and
used for nothing.

{_costs(found)}

{_validation(found)}

{_comparison(found, why)}
"""
    return Report(
        text=text,
        tables={"accuracy": _tidy(records)},
        pictures={
            "curves": words.svg(
                chart(curves, title="Test accuracy, mean over trials", x="epoch", y="accuracy", from_zero=False)
            ),
            "final": ranges(shown, title="Test accuracy, mean and min–max"),
        },
    )


def _tidy(records: Sequence[Record]) -> Table:
    lines = []
    for record in records:
        label = [record.settings["kind"], record.settings.get("schedule", "none"), record.trial + 1]
        pairs = zip(record.result["train"], record.result["test"], strict=True)
        lines += [[*label, epoch, first, second] for epoch, (first, second) in enumerate(pairs, 1)]
    return Table(columns=("kind", "schedule", "trial", "epoch", "train_first_10000", "test"), lines=lines)


def report_as_worded(records: Sequence[Record]) -> Report:
    says = f"""
Private PCA to {mnist.DIMENSIONS} dimensions with σ = {mnist.PCA_SIGMA:g}, {mnist.HIDDEN} ReLU units, batches of
{mnist.BATCH}, learning rate
{mnist.LEARNING_RATE:g}. The gradient of *every layer* is clipped to {mnist.CLIP:g}, and each gets noise
{mnist.CLIP:g}σ. **Here the paper under-counts**: it
charges an epoch 1/(2σ²), but one record may move both layers, so that the whole gradient may be √{mnist.LAYERS} times
longer than the
noise was made for, and an epoch costs {mnist.LAYERS}/(2σ²). Apportion's ledger charges that, and the projection
(1/(2·{mnist.PCA_SIGMA:g}²) = {mnist.PCA_RHO:.5f}), which the paper leaves out of its total. Both are in the second table.
"""
    why = """
The paper does not say how pixels are scaled, whether images are centred or normalised before the projection, how weights
begin, whether biases are clipped with their layer, or whether its table shows typical or best trials. Ours: pixels divided
by 255, rows clipped to norm 1 for the projection only and not centred, PyTorch's initial weights, biases clipped with
their weights. Which of this makes what is left of a difference, we do not know.
"""
    return _report("mnist-as-worded", records, says, why)


def report_honest(records: Sequence[Record]) -> Report:
    says = f"""
The same, with the stated ρ truly spent: noise of {mnist.CLIP:g}σ√{mnist.LAYERS} on each of the {mnist.LAYERS} layers,
so that an epoch costs the
1/(2σ²) that the paper charges. The projection comes on top of it, and is in the total.
"""
    why = f"""
That is expected: here is √{mnist.LAYERS} times the noise of the version above, which is what the stated ρ buys, and all
else is the same.
"""
    return _report("mnist-honest", records, says, why)


def _rows(noise: mnist.Noise, quick: bool) -> Sequence[Row]:
    return mnist.rows(noise, 2 if quick else TRIALS, quick)


_TABLE = 'Table "Budget Allocation Schedules under Fixed Budget", figures of accuracy'
AS_WORDED = Experiment(
    name="mnist-as-worded",
    title="MNIST, as the paper words it",
    re_runs=_TABLE,
    rows=lambda quick: _rows("each", quick),
    compute=mnist.compute,
    report=report_as_worded,
    missing=why_not,
    absent=mnist.data_absent,
)
HONEST = Experiment(
    name="mnist-honest",
    title="MNIST, the stated budget truly spent",
    re_runs=_TABLE,
    rows=lambda quick: _rows("scaled", quick),
    compute=mnist.compute,
    report=report_honest,
    missing=why_not,
    absent=mnist.data_absent,
)
