"""Plots of an audit as static SVG: ROC curves and scores.

What belongs here: drawing numbers that an audit has computed from canaries. What does not: computing bounds or
verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.bounds import Coins, roc_curve
from dpsynth_platform.audit.risk import frontier_curve
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


def score_plot(item: Scored, included: Coins) -> str:
    """Histogram of one attack's scores, included canaries over held-out ones."""
    return histogram(
        {"included": item.scores[included].tolist(), "held out": item.scores[~included].tolist()},
        title=f"Scores of the canaries: {item.attack.name}",
        description=f"{item.attack.describes}. The more the groups overlap, the less the {item.attack.target} reveals.",
        x_label="score (higher: rather in)",
    )
