"""Ed25519 signatures over the manifest: they say who made a bundle, where its arithmetic says only that it is consistent.

A private key is a PEM file (PKCS #8, no passphrase, readable by its owner only); the public key beside it is one line:
`apportion-ed25519` and 64 hexadecimal digits.
"""

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from apportion import canonical
from apportion.bundle import schema
from apportion.bundle.files import SIGNATURE, refuse_other_format
from apportion.errors import BundleError, InvalidArgument, RunError

PrivateKey = Ed25519PrivateKey
FORMAT = 1
DOMAIN = b"apportion bundle manifest 1\n"  # a signature for this purpose can serve no other
_PUBLIC_PREFIX = "apportion-ed25519 "
_MOST_KEY_BYTES = 1 << 14


def generate(path: Path) -> str:
    """Write a new key pair to `path` and `path`.pub; the public key's hexadecimal digits."""
    public = path.with_name(path.name + ".pub")
    for target in (path, public):
        if target.exists() or target.is_symlink():
            raise RunError(f"{target} exists already; a key is never overwritten")
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    public.write_text(f"{_PUBLIC_PREFIX}{public_digits(key)}\n")
    return public_digits(key)


def public_digits(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def load_private(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(_short_file(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidArgument(f"{path} is not a private key made by: apportion keygen") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidArgument(f"{path} is not an Ed25519 key")
    return key


def load_public(path: Path) -> str:
    """The digits of a trusted public key."""
    try:
        text = _short_file(path).decode("ascii")
    except UnicodeDecodeError:
        text = ""
    digits = text.removeprefix(_PUBLIC_PREFIX).strip()
    if not text.startswith(_PUBLIC_PREFIX) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        hint = "; this looks like a private key: give the .pub file" if "PRIVATE" in text else ""
        raise InvalidArgument(f"{path} is not a public key made by: apportion keygen{hint}")
    return digits


def sign(key: Ed25519PrivateKey, manifest: bytes) -> bytes:
    """The content of signature.json."""
    content = {
        "format": FORMAT,
        "algorithm": "ed25519",
        "key": public_digits(key),
        "signature": key.sign(DOMAIN + manifest).hex(),
    }
    return canonical.dumps(content).encode() + b"\n"


def check(signature: bytes, manifest: bytes) -> str:
    """The digits of the key that signed this manifest; raises if the signature is not valid."""
    content = canonical.loads(signature)
    refuse_other_format(content, FORMAT, SIGNATURE)
    schema.check(content, "signature")
    if canonical.dumps(content).encode() + b"\n" != signature:
        raise BundleError("signature.json is not in canonical form")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(content["key"]))
        key.verify(bytes.fromhex(content["signature"]), DOMAIN + manifest)
    except (InvalidSignature, ValueError):
        raise BundleError("the signature does not belong to this manifest and key") from None
    return str(content["key"])


def _short_file(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_KEY_BYTES)
