"""Apportion: train PyTorch models under a privacy budget and publish them with a guarantee that a stranger can check.

This module and everything it imports work without PyTorch; `apportion.training` needs it.
"""

import importlib
from types import ModuleType

from apportion._version import VERSION
from apportion.accounting import Guarantee
from apportion.adaptive import AdaptivePlan
from apportion.batching import Partition, Poisson, Shuffle
from apportion.budget import Budget
from apportion.bundle.verify import verify
from apportion.by_epoch import ByEpoch
from apportion.certificate import Certificate, certify
from apportion.clipping import Automatic, Flat, PerLayer
from apportion.errors import ApportionError
from apportion.ledger import read as read_ledger
from apportion.plan import NonPrivatePlan, TrainingPlan
from apportion.public import PaidLooks, Public
from apportion.schedules import (
    ExponentialDecay,
    Hold,
    PolynomialDecay,
    StepDecay,
    TimeDecay,
    Uniform,
    ValidationDecay,
)
from apportion.solver import solve
from apportion.stages import ClassWeights, PrincipalComponents, PrivateEvaluation, Scaling
from apportion.units import Person

__version__ = VERSION

__all__ = [
    "AdaptivePlan",
    "ApportionError",
    "Automatic",
    "Budget",
    "ByEpoch",
    "Certificate",
    "ClassWeights",
    "ExponentialDecay",
    "Flat",
    "Guarantee",
    "Hold",
    "NonPrivatePlan",
    "PaidLooks",
    "Partition",
    "PerLayer",
    "Person",
    "Poisson",
    "PolynomialDecay",
    "PrincipalComponents",
    "PrivateEvaluation",
    "Public",
    "Scaling",
    "Shuffle",
    "StepDecay",
    "TimeDecay",
    "TrainingPlan",
    "Uniform",
    "ValidationDecay",
    "certify",
    "read_ledger",
    "solve",
    "verify",
]


def __getattr__(name: str) -> ModuleType:
    """`apportion.training` without importing torch before it is asked for."""
    if name == "training":
        return importlib.import_module("apportion.training")
    raise AttributeError(f"module 'apportion' has no attribute {name!r}")
