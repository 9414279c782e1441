"""CIFAR-10 as features of frozen ImageNet convolutions: the records that heads are trained on."""

from functools import cache
from typing import Literal

from apportion.data import Dataset, cifar10
from apportion.data.cifar10 import FOLDERS
from apportion.data.public_files import data_directory, find
from examples import imagenet_features
from experiments import trained
from experiments.trained import Data, tensors

Part = Literal["train", "test"]
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
def features(part: Part, records: int, side: int, mirrored: bool, scaling: Scaling) -> Data:
    """Of the first `records` images of a part; with `mirrored`, the mean over an image and its mirror image."""
    training, testing = data()
    chosen = training if part == "train" else testing
    images = chosen.inputs[:records]
    found = imagenet_features.features(images, side=side)
    if mirrored:
        found = (found + imagenet_features.features(images, side=side, mirrored=True)) / 2
    if scaling == "scaled":
        found = imagenet_features.scaled(found)
    else:
        found = imagenet_features.directions(found, centred=scaling == "centred directions")
    return tensors(found, chosen.targets[:records])
