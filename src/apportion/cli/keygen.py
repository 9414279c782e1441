"""`apportion keygen`: a key pair for signing bundles."""

from pathlib import Path
from typing import Annotated

import typer

from apportion.bundle import signing
from apportion.cli import options as o
from apportion.cli import output


def keygen(
    to: Annotated[Path, typer.Option(help="The private key file; the public one gets .pub.", show_default=False)],
    as_json: o.JsonOption = False,
) -> None:
    """Make an Ed25519 key pair for `publish --sign` and `verify --trusted`.

    Keep the private key secret; give the .pub file to those who shall trust your bundles, by a way that they trust.
    """
    digits = signing.generate(to)
    if as_json:
        output.print_json({"private_key": str(to), "public_key": f"{to}.pub", "key": digits})
        return
    output.out.print(f"private key: {to} (keep it secret)\npublic key:  {to}.pub\n{digits}", soft_wrap=True)
