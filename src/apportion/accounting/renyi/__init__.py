"""Rényi accounting: one curve of divergences per mechanism, summed, converted at the best order."""

from apportion.accounting.renyi.accountant import Renyi

__all__ = ["Renyi"]
