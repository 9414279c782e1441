"""Which modules and parameters a model has: quick to compare, because it is asked at every step."""

import torch


class Structure:
    """Names and identities of all modules and parameters of a model, which parameters are trainable, and their types.

    Identities are safe to compare because all of them are kept alive, except for the model itself.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = [module for module in model.modules() if module is not model]
        self.parameters = list(model.parameters())
        self._names_and_identities = self._own(model)
        self._trainable = self._flags()

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether the model still has the modules and trainable parameters that it had."""
        return self._own(model) == self._names_and_identities and self._flags() == self._trainable

    def _own(self, model: torch.nn.Module) -> list[str | int]:
        """If no known module has got others below it, there are none but the known ones."""
        found: list[str | int] = []
        for module in (model, *self.modules):
            attributes = module.__dict__
            for own in (attributes["_parameters"], attributes["_modules"]):
                if own:
                    found += own
                    found += map(id, own.values())
        return found

    def _flags(self) -> list[bool | torch.dtype]:
        """Of every parameter; `model.bfloat16()` changes types and leaves identities."""
        flags: list[bool | torch.dtype] = [parameter.requires_grad for parameter in self.parameters]
        flags += [parameter.dtype for parameter in self.parameters]
        return flags
