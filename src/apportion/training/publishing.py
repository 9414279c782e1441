"""Publishing what needs the model itself: a private test score, and an export to ONNX. The rest is `bundle.write`."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

import torch
from safetensors.torch import load_file

from apportion.bundle import files, write
from apportion.certificate import Certificate
from apportion.components.evaluation import evaluation_event, release_counts
from apportion.described import table_of_run
from apportion.errors import IncompatibleModel, InvalidArgument
from apportion.publication import Hyperparameters, Publication, name_for
from apportion.training.onnx import export
from apportion.training.tensors import Data, PrivateData

LOCK = "lock"
_PIECE = 4096


class PublishOptions(TypedDict):
    """`name`, `hyperparameters`, `earlier_runs`, `intended_use` and `license` are the publisher's statements.

    `model` is an object of the trained class, needed by `onnx` and `evaluate_privately`; its weights do not matter, those
    that were released are used. `onnx` is the shape of one input. `evaluate_privately` is the noise multiplier of a test
    score on `holdout`. `sign` is a private key file, `as_zip` also writes the bundle as one file.
    """

    name: NotRequired[str]
    hyperparameters: NotRequired[Hyperparameters]
    earlier_runs: NotRequired[int]
    intended_use: NotRequired[str]
    license: NotRequired[str]
    model: NotRequired[torch.nn.Module]
    onnx: NotRequired[Sequence[int]]
    evaluate_privately: NotRequired[float]
    holdout: NotRequired[Data]
    sign: NotRequired[str | Path]
    as_zip: NotRequired[bool]
    allow_unsafe: NotRequired[bool]


def publish(run: Path, to: Path, **options: Unpack[PublishOptions]) -> Certificate:
    """Write the bundle of a finished run; everything that can be refused is refused before anything is paid for."""
    publication = Publication(
        name=options.get("name") or name_for(to.name),
        hyperparameters=options.get("hyperparameters"),
        earlier_runs=options.get("earlier_runs"),
        intended_use=options.get("intended_use"),
        license=options.get("license"),
    )
    as_zip, unsafe = options.get("as_zip", False), options.get("allow_unsafe", False)
    sign = options.get("sign")
    write.refuse_early(run, to, sign=sign, as_zip=as_zip, allow_unsafe=unsafe)
    shape = options.get("onnx")
    exported = None if shape is None else export_released(run, options.get("model"), shape)
    sigma = options.get("evaluate_privately")
    if sigma is not None:
        evaluate(run, sigma, options.get("model"), options.get("holdout"))
    return write.publish(
        run,
        to,
        publication=publication,
        table=table_of_run(run),
        onnx=exported,
        sign=None if sign is None else Path(sign),
        as_zip=as_zip,
        allow_unsafe=unsafe,
    )


def export_released(run: Path, model: torch.nn.Module | None, input_shape: Sequence[int]) -> write.OnnxExport:
    return export(_released(run, model), input_shape)


def evaluate(run: Path, sigma: float, model: torch.nn.Module | None, holdout: Data | None) -> None:
    """Release noisy counts of right and wrong answers of the released weights on `holdout`; see `release_counts`."""
    evaluation_event(sigma)  # refuses a noise multiplier that is none
    released = _released(run, model)
    if holdout is None:
        raise InvalidArgument("evaluate_privately needs holdout=(inputs, targets), records that were not trained on")
    data = PrivateData.of(holdout, released)
    right = _right_answers(released, data)
    release_counts(run / files.LEDGER, run / LOCK, sigma, right, len(data) - right)


def _released(run: Path, model: torch.nn.Module | None) -> torch.nn.Module:
    """A copy of the model with the weights that the ledger released, in evaluation mode."""
    if model is None:
        raise InvalidArgument("this needs the model: pass model=…, an object of the class that was trained")
    loaded = copy.deepcopy(model).cpu()
    try:
        loaded.load_state_dict(load_file(run / files.WEIGHTS))
    except RuntimeError as error:
        raise IncompatibleModel([f"the released weights do not fit this model: {error}"]) from error
    return loaded.eval()


def _right_answers(model: torch.nn.Module, data: PrivateData) -> int:
    """Records whose class has the highest score; a record with a score that is no number counts as wrong."""
    if data.targets.is_floating_point() or data.targets.dim() != 1 or not len(data):
        raise InvalidArgument("a private score counts right answers: holdout targets must be class numbers, and some")
    right = 0
    with torch.no_grad():
        for start in range(0, len(data), _PIECE):
            scores = model(data.inputs[start : start + _PIECE])
            if scores.dim() != 2:
                raise InvalidArgument(f"a private score needs one row of class scores per record, got {scores.dim()}-d")
            correct = scores.argmax(1) == data.targets[start : start + _PIECE]
            right += int((correct & torch.isfinite(scores).all(1)).sum())
    return right
