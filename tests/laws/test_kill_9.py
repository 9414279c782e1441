"""Real processes, really killed, at random moments."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_program import BATCHES

import apportion as ap
from apportion import ledger

KILLS = 50
PROGRAM = Path(__file__).with_name("killed_program.py")


@pytest.mark.slow
def test_fifty_kills_at_random_moments_never_under_count(tmp_path: Path) -> None:
    dice = random.Random()
    run, witness, kills, runs = tmp_path / "run0", tmp_path / "witness", 0, 0
    witness.touch()
    seen = 0
    while kills < KILLS:
        before = witness.stat().st_size
        process = subprocess.Popen([sys.executable, str(PROGRAM), run, witness])
        # Wait for a sign of life, so that the kill falls into the run rather than into the imports.
        ready = run / "keys.log"
        known = ready.stat().st_size if ready.exists() else 0
        while (
            process.poll() is None and (not ready.exists() or ready.stat().st_size == known) and dice.random() < 0.999
        ):
            time.sleep(0.005)
        time.sleep(dice.expovariate(1 / 0.3))
        killed = process.poll() is None
        process.kill()
        code = process.wait()
        kills += killed
        seen += -(-(witness.stat().st_size - before) // BATCHES)
        if not killed and code == 3:  # before the first line of the ledger: nothing was spent
            assert seen == 0
            shutil.rmtree(run)
            continue
        if (run / "ledger.jsonl").exists() and b"\n" in (run / "ledger.jsonl").read_bytes():
            recorded = ledger.parse_intact_part((run / "ledger.jsonl").read_bytes())
            assert recorded.used_slots >= seen
            if recorded.released:
                check_finished(run, tmp_path / f"published{runs}")
                runs, seen = runs + 1, 0
                run = tmp_path / f"run{runs}"
        else:
            assert seen == 0
    while subprocess.call([sys.executable, str(PROGRAM), run, witness]) == 3:
        shutil.rmtree(run)
    check_finished(run, tmp_path / "published")


def check_finished(run: Path, published: Path) -> None:
    keys = (run / "keys.log").read_text().split()
    assert len(set(keys)) == len(keys)
    ap.training.FinishedRun(run).publish(published)
    assert ap.verify(published).verified
