"""All experiments, in the order of the page."""

from apportion.errors import InvalidArgument
from experiments import (
    accountings,
    best_cifar,
    best_mnist,
    best_schedules,
    cancer,
    cifar_paper,
    membership,
    mnist_tables,
    sweeps,
)
from experiments.accounting import (
    batches,
    conjectured_bound,
    decay_rates,
    epsilon_by_epoch,
    epsilon_by_setting,
    renyi_divergence,
    schedules,
)
from experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    batches.EXPERIMENT,
    renyi_divergence.EXPERIMENT,
    epsilon_by_epoch.EXPERIMENT,
    epsilon_by_setting.BY_RATE,
    epsilon_by_setting.BY_NOISE,
    conjectured_bound.EXPERIMENT,
    schedules.EXPERIMENT,
    decay_rates.EXPERIMENT,
    cancer.EXPERIMENT,
    mnist_tables.AS_WORDED,
    mnist_tables.HONEST,
    cifar_paper.EXPERIMENT,
    accountings.EXPERIMENT,
    sweeps.EXPERIMENT,
    best_mnist.EXPERIMENT,
    best_cifar.EXPERIMENT,
    best_schedules.EXPERIMENT,
    membership.EXPERIMENT,
)


def find(name: str) -> Experiment:
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise InvalidArgument(f"no experiment {name!r}; there are: {', '.join(e.name for e in EXPERIMENTS)}")
