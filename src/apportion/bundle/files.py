"""The files of a bundle and their manifest. Nothing else may stand in the directory."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion import canonical
from apportion.errors import BundleError

WEIGHTS = "model.safetensors"
LEDGER = "ledger.jsonl"
PLAN = "plan.json"
CERTIFICATE = "certificate.json"
CARD = "README.md"
MANIFEST = "manifest.json"
LISTED = (WEIGHTS, LEDGER, PLAN, CERTIFICATE, CARD)  # by the manifest

FORMAT = 1


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, read in pieces: weights may be larger than memory."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
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
    if not isinstance(manifest, dict) or set(manifest) != {"format", "files", "digest"}:
        raise BundleError("manifest.json must have exactly the fields format, files and digest")
    if manifest["format"] != FORMAT:
        raise BundleError(
            f"manifest format {manifest['format']!r:.40} is not known to this version (it reads {FORMAT})"
        )
    body = {name: value for name, value in manifest.items() if name != "digest"}
    if manifest["digest"] != canonical.digest(body) or canonical.dumps(manifest).encode() + b"\n" != data:
        raise BundleError("manifest.json was changed: its digest does not match its content")
    return manifest
