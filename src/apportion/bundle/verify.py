"""Verification: everything a bundle claims, recomputed from its ledger. Needs neither the data nor PyTorch.

The reader is suspicious: known names, regular files, bounded sizes, strict JSON, known formats. Nothing that is read is
executed or unpickled. All checks that can run do run, so that one reading tells everything that is wrong.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from apportion import canonical, ledger
from apportion.bundle import claims, derived, files, limits, model, read, signing, tensors
from apportion.certificate import Certificate
from apportion.errors import ApportionError, BundleError
from apportion.ledger import Ledger

T = TypeVar("T")
_MOST_WORDS = 600
_ONNX_START = b"\x08"  # the tag of its first field; pickles, archives and programs begin otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One named claim, and why it fails (empty if it holds)."""

    name: str
    problem: str

    @property
    def holds(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The checks in the order in which they ran. `signed_by` is a valid signature's public key, trusted or not."""

    checks: tuple[Check, ...]
    certificate: dict[str, Any] | None
    recomputed_epsilon: float | None
    signed_by: str | None
    has_onnx: bool = False

    @property
    def verified(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{check.name}: {check.problem}" for check in self.checks if not check.holds)

    def to_json(self) -> dict[str, Any]:
        claimed = self.certificate if self.verified and self.certificate else {}
        stated = ("epsilon", "delta", "adjacency", "unit", "accountant", "publication")
        return {
            "verified": self.verified,
            "checks": [{"name": check.name, "holds": check.holds, "problem": check.problem} for check in self.checks],
            **{name: claimed.get(name) for name in stated},
            "recomputed_epsilon": self.recomputed_epsilon,
            "signed_by": self.signed_by,
            "unsafe": claimed.get("unsafe", []),
        }


class Checks:
    """Runs checks by name; a check that raises has failed, whatever it raises: the input is a stranger's."""

    def __init__(self) -> None:
        self.done: list[Check] = []

    def run(self, name: str, check: Callable[[], T]) -> T | None:
        """The value of `check`, or None with the reason noted; later checks that need it are then left out."""
        try:
            value = check()
        except limits.TooSlow:
            raise
        except (ApportionError, OSError) as error:
            self.done.append(Check(name=name, problem=_shortened(str(error)) or type(error).__name__))
            return None
        except (Exception, RecursionError, MemoryError) as error:
            reason = f"cannot be checked: {type(error).__name__}: {error}"
            self.done.append(Check(name=name, problem=_shortened(reason)))
            return None
        self.done.append(Check(name=name, problem=""))
        return value


def verify(bundle: Path | str, *, strict: bool = False, trusted: Collection[str] = ()) -> Verification:
    """Check every byte, chain link, claim and plan of the bundle, a directory or an archive.

    `strict` fails bundles that are marked unsafe. `trusted` are public keys (64 hexadecimal digits), one of which must
    have signed.

    Guarantees: consistency, by recomputation; with `trusted`, who made the bundle. Not: that the recorded code ran.
    """
    checks = Checks()
    try:
        found = _verify(Path(bundle), checks, strict, trusted)
    except limits.TooSlow as slow:
        checks.done.append(Check(name="time", problem=str(slow)))
        found = (None, None, None)
    claimed, recomputed, signer = found
    return Verification(
        checks=tuple(checks.done),
        certificate=claimed,
        recomputed_epsilon=None if recomputed is None else recomputed.guarantee.epsilon,
        signed_by=signer,
        has_onnx=any(check.name == "onnx" for check in checks.done),
    )


def _verify(
    bundle: Path, checks: Checks, strict: bool, trusted: Collection[str]
) -> tuple[dict[str, Any] | None, Certificate | None, str | None]:
    contents = checks.run("files", lambda: _read(bundle))
    if contents is None:
        return None, None, None
    texts = contents.texts
    checks.run("manifest", lambda: check_manifest(contents))
    signer = _check_signature(checks, texts, trusted)
    header = checks.run("weights-format", lambda: _read_weights(bundle, contents))
    recorded = checks.run("ledger", lambda: _read_ledger(texts[files.LEDGER]))
    claimed = checks.run("certificate-format", lambda: claims.parse(texts[files.CERTIFICATE]))
    described: dict[str, Any] | None = None
    if files.MODEL in texts and recorded is not None and header is not None:
        described = checks.run("model", lambda: _check_model(texts[files.MODEL], recorded, header))
    if files.ONNX in contents.fingerprints or (described is not None and described["onnx"] is not None):
        checks.run("onnx", lambda: _check_onnx(bundle, contents, described))
    recomputed = None
    if recorded is not None:
        checks.run("plan", lambda: _check_plan(texts[files.PLAN], recorded))
        checks.run("weights", lambda: _check_weights(contents.fingerprints[files.WEIGHTS], recorded))
        recomputed = checks.run("accounting", lambda: claims.recompute(recorded, claimed))
    if recomputed is not None and claimed is not None:
        if checks.run("claims", lambda: claims.check(claimed, recomputed)):
            for name, check in _DERIVED.items():
                checks.run(check, partial(_check_derived, name, texts[name], claimed, described))
        if strict:
            checks.run("safe", lambda: _check_safe(recomputed))
    return claimed, recomputed, signer


_DERIVED = {
    files.CARD: "card",
    files.WORDS: "words",
    files.NOISE: "noise-picture",
    files.TRADE_OFF: "trade-off-picture",
}


_ONLY_PUBLISHED = (files.MANIFEST, files.CERTIFICATE)


def _read(bundle: Path) -> read.Contents:
    if (bundle / files.LEDGER).is_file() and not any((bundle / name).exists() for name in _ONLY_PUBLISHED):
        raise BundleError(
            "this looks like a run directory, which stays private, and not like a bundle: publish it with apportion publish "
            "RUN --to DIR, and verify DIR"
        )
    with read.opened(bundle) as source:
        return read.read_all(source)


def check_manifest(contents: read.Contents) -> None:
    """Every file is the one that the manifest lists, and the manifest lists every file."""
    listed = files.read_manifest(contents.texts[files.MANIFEST])["files"]
    listable = (*files.LISTED, *files.LISTED_IF_THERE)
    present = {name: entry for name, entry in contents.fingerprints.items() if name in listable}
    changed = sorted(name for name, entry in present.items() if listed.get(name) != entry)
    if changed:
        raise BundleError(f"not the files that the manifest lists: {', '.join(changed)}")
    if listed != present:
        raise BundleError("the manifest lists other files than the bundle holds")


def _check_signature(checks: Checks, texts: dict[str, bytes], trusted: Collection[str]) -> str | None:
    """Only present if the bundle is signed, or ought to be."""
    signer = None
    if files.SIGNATURE in texts:
        signer = checks.run("signature", lambda: signing.check(texts[files.SIGNATURE], texts[files.MANIFEST]))
    if trusted:
        checks.run("trusted", lambda: _check_trusted(signer, trusted))
    return signer


def _check_trusted(signer: str | None, trusted: Collection[str]) -> None:
    if signer is None:
        raise BundleError("the bundle carries no valid signature, but one by a trusted key was asked for")
    if signer not in trusted:
        raise BundleError(f"signed by {signer}, which is not a trusted key")


def _read_weights(bundle: Path, contents: read.Contents) -> dict[str, tensors.Tensor]:
    with read.opened(bundle) as source, source.open(files.WEIGHTS) as file:
        return tensors.read_header(file, contents.fingerprints[files.WEIGHTS]["bytes"])[0]


@lru_cache(maxsize=2)
def _read_ledger(data: bytes) -> Ledger:
    limits.refuse_absurd(data)
    return ledger.parse(data)


def _check_model(data: bytes, recorded: Ledger, header: dict[str, tensors.Tensor]) -> dict[str, Any]:
    described = model.parse(data)
    model.check_against(described, recorded.declared, header)
    return described


def _check_onnx(bundle: Path, contents: read.Contents, described: dict[str, Any] | None) -> None:
    """Its bytes are the manifest's business; what it computes can not be checked here, and is not used here."""
    signature = None if described is None else described["onnx"]
    if (files.ONNX in contents.fingerprints) != (signature is not None):
        raise BundleError("model.onnx and its signature in model.json must come together")
    if signature is not None:
        with read.opened(bundle) as source, source.open(files.ONNX) as file:
            if file.read(1) != _ONNX_START:
                raise BundleError("model.onnx does not begin as an ONNX file does")


def _check_plan(data: bytes, recorded: Ledger) -> None:
    _check_same(files.PLAN, data, canonical.pretty(recorded.plan.to_json()).encode())


def _check_weights(fingerprint: dict[str, Any], recorded: Ledger) -> None:
    if recorded.weights is None:
        raise BundleError("the ledger holds no release of weights")
    if fingerprint["sha256"] != recorded.weights:
        raise BundleError("model.safetensors is not the file whose hash the ledger released")


def _check_derived(name: str, found: bytes, claimed: dict[str, Any], described: dict[str, Any] | None) -> None:
    _check_same(name, found, derived.derived(claimed, described)[name])


def _check_same(name: str, found: bytes, expected: bytes) -> None:
    if found != expected:
        source = "ledger" if name == files.PLAN else "certificate"
        raise BundleError(f"{name} is not the one that follows from the {source}")


def _check_safe(recomputed: Certificate) -> None:
    if recomputed.unsafe:
        raise BundleError("; ".join(recomputed.unsafe))


def _shortened(text: str) -> str:
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= _MOST_WORDS else line[: _MOST_WORDS - 1] + "…"
