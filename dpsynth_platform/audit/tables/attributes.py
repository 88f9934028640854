"""Attribute inference: does the release tell a record's sensitive value better than knowledge of the population does?

What belongs here: guessing one column from the others, by a classifier that learned from the release and by one that
learned from people who are not in it. What does not: membership by all columns at once.

That a smoker is likelier to fall ill is a fact about people, and a release that teaches it betrays nobody (Stadler,
Oprisanu & Troncoso 2022, section 3.3, privacy gain of attribute inference; Houssiau et al. 2022). Only what the release
tells beyond a classifier that never saw the targets is a loss, and it must be larger for those who were in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.tables.copies import excess_p_value
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.domain import Codes, Domain

MOST_ROWS = 20_000
"""Rows that a classifier learns from."""
_LEAST_PROBABILITY = 1e-6


@dataclass(frozen=True)
class AttributeInference:
    """How well a sensitive column is guessed, by target.

    Attributes:
        from_release: log-probability of the true value by the classifier that learned from the release; shape
            (targets,).
        from_population: the same by the one that learned from the population.
        right_from_release: whether the likeliest value was the true one; shape (targets,).
        right_from_population: likewise.
    """

    from_release: Floats
    from_population: Floats
    right_from_release: npt.NDArray[np.bool_]
    right_from_population: npt.NDArray[np.bool_]

    @property
    def advantage(self) -> float:
        """Share of right guesses from the release less that from the population."""
        return float(self.right_from_release.mean() - self.right_from_population.mean())

    @property
    def scores(self) -> Floats:
        """How much likelier the release makes each target's true value; higher means rather in."""
        return self.from_release - self.from_population


@dataclass(frozen=True)
class Inferred:
    """How often a sensitive column is guessed right: for members and for others, from the release and without it.

    Attributes:
        members, held_out: how many are guessed right from the release.
        members_without, held_out_without: how many by what the population alone tells.
        p_value: probability of so many among the members, or more, if the release told no more of them than of others
            (`copies.excess_p_value`).
    """

    column: str
    members: int
    members_without: int
    of_members: int
    held_out: int
    held_out_without: int
    of_held_out: int
    p_value: float

    @property
    def words(self) -> str:
        """One sentence."""
        return (
            f"{self.column} is guessed right from the table for {self.members} of {self.of_members} who were in "
            f"({self.members_without} without it), and for {self.held_out} of {self.of_held_out} others "
            f"({self.held_out_without}; one-sided p-value of the difference {self.p_value:.2g})."
        )


def count_inferred(evidence: Evidence, included: Coins, column: str) -> Inferred:
    """How often a column is guessed right (`infer_attribute`), for members beside others.

    Args:
        evidence: as there.
        included: who was in, shape (targets,).
        column: name of the sensitive column.

    Raises:
        AccountingError: as there, or one of the groups is empty.
    """
    if included.all() or not included.any():
        raise AccountingError("audit: guesses of an attribute are compared with others'; accepted: some of either")
    found = infer_attribute(evidence, column)
    right, without = found.right_from_release, found.right_from_population
    counted = {"members": int(right[included].sum()), "held_out": int(right[~included].sum())}
    sizes = {"of_members": int(included.sum()), "of_held_out": int((~included).sum())}
    return Inferred(
        column=column,
        **counted,
        **sizes,
        members_without=int(without[included].sum()),
        held_out_without=int(without[~included].sum()),
        p_value=excess_p_value(counted["members"], sizes["of_members"], counted["held_out"], sizes["of_held_out"]),
    )


def infer_attribute(evidence: Evidence, column: str) -> AttributeInference:
    """Guesses a column of every target from all others.

    Args:
        evidence: with a reference table, whose people are not in the release.
        column: name of the sensitive column.

    Raises:
        AccountingError: the column is not modelled, or there is no reference table to compare with.
    """
    names = evidence.domain.names
    if column not in names or evidence.reference is None or len(names) < 2:
        raise AccountingError(
            f"audit: attribute inference of {column!r}; accepted: a modelled column beside others, and a reference "
            "table of people who are not in the release"
        )
    index = names.index(column)
    made, known = (
        _log_probabilities(evidence.domain, rows, evidence.target_codes, index)
        for rows in (evidence.synthetic_codes, evidence.population_codes)
    )
    truth = evidence.target_codes[:, index]
    targets = np.arange(len(truth))
    return AttributeInference(
        from_release=made[targets, truth],
        from_population=known[targets, truth],
        right_from_release=made.argmax(axis=1) == truth,
        right_from_population=known.argmax(axis=1) == truth,
    )


def _log_probabilities(domain: Domain, rows: Codes, targets: Codes, index: int) -> Floats:
    """Of every cell of the column, shape (targets, cells), by gradient-boosted trees that learned from the rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    some = rows[np.random.default_rng().permutation(len(rows))[:MOST_ROWS]]
    classes = np.unique(some[:, index])
    # The hour and the weekday of a moment are not known beside it.
    own = [index, *(part for part, column in domain.parts.items() if column == index)]
    found = np.full((len(targets), domain.columns[index].size), _LEAST_PROBABILITY)
    if len(classes) == 1:
        found[:, classes[0]] = 1.0
    else:
        classifier = HistGradientBoostingClassifier(max_iter=40, early_stopping=False)
        classifier.fit(np.delete(some, own, axis=1), some[:, index])
        found[:, classes] = np.maximum(classifier.predict_proba(np.delete(targets, own, axis=1)), _LEAST_PROBABILITY)
    return np.asarray(np.log(found), dtype=np.float64)
