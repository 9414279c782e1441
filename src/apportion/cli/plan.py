"""`apportion plan`: what a budget buys."""

from pathlib import Path
from typing import Any

from apportion import plan as plans
from apportion.adaptive import AdaptivePlan, adaptive_plan
from apportion.certificate import ADJACENCY_IN_WORDS
from apportion.cli import adaptive, output, pipeline, prospects
from apportion.cli import options as o
from apportion.cli import train_options as t
from apportion.errors import InvalidArgument
from apportion.plan import TrainingPlan
from apportion.solver import Unknown, solve, unknown_of

_MOST_ROWS = 40


def plan(
    config: t.ConfigOption = None,
    batching: t.BatchingOption = None,
    schedule: t.ScheduleOption = None,
    rho: o.RhoOption = None,
    epsilon: o.EpsilonOption = None,
    delta: o.DeltaOption = None,
    batches: o.BatchesOption = None,
    rate: o.RateOption = None,
    sigma0: o.Sigma0Option = None,
    decay: o.DecayOption = None,
    period: o.PeriodOption = None,
    sigma_end: o.SigmaEndOption = None,
    threshold: o.ThresholdOption = None,
    average: o.AverageOption = None,
    every: o.EveryOption = None,
    floor: o.FloorOption = None,
    order: o.OrderOption = None,
    epochs: o.EpochsOption = None,
    clipping: o.ClippingOption = None,
    layers: o.LayersOption = None,
    layer_noise: o.LayerNoiseOption = None,
    adjacency: o.AdjacencyOption = None,
    examples: o.ModelExamplesOption = None,
    parameters: o.ParametersOption = None,
    plot: o.PlotOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Find the one unknown among --sigma0, --decay and --epochs that spends a budget.

    Leave exactly one of the three out (a uniform schedule has no decay). For example:

    apportion plan --epsilon 3 --delta 1e-5 --batching partition --batches 100 --schedule exponential
    --decay 0.01 --epochs 60

    With --schedule validation the noise follows public scores under a cap, and nothing is solved: shown are the cap and
    how far it reaches.

    With --examples and --parameters: how loud the noise is beside the signal, and what larger batches or other numbers of
    epochs would change. How long it takes, `apportion train --dry-run` measures.

    Of a pipeline, apportion plan CONFIG.toml shows what each stage gets of the budget: [pca], [scaling], [class_weights]
    and [evaluation] with a share or a sigma each, [training] with what is left.
    """
    if config is not None:
        _refuse_beside_config(adjacency=adjacency, parameters=parameters, layers=layers)
        _show_file(config, t.given_settings(locals()), plot, as_json)
        return
    batching, schedule = batching or "partition", schedule or "uniform"
    prospects.require_both(examples, parameters)
    clipped = o.clipping_of(clipping, layers, layer_noise)
    if schedule == "validation":
        decay_by_scores = o.validation_decay_of(
            sigma0, decay, period, sigma_end, threshold=threshold, average=average, every=every
        )
        capped = adaptive_plan(
            budget=o.budget_of(rho, epsilon, delta),
            batching=o.batching_of(batching, o.batches_of(batches), o.rate_of(rate)),
            schedule=decay_by_scores,
            epochs=epochs,
            floor=floor,
            order=order,
            adjacency=adjacency,
            examples=examples or 1,
            clip=1.0,
            clipping=clipped,
        )
        _show_adaptive(capped, parameters, plot, as_json)
        return
    o.refuse_validation_options(schedule, threshold=threshold, average=average, every=every, floor=floor, order=order)
    noise = o.schedule_of(schedule, sigma0, decay, period, sigma_end)
    solved = unknown_of(noise, epochs)
    found = solve(
        budget=o.budget_of(rho, epsilon, delta),
        batching=o.batching_of(batching, o.batches_of(batches), o.rate_of(rate)),
        schedule=noise,
        epochs=epochs,
        adjacency=adjacency,
        examples=examples or 1,  # neither this number nor the clipping norm changes what the noise costs
        clip=1.0,
        clipping=clipped,
    )
    _plot(found, plot)
    rows = None if parameters is None else prospects.rows_of(found, parameters)
    if as_json:
        output.print_json({**as_data(found, solved), **({} if rows is None else prospects.as_data(rows))})
        return
    show(found, solved)
    if rows is not None:
        prospects.show(rows)


def _refuse_beside_config(adjacency: str | None, parameters: int | None, layers: int | None) -> None:
    if adjacency is not None:
        raise InvalidArgument(
            "--adjacency does not belong beside CONFIG: it follows from whether the file declares examples"
        )
    if parameters is not None:
        raise InvalidArgument("--parameters does not belong beside CONFIG; use: apportion train CONFIG --dry-run")
    if layers is not None:
        raise InvalidArgument("--layers does not belong beside CONFIG: it follows from the file's hidden layers")


def _show_file(config: Path, given: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    found = pipeline.plan_of_file(config, given)
    if isinstance(found, AdaptivePlan):
        _show_adaptive(found, None, plot, as_json)
        return
    _plot(found, plot)
    if as_json:
        output.print_json({**as_data(found, None), **pipeline.as_data(found)})
    else:
        pipeline.show(found)
        show(found, None)


def _plot(found: TrainingPlan, plot: Path | None) -> None:
    if plot is not None:
        from apportion.report.figures import plot_noise

        plot_noise(found, plot)


def _show_adaptive(capped: AdaptivePlan, parameters: int | None, plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        from apportion.report.figures import plot_courses

        plot_courses(capped, plot)
    rows = None if parameters is None else prospects.rows_of(capped, parameters)
    if as_json:
        signal = {} if rows is None else prospects.as_data(rows)
        output.print_json({**adaptive.as_data(capped), **pipeline.as_data(capped), **signal})
        return
    pipeline.show(capped)
    adaptive.show(capped)
    if rows is not None:
        prospects.show(rows)


def as_data(found: TrainingPlan, solved: Unknown | None) -> dict[str, object]:
    return {
        "schedule": found.schedule.to_json(),
        "batching": found.to_json()["batching"],
        "clipping": found.clipping.to_json(),
        "unit": found.unit.kind,
        "adjacency": found.adjacency,
        "epochs": found.epochs,
        "sigmas": list(found.sigmas),
        "rho": found.rho,
        "epsilon": found.guarantee.epsilon,
        "delta": found.delta,
        "accountant": found.guarantee.accountant,
        "solved": solved,
    }


def show(found: TrainingPlan, solved: Unknown | None) -> None:
    """A bar per epoch, the solved value and the guarantee in words."""
    from rich.table import Table

    table = Table(box=None)
    for heading in ("epoch", "σ", "ρ so far"):
        table.add_column(heading, justify="right")
    table.add_column("σ as a bar")
    spent, largest = 0.0, max(found.sigmas)
    rows = range(len(found.sigmas))
    shown = set(rows) if len(rows) <= _MOST_ROWS else {*rows[: _MOST_ROWS // 2], *rows[-_MOST_ROWS // 2 :]}
    for index, slot in enumerate(found.slots):
        spent += plans.rho_of(slot.event, found.neighbours)
        if index in shown:
            table.add_row(
                str(index), f"{slot.sigma:.4g}", f"{spent:.5f}", "█" * max(1, round(30 * slot.sigma / largest))
            )
        elif index - 1 in shown:
            table.add_row("…", "…", "…", "")
    output.out.print(table)
    if solved:
        value = found.epochs if solved == "epochs" else found.schedule.to_json().get(solved)
        output.out.print(f"solved: {solved} = {value:.8g}", style="bold")
    output.out.print(guarantee_in_words(found), soft_wrap=True)


def guarantee_in_words(found: TrainingPlan) -> str:
    words = ADJACENCY_IN_WORDS[found.neighbours].format(unit=found.unit.kind)
    steps = sorted({found.batching.at(slot.index).steps for slot in found.slots})
    span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    components = f", with {', '.join(c.kind for c in found.components)}," if found.components else ""
    return (
        f"{found.epochs} epochs of {span} steps{components} spend ρ = {found.rho:.6g}, which gives "
        f"(ε, δ) = ({found.guarantee.epsilon:.5g}, {found.delta:g}) by {found.guarantee.accountant} accounting, "
        f"where {words}."
    )
