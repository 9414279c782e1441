"""Data for training: named public data sets, and the user's own tables with what was declared about them."""

from apportion.data.cifar10 import cifar10
from apportion.data.dataset import Dataset
from apportion.data.mnist import mnist
from apportion.data.streaming import StreamedTable, stream_table
from apportion.data.table import Declared, prepare, read_table
from apportion.data.wisconsin import wisconsin

__all__ = [
    "Dataset",
    "Declared",
    "StreamedTable",
    "cifar10",
    "mnist",
    "prepare",
    "read_table",
    "stream_table",
    "wisconsin",
]
