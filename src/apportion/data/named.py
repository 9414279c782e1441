"""The data sets that have a name on the command line."""

from collections.abc import Mapping

from apportion.data.cifar10 import CIFAR10
from apportion.data.dataset import NamedDataset
from apportion.data.mnist import MNIST
from apportion.data.wisconsin import WISCONSIN

NAMED: Mapping[str, NamedDataset] = {"wisconsin": WISCONSIN, "mnist": MNIST, "cifar10": CIFAR10}
