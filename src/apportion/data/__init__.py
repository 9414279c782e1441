"""Data for training: the built-in table, and the user's own tables with what was declared about them."""

from apportion.data.dataset import Dataset
from apportion.data.table import Declared, prepare, read_table
from apportion.data.wisconsin import wisconsin

__all__ = ["Dataset", "Declared", "prepare", "read_table", "wisconsin"]
