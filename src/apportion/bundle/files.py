"""The files of a bundle and their manifest. Nothing else may stand in the directory."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from apportion import canonical
from apportion.bundle import schema
from apportion.errors import BundleError

WEIGHTS = "model.safetensors"
LEDGER = "ledger.jsonl"
PLAN = "plan.json"
CERTIFICATE = "certificate.json"
CARD = "README.md"
WORDS = "certificate.md"
NOISE = "noise.svg"
TRADE_OFF = "trade-off.svg"
MANIFEST = "manifest.json"

MODEL = "model.json"  # how the weights become predictions, where that is known
ONNX = "model.onnx"
SIGNATURE = "signature.json"

REQUIRED = (WEIGHTS, LEDGER, PLAN, CERTIFICATE, CARD, WORDS, NOISE, TRADE_OFF, MANIFEST)
OPTIONAL = (MODEL, ONNX, SIGNATURE)
ALLOWED = (*REQUIRED, *OPTIONAL)
LISTED = tuple(name for name in REQUIRED if name != MANIFEST)  # by the manifest
LISTED_IF_THERE = (MODEL, ONNX)
BINARY = (WEIGHTS, ONNX)  # may be larger than memory

FORMAT = 1


def fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return fingerprint_of(file)


def fingerprint_of(file: BinaryIO) -> dict[str, Any]:
    """Size and SHA-256 of a file, read in pieces: weights may be larger than memory."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def manifest_of(fingerprints: Mapping[str, dict[str, Any]]) -> bytes:
    """Canonical JSON with the fingerprint of each file, and a digest of the manifest itself."""
    body = {"format": FORMAT, "files": dict(fingerprints)}
    return canonical.dumps({**body, "digest": canonical.digest(body)}).encode() + b"\n"


def read_manifest(data: bytes) -> dict[str, Any]:
    """The manifest, its own digest and shape checked."""
    manifest = canonical.loads(data)
    refuse_other_format(manifest, FORMAT, MANIFEST)
    schema.check(manifest, "manifest")
    body = {name: value for name, value in manifest.items() if name != "digest"}
    if manifest["digest"] != canonical.digest(body) or canonical.dumps(manifest).encode() + b"\n" != data:
        raise BundleError("manifest.json was changed: its digest does not match its content")
    return manifest  # type: ignore[no-any-return]  # an object, by its schema


def refuse_other_format(document: Any, known: int, name: str) -> None:
    """A clear word about versions, before the schema complains about fields."""
    if not isinstance(document, dict):
        raise BundleError(f"{name} must hold a JSON object")
    found = document.get("format")
    if type(found) is not int or found != known:
        newer = "; it was made by a newer version: upgrade apportion" if type(found) is int and found > known else ""
        raise BundleError(f"{name} has format {found!r:.40}, this version reads {known}{newer}")
