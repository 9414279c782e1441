"""The page on selection, and its examples, do what they say."""

import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "selection.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_run(
    apportion: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand, on the example's settings with fewer epochs and runs."""
    monkeypatch.chdir(tmp_path)
    settings = (ROOT / "examples" / "selection.toml").read_text()
    shortened = settings.replace("epochs = 20", "epochs = 2").replace("mean_runs = 6 ", "mean_runs = 1.2 ")
    assert shortened.count("epochs = 2\n") == shortened.count("mean_runs = 1.2 ") == 1
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "selection.toml").write_text(shortened)
    commands = re.findall(r"^apportion (.*)$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["select", "select", "status", "publish", "verify"]
    for command in commands:
        code, _, err = apportion(*shlex.split(command))
        assert code == 0, f"apportion {command}: {err}"


def test_the_reference_costs_are_the_printed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], "selection.md", "exec"), {})
    printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert len(printed) == 5
    for value in printed.values():
        assert value in PAGE


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[1], "selection.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "True"


@pytest.mark.slow
def test_the_comparison_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["selection.py", "--repeats", "1", "--epochs", "2"])
    runpy.run_path(str(ROOT / "examples" / "selection.py"), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 6
    for row in rows[1:3]:
        assert 2.97 < float(re.findall(r"\d+\.\d+", row)[0]) <= 3.0
