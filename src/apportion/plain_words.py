"""A certificate's JSON in plain words: a pure function of that JSON, so that anyone can regenerate it and compare.

The words of a certificate format are part of the format. Once a format has been released, changing a sentence here means
a new format number, with the old words kept for old certificates.
"""

import html
import math
import re
from collections.abc import Iterable
from typing import Any

from apportion.accounting.interpretation import profile_of_pair
from apportion.events import Adjacency
from apportion.publication import HYPERPARAMETERS_IN_WORDS, NOT_DECLARED
from apportion.scores import deviation, scores

ADJACENCY_IN_WORDS: dict[Adjacency, str] = {
    "add-remove": "one {unit} is added to the data or removed from it",
    "zero-out": "one {unit}'s contribution is removed, while the number of {unit}s is public",
    "replace-one": "one {unit} is replaced by another",
}
_MARKUP = re.compile(r"([\\`*_\[\]|~#!])")
_MOST_SHOWN = 400
_MOST_VALUES = 6  # of a value that changes with the epoch
_MOST_SCORES = 24
_ASKED = ("pre-trained weights", "validation data")  # what a reader wants to know even if nobody said it


def literal(text: str, most: int = _MOST_SHOWN) -> str:
    """Somebody else's text on one line of Markdown, with nothing in it that Markdown or HTML would act upon."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    shortened = line if len(line) <= most else line[: most - 1] + "…"
    return _MARKUP.sub(r"\\\1", html.escape(shortened, quote=False))


def words(certificate: dict[str, Any]) -> str:
    """The whole certificate on one page of Markdown."""
    blocks = [
        [f"**UNSAFE: {reason}.**" for reason in certificate["unsafe"]],
        _claim(certificate),
        _mechanism(certificate),
        _statements(certificate),
        _comparison(certificate),
        _components(certificate),
        _inputs(certificate),
        ["Not covered:", "", *(f"- {item}" for item in certificate["not_covered"])],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _claim(certificate: dict[str, Any]) -> list[str]:
    unit, epsilon, delta = certificate["unit"], certificate["epsilon"], certificate["delta"]
    neighbours = ADJACENCY_IN_WORDS[certificate["adjacency"]].format(unit=unit)
    odds = f"{math.exp(epsilon):.4g}" if epsilon < 700 else "more than 10^300"
    caught = profile_of_pair(epsilon, delta).true_positive_rate(0.01)
    return [
        f"**(ε, δ) = ({epsilon:g}, {delta:g})-differential privacy** for everything released by this run, where "
        f"neighbouring data sets differ in that {neighbours}. It covers this run only.",
        "",
        f"In words: whatever is concluded from what was released would have been concluded with nearly the same "
        f"probability had any one {unit} not been there: at most e^ε = {odds} times as likely, except with "
        f"probability about δ = {delta:g}. An attacker who wants to tell whether one {unit} was in the data, and who "
        f"may be wrong about 1 in 100 that were not, recognises at most {100 * caught:.3g} in 100 of those that were.",
    ]


def _mechanism(certificate: dict[str, Any]) -> list[str]:
    clip = certificate["clip"]
    return [
        *selection_in_words(certificate),
        f"- Unit of privacy: one {certificate['unit']}. Adjacency: {certificate['adjacency']}.",
        f"- Proven by: {certificate['accountant']} accounting of {_what_is_certified(certificate)}.",
        f"- Batching: {batching_in_words(certificate['batching'], certificate['unit'])}; {certificate['steps']} steps in "
        "all.",
        f"- Noise multiplier: {noise_in_words(certificate)}; every {certificate['unit']}'s gradient"
        f"{person_in_words(certificate)} {clipping_in_words(certificate['clipping'], clip)}.",
        f"- Budget of the plan: {' at '.join(f'{name} = {value:g}' for name, value in _budget(certificate))}.",
        f"- Released: {certificate['released'].replace('-', ' ')}{choice_in_words(certificate)}"
        f"{evaluation_in_words(certificate)}; nothing else "
        "computed from the data.",
        f"- Randomness: {certificate['randomness'].replace('-', ' ')}.",
        f"- Floating-point effects of the noise: {_floating_point_in_words(certificate)}.",
    ]


def _what_is_certified(certificate: dict[str, Any]) -> str:
    slots, adaptive = certificate["slots"], certificate["adaptive"]
    if "selection" in certificate:
        retrained = " and of the dearest training that could follow it" if certificate["selection"]["retrained"] else ""
        return f"the whole selection{retrained}, and of all else that the ledger records"
    if adaptive is None:
        used = f"{slots['used']} were used; stopping early does not lower the cost"
        return f"all {slots['planned']} planned epochs ({used}) and of all else that the ledger records"
    if adaptive["floor"] is not None:
        return f"the floor below which the noise was not allowed to fall, over all {slots['planned']} planned epochs"
    return (
        f"the cap under which the noise followed public scores ({slots['used']} epochs; the cap counts, not their sum)"
    )


def _floating_point_in_words(certificate: dict[str, Any]) -> str:
    if certificate["floating_point"] == "covered":
        return "covered (sums rounded to a public grid, rounded Gaussian noise drawn exactly, the rounding paid for)"
    return "not covered"


def _budget(certificate: dict[str, Any]) -> Iterable[tuple[str, float]]:
    budget = certificate["budget"]
    return ((name, budget[name]) for name in ("rho", "epsilon", "delta") if name in budget)


def noise_in_words(certificate: dict[str, Any]) -> str:
    sigmas = certificate["sigmas"]
    span = f" from {sigmas[0]:.4g} to {sigmas[-1]:.4g}" if sigmas else ", never used"
    return f"{certificate['schedule']['kind']} schedule{span}"


def person_in_words(certificate: dict[str, Any]) -> str:
    if "person" not in certificate:
        return ""
    person = certificate["person"]
    most = "" if person["most_records"] is None else f"at most {person['most_records']} of "
    return f", the {person['gradient']} over {most}their records,"


def clipping_in_words(clipping: Any, clip: Any) -> str:
    if isinstance(clip, list):
        return clipping_in_words(clipping, clip[0]["value"]) + _later("the norm", clip)
    match clipping:
        case "flat":
            return f"clipped to L2 norm {clip:g} (flat clipping)"
        case {"kind": "per-layer", "layers": layers, "noise": noise}:
            number = layers if isinstance(layers, int) else len(layers)
            thresholds = {clip} if isinstance(layers, int) else {clip * value for value in layers.values()}
            bounds = f"{min(thresholds):g}" + (f" to {max(thresholds):g}" if len(thresholds) > 1 else "")
            paid = (
                f"noise on each layer √{number} times the multiplier times its bound"
                if noise == "scaled"
                else f"noise on each layer the multiplier times its bound, charged as a multiplier √{number} times smaller"
            )
            return f"clipped to L2 norm {bounds} in each of {number} layers (per-layer clipping; {paid})"
        case {"kind": "automatic", "stability": stability}:
            return f"g scaled to {clip:g}·g/(‖g‖ + {stability:g}), of L2 norm below {clip:g} (automatic clipping)"
        case _:
            raise AssertionError(f"no words for {clipping}")


def evaluation_in_words(certificate: dict[str, Any]) -> str:
    """Noisy scores, each with the noise that it carries."""
    texts = [
        f"; and a noisy test score: about {e['right']} right and {e['wrong']} wrong answers on held-out records"
        f"{accuracy_in_words(e)}, each count with Gaussian noise of standard deviation "
        f"{deviation(e['sigma'], e.get('tables', {})):g}"
        for e in certificate["evaluations"]
    ]
    return "".join(texts)


def selection_in_words(certificate: dict[str, Any]) -> list[str]:
    """How the configuration was chosen, if it was. What follows is about the chosen one."""
    if "selection" not in certificate:
        return []
    selection, unit = certificate["selection"], certificate["unit"]
    method, number = selection["method"], len(selection["candidates"])
    chosen = literal(selection["candidates"][selection["chosen"]], 200)
    share = f"{100 * selection['score_share']:.3g} %"
    if method["kind"] == "split":
        how = (
            f"each {unit} fell independently into one of {number + 1} parts; each of {number} declared candidates was "
            f"trained privately on a part of its own, and the exponential mechanism (ε = {method['epsilon']:g}) chose by "
            f"their numbers of errors on the last part (about {share} of the {unit}s)"
        )
        then = "trained afresh on everything" if selection["retrained"] else "released as trained on its part"
        return [f"- Private selection: {how}. Chosen: {chosen}, {then}."]
    how = (
        f"one of {number} declared candidates was drawn at random, trained privately, and scored by noisy counts on "
        f"held-out {unit}s (each {unit} by a coin, about {share}); this happened a secret number of times, drawn from a "
        f"{law_in_words(method['runs'])}, and only the best was released"
    )
    return [f"- Private selection: {how}. Chosen: {chosen}."]


def law_in_words(law: dict[str, Any]) -> str:
    if law["kind"] == "poisson-law":
        return f"Poisson law of mean {law['mean']:g}"
    return f"truncated negative binomial law (η = {law['eta']:g}, γ = {law['gamma']:.4g})"


def choice_in_words(certificate: dict[str, Any]) -> str:
    """What a selection released beside the weights."""
    if "selection" not in certificate:
        return ""
    score = certificate["selection"]["score"]
    if score is None:
        return "; which candidate was chosen"
    return (
        f"; which candidate was chosen; and its noisy score, about {score['right']} right and {score['wrong']} wrong "
        f"answers{accuracy_in_words(score)}: the best of several noisy ones, hence optimistic"
    )


def accuracy_in_words(evaluation: dict[str, Any]) -> str:
    if "tables" in evaluation:  # older evaluations keep their words
        found = [f"{name} {score}" for name, score in scores(evaluation).items()][:_MOST_SCORES]
        return f" ({', '.join(found)}; ± one standard error, noise included)" if found else ""
    accuracy = noisy_accuracy(evaluation)
    return "" if accuracy is None else f" (accuracy about {accuracy:.3g})"


def noisy_accuracy(evaluation: dict[str, Any]) -> float | None:
    """right / (right + wrong), brought back into [0, 1]; None where the noise drowned the counts."""
    total = evaluation["right"] + evaluation["wrong"]
    return min(1.0, max(0.0, float(evaluation["right"] / total))) if total > 0 else None


def _statements(certificate: dict[str, Any]) -> list[str]:
    stated = certificate["publication"]
    runs = stated["earlier_runs"]
    earlier = runs if runs == NOT_DECLARED else f"{runs}, none of them covered by this certificate"
    return [
        "Stated by the publisher, and not checkable from the bundle:",
        "",
        f"- Hyperparameters: {hyperparameters_in_words(certificate)}.",
        f"- Earlier runs on the same data: {earlier}.",
    ]


def hyperparameters_in_words(certificate: dict[str, Any]) -> str:
    stated = certificate["publication"]["hyperparameters"]
    if stated == "selected" and all(component["purpose"] != "selection" for component in certificate["components"]):
        return "chosen by a private selection that this ledger does not record: its cost is NOT in the guarantee"
    return HYPERPARAMETERS_IN_WORDS[stated]


def _comparison(certificate: dict[str, Any]) -> list[str]:
    rows = [f"| {g['accountant']} | {g['epsilon']:g} | {g['status']} |" for g in certificate["guarantees"]]
    return [
        f"The same run under other accountants (δ = {certificate['delta']:g}; the smallest proven ε is the claim):",
        "",
        "| accountant | ε | status |",
        "| --- | --- | --- |",
        *rows,
    ]


def _components(certificate: dict[str, Any]) -> list[str]:
    rows = [f"| {c['purpose']} | {c['events']} | {c['share']:.1%} |" for c in certificate["components"]]
    if len(rows) < 2:
        return []
    head = ["What the privacy loss was spent on (by unamplified ρ, as a guide):", "", "| on | events | share |"]
    return [*head, "| --- | --- | --- |", *rows]


def _inputs(certificate: dict[str, Any]) -> list[str]:
    declared = dict.fromkeys(_ASKED, NOT_DECLARED) | certificate["declared"]
    return [
        "Declared public, hence not protected:",
        "",
        f"- number of {certificate['unit']}s: {certificate['examples']}",
        *(f"- {literal(name, 60)}: {literal(value)}" for name, value in sorted(declared.items())),
    ]


def batching_in_words(data: dict[str, Any], unit: str = "example") -> str:
    name, size = next((name, value) for name, value in data.items() if name != "kind")
    if isinstance(size, list):
        what = "the probability" if name == "rate" else "their number"
        return batching_in_words(data | {name: size[0]["value"]}, unit) + _later(what, size)
    match data:
        case {"kind": "shuffle", "batches": batches}:
            return f"reshuffled every epoch and cut into {batches} batches of fixed size (no amplification)"
        case {"kind": "partition", "batches": batches}:
            return f"every epoch each {unit} falls independently into one of {batches} secret batches"
        case {"kind": "poisson", "rate": rate}:
            return f"every step each {unit} is drawn independently with probability {rate:g}"
        case _:
            raise AssertionError(f"no words for {data}")


def _later(what: str, values: list[dict[str, Any]]) -> str:
    """What a number given for the first epoch becomes in later ones."""
    shown = [f"{entry['value']:g} from epoch {entry['from']} on" for entry in values[1:_MOST_VALUES]]
    more = [f"{len(values) - _MOST_VALUES} more changes later"] if len(values) > _MOST_VALUES else []
    return f" ({what}: {', '.join(shown + more)})" if shown else ""
