"""A certificate against the one recomputed from the ledger: bounds may be looser than ours, facts must be equal."""

from typing import Any

from apportion import canonical, publication
from apportion.bundle import schema
from apportion.bundle.files import CERTIFICATE, refuse_other_format
from apportion.certificate import CLAIM_TOLERANCE, FORMAT, Certificate, certify
from apportion.errors import BundleError
from apportion.ledger import SIGMA_TOLERANCE, Ledger

SHARE_TOLERANCE = 2e-4
# Compared as bounds or with a tolerance, or (the publisher's statements) not comparable at all.
_NOT_COMPARED_AS_EQUAL = {"epsilon", "accountant", "guarantees", "rho", "sigmas", "components", "versions"}


def parse(data: bytes) -> dict[str, Any]:
    """certificate.json, of a known format and of the shape that its schema says."""
    claimed = canonical.loads(data)
    refuse_other_format(claimed, FORMAT, CERTIFICATE)
    schema.check(claimed, "certificate")
    if canonical.pretty(claimed).encode() != data:
        raise BundleError("certificate.json is not in the form that apportion writes")
    return claimed  # type: ignore[no-any-return]  # an object, by its schema


def recompute(recorded: Ledger, claimed: dict[str, Any] | None) -> Certificate:
    """The certificate of this ledger, with the claimed statements of the publisher."""
    stated = None if claimed is None else publication.from_json(claimed["publication"])
    return certify(recorded, publication=stated)


def check(claimed: dict[str, Any], recomputed: Certificate) -> bool:
    """True if every field of `claimed` follows from the ledger; raises if not."""
    own = recomputed.to_json()
    if claimed.keys() != own.keys():
        raise BundleError(
            f"the certificate has fields that do not follow: {sorted(claimed.keys() ^ own.keys())!r:.120}"
        )
    _check_epsilons(claimed, recomputed)
    for name in own.keys() - _NOT_COMPARED_AS_EQUAL:
        if claimed[name] != own[name]:
            raise BundleError(f"the certificate's {name} is not what follows from the ledger")
    if own["rho"] is None or claimed["rho"] is None:
        if claimed["rho"] != own["rho"]:
            raise BundleError("the certificate's rho is not what follows from the ledger")
    elif not claimed["rho"] >= own["rho"] * (1 - CLAIM_TOLERANCE):
        raise BundleError(f"rho = {claimed['rho']:g} is claimed, but the ledger costs {own['rho']:g}")
    _check_close("sigmas", claimed["sigmas"], own["sigmas"])
    _check_components(claimed["components"], own["components"])
    return True


def _check_epsilons(claimed: dict[str, Any], recomputed: Certificate) -> None:
    bounds = {guarantee.accountant: guarantee for guarantee in recomputed.guarantees}
    names = [entry["accountant"] for entry in claimed["guarantees"]]
    if claimed["accountant"] not in names:
        raise BundleError("the claimed accountant is not among the listed guarantees")
    if len(set(names)) != len(names):
        raise BundleError("an accountant is listed twice")
    for entry in claimed["guarantees"]:
        bound = bounds.get(entry["accountant"])
        if bound is None:
            raise BundleError(f"the accountant {entry['accountant']!r:.40} is not valid for this ledger")
        if entry["status"] != bound.status:
            raise BundleError(f"{entry['accountant']} is {bound.status}, not {entry['status']}")
        _check_bound(entry["epsilon"], bound.epsilon, entry["accountant"])
    _check_bound(claimed["epsilon"], bounds[claimed["accountant"]].epsilon, "the claim")


def _check_bound(claimed: float, bound: float, who: str) -> None:
    if not claimed >= bound * (1 - CLAIM_TOLERANCE):
        raise BundleError(f"epsilon = {claimed:g} is claimed ({who}), but the ledger costs {bound:.6g}")


def _check_close(name: str, claimed: list[float], own: list[float]) -> None:
    if len(claimed) != len(own):
        raise BundleError(f"the certificate's {name} are not one per slot of the plan")
    for found, expected in zip(claimed, own, strict=True):
        if abs(found - expected) > SIGMA_TOLERANCE * expected:
            raise BundleError(f"the certificate's {name} hold {found!r:.40} where the plan has {expected!r}")


def _check_components(claimed: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
    same = len(claimed) == len(own) and all(
        (a["purpose"], a["events"]) == (b["purpose"], b["events"]) and abs(a["share"] - b["share"]) <= SHARE_TOLERANCE
        for a, b in zip(claimed, own, strict=True)
    )
    if not same:
        raise BundleError("the certificate's components are not what follows from the ledger")
