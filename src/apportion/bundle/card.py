"""The model card: a README for model hubs whose privacy section is generated from the certificate."""

from typing import Any

from apportion import certificate as certificates

BEGIN = "<!-- privacy section, generated from certificate.json: begin -->"
END = "<!-- privacy section: end -->"


def privacy_section(certificate: dict[str, Any]) -> str:
    return f"{BEGIN}\n## Privacy\n\n{certificates.words(certificate)}\n{END}\n"


def card(certificate: dict[str, Any], name: str) -> str:
    declared = certificate["declared"]
    facts = "\n".join(f"- {key}: {value}" for key, value in sorted(declared.items())) or "- none declared"
    return f"""---
library_name: pytorch
tags:
- differential-privacy
- apportion
---
# {name}

A model trained with differential privacy: epsilon = {certificate["epsilon"]:g} at delta = {certificate["delta"]:g}.

{privacy_section(certificate)}
## Check it yourself

```
pip install apportion
apportion verify .
```

recomputes the guarantee from `ledger.jsonl`, without the data and without PyTorch.

## How it was made

{facts}

## Load it

```python
from safetensors.torch import load_file

model = ...  # the architecture named above, your own class
model.load_state_dict(load_file("model.safetensors"))
```
"""
