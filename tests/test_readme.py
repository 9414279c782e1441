"""The README's Python runs as it stands, top to bottom, and its commands parse."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "README.md", "exec"), {})
    assert "True" in capsys.readouterr().out
    assert (tmp_path / "runs" / "own-loop" / "model.safetensors").exists()


def test_the_commands_run(
    apportion: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = re.findall(r"^apportion (?!train --data )(.*)$", README.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) >= 7
    for command in commands:
        code, _, err = apportion(*shlex.split(command, comments=True))
        assert code == 0, f"apportion {command}: {err}"


def test_the_example_settings_train(apportion: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, err = apportion("train", ROOT / "examples" / "patients.toml", "--out", tmp_path / "run", "--json")
    assert code == 0, err
