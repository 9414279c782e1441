"""The page of a run holds everything, asks the network for nothing, and can be seen in a real browser."""

import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_data, tiny_plan, train

import apportion as ap
from apportion.errors import RunError
from apportion.report.write import write_comparison, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("runs")
    plans = {
        "decaying": tiny_plan(
            batching=ap.Partition(batches=3), schedule=ap.ExponentialDecay(sigma0=9.0, decay=0.1), epochs=4
        ),
        "uniform": tiny_plan(epochs=4, schedule=ap.Uniform(sigma0=12.0)),
        "baseline": ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=3),
    }  # fmt: skip
    for name, plan in plans.items():
        train(directory / name, plan, holdout=tiny_data(), declared={"data": "<script>alert(1)</script> & co"})
    return [directory / name for name in plans]


def test_the_page_shows_every_section(runs: list[Path]) -> None:
    text = write_report(runs[0]).read_text()
    assert (runs[0] / "report.html").is_file()
    for expected in (
        "Noise per epoch", "Budget spent", "ε by accountant", "What an attacker can reach", "Held-out accuracy",
        "Held-out loss", "Plan", "environment", "Do not publish this page", "gaussian", "4 of 4 slots used",
    ):  # fmt: skip
        assert expected in text


def test_a_page_is_not_written_into_a_bundle(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="bundle"):
        write_report(bundle)
    assert write_report(bundle, tmp_path / "page.html").is_file()
    assert ap.verify(bundle).verified


def test_the_page_is_self_contained(runs: list[Path], tmp_path: Path) -> None:
    for text in (
        write_report(runs[0], tmp_path / "one.html").read_text(),
        write_comparison(runs, tmp_path / "several.html").read_text(),
    ):
        without_namespaces = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|//[a-z]|url\(|@import|<script|<link|<img|<iframe", without_namespaces)
        assert "default-src 'none'" in text
        assert "&lt;script&gt;" in text or "Comparison" in text
        for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
            ElementTree.fromstring(svg)
        for media in ("prefers-color-scheme: dark", "@media print", "max-width: 600px", 'name="viewport"'):
            assert media in text


def test_a_baseline_and_an_unfinished_run_are_drawn_too(runs: list[Path], tmp_path: Path) -> None:
    assert "NOT PRIVATE" in write_report(runs[2], tmp_path / "baseline.html").read_text()
    shutil.copytree(runs[1], tmp_path / "torn")
    content = (tmp_path / "torn" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn" / "ledger.jsonl").write_bytes(b"".join(content[:3]) + content[3][:20])
    (tmp_path / "torn" / "metrics.jsonl").write_text('{"epoch": 0, "sigma": 12')
    assert "not finished, 2 of 4" in write_report(tmp_path / "torn").read_text()


def test_the_comparison_overlays_all_runs(runs: list[Path], tmp_path: Path) -> None:
    text = write_comparison(runs, tmp_path / "c.html").read_text()
    for run in runs:
        assert text.count(run.name) >= 3
    assert text.count('class="line s2"') >= 2


def test_the_command(runs: list[Path], tmp_path: Path, apportion: Callable[..., tuple[int, str, str]]) -> None:
    assert apportion("report", runs[0], "--out", tmp_path / "a.html", "--json")[0] == 0
    assert apportion("report", *runs, "--compare", "--out", tmp_path / "b.html")[0] == 0
    assert (tmp_path / "b.html").is_file()
    assert apportion("report", *runs)[0] == 2
    assert apportion("report", tmp_path)[0] == 2


def pixels(png: bytes) -> tuple[int, int, set[bytes]]:
    """Width, height and the set of scan lines of an 8-bit PNG, decompressed: enough to tell drawn from blank."""
    width, height = struct.unpack(">II", png[16:24])
    position, data = 8, b""
    while position < len(png):
        length, kind = struct.unpack(">I4s", png[position : position + 8])
        data += png[position + 8 : position + 8 + length] if kind == b"IDAT" else b""
        position += 12 + length
    lines = zlib.decompress(data)
    stride = len(lines) // height
    return width, height, {lines[i * stride : (i + 1) * stride] for i in range(height)}


@pytest.mark.skipif(BROWSER is None, reason="no browser: scripts/install-browser installs one")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it(runs: list[Path], tmp_path: Path, width: int) -> None:
    page = write_report(runs[0], tmp_path / "report.html")
    shot = tmp_path / "shot.png"
    common = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    common += [f"--user-data-dir={tmp_path / 'profile'}"]
    taken: Any = subprocess.run(
        [*common, f"--window-size={width},3000", f"--screenshot={shot}", page.as_uri()],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert shot.is_file(), taken.stderr[-500:]
    _, height, lines = pixels(shot.read_bytes())
    assert height == 3000
    assert len(lines) > 300  # a blank page has a handful of distinct lines
    dumped = subprocess.run([*common, "--dump-dom", page.as_uri()], capture_output=True, timeout=120, check=True)
    assert dumped.stdout.count(b"<svg") == page.read_text().count("<svg")
