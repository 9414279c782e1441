"""The built-in table: 699 breast cancer biopsies from the University of Wisconsin Hospitals (W. H. Wolberg, 1992).

Nine features, each scored 1–10 by a pathologist; 16 rows lack a value and are dropped, as in the paper. Source: UCI
Machine Learning Repository, Breast Cancer Wisconsin (Original), CC BY 4.0, https://doi.org/10.24432/C5HP4Z, as shipped in
R's MASS::biopsy; sample code numbers left out.
"""

from importlib.resources import as_file, files

import numpy as np

from apportion.data.dataset import Dataset, NamedDataset
from apportion.data.table import Declared, prepare, read_table

TRAIN, TEST = 560, 123
TARGET = "class"
CLASSES = ("benign", "malignant")
RANGE = (1.0, 10.0)


def wisconsin() -> tuple[Dataset, Dataset]:
    """(train, test): 560 and 123 complete rows.

    The split is a fixed public rule: the test rows are spread evenly over the file (row i of 683 is a test row where
    ⌊123(i+1)/683⌋ exceeds ⌊123i/683⌋).
    """
    with as_file(files("apportion.data") / "wisconsin.csv") as path:
        table = read_table(path)
    complete = np.array([all(row) for row in zip(*table.columns.values(), strict=True)])
    features = tuple(name for name in table.columns if name != TARGET)
    declared = Declared(target=TARGET, classes=CLASSES, ranges=dict.fromkeys(features, RANGE))
    dataset, _ = prepare(table.select(complete), declared)
    index = np.arange(TRAIN + TEST)
    test = TEST * (index + 1) // (TRAIN + TEST) > TEST * index // (TRAIN + TEST)
    return dataset.select(~test), dataset.select(test)


WISCONSIN = NamedDataset(
    source="built-in wisconsin",
    target=TARGET,
    classes=CLASSES,
    ranges=lambda: dict.fromkeys(wisconsin()[0].features, RANGE),
    load=lambda _: wisconsin(),
)
