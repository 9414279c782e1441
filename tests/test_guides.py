"""The guides' code and commands run as they stand, and their numbers are those of the kept results."""

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from conftest import write_mnist

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def script(path: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def test_the_recipes_for_fine_tuning_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "fine-tuning.md").read_text(), re.DOTALL)
    assert "epochs=20" in blocks[0]
    blocks[0] = blocks[0].replace("epochs=20", "epochs=1")
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "fine-tuning.md", "exec"), {})
    assert "as planned 276 " in capsys.readouterr().out, "2 · (9 + 64) of the adapter, 64 · 2 + 2 of the head"
    assert (tmp_path / "published" / "head" / "certificate.json").exists()
    assert (tmp_path / "runs" / "last-layer" / "model.safetensors").exists()


def test_the_commands_of_the_page_on_accuracy_run(apportion: Callable[..., tuple[int, str, str]]) -> None:
    commands = re.findall(r"^apportion (.*)$", (ROOT / "docs" / "accuracy.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        code, out, err = apportion(*shlex.split(command))
        assert code == 0, err
        assert "noise/signal" in out


def test_the_tables_on_accuracy_are_those_of_the_kept_results() -> None:
    module = script("benchmarks/accuracy.py")
    results = json.loads((RESULTS / "accuracy.json").read_text())
    page = (ROOT / "docs" / "accuracy.md").read_text()
    assert module.rewritten(page, results) == page
    for name, (_, rows) in module.TABLES.items():
        assert f"<!-- begin {name} -->" in page
        for case in rows.values():
            assert case.key in results["cases"], f"{name} is not measured"


def test_the_table_on_fine_tuning_is_that_of_the_kept_results() -> None:
    module = script("examples/fine_tuning.py")
    page = (ROOT / "docs" / "fine-tuning.md").read_text()
    assert module.table(json.loads((RESULTS / "fine_tuning.json").read_text())) in page


def test_the_example_on_fine_tuning_trains_on_cached_features_and_with_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("examples/fine_tuning.py")
    monkeypatch.setattr(module, "RATES", (1.0,))
    write_mnist(tmp_path, {"train": 60, "t10k": 20})
    results = module.compare(tmp_path, epsilon=8.0, repeats=1, epochs=1)
    ways = results["ways"]
    assert ways["head, on features of the last layer"]["parameters"] == 64 * 5 + 5
    head = ways["head, on features from before the last layer"]
    assert head["parameters"] == 512 * 5 + 5
    assert ways["adapters of rank 4 and head"]["parameters"] == 4 * (512 + 64) + 64 * 5 + 5
    assert head["noise_to_signal"] < ways["everything, from scratch"]["noise_to_signal"]
    assert all(0 <= value <= 1 for found in ways.values() for value in found["accuracies"])
