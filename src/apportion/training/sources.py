"""From what the user has to records that training can read: tensors, arrays, data sets, tables on disk."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from apportion.data import StreamedTable
from apportion.errors import DataError
from apportion.training.records import Records
from apportion.training.streamed import MappedArrays, RecordByRecord, TableOnDisk
from apportion.training.tensors import PrivateData

Data = tuple[Any, Any] | Dataset[Any] | StreamedTable


def records_of(data: Data, model: torch.nn.Module, workers: int = 0) -> Records:
    """Which records are in which batch is the plan's to draw: samplers, loaders and streams of unknown order are refused."""
    if isinstance(data, StreamedTable):
        return TableOnDisk(data, model)
    if isinstance(data, DataLoader):
        raise DataError(
            "data must be a data set, not a DataLoader: how batches are drawn is part of the guarantee, and the plan's to "
            "do. Pass loader.dataset, and workers=… to read it in parallel"
        )
    if isinstance(data, IterableDataset):
        raise DataError(
            "data must be a map-style data set: an IterableDataset has an order of its own, and which record is in which "
            "batch must be drawn by the plan"
        )
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return PrivateData.of((data.tensors[0], data.tensors[1]), model)
    if isinstance(data, Dataset):
        return RecordByRecord(data, model, workers)
    if isinstance(data, tuple | list) and len(data) == 2 and any(isinstance(part, np.memmap) for part in data):
        inputs, targets = (part if isinstance(part, np.memmap) else np.asarray(part) for part in data)
        return MappedArrays(inputs, targets, model)
    return PrivateData.of(data, model)
