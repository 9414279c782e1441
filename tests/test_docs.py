"""The commands in the quickstart run as they stand, and the pages name what exists."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from apportion.bundle import schema

DOCS = Path(__file__).parent.parent / "docs"


def test_the_quickstart_runs(
    apportion: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "quickstart.md").read_text().replace("--epochs 40", "--epochs 3")
    commands = [line for line in re.findall(r"^apportion (.*)$", text, re.MULTILINE) if "patients.csv" not in line]
    assert len(commands) == 10
    for command in commands:
        code, _, err = apportion(*shlex.split(command))
        assert code == 0, f"apportion {command}: {err}"


def test_the_page_on_pipelines_runs(
    apportion: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "pipeline.md").read_text()
    (config,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    Path("pipeline.toml").write_text(config.replace("epochs = 20", "epochs = 3"))
    commands = re.findall(r"^apportion (.*)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        code, _, err = apportion(*shlex.split(command))
        assert code == 0, f"apportion {command}: {err}"
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(program, "pipeline.md", "exec"), {})
    assert Path("published/own-pipeline/certificate.json").is_file()


def test_the_table_on_the_page_on_pipelines_is_what_is_printed(
    apportion: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    text = (DOCS / "pipeline.md").read_text()
    (config,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "pipeline.toml").write_text(config)
    (shown,) = re.findall(r"^```\n(    stage.*?)^```$", text, re.MULTILINE | re.DOTALL)
    _, printed, _ = apportion("plan", tmp_path / "pipeline.toml")
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines[: len(shown.splitlines())] == shown.splitlines()


def test_the_page_on_the_certificate_names_every_field() -> None:
    text = (DOCS / "certificate.md").read_text()
    for name in schema.load("certificate", 1)["properties"]:
        if name != "format":
            assert f"`{name}`" in text, name


def test_the_receivers_guide_names_every_check(apportion: Callable[..., tuple[int, str, str]], bundle: Path) -> None:
    import apportion as ap

    text = (DOCS / "receiver.md").read_text()
    for check in ap.verify(bundle, strict=True, trusted=["00"]).checks:
        assert f"`{check.name}`" in text


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text()):
        assert (page.parent / target).is_file(), target


VISITS = ["patient,age,dose,ill", *(f"p{i % 40},{20 + i % 40},{i % 9},{'yes' if i % 2 else 'no'}" for i in range(120))]


@pytest.mark.parametrize("page", ["clipping.md", "training.md", "units.md"])
def test_the_examples_on_a_page_run(
    page: str, apportion: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from apportion.training import loop

    # Pricing every epoch for nobody to see takes time.
    monkeypatch.setattr(loop, "Progress", lambda plan: loop.Silent())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.csv").write_text("\n".join(VISITS) + "\n")
    text = (DOCS / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"^apportion (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert blocks
    assert commands
    exec(compile("\n".join(blocks), page, "exec"), {})
    for command in commands:
        code, _, err = apportion(*shlex.split(command))
        assert code == 0, f"apportion {command}: {err}"
