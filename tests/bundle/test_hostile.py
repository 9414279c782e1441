"""A bundle made by an enemy is refused with a reason: no traceback, no execution, bounded time and memory."""

import json
import os
import pickle
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_plan, train
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import apportion as ap
from apportion import canonical, ledger
from apportion.bundle import files, limits, read
from apportion.bundle.tensors import read_header


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("original")
    train(directory / "run", tiny_plan(epochs=1)).publish(directory / "bundle")
    return {path.name: path.read_bytes() for path in (directory / "bundle").iterdir()}


@pytest.fixture
def hostile(original: dict[str, bytes], tmp_path: Path) -> Path:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name, content in original.items():
        (bundle / name).write_bytes(content)
    return bundle


def forge(bundle: Path, **changed: bytes) -> None:
    """Replace files and make the manifest fit."""
    for name, content in changed.items():
        (bundle / NAMES[name]).write_bytes(content)
    listed = {p.name: files.fingerprint(p) for p in bundle.iterdir() if p.name not in (files.MANIFEST, files.SIGNATURE)}
    (bundle / files.MANIFEST).write_bytes(files.manifest_of(listed))


NAMES = {"ledger": files.LEDGER, "certificate": files.CERTIFICATE, "plan": files.PLAN, "weights": files.WEIGHTS}


def reasons(bundle: Path) -> str:
    with limits.deadline(300):  # against a test that hangs; a refusal takes milliseconds
        result = ap.verify(bundle)
    assert not result.verified
    text = "\n".join(result.problems)
    assert text
    assert "not finished after" not in text
    assert "Traceback" not in text
    assert result.to_json()["epsilon"] is None
    return text


def rechained(lines: list[dict[str, Any]]) -> bytes:
    previous, out = ledger.START, b""
    for index, line in enumerate(lines):
        content = {name: line[name] for name in ("kind", "body")} | {"index": index, "previous": previous}
        previous = canonical.digest(content)
        out += canonical.dumps({**content, "hash": previous}).encode() + b"\n"
    return out


def ledger_with(original: dict[str, bytes], change: Callable[[list[dict[str, Any]]], None]) -> bytes:
    lines = [json.loads(line) for line in original[files.LEDGER].splitlines()]
    change(lines)
    return rechained(lines)


def test_a_pickle_is_never_loaded(hostile: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    for name in NAMES:
        forge(hostile, **{name: pickle.dumps(Bomb())})
        assert reasons(hostile)
    (hostile / "model.pkl").write_bytes(pickle.dumps(Bomb()))
    assert "unexpected" in reasons(hostile)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["../evil", "sub/model", "..", "MODEL.SAFETENSORS", "model.safetensors ", "a" * 200])
def test_names_outside_the_allow_list_are_refused(hostile: Path, name: str) -> None:
    if "/" not in name and name != "..":
        (hostile / name).write_text("x")
        assert "unexpected" in reasons(hostile)
        (hostile / name).unlink()
    manifest = json.loads((hostile / files.MANIFEST).read_bytes())
    manifest["files"][name] = manifest["files"][files.PLAN]
    (hostile / files.MANIFEST).write_bytes(files.manifest_of(manifest["files"]))
    assert "other files" in reasons(hostile)


def test_links_pipes_and_directories_are_refused(hostile: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for make in (
        lambda p: p.symlink_to(secret),
        lambda p: p.symlink_to("/dev/zero"),
        lambda p: p.mkdir(),
        os.mkfifo,
    ):
        path = hostile / files.CARD
        content = path.read_bytes()
        secret.write_bytes(content)
        path.unlink()
        make(path)
        assert "not a regular file" in reasons(hostile)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(content)


def test_huge_files_are_not_read(hostile: Path) -> None:
    for name in (files.CERTIFICATE, files.CARD, files.LEDGER):
        content = (hostile / name).read_bytes()
        os.truncate(hostile / name, 1 << 40)  # sparse: a terabyte that takes no room
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "too large" in reasons(hostile)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
        (hostile / name).write_bytes(content)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"format":1,"format":1}',
        b'{"epsilon":NaN}',
        b'{"epsilon":Infinity}',
        b'{"epsilon":1e999}',
        b'{"epsilon":' + b"9" * 5000 + b"}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"null",
        b"[]",
        b'"text"',
        b"",
        b'"' + b"\\" * 99_999,
        b'{"\\ud800":1}',
    ],
    ids=lambda text: repr(text[:12]),
)
def test_json_that_is_no_document_is_refused_in_every_file(hostile: Path, text: bytes) -> None:
    for name in ("certificate", "plan", "ledger"):
        content = (hostile / NAMES[name]).read_bytes()
        forge(hostile, **{name: text})
        assert reasons(hostile)
        forge(hostile, **{name: content})
    (hostile / files.MANIFEST).write_bytes(text)
    assert reasons(hostile)


