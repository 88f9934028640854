"""Whether private votes for texts will be mostly noise, before anything is spent.

What belongs here: what follows from a contract and its plan: how many votes a candidate or a cluster gets on average,
beside the noise. What does not: votes (`evolution_votes`, `resampling`), and whether to go on, which is people's to
say: votes are never alike for all, so that a few candidates may stand out where the average does not.
"""

from __future__ import annotations

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.evolution_sealing import LEAST_OVER_NOISE, EvolutionParameters
from dpsynth_platform.synth.text.resampling import Resampling

_NOT_BY_POPULATION = "fewer rounds, variations or columns in generate.text.given"


def lost_votes_of(contract: DataContract, plan: SealedPlan) -> str | None:
    """Why a plan's votes are mostly noise or choose nothing; None where they are worth what they cost.

    All votes of an owner have the length of one together, and count as one here; where records have several owners,
    each record has one.

    Args:
        contract: says how many units or records can be expected.
        plan: sealed by it, of any method.
    """
    votes, said = _expected_votes(contract), []
    if plan.method == "aug_pe":
        evolution = EvolutionParameters.of(plan)
        most = int(votes / (LEAST_OVER_NOISE * evolution.sigma * (evolution.rounds.variations + 1)))
        enough = most >= evolution.labels  # of which each keeps one text at least
        way_out = f"generate.text.evolution.population up to {most}" if enough else _NOT_BY_POPULATION
        said.append(_lost(votes, evolution.candidates, "text of a round", evolution.sigma, "lives on", way_out))
    if "resampling" in plan.parameters:
        chosen = Resampling(**plan.parameters["resampling"])
        most = int(votes / (LEAST_OVER_NOISE * chosen.sigma))
        way_out = f"generate.text.resample.clusters up to {most}" if most > 1 else "no generate.text.resample"
        said.append(_lost(votes, chosen.clusters, "cluster", chosen.sigma, "is taken", way_out))
        if chosen.pool == 1:
            said.append("every text is taken, so that votes are paid for and choose nothing; better: a larger pool")
    return "; ".join(filter(None, said)) or None


def _expected_votes(contract: DataContract) -> int:
    training = contract.generate.training
    if contract.privacy.multi_owner and training is not None and training.expected_records is not None:
        return training.expected_records
    return contract.privacy.expected_units


def _lost(votes: int, candidates: int, what: str, sigma: float, so: str, way_out: str) -> str | None:
    mean = votes / candidates
    if mean >= sigma:
        return None
    return (
        f"each {what} gets about {mean:.3g} votes, which drown in noise of {sigma:.3g}: what {so} is mostly chance; "
        f"better: {way_out}"
    )
