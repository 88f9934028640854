"""Charts of the console: a family's budget over time, and what owners have left.

What belongs here: laying out numbers of the views for `svg`, each with a sentence that says the same. What does not:
computing any of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from dpsynth_platform.console.views.families import OwnersView, SpentPoint
from dpsynth_platform.foundation import svg

_FEW_DAYS = 3.0
_ONE_DAY = 1.0
_SECONDS_A_DAY = 86_400.0


def budget_over_time(spend: Sequence[SpentPoint]) -> str:
    """Epsilon composed so far below the cap, as steps: a value holds until the next event, the last until now."""
    times = [dt.datetime.fromisoformat(point.at).timestamp() / _SECONDS_A_DAY for point in spend]
    end = max(dt.datetime.now(dt.UTC).timestamp() / _SECONDS_A_DAY, times[-1])
    span = end - times[0]
    form = "%H:%M" if span < _ONE_DAY else "%m-%d %H:%M" if span < _FEW_DAYS else "%Y-%m-%d"
    last = spend[-1]
    return svg.line_chart(
        [
            svg.Line("composed so far", *_steps(times, [point.epsilon for point in spend], end)),
            svg.Line("cap", *_steps(times, [point.cap for point in spend], end), dashed=True, colour="#9c2b23"),
        ],
        title="Budget over time",
        description=(
            f"Epsilon composed so far rose to {last.epsilon:.3g} in {len(spend)} events; the cap is now {last.cap:.3g}."
        ),
        x_label="time (UTC)",
        y_label="epsilon",
        x_words=lambda day: _moment(day, form),
    )


def owners_left(owners: OwnersView) -> str:
    """Shares of the charged owners by the epsilon that they have left."""
    labels = [f"{low:.2g} to {high:.2g}" for low, high, _ in owners.steps]
    return svg.bar_chart(
        labels,
        {"share of the charged owners": [share for _, _, share in owners.steps]},
        title="What owners have left",
        description="; ".join(
            f"{share:.0%} have epsilon {label} left"
            for label, (_, _, share) in zip(labels, owners.steps, strict=True)
            if share
        ),
        x_label="epsilon left at the cap's delta",
        y_label="share of the charged owners",
    )


def _steps(times: Sequence[float], values: Sequence[float], end: float) -> tuple[list[float], list[float]]:
    """Each value from its time until the next one."""
    following = [*times[1:], end]
    pairs = zip(times, following, strict=True)
    return [at for pair in pairs for at in pair], [value for value in values for _ in range(2)]


def _moment(day: float, form: str) -> str:
    return dt.datetime.fromtimestamp(day * _SECONDS_A_DAY, dt.UTC).strftime(form)
