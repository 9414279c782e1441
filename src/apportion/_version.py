"""The package's version, where modules that `apportion/__init__.py` imports can reach it."""

VERSION = "0.1.0"
