"""`apportion explain`: what a guarantee means to an attacker."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from apportion import ledger
from apportion.accounting import interpretation
from apportion.accounting.interpretation import Profile
from apportion.bundle import read
from apportion.bundle import verify as bundles
from apportion.bundle.files import LEDGER
from apportion.certificate import certify
from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import BundleError, InvalidArgument, UnpricedEvent


def explain(
    bundle: Annotated[
        Path | None,
        typer.Argument(help="A bundle (or its .zip) to explain instead of --epsilon and --delta.", show_default=False),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of a guarantee.", show_default=False)] = None,
    delta: Annotated[float | None, typer.Option(help="δ of a guarantee.", show_default=False)] = None,
    plot: o.PlotOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say in plain words how much an attacker can learn about one person from the published model.

    apportion explain --epsilon 3 --delta 1e-5          apportion explain published/model
    """
    profile, epsilon, delta = _read(bundle, epsilon, delta)
    data = as_data(profile, epsilon, delta)
    if plot is not None:
        from apportion.report.figures import plot_tradeoff

        plot_tradeoff(profile, epsilon, delta, plot)
    if as_json:
        output.print_json(data)
    else:
        output.out.print(in_words(data), soft_wrap=True)


def _read(bundle: Path | None, epsilon: float | None, delta: float | None) -> tuple[Profile, float, float]:
    if bundle is None:
        if epsilon is None or delta is None:
            raise InvalidArgument("give --epsilon and --delta, or a bundle")
        return interpretation.profile_of_pair(epsilon, delta), epsilon, delta
    if epsilon is not None or delta is not None:
        raise InvalidArgument("give either a bundle, or --epsilon and --delta")
    result = bundles.verify(bundle)
    if not result.verified:
        raise BundleError(f"{bundle} does not verify, so there is nothing to explain:\n" + "\n".join(result.problems))
    with read.opened(bundle) as source, source.open(LEDGER) as file:
        certificate = certify(ledger.parse(file.read()))
    try:
        event = certificate.ledger.certified_event
    except UnpricedEvent:  # adaptive noise: only the cap holds
        found = interpretation.profile_of_pair(certificate.epsilon, certificate.delta)
    else:
        adjacency = certificate.adjacency
        found = interpretation.profile_of_event(event, adjacency, certificate.epsilon, certificate.delta)
    return found, certificate.epsilon, certificate.delta


def as_data(profile: Profile, epsilon: float, delta: float) -> dict[str, Any]:
    rates = np.geomspace(1e-4, 1, 41).tolist()
    return {
        "epsilon": epsilon,
        "delta": delta,
        "source": profile.source,
        "attacker": [
            {"false_positive_rate": rate, "true_positive_rate": profile.true_positive_rate(rate)}
            for rate in interpretation.FALSE_POSITIVE_RATES
        ],
        "posterior": [
            {"prior": prior, "posterior": interpretation.posterior(prior, epsilon)} for prior in interpretation.PRIORS
        ],
        "tradeoff": {"false_positive_rates": rates, "true_positive_rates": profile.tradeoff(rates)},
    }


def in_words(data: dict[str, Any]) -> str:
    lines = [f"(ε, δ) = ({data['epsilon']:g}, {data['delta']:g}), computed from {data['source']}."]
    if data["source"] == interpretation.OF_WHAT_RAN:
        lines.append("(The certificate states what follows from ε and δ alone; its figures are no smaller.)")
    lines += [
        "",
        "Somebody who wants to know whether one person's record was used, who knows",
        "everybody else's records and has the model, can do no better than this:",
    ]
    for entry in data["attacker"]:
        lines.append(
            f"  accusing {entry['false_positive_rate']:.1%} of the innocent, find at most "
            f"{entry['true_positive_rate']:.2%} of those in the data"
        )
    lines += ["", f"What seeing the model can make of a belief (except with probability about {data['delta']:g}):"]
    for entry in data["posterior"]:
        lines.append(f"  from {entry['prior']:.0%} before to at most {entry['posterior']:.1%} after")
    return "\n".join(lines)
