import json
from pathlib import Path

import pytest
from conftest import tiny_plan

from apportion import canonical, ledger
from apportion.errors import LedgerError
from apportion.events import GaussianRelease
from apportion.recording import LedgerWriter
from apportion.stages import PrincipalComponents


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def write(path: Path, slots: int = 2, release: bool = True) -> None:
    with LedgerWriter.create(path, the_plan=tiny_plan(), randomness="secure", declared={"model": "linear"}) as writer:
        for _ in range(slots):
            writer.take_slot()
        if release:
            writer.append_release("a" * 64)


def test_reading_gives_back_what_was_recorded(path: Path) -> None:
    write(path)
    recorded = ledger.read(path)
    assert recorded.plan == tiny_plan()
    assert [entry.event for entry in recorded.events] == [slot.event for slot in tiny_plan().slots]
    assert (recorded.used_slots, recorded.weights, recorded.declared) == (2, "a" * 64, {"model": "linear"})


def test_unused_slots_are_paid_for(path: Path) -> None:
    write(path, slots=1)
    assert ledger.read(path).certified_event == tiny_plan().event


def test_an_event_beyond_the_plan_is_paid_for_on_top(path: Path) -> None:
    with LedgerWriter.create(path, the_plan=tiny_plan(), randomness="secure", declared={}) as writer:
        writer.append_event(GaussianRelease(sigma=5.0))
        writer.take_slot()
    certified = ledger.read(path).certified_event
    assert certified.events == (GaussianRelease(sigma=5.0), *tiny_plan().event.events)  # type: ignore[union-attr]


def lines_of(path: Path) -> list[bytes]:
    write(path)
    return path.read_bytes().splitlines(keepends=True)


def rechained(lines: list[dict[str, object]]) -> bytes:
    """A chain whose hashes are right: what remains must be caught by meaning."""
    previous, out = ledger.START, b""
    for index, line in enumerate(lines):
        body = {"index": index, "previous": previous, "kind": line["kind"], "body": line["body"]}
        previous = canonical.digest(body)
        out += canonical.dumps({**body, "hash": previous}).encode() + b"\n"
    return out


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda lines: lines[1:], "numbered 1"),
        (lambda lines: lines[:1] + lines[2:], "dropped, added or moved"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "dropped, added or moved"),
        (lambda lines: [lines[0], lines[1].replace(b"8.0", b"9.0"), *lines[2:]], "was edited"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "torn"),
        (lambda lines: [*lines, b"\n"], "not valid JSON"),
        (lambda lines: [lines[0].replace(b":", b": ", 1), *lines[1:]], "canonical"),
        (lambda lines: [b"[]\n"], "exactly the fields"),
        (lambda lines: [b"\n"], "not valid JSON"),
    ],
)
def test_a_damaged_chain_is_refused_with_the_reason(path: Path, damage: object, reason: str) -> None:
    with pytest.raises(LedgerError, match=reason):
        ledger.parse(b"".join(damage(lines_of(path))))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[1]["body"]["event"].update(sigma=9.0), "differs from what the plan says"),
        (lambda lines: lines[1]["body"]["event"].update(batches=4), "differs from what the plan says"),
        (lambda lines: lines[1]["body"]["event"].update(kind="partition-epoch"), "differs from what the plan says"),
        (lambda lines: lines[1]["body"].update(slot=1), "next free slot is 0"),
        (lambda lines: lines[1]["body"].update(slot=False), "next free slot is 0"),
        (lambda lines: lines.insert(3, {"kind": "event", "body": {**lines[2]["body"], "slot": 2}}), "only 2 slots"),
        (lambda lines: lines.append(lines[1]), "follows the release"),
        (lambda lines: lines.insert(1, lines[0]), "second plan"),
        (lambda lines: lines.pop(0), "first line must be the plan"),
        (lambda lines: lines[0]["body"].update(format=2), "format 2"),
        (lambda lines: lines[0]["body"].update(randomness="dice"), "randomness"),
        (lambda lines: lines[0]["body"]["plan"].update(clip=-1.0), "not valid"),
        (lambda lines: lines[0]["body"]["plan"].update(epochs=50), "not valid"),
        (lambda lines: lines[0]["body"].update(run="x"), "run must be"),
        (lambda lines: lines[0]["body"].update(declared=3), "declared"),
        (lambda lines: lines[3]["body"].update(weights="12"), "SHA-256"),
        (lambda lines: lines[1].update(kind="gossip"), "unknown kind"),
        (lambda lines: lines[1]["body"].update(extra=1), "must have the fields"),
        (lambda lines: lines[1]["body"].update(event={"kind": "laplace"}), "unknown event kind"),
    ],
)
def test_a_well_hashed_ledger_that_breaks_its_plan_is_refused(path: Path, change: object, reason: str) -> None:
    lines = [json.loads(line) for line in lines_of(path)]
    change(lines)  # type: ignore[operator]
    with pytest.raises(LedgerError, match=reason):
        ledger.parse(rechained(lines))


def test_a_torn_last_line_counts_as_a_used_slot(path: Path) -> None:
    write(path, slots=1, release=False)
    with open(path, "ab") as file:
        file.write(b'{"body":{"ev')
    LedgerWriter.reopen(path).close()
    assert ledger.read(path).used_slots == 2


def test_an_existing_ledger_is_never_overwritten(path: Path) -> None:
    write(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write(path)
    assert path.read_bytes() == before


def test_two_runs_of_one_plan_have_different_ledgers(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert ledger.read(tmp_path / "a").head != ledger.read(tmp_path / "b").head


@pytest.mark.parametrize("after", ["a score", "the release"])
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "on top"])
def test_what_prepares_the_training_cannot_follow_its_scores_or_its_release(
    path: Path, after: str, planned: bool
) -> None:
    pca = PrincipalComponents(dimensions=2, sigma=50.0)
    plan = tiny_plan(components=(pca,)) if planned else tiny_plan()
    with LedgerWriter.create(path, the_plan=plan, randomness="secure", declared={}) as writer:
        if planned:
            writer.take_component(pca)
        else:
            writer.append_event(pca.event)
        writer.take_slot()
        writer.append_score(0.5)
        writer.append_release("a" * 64)
    head, component, epoch, score, release = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert ledger.parse(rechained([head, component, epoch, score, release])).used_components == planned
    ends = {"a score": [component, release], "the release": [release, component]}
    with pytest.raises(LedgerError, match="prepares the training, but follows its scores or its release"):
        ledger.parse(rechained([head, epoch, score, *ends[after]]))


def test_a_slot_that_stands_for_a_torn_line_may_come_before_the_components(path: Path) -> None:
    pca = PrincipalComponents(dimensions=2, sigma=50.0)
    LedgerWriter.create(path, the_plan=tiny_plan(components=(pca,)), randomness="secure", declared={}).close()
    path.write_bytes(path.read_bytes() + b'{"body":')
    with LedgerWriter.reopen(path) as writer:
        writer.take_component(pca)
    assert (ledger.read(path).used_slots, ledger.read(path).used_components) == (1, 1)
