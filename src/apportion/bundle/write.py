"""Publishing: from a finished run directory to a bundle."""

import os
import shutil
import tempfile
from pathlib import Path

from apportion import canonical, ledger
from apportion.bundle import files
from apportion.bundle.card import card
from apportion.certificate import Certificate, certify
from apportion.durable import sync_directory, sync_file
from apportion.errors import CertificationError, RunError, UnsafePublication


def publish(run: Path, to: Path, *, allow_unsafe: bool = False) -> Certificate:
    """Write the bundle of a finished run. Only the allow-listed files leave the run directory.

    Guarantees: everything written is either a differentially private output paid for in the ledger, or public.
    """
    if to.exists() or to.is_symlink():
        raise RunError(f"{to} exists already; publish never overwrites, choose another directory")
    recorded = ledger.read(run / files.LEDGER)
    if not recorded.released:
        raise RunError(
            f"{run} has not finished: its ledger holds no release; continue it with: apportion train --resume"
        )
    try:
        certificate = certify(recorded)
    except CertificationError as error:
        raise UnsafePublication(f"cannot publish {run}: {error}") from error
    if certificate.unsafe and not allow_unsafe:
        raise UnsafePublication(
            f"cannot publish {run}: {'; '.join(certificate.unsafe)}. --allow-unsafe publishes it with that written on it"
        )
    if files.fingerprint(run / files.WEIGHTS)["sha256"] != recorded.weights:
        raise RunError(
            f"{run / files.WEIGHTS} is not the file whose hash the ledger released; it was changed afterwards"
        )
    claimed = certificate.to_json()
    texts = {
        files.LEDGER: (run / files.LEDGER).read_bytes(),
        files.PLAN: canonical.pretty(recorded.plan.to_json()).encode(),
        files.CERTIFICATE: canonical.pretty(claimed).encode(),
        files.CARD: card(claimed, to.name).encode(),
    }
    _write_all(to, run / files.WEIGHTS, texts)
    return certificate


def _write_all(to: Path, weights: Path, texts: dict[str, bytes]) -> None:
    """All files or none: written beside the target and renamed."""
    to.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        scratch.chmod(0o755)
        shutil.copyfile(weights, scratch / files.WEIGHTS)
        for name, data in texts.items():
            (scratch / name).write_bytes(data)
        manifest = files.manifest_of({name: files.fingerprint(scratch / name) for name in files.LISTED})
        (scratch / files.MANIFEST).write_bytes(manifest)
        for path in scratch.iterdir():
            sync_file(path)
        os.rename(scratch, to)
        sync_directory(to.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
