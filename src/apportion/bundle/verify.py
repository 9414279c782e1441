"""Verification: everything a bundle claims, recomputed from its ledger. Needs neither the data nor PyTorch."""

import math
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import canonical, ledger
from apportion.bundle import card, files
from apportion.certificate import CLAIM_TOLERANCE, Certificate, certify
from apportion.errors import ApportionError, BundleError
from apportion.ledger import Ledger

MAX_TEXT_BYTES = {files.LEDGER: 1 << 28}
MAX_OTHER_TEXT_BYTES = 1 << 24


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
    checks: tuple[Check, ...]
    certificate: dict[str, Any] | None
    recomputed_epsilon: float | None

    @property
    def verified(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{check.name}: {check.problem}" for check in self.checks if not check.holds)

    def to_json(self) -> dict[str, Any]:
        claimed = self.certificate or {}
        return {
            "verified": self.verified,
            "checks": [{"name": check.name, "holds": check.holds, "problem": check.problem} for check in self.checks],
            "epsilon": claimed.get("epsilon") if self.verified else None,
            "delta": claimed.get("delta") if self.verified else None,
            "recomputed_epsilon": self.recomputed_epsilon,
            "unsafe": claimed.get("unsafe", []) if self.verified else [],
        }


def verify(bundle: str | Path) -> Verification:
    """Check every byte, chain link, claim and plan of the bundle.

    Guarantees: consistency, by recomputation. Not: who made the bundle, or that the recorded code ran.
    """
    bundle = Path(bundle)
    checks: list[Check] = []

    def run(name: str, check: Callable[[], Any]) -> Any:
        """The value of `check`, or None with the reason noted; later checks that need it are then left out."""
        try:
            value = check()
        except (ApportionError, OSError) as error:
            checks.append(Check(name=name, problem=str(error) or type(error).__name__))
            return None
        checks.append(Check(name=name, problem=""))
        return value

    read = run("files", lambda: _read_files(bundle))
    if read is None:
        return Verification(checks=tuple(checks), certificate=None, recomputed_epsilon=None)
    contents, fingerprints = read
    run("manifest", lambda: _check_manifest(contents[files.MANIFEST], fingerprints))
    recorded = run("ledger", lambda: ledger.parse(contents[files.LEDGER]))
    claimed = run("certificate-format", lambda: _object(contents[files.CERTIFICATE], files.CERTIFICATE))
    recomputed: Certificate | None = None
    if recorded is not None:
        run("plan", lambda: _check_plan(contents[files.PLAN], recorded))
        run("weights", lambda: _check_weights(fingerprints[files.WEIGHTS], recorded))
        recomputed = run("accounting", lambda: certify(recorded))
    if recomputed is not None and claimed is not None:
        certificate = recomputed
        if run("claims", lambda: _check_claims(claimed, certificate)) is not None:
            run("card", lambda: _check_card(contents[files.CARD], claimed))
    return Verification(
        checks=tuple(checks),
        certificate=claimed,
        recomputed_epsilon=recomputed.guarantee.epsilon if recomputed else None,
    )


def _read_files(bundle: Path) -> tuple[dict[str, bytes], dict[str, dict[str, Any]]]:
    """The texts, and the fingerprint of every file; weights are never held in memory."""
    if not bundle.is_dir():
        raise BundleError(f"{bundle} is not a directory")
    found = {entry.name for entry in bundle.iterdir()}
    expected = {*files.LISTED, files.MANIFEST}
    if found != expected:
        missing, extra = sorted(expected - found), sorted(found - expected)
        raise BundleError(f"a bundle holds exactly {sorted(expected)}; missing: {missing}, unexpected: {extra}")
    texts, fingerprints = {}, {}
    for name in sorted(expected):
        status = (bundle / name).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{name} is not a regular file")
        if name != files.WEIGHTS:
            if status.st_size > MAX_TEXT_BYTES.get(name, MAX_OTHER_TEXT_BYTES):
                raise BundleError(f"{name} is too large ({status.st_size} bytes)")
            texts[name] = (bundle / name).read_bytes()
        fingerprints[name] = files.fingerprint(bundle / name)
    return texts, fingerprints


def _check_manifest(data: bytes, fingerprints: dict[str, dict[str, Any]]) -> None:
    manifest = files.read_manifest(data)
    listed = {name: entry for name, entry in fingerprints.items() if name != files.MANIFEST}
    for name, entry in listed.items():
        if not isinstance(manifest["files"], dict) or manifest["files"].get(name) != entry:
            raise BundleError(f"{name} is not the file that the manifest lists")
    if manifest["files"] != listed:
        raise BundleError("the manifest lists other files than the bundle holds")


def _object(data: bytes, name: str) -> dict[str, Any]:
    value = canonical.loads(data)
    if not isinstance(value, dict):
        raise BundleError(f"{name} must hold a JSON object")
    return value


def _check_plan(data: bytes, recorded: Ledger) -> None:
    if canonical.dumps(_object(data, files.PLAN)) != canonical.dumps(recorded.plan.to_json()):
        raise BundleError("plan.json is not the plan in the ledger's first line")


def _check_weights(fingerprint: dict[str, Any], recorded: Ledger) -> None:
    if recorded.weights is None:
        raise BundleError("the ledger holds no release of weights")
    if fingerprint["sha256"] != recorded.weights:
        raise BundleError("model.safetensors is not the file whose hash the ledger released")


def _check_claims(claimed: dict[str, Any], recomputed: Certificate) -> dict[str, Any]:
    """The certificate itself, once every field of it has been found to follow from the ledger."""
    own = recomputed.to_json()
    claims = _epsilons(claimed)
    bounds = {guarantee.accountant: guarantee.epsilon for guarantee in recomputed.guarantees}
    bounds["claimed"] = recomputed.guarantee.epsilon
    for accountant, epsilon in claims.items():
        if accountant not in bounds:
            raise BundleError(f"the accountant {accountant!r:.40} is not valid for this ledger")
        if not epsilon >= bounds[accountant] * (1 - CLAIM_TOLERANCE):
            raise BundleError(
                f"epsilon = {epsilon:g} is claimed ({accountant}), but the ledger costs {bounds[accountant]:g}"
            )
    if claimed.get("accountant") not in claims:
        raise BundleError("the claimed accountant is not among the listed guarantees")
    for name in sorted(set(own) | set(claimed)):
        if name in ("epsilon", "accountant", "guarantees"):
            continue  # compared as bounds above
        if name == "rho" and own["rho"] is not None:
            if not _number(claimed.get("rho"), "rho") >= own["rho"] * (1 - CLAIM_TOLERANCE):
                raise BundleError(f"rho = {claimed.get('rho')} is claimed, but the ledger costs {own['rho']}")
        elif name == "sigmas":
            _check_sigmas(claimed.get("sigmas"), own["sigmas"])
        elif name not in own or name not in claimed or claimed[name] != own[name]:
            raise BundleError(f"the certificate's {name} is not what follows from the ledger")
    return claimed


def _epsilons(claimed: dict[str, Any]) -> dict[str, float]:
    """Every ε that the certificate states, by accountant; the headline under "claimed"."""
    listed = claimed.get("guarantees")
    if not isinstance(listed, list) or not listed:
        raise BundleError("the certificate lists no guarantees")
    epsilons = {"claimed": _number(claimed.get("epsilon"), "epsilon")}
    for entry in listed:
        if not isinstance(entry, dict) or set(entry) != {"accountant", "epsilon", "status"}:
            raise BundleError("a guarantee has exactly the fields accountant, epsilon and status")
        if entry["status"] != "proven" or not isinstance(entry["accountant"], str) or entry["accountant"] == "claimed":
            raise BundleError(f"not a proven guarantee: {entry!r:.100}")
        epsilons[entry["accountant"]] = _number(entry["epsilon"], "epsilon")
    return epsilons


def _check_sigmas(claimed: Any, own: list[float]) -> None:
    if not isinstance(claimed, list) or len(claimed) != len(own):
        raise BundleError("the certificate's sigmas are not one per slot of the plan")
    for found, expected in zip(claimed, own, strict=True):
        if abs(_number(found, "sigma") - expected) > ledger.SIGMA_TOLERANCE * expected:
            raise BundleError(f"the certificate's sigma {found!r:.40} is not the plan's {expected!r}")


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BundleError(f"the certificate's {name} must be a number, got {value!r:.40}")
    return float(value)


def _check_card(data: bytes, claimed: dict[str, Any]) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BundleError("README.md is not UTF-8 text") from None
    if text.count(card.BEGIN) != 1 or card.privacy_section(claimed) not in text:
        raise BundleError("the privacy section of README.md is not the one that follows from the certificate")
