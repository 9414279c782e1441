"""Publishing: from a finished run directory to a bundle."""

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from apportion import canonical, ledger
from apportion.bundle import archive, files, model, schema, signing
from apportion.bundle.derived import derived
from apportion.bundle.model import TableModel
from apportion.bundle.tensors import read_header
from apportion.bundle.verify import verify
from apportion.certificate import Certificate, certify
from apportion.durable import sync_directory, sync_file
from apportion.errors import CertificationError, RunError, UnsafePublication
from apportion.ledger import Ledger
from apportion.publication import Publication, name_for
from apportion.selection_plan import SelectionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxExport:
    """An exported model that was compared with the original, and its signature as model.json records it."""

    content: bytes
    signature: dict[str, object]


def publish(
    run: Path,
    to: Path,
    *,
    publication: Publication | None = None,
    table: TableModel | None = None,
    onnx: OnnxExport | None = None,
    sign: Path | None = None,
    as_zip: bool = False,
    allow_unsafe: bool = False,
) -> Certificate:
    """Write the bundle of a finished run. Only the allow-listed files leave the run directory.

    Guarantees: everything written is either a differentially private output paid for in the ledger, or public: what was
    declared before training, what the publisher states in `publication`, and what follows from these.
    """
    recorded = refuse_early(run, to, sign=sign, as_zip=as_zip, allow_unsafe=allow_unsafe)
    certificate = certify(recorded, publication=_stated(publication or Publication(name=name_for(to.name)), recorded))
    key = None if sign is None else signing.load_private(sign)
    claimed = certificate.to_json()
    schema.check(claimed, "certificate")
    description = model.describe(table, None if onnx is None else onnx.signature)
    texts = {
        files.LEDGER: (run / files.LEDGER).read_bytes(),
        files.PLAN: canonical.pretty(recorded.plan.to_json()).encode(),
        files.CERTIFICATE: canonical.pretty(claimed).encode(),
        **derived(claimed, None if description is None else model.parse(description)),
    }
    if description is not None:
        texts[files.MODEL] = description
    if onnx is not None:
        texts[files.ONNX] = onnx.content
    _write_all(to, run / files.WEIGHTS, texts, key)
    if as_zip:
        _write_archive(to)
    return certificate


def _stated(publication: Publication, recorded: Ledger) -> Publication:
    """A ledger with a selection says how hyperparameters were chosen, unless the publisher says something else."""
    if publication.hyperparameters is None and isinstance(recorded.plan, SelectionPlan):
        return replace(publication, hyperparameters="selected")
    return publication


def refuse_early(run: Path, to: Path, *, sign: str | Path | None, as_zip: bool, allow_unsafe: bool) -> Ledger:
    """Everything for which publishing is refused, before anything is paid for or written."""
    for path in (to, *([archive_of(to)] if as_zip else [])):
        if path.exists() or path.is_symlink():
            raise RunError(f"{path} exists already; publish never overwrites, choose another name")
    if sign is not None:
        signing.load_private(Path(sign))
    recorded = ledger.read(run / files.LEDGER)
    if not recorded.released:
        verb = "select" if isinstance(recorded.plan, SelectionPlan) else "train"
        raise RunError(
            f"{run} has not finished: its ledger holds no release; continue it with: apportion {verb} --resume"
        )
    try:
        certificate = certify(recorded)
    except CertificationError as error:
        raise UnsafePublication(f"cannot publish {run}: {error}") from error
    if certificate.unsafe and not allow_unsafe:
        raise UnsafePublication(
            f"cannot publish {run}: {'; '.join(certificate.unsafe)}. --allow-unsafe publishes it with that written on it"
        )
    _check_weights(run / files.WEIGHTS, recorded)
    return recorded


def archive_of(to: Path) -> Path:
    return to.with_name(to.name + ".zip")


def _check_weights(path: Path, recorded: Ledger) -> None:
    with open(path, "rb") as file:
        if files.fingerprint_of(file)["sha256"] != recorded.weights:
            raise RunError(f"{path} is not the file whose hash the ledger released; it was changed afterwards")
        file.seek(0)
        read_header(file, path.stat().st_size)


def _write_all(to: Path, weights: Path, texts: dict[str, bytes], key: signing.PrivateKey | None) -> None:
    """All files or none: written beside the target and renamed."""
    to.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        scratch.chmod(0o755)
        shutil.copyfile(weights, scratch / files.WEIGHTS)
        for name, data in texts.items():
            assert name in (*files.LISTED, *files.LISTED_IF_THERE)
            (scratch / name).write_bytes(data)
        manifest = files.manifest_of({path.name: files.fingerprint(path) for path in scratch.iterdir()})
        (scratch / files.MANIFEST).write_bytes(manifest)
        if key is not None:
            (scratch / files.SIGNATURE).write_bytes(signing.sign(key, manifest))
        _refuse_unverifiable(scratch)
        for path in scratch.iterdir():
            sync_file(path)
        os.rename(scratch, to)
        sync_directory(to.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _refuse_unverifiable(scratch: Path) -> None:
    """What a receiver would find. Pricing was done and remembered a moment ago, so this costs little."""
    found = verify(scratch)
    if not found.verified:
        raise RunError(f"not published, because it would not verify: {'; '.join(found.problems)}")


def _write_archive(bundle: Path) -> None:
    """The same files in one, written beside and renamed."""
    target = archive_of(bundle)
    descriptor, scratch = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            archive.write({path.name: path for path in bundle.iterdir()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, 0o644)
        os.rename(scratch, target)
        sync_directory(target.parent)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
