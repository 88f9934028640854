"""Whether private votes for texts will be mostly noise, before anything is spent.

What belongs here: what follows from a contract and its plan: how many votes a candidate or a cluster gets on average,
beside the noise. What does not: votes (`evolution_votes`, `resampling`), and whether to go on, which is people's to
say: votes are never alike for all, so that a few candidates may stand out where the average does not.
"""

from __future__ import annotations

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.evolution_sealing import LEAST_OVER_NOISE, EvolutionParameters
from dpsynth_platform.synth.text.resampling import Resampling


def lost_votes_of(contract: DataContract, plan: SealedPlan) -> str | None:
    """Why the noise of a plan's votes is larger than what a text or a cluster gets; None where none is.

    Each unit is counted as one vote in full: all votes of an owner have the length of one together.

    Args:
        contract: says how many units can be expected.
        plan: sealed by it, of any method.
    """
    units, said = contract.privacy.expected_units, []
    if plan.method == "aug_pe":
        evolution = EvolutionParameters.of(plan)
        most = int(units / (LEAST_OVER_NOISE * evolution.sigma * (evolution.rounds.variations + 1)))
        way_out = f"an evolution.population of up to {most}" if most else "fewer rounds or variations, or more units"
        said.append(_lost(units, evolution.candidates, "text of a round", evolution.sigma, "lives on", way_out))
    if "resampling" in plan.parameters:
        chosen = Resampling(**plan.parameters["resampling"])
        most = int(units / (LEAST_OVER_NOISE * chosen.sigma))
        way_out = f"resample.clusters of up to {most}" if most > 1 else "no generate.text.resample, or more units"
        said.append(_lost(units, chosen.clusters, "cluster", chosen.sigma, "is taken", way_out))
    return "; ".join(filter(None, said)) or None


def _lost(units: int, candidates: int, what: str, sigma: float, so: str, way_out: str) -> str | None:
    mean = units / candidates
    if mean >= sigma:
        return None
    return (
        f"each {what} gets about {mean:.3g} votes, which drown in noise of {sigma:.3g}: what {so} is mostly chance; "
        f"better: {way_out}"
    )
