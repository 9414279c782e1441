"""The model card: a README for model hubs, generated from the certificate and the model's description alone.

Because nothing else goes into it, a receiver regenerates it and compares: a bundle's card can not promise more than its
ledger. To add prose of one's own, use `intended_use`, or write it beside the bundle.
"""

from itertools import pairwise
from typing import Any

from apportion.bundle import files
from apportion.plain_words import literal, noisy_accuracy, words
from apportion.publication import NOT_DECLARED


def card(certificate: dict[str, Any], model: dict[str, Any] | None) -> str:
    publication = certificate["publication"]
    table = None if model is None else model["table"]
    use = publication["intended_use"]
    sections = [
        _front_matter(certificate, table),
        f"# {literal(publication['name'])}",
        "".join(f"**UNSAFE: {reason}.**\n" for reason in certificate["unsafe"]).rstrip(),
        f"A model trained with differential privacy: ε = {certificate['epsilon']:g} at δ = {certificate['delta']:g}, "
        f"per {certificate['unit']}, {certificate['adjacency']}.",
        f"## Privacy\n\n{words(certificate)}",
        f"![Noise multiplier of each epoch]({files.NOISE})\n\n![What an attacker can reach]({files.TRADE_OFF})",
        f"## Intended use\n\n{literal(use, 500) if use != NOT_DECLARED else _NO_USE}",
        f"## Architecture\n\n{_architecture(certificate, table)}",
        f"## Load it\n\n{_loading(table)}{_onnx(model)}",
        _CHECKING,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


_NO_USE = (
    "Not declared by the publisher. Differential privacy protects those whose records were used; it says nothing about "
    "accuracy, fairness or fitness for a purpose."
)
_CHECKING = """## Check it yourself

```
pip install apportion
apportion verify .
```

recomputes the guarantee from `ledger.jsonl`, without the data and without PyTorch, and regenerates this page."""


def _front_matter(certificate: dict[str, Any], table: dict[str, Any] | None) -> str:
    publication = certificate["publication"]
    lines = ["---"]
    if publication["license"] != NOT_DECLARED:
        lines.append(f"license: {publication['license']}")
    lines += ["library_name: pytorch"]
    if table is not None:
        lines.append("pipeline_tag: tabular-classification")
    lines += ["tags:", "- differential-privacy", "- apportion"]
    lines += _results(certificate, table) if table is not None else []
    return "\n".join([*lines, "---"])


def _results(certificate: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """A noisy accuracy, where one was paid for, as hubs index it."""
    scores = [noisy_accuracy(evaluation) for evaluation in certificate["evaluations"]]
    if not scores or scores[-1] is None:
        return []
    return [
        "model-index:",
        f"- name: {certificate['publication']['name']}",
        "  results:",
        "  - task:",
        "      type: tabular-classification",
        "    dataset:",
        "      name: held-out records",
        "      type: private",
        "    metrics:",
        "    - type: accuracy",
        "      name: accuracy from noisy counts",
        f"      value: {scores[-1]:.4f}",
    ]


def _architecture(certificate: dict[str, Any], table: dict[str, Any] | None) -> str:
    lines = []
    if table is not None:
        widths = _widths(table)
        lines += [
            f"A multilayer perceptron {' → '.join(map(str, widths))} with {table['activation']}, which predicts "
            f"{literal(table['target'])} ({literal(', '.join(table['classes']))}). Each feature is clipped to its declared "
            f"range and scaled to [-1, 1]{_prepared(table)}:",
            "",
            "| feature | low | high |",
            "| --- | --- | --- |",
            *(
                f"| {literal(f['name'], 80)} | {f['low']:g} | {f['high']:g} |"
                for f in table["features"][:_MOST_FEATURES]
            ),
            "",
        ]
    declared = certificate["declared"]
    if "selection" in certificate:
        lines.append(f"- chosen candidate: {literal(certificate['selection']['configuration'], 5000)}")
    lines += [
        f"- {name}: {literal(declared[name], 2000)}" for name in ("model", "loss", "optimizer") if name in declared
    ]
    return "\n".join(lines).strip() or "Not declared."


_MOST_FEATURES = 100


def _widths(table: dict[str, Any]) -> list[int]:
    return [table.get("projection", len(table["features"])), *table["hidden"], len(table["classes"])]


def _prepared(table: dict[str, Any]) -> str:
    """What frozen layers do before the network, in words."""
    projected = f", then projected to {table['projection']} dimensions" if "projection" in table else ""
    return projected + (", then shifted and scaled by private statistics" if "standardised" in table else "")


def _frozen(table: dict[str, Any]) -> list[str]:
    features = len(table["features"])
    layers = [f"Projection({features}, {table['projection']})"] if "projection" in table else []
    return layers + ([f"Standardise({_widths(table)[0]})"] if "standardised" in table else [])


def _loading(table: dict[str, Any] | None) -> str:
    imports = ["from safetensors.torch import load_file", "from torch import nn"]
    if table is None:
        model = "model = ...  # your own class, with the architecture above"
    else:
        layers = [f"nn.Linear({before}, {after})" for before, after in pairwise(_widths(table))]
        between = f", nn.{'ReLU' if table['activation'] == 'relu' else 'Tanh'}(), "
        frozen = [f"{layer}, " for layer in _frozen(table)]
        model = f"model = nn.Sequential({''.join(frozen)}{between.join(layers)})"
        if frozen:
            imports.insert(0, "from apportion.training import Projection, Standardise")
    code = [*imports, "", model]
    code += [f'model.load_state_dict(load_file("{files.WEIGHTS}"))']
    text = "\n".join(["```python", *code, "```"])
    if table is None:
        return text
    return text + "\n\nor, without PyTorch, from a table with these columns:\n\n```\napportion predict . DATA.csv\n```"


def _onnx(model: dict[str, Any] | None) -> str:
    if model is None or model["onnx"] is None:
        return ""
    found = model["onnx"]
    sides = [
        f"{side} `{found[side]['name']}` {found[side]['dtype']} [{', '.join(map(str, found[side]['shape']))}]"
        for side in ("input", "output")
    ]
    return (
        f"\n\n`{files.ONNX}` (opset {found['opset']}): {'; '.join(sides)}. On random inputs its outputs differ from the "
        f"original's by at most {found['largest_difference']:.2g}."
    )
