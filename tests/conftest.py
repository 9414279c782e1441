"""What many tests share: a tiny learning problem, and a finished run on it."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import apportion as ap

settings.register_profile("any machine", deadline=None)  # no test is about time
settings.load_profile("any machine")

torch = pytest.importorskip("torch")

RECORDS = 60


def tiny_data(records: int = RECORDS) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(records, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def tiny_model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def tiny_plan(**changes: Any) -> ap.TrainingPlan:
    values: dict[str, Any] = {
        "budget": ap.Budget(epsilon=3.0, delta=1e-5),
        "examples": RECORDS,
        "batching": ap.Shuffle(batches=3),
        "schedule": ap.Uniform(sigma0=8.0),
        "epochs": 2,
        "clip": 1.0,
    }
    return ap.TrainingPlan(**(values | changes))


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def train(out: Path, plan: Any = None, model: Any = None, data: Any = None, **options: Any) -> Any:
    from apportion.training import fit

    return fit(
        model or tiny_model(),
        tiny_data() if data is None else data,
        plan or tiny_plan(),
        loss=torch.nn.functional.cross_entropy,
        optimizer=sgd,
        out=out,
        progress=False,
        **options,
    )


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(directory: Path, records: dict[str, int] | None = None) -> None:
    """Images whose left or right half is white, by the parity of the digit."""
    directory.mkdir(parents=True, exist_ok=True)
    for part, count in (records or {"train": 60, "t10k": 20}).items():
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28))
        images[labels % 2 == 0, :, :14] = 255
        images[labels % 2 == 1, :, 14:] = 255
        (directory / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (directory / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny plan and its bundle, made once: tests get copies."""
    directory = tmp_path_factory.mktemp("kept")
    train(directory / "run").publish(directory / "bundle")
    return directory


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Any:
    """A finished run of the tiny plan."""
    from apportion.training import FinishedRun

    shutil.copytree(kept / "run", tmp_path / "run")
    return FinishedRun(tmp_path / "run")


@pytest.fixture
def bundle(kept: Path, tmp_path: Path) -> Path:
    """What was published of it."""
    shutil.copytree(kept / "bundle", tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def apportion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: arguments in; exit code, standard output and standard error out."""
    from apportion.cli.main import main

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["apportion", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
