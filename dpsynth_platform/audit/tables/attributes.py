"""Attribute inference: does the release reveal a record's sensitive value better than the population does?

What belongs here: guessing one column from the others, by one classifier trained on the release and one trained on
people who are not in it. What does not: membership by all columns at once.

That a smoker is likelier to fall ill is a fact about the population, and teaching it is no privacy loss (Stadler,
Oprisanu & Troncoso 2022, section 3.3, privacy gain of attribute inference; Houssiau et al. 2022). A loss is only the
gain over a classifier that never saw the targets, and it must be larger for members.
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
"""Training rows of a classifier."""
_LEAST_PROBABILITY = 1e-6


@dataclass(frozen=True)
class AttributeInference:
    """Log-probability of a sensitive value by each classifier, and whether the likeliest is true; shape (targets,)."""

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
        """Log-ratio of the true value's probability; higher means rather in."""
        return self.from_release - self.from_population


@dataclass(frozen=True)
class Inferred:
    """Right guesses of a sensitive column for members and for others, from the release and `without` it.

    `p_value` is for those from the release (`copies.excess_p_value`).
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
        """The result as a sentence."""
        return (
            f"{self.column} is guessed right from the table for {self.members} of {self.of_members} members "
            f"({self.members_without} without it), and for {self.held_out} of {self.of_held_out} others "
            f"({self.held_out_without}; one-sided p-value of the difference {self.p_value:.2g})."
        )


def count_inferred(evidence: Evidence, included: Coins, column: str) -> Inferred:
    """How often a column is guessed right (`infer_attribute`), for members and for others.

    `included` are the members, shape (targets,). Raises `AccountingError` if one of the groups is empty.
    """
    if included.all() or not included.any():
        raise AccountingError(
            f"audit: {int(included.sum())} of {included.size} targets are members; accepted: members and others, whose "
            "guesses are compared"
        )
    found = infer_attribute(evidence, column)
    right, without = found.right_from_release, found.right_from_population
    members, of_members = int(right[included].sum()), int(included.sum())
    held_out, of_held_out = int(right[~included].sum()), int((~included).sum())
    return Inferred(
        column=column,
        members=members,
        members_without=int(without[included].sum()),
        of_members=of_members,
        held_out=held_out,
        held_out_without=int(without[~included].sum()),
        of_held_out=of_held_out,
        p_value=excess_p_value(members, of_members, held_out, of_held_out),
    )


def infer_attribute(evidence: Evidence, column: str) -> AttributeInference:
    """Guesses a column of every target from all others.

    Raises `AccountingError` if the column is not modelled, or there is no reference table of people who are not in the
    release.
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
    """Of every cell of the column, shape (targets, cells), by gradient-boosted trees trained on the rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    some = rows[np.random.default_rng().permutation(len(rows))[:MOST_ROWS]]
    classes = np.unique(some[:, index])
    # The hour and the weekday of a moment are hidden with it.
    own = [index, *(part for part, column in domain.parts.items() if column == index)]
    found = np.full((len(targets), domain.columns[index].size), _LEAST_PROBABILITY)
    if len(classes) == 1:
        found[:, classes[0]] = 1.0
    else:
        classifier = HistGradientBoostingClassifier(max_iter=40, early_stopping=False)
        classifier.fit(np.delete(some, own, axis=1), some[:, index])
        found[:, classes] = np.maximum(classifier.predict_proba(np.delete(targets, own, axis=1)), _LEAST_PROBABILITY)
    return np.asarray(np.log(found), dtype=np.float64)
