"""Whether private votes for texts, or sums of their features, will be mostly noise, before anything is spent.

What belongs here: the average votes of a candidate or a cluster, compared with the noise, from a contract and its plan.
What does not: votes (`evolution_votes`, `resampling`), and the decision, which is the engineer's: votes are uneven, so
that a few candidates may exceed the noise where the average does not.
"""

from __future__ import annotations

import math

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.interface import SealedPlan

_NOT_BY_POPULATION = "fewer rounds, variations or columns in generate.text.given"


def lost_votes_of(contract: DataContract, plan: SealedPlan) -> str | None:
    """Why a plan's votes are mostly noise or choose nothing; None if they are worth their cost.

    All votes of an owner together count as one vote; where records have several owners, each record has one.

    Args:
        contract: has the expected units or records.
        plan: of this contract, of any method.
    """
    if plan.method != "aug_pe" and "resampling" not in plan.parameters:
        return None
    # They load the packages of language models, which tables have no use for.
    from dpsynth_platform.synth.text.evolution_sealing import LEAST_OVER_NOISE, EvolutionParameters
    from dpsynth_platform.synth.text.labelling import LabelChoice
    from dpsynth_platform.synth.text.resampling import Resampling
    from dpsynth_platform.synth.text.sealing import choice_from_json

    votes, reasons = _expected_votes(contract), []
    if plan.method == "aug_pe":
        evolution = EvolutionParameters.of(plan)
        shared = votes * math.sqrt(evolution.nearest or 1)  # see `units.vote_sensitivity`
        most = int(shared / (LEAST_OVER_NOISE * evolution.sigma * (evolution.rounds.variations + 1)))
        enough = most >= evolution.labels  # each label keeps one text at least
        way_out = f"generate.text.evolution.population up to {most}" if enough else _NOT_BY_POPULATION
        reasons.append(_lost(shared, evolution.candidates, "text of a round", evolution.sigma, "lives on", way_out))
    chosen = choice_from_json(plan.parameters["resampling"]) if "resampling" in plan.parameters else None
    if isinstance(chosen, LabelChoice):
        reasons.append(_lost_sums(votes, len(chosen.label.values), chosen.sigma))
    if isinstance(chosen, Resampling):
        most = int(votes / (LEAST_OVER_NOISE * chosen.sigma))
        way_out = f"generate.text.resample.clusters up to {most}" if most > 1 else "no generate.text.resample"
        reasons.append(_lost(votes, chosen.clusters, "cluster", chosen.sigma, "is taken", way_out))
        if chosen.pool == 1:
            reasons.append("every text is taken, so that votes cost and choose nothing; better: a larger pool")
    return "; ".join(filter(None, reasons)) or None


def _expected_votes(contract: DataContract) -> int:
    training = contract.generate.training
    if contract.privacy.multi_owner and training is not None and training.expected_records is not None:
        return training.expected_records
    return contract.privacy.expected_units


def _lost_sums(records: int, labels: int, sigma: float) -> str | None:
    from dpsynth_platform.synth.text.embeddings import FEATURES

    mean, noise = records / labels, sigma * math.sqrt(FEATURES)
    if mean >= noise:
        return None
    return (
        f"each label has about {mean:.3g} records, whose features add up to less than the noise of length {noise:.3g}: "
        "what gets a label is mostly random; better: no generate.text.resample"
    )


def _lost(votes: float, candidates: int, what: str, sigma: float, so: str, way_out: str) -> str | None:
    mean = votes / candidates
    if mean >= sigma:
        return None
    return (
        f"each {what} gets about {mean:.3g} votes, less than the noise of {sigma:.3g}: what {so} is mostly random; "
        f"better: {way_out}"
    )
