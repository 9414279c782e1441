"""CIFAR-10 as features of frozen ImageNet convolutions: the records that heads are trained on."""

from functools import cache
from typing import Literal

from apportion.data import Dataset, cifar10
from apportion.data.cifar10 import FOLDERS
from apportion.data.public_files import data_directory, find
from examples import imagenet_features
from experiments import trained
from experiments.trained import Data, tensors

Scaling = Literal["scaled", "directions", "centred directions"]


def missing() -> str | None:
    return trained.why_not() or imagenet_features.why_not()


def data_absent() -> str | None:
    """Why the data would have to be downloaded first."""
    root = data_directory(None)
    here = find(["data_batch_1.bin", "cifar-10-binary.tar.gz"], FOLDERS, root)
    return None if here else f"CIFAR-10 is not in {root} (APPORTION_DATA names a directory that has it)"


@cache
def data() -> tuple[Dataset, Dataset]:
    return cifar10()


@cache
def parts(records: int, side: int, mirrored: bool, scaling: Scaling) -> tuple[Data, Data]:
    """(training, test) features, at most `records` of each; with `mirrored`, the mean over an image and its mirror image."""
    training, testing = (_prepared(dataset, records, side, mirrored, scaling) for dataset in data())
    return training, testing


def _prepared(dataset: Dataset, records: int, side: int, mirrored: bool, scaling: Scaling) -> Data:
    images = dataset.inputs[:records]
    features = imagenet_features.features(images, side=side)
    if mirrored:
        features = (features + imagenet_features.features(images, side=side, mirrored=True)) / 2
    if scaling == "scaled":
        features = imagenet_features.scaled(features)
    else:
        features = imagenet_features.directions(features, centred=scaling == "centred directions")
    return tensors(features, dataset.targets[:records])
