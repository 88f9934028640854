"""Plots of an audit as static SVG: ROC curves and scores.

What belongs here: drawing numbers that an audit has computed. What does not: computing bounds or
verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.bounds import Coins, roc_curve
from dpsynth_platform.audit.risk import frontier_curve
from dpsynth_platform.audit.texts.synbench import RATES, Evaluation, bound_curve
from dpsynth_platform.foundation.svg import Line, histogram, line_chart

_GREY, _BLACK = "#6e7781", "#24292f"


def roc_plot(scored: Sequence[Scored], included: Coins, *, epsilon: float | None = None, delta: float = 0.0) -> str:
    """True against false positive rates of every attack on logarithmic scales, with a mark at one percent.

    Scores that are not numbers have no line. With an `epsilon`, the claim's frontier is drawn, too.
    """
    least = 1 / max(2, included.size)
    lines = [Line("guessing", [least, 1.0], [least, 1.0], dashed=True, colour=_GREY)]
    if epsilon is not None:
        rates, allowed = frontier_curve(epsilon, delta, least)
        lines.append(Line("most the claim allows", rates.tolist(), allowed.tolist(), dashed=True, colour=_BLACK))
    for item in scored:
        if not np.isnan(item.scores).any():
            alarms, hits = roc_curve(item.scores, included)
            lines.append(Line(item.attack.name, alarms.tolist(), hits.tolist()))
    return line_chart(
        lines,
        title="Can an attacker tell which canaries were in?",
        description=(
            "True positive rate against false positive rate of each attack, both on logarithmic scales. Lines near "
            "the dashed diagonal are no better than guessing. The other dashed line is the most that the claim allows; "
            "at few false alarms, a line may exceed it at random."
        ),
        x_label="false positive rate",
        y_label="true positive rate",
        log=True,
        x_mark=(0.01, "1%"),
    )


def synbench_plot(found: Evaluation) -> str:
    """The mean ROC curve of SynBench's attack with the band of its repeats, and the claim's bound if there is one."""
    rates = RATES.tolist()
    lines = [
        Line("guessing", [0.0, 1.0], [0.0, 1.0], dashed=True, colour=_GREY),
        Line("mean of repeats", rates, found.curve.mean),
        *(Line(f"{end} of 95%", rates, line, dashed=True) for end, line in _band(found)),
    ]
    if found.epsilon is not None:
        allowed = bound_curve(found.epsilon, found.delta).tolist()
        lines.append(Line(f"bound of epsilon {found.epsilon:g}", rates, allowed, dashed=True, colour=_BLACK))
    return line_chart(
        lines,
        title="SynBench's attack: which releases read their target?",
        description=(
            "True positive rate against false positive rate, the mean of repeated draws of targets for releases "
            "without one. The repeats share their releases: a curve above the bound alone proves nothing."
        ),
        x_label="false positive rate",
        y_label="true positive rate",
    )


def _band(found: Evaluation) -> list[tuple[str, Sequence[float]]]:
    return [("lower end", found.curve.low), ("upper end", found.curve.high)]


def score_plot(item: Scored, included: Coins) -> str:
    """Histogram of one attack's scores, included canaries over held-out ones."""
    return histogram(
        {"included": item.scores[included].tolist(), "held out": item.scores[~included].tolist()},
        title=f"Scores of the canaries: {item.attack.name}",
        description=f"{item.attack.describes}. The more the groups overlap, the less the {item.attack.target} reveals.",
        x_label="score (higher: rather in)",
    )