def set_plan(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines[0]["body"]["plan"].update(values)


ABSURD = {
    "a million epochs": set_plan(epochs=10**6),
    "endless epochs": set_plan(epochs=10**300),
    "endless spare epochs": set_plan(spare_epochs=10**300),
    "endless steps": set_plan(batching={"kind": "partition", "batches": 10**300}),
    "endless steps by epoch": set_plan(batching={"kind": "partition", "batches": [{"from": 0, "value": 10**18}]}),
    "tiny rate by epoch": set_plan(batching={"kind": "poisson", "rate": [{"from": 0, "value": 1e-300}]}),
    "endless shuffle": set_plan(batching={"kind": "shuffle", "batches": 10**18}),
    "tiny rate": set_plan(batching={"kind": "poisson", "rate": 1e-300}),
    "denormal rate": set_plan(batching={"kind": "poisson", "rate": 5e-324}),
    "endless examples": set_plan(examples=10**300),
    "endless period": set_plan(schedule={"kind": "step", "sigma0": 8.0, "decay": 0.5, "period": 10**300}),
    "vanishing noise": set_plan(schedule={"kind": "uniform", "sigma0": 1e-300}),
    "overflowing noise": set_plan(schedule={"kind": "uniform", "sigma0": 1e308}),
    "underflowing schedule": set_plan(
        schedule={"kind": "exponential", "sigma0": 8.0, "decay": 1e300, "period": 1}, epochs=1000
    ),
    "huge clip": set_plan(clip=1e308),
    "budget of nothing": set_plan(budget={"epsilon": 1e-300, "delta": 1e-300}),
    "wrong types": set_plan(epochs="2", examples=True, clip=None),
    "future plan": set_plan(noise="quantum"),
    "unknown schedule": set_plan(schedule={"kind": "secret"}),
    "future ledger": lambda lines: lines[0]["body"].update(format=2),
    "unknown event": lambda lines: lines[1]["body"].update(event={"kind": "laplace", "scale": 1.0}),
    "endless repeats": lambda lines: lines[1]["body"].update(
        slot=None, event={"kind": "repeated", "event": lines[1]["body"]["event"], "count": 10**300}
    ),
    "nested repeats": lambda lines: lines[1]["body"].update(slot=None, event=nested(7)),
    "deep events": lambda lines: lines[1]["body"].update(slot=None, event=nested(25)),
    "slot of the wrong type": lambda lines: lines[1]["body"].update(slot=True),
    "no release": lambda lines: lines.pop(),
    "free evaluation": lambda lines: lines.append({"kind": "evaluation", "body": {"right": 10, "wrong": 1}}),
    "event of another kind for a slot": lambda lines: lines[1]["body"].update(
        event={"kind": "gaussian-release", "sigma": 8.0, "replace_one": 2.0, "purpose": ""}
    ),
}


def nested(depth: int) -> dict[str, Any]:
    event: dict[str, Any] = {"kind": "gaussian-release", "sigma": 1.0, "replace_one": 2.0, "purpose": ""}
    for _ in range(depth):
        event = {"kind": "repeated", "event": event, "count": 10**11}
    return event


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD)
def test_absurd_ledgers_are_refused(original: dict[str, bytes], hostile: Path, change: Any) -> None:
    forge(hostile, ledger=ledger_with(original, change))
    assert reasons(hostile)


def test_many_distinct_epochs_are_stopped_at_the_time_limit(
    original: dict[str, bytes], hostile: Path, apportion: Callable[..., tuple[int, str, str]]
) -> None:
    change = set_plan(
        epochs=90_000, schedule={"kind": "exponential", "sigma0": 900.0, "decay": 1e-6, "period": 1},
        batching={"kind": "partition", "batches": 100}, adjacency="add-remove",
    )  # fmt: skip
    forge(hostile, ledger=ledger_with(original, change))
    code, out, err = apportion("verify", hostile, "--seconds", "2", "--json")
    assert code == 1
    problems = [check["problem"] for check in json.loads(out)["checks"] if not check["holds"]]
    assert any("not finished after 2 s" in problem for problem in problems)
    assert "Traceback" not in err


def test_future_formats_say_so(original: dict[str, bytes], hostile: Path) -> None:
    certificate = json.loads(original[files.CERTIFICATE]) | {"format": 2}
    forge(hostile, certificate=canonical.pretty(certificate).encode())
    assert "made by a newer version" in reasons(hostile)


HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    "header",
    [
        HEADER.replace(b"[0,4]", b"[0,8]"),
        HEADER.replace(b"[0,4]", b"[1,5]"),
        HEADER.replace(b"[1]", b"[-1]"),
        HEADER.replace(b"[1]", b"[1e9]"),
        HEADER.replace(b"F32", b"PICKLE"),
        HEADER.replace(b'{"w"', b'{"__metadata__":{"accuracy":"0.93"},"w"'),
        HEADER.replace(b'"w":', b'"w":{},"w":'),
        b"[]",
        b"{",
    ],
    ids=range(9),
)
def test_weights_that_are_no_plain_tensors_are_refused(hostile: Path, header: bytes) -> None:
    forge(hostile, weights=len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    assert "weights-format" in reasons(hostile)
    forge(hostile, weights=(1 << 63).to_bytes(8, "little") + header)
    assert "weights-format" in reasons(hostile)


def test_plain_tensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + b"\0\0\0\0")
    with open(tmp_path / "w", "rb") as file:
        tensors, start = read_header(file, 8 + len(HEADER) + 4)
    assert tensors["w"].shape == (1,)
    assert start == 8 + len(HEADER)


def test_injected_markup_is_inert(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\n\n# (0, 0)-differential privacy ![x](http://evil) | `"
    train(tmp_path / "run", declared={"data": evil, evil: "x"}).publish(tmp_path / "bundle")
    for name in (files.CARD, files.WORDS):
        text = (tmp_path / "bundle" / name).read_text()
        assert "<script" not in text
        assert "\n# (0, 0)" not in text
        assert "![x](" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["uniform", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def paths_of(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(path for key, inner in items for path in paths_of(inner, (*prefix, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


@FUZZ
@given(data=st.data(), new=JSON)
def test_a_certificate_with_anything_anywhere_is_answered(
    original: dict[str, bytes], hostile: Path, data: Any, new: Any
) -> None:
    certificate = json.loads(original[files.CERTIFICATE])
    path = data.draw(st.sampled_from(paths_of(certificate)))
    text = json.dumps(replaced(certificate, path, new), sort_keys=True, indent=2) + "\n"
    forge(hostile, certificate=text.encode())
    result = ap.verify(hostile)
    assert result.verified != bool(result.problems)


@FUZZ
@given(data=st.data(), new=JSON)
def test_a_well_hashed_ledger_with_anything_anywhere_is_answered(
    original: dict[str, bytes], hostile: Path, data: Any, new: Any
) -> None:
    lines = [json.loads(line) for line in original[files.LEDGER].splitlines()]
    bodies = [{name: line[name] for name in ("kind", "body")} for line in lines]
    path = data.draw(st.sampled_from(paths_of(bodies)[1:]))
    changed = replaced(bodies, path, new)
    try:
        forged = rechained(changed)
    except (TypeError, KeyError, ValueError, AttributeError, ap.ApportionError):
        return
    forge(hostile, ledger=forged)
    result = ap.verify(hostile)
    assert result.verified != bool(result.problems)


@FUZZ
@given(noise=st.binary(max_size=200), name=st.sampled_from(sorted(files.REQUIRED)))
def test_random_bytes_in_any_file_are_answered(
    original: dict[str, bytes], hostile: Path, noise: bytes, name: str
) -> None:
    (hostile / name).write_bytes(noise)
    assert reasons(hostile)
    if name != files.MANIFEST:
        forge(hostile)
        assert reasons(hostile)
    (hostile / name).write_bytes(original[name])


@FUZZ
@given(noise=st.binary(max_size=300), prefix=st.sampled_from([b"", b"PK\3\4", b"PK\5\6"]))
def test_random_archives_are_refused(tmp_path: Path, noise: bytes, prefix: bytes) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(prefix + noise)
    assert reasons(path)


def test_archives_of_other_programs_are_refused_with_advice(hostile: Path, tmp_path: Path) -> None:
    import zipfile

    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = tmp_path / f"{compression}.zip"
        with zipfile.ZipFile(path, "w", compression) as archive:
            for entry in hostile.iterdir():
                archive.write(entry, entry.name)
        assert "unpack it and verify the directory" in reasons(path) or "not in its place" in reasons(path)


def test_limits_leave_room_for_real_runs() -> None:
    assert limits.MOST_SLOTS >= 100_000
    assert read.MOST_BYTES[files.LEDGER] > 250 * limits.MOST_SLOTS


def test_a_deadline_that_was_lost_in_a_callback_comes_again() -> None:
    lost = []

    def loses_it() -> None:
        try:
            while True:
                pass
        except limits.TooSlow as error:
            lost.append(error)

    with pytest.raises(limits.TooSlow), limits.deadline(1):
        loses_it()
        while True:
            pass
    assert lost


def test_a_deadline_waits_until_code_of_ours_runs() -> None:
    """The caller's own callbacks, and those of the garbage collector, are not torn apart."""
    started, finished = 0, 0
    with pytest.raises(limits.TooSlow) as stopped, limits.deadline(1):
        while True:
            started += 1
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
            finished += 1
            for _ in range(20):
                limits.refuse_absurd(b'{"type":"slot"}\n' * 1000)
    assert started == finished
    assert Path(stopped.traceback[-2].path).is_relative_to(Path(ap.__file__).parent)
