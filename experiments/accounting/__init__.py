"""The figures and tables that need no training."""
