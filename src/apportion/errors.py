"""Every exception that Apportion raises on purpose.

    ApportionError
    ├── InvalidArgument      (also a ValueError) a value that cannot be meant; names the argument
    │   └── ConfigError      one or more problems in a configuration, reported together
    ├── Unsolvable           no value of the unknown spends the budget; gives the attainable range
    ├── UnpricedEvent        this accountant has no proven price for this event
    ├── BudgetExhausted      not even the first epoch fits the budget
    ├── LedgerError          the ledger on disk is not a valid chain of records
    ├── CertificationError   what is in the ledger cannot be certified as asked
    ├── RunError             the run directory, or the order of calls, does not allow this step
    │   └── BatchMisused     a batch was stepped twice, out of order or after its epoch
    ├── DataError            the private data does not fit what was declared about it
    ├── IncompatibleModel    the model, loss or optimizer cannot be trained privately
    ├── UnsafePublication    publishing was refused because a guarantee would be missing
    └── BundleError          the bundle cannot be read at all

Messages say what was expected, what was found and what to do next.
"""

from collections.abc import Sequence


class ApportionError(Exception):
    """Base of everything below: `except ApportionError` catches all deliberate refusals."""


class InvalidArgument(ApportionError, ValueError):
    """A value that cannot be meant."""


class ConfigError(InvalidArgument):
    """Every problem found in a configuration, so that they can be mended in one go."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class Unsolvable(ApportionError):
    """No value of the unknown spends the budget."""


class UnpricedEvent(ApportionError):
    """An accountant was asked about an event for which it has no proven price."""


class BudgetExhausted(ApportionError):
    """Not even the first epoch fits the budget."""


class LedgerError(ApportionError):
    """The ledger on disk is not a valid chain of records."""


class CertificationError(ApportionError):
    """What is in the ledger cannot be certified as asked."""


class RunError(ApportionError):
    """The run directory, or the order of calls, does not allow this step."""


class BatchMisused(RunError):
    """A batch is a one-use token; it was used otherwise."""


class DataError(ApportionError):
    """The private data does not fit what was declared about it."""


class IncompatibleModel(ApportionError):
    """The model, loss or optimizer cannot be trained privately; all reasons are listed."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons))


class UnsafePublication(ApportionError):
    """Publishing was refused because a guarantee would be missing."""


class BundleError(ApportionError):
    """The bundle cannot be read at all."""
