"""Publishing what needs the model itself: a private test score, and an export to ONNX. The rest is `bundle.write`."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from apportion import ledger
from apportion.bundle import files, write
from apportion.certificate import Certificate
from apportion.components import evaluation
from apportion.described import table_of_run
from apportion.errors import IncompatibleModel, InvalidArgument
from apportion.publication import Hyperparameters, Publication, name_for
from apportion.stages import PrivateEvaluation
from apportion.training import grid
from apportion.training.counting import one_by_one
from apportion.training.onnx import export
from apportion.training.records import Records
from apportion.training.run_directory import LOCK
from apportion.training.sources import Data, records_of

_PIECE = 4096


class PublishOptions(TypedDict):
    """`name`, `hyperparameters`, `earlier_runs`, `intended_use` and `license` are the publisher's statements.

    `model` is an object of the trained class, needed by `onnx` and `evaluate_privately`; its weights do not matter, those
    that were released are used. `onnx` is the shape of one input. `evaluate_privately` is a test score on `holdout`, paid
    for on top of the plan: its noise multiplier, or a `PrivateEvaluation`. `sign` is a private key file, `as_zip` also
    writes the bundle as one file.
    """

    name: NotRequired[str]
    hyperparameters: NotRequired[Hyperparameters]
    earlier_runs: NotRequired[int]
    intended_use: NotRequired[str]
    license: NotRequired[str]
    model: NotRequired[torch.nn.Module]
    onnx: NotRequired[Sequence[int]]
    evaluate_privately: NotRequired[float | PrivateEvaluation]
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
    asked = options.get("evaluate_privately")
    if asked is not None:
        component = asked if isinstance(asked, PrivateEvaluation) else PrivateEvaluation(sigma=asked)
        evaluate(run, component, options.get("model"), options.get("holdout"), on_top_of_the_plan=True)
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


def evaluate(
    run: Path,
    component: PrivateEvaluation,
    model: torch.nn.Module | None,
    holdout: Data | None,
    *,
    on_top_of_the_plan: bool = False,
) -> None:
    """Release noisy tables of the answers of the released weights on `holdout`; see `components.evaluation`."""
    released = _released(run, model)
    if holdout is None:
        raise InvalidArgument("evaluate_privately needs holdout=(inputs, targets), records that were not trained on")
    plan = ledger.read(run / files.LEDGER).plan
    counts = _counted(released, records_of(holdout, released), component)
    evaluation.release(
        run / files.LEDGER,
        run / LOCK,
        component,
        counts,
        on_top_of_the_plan=on_top_of_the_plan,
        normals=grid.whole_normals if getattr(plan, "noise", "float") == "grid" else None,
    )


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


def _counted(model: torch.nn.Module, data: Records, component: PrivateEvaluation) -> evaluation.Counts:
    labels = data.like[1]
    if labels.is_floating_point() or labels.dim() != 1 or not len(data):
        raise InvalidArgument("a private score counts right answers: holdout targets must be class numbers, and some")
    with torch.no_grad():
        shape = model(next(data.in_order(1))[0]).shape
    if len(shape) != 2:
        raise InvalidArgument(f"a private score needs one row of class scores per record, got {len(shape)}-d")
    return evaluation.tables_of(_scored(model, data), shape[1], component)


def _scored(model: torch.nn.Module, data: Records) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Scores and target of one record at a time: what `evaluation` makes of them is then its own as well."""
    for scores, targets in one_by_one(model, data.in_order(_PIECE)):
        rows, labels = scores.double().cpu().numpy(), targets.cpu().numpy()
        yield from ((rows[i : i + 1], labels[i : i + 1]) for i in range(len(rows)))
