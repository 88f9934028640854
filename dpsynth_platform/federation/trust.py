"""Who is protected against whom, in each of three trust models, from one sealed plan.

What belongs here: the guarantee against each party and what it rests on. What does not: how it is shown to people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dp_accounting import dp_event

from dpsynth_platform.federation.sums import SumPlan
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.units import check_epsilon_delta

Trust = Literal["central", "distributed", "local"]
TRUSTS: tuple[str, ...] = get_args(Trust)


@dataclass(frozen=True)
class Protection:
    """The guarantee of one unit of an honest participant against one party; no numbers where there is none.

    Attributes:
        party: `aggregator`, `participants` (as many together as may collude) or `recipient` (of the release).
        rests_on: what has to hold for it, in a word: `nothing` without a guarantee.
    """

    party: Literal["aggregator", "participants", "recipient"]
    epsilon: float | None
    delta: float | None
    rests_on: Literal["nothing", "noise-of-aggregator", "noise-of-honest-participants", "noise-of-report"]


def protections(
    trust: str, cost: Sequence[SumPlan] | DpEvent | float, delta: float, together: DpEvent | None = None
) -> tuple[Protection, ...]:
    """The guarantee against each party; no unit is protected from a participant that holds its records.

    - `central`: the aggregator sees the participants' sums, so there is no guarantee against it. All others see the
      release alone, which has the aggregator's noise.
    - `distributed`: the aggregator sees the sum of the finishing participants, with at least the honest ones' noise.
      Participants that collude, also with the aggregator, know their own shares and data, which leaves the same; the
      recipient sees no more. All have the guarantee of the plans' events, which count honest shares alone
      (`sums.SumPlan`). It is not larger against the recipient alone, as colluders may not have added their shares. A
      participant always knows its own share: a plan that counts no share as known promises nothing against one. Against
      all but the recipient it also rests on cryptography (`secure_sum`): with masks that are broken, a vector stands
      under its own share of noise alone.
    - `local`: a report is private before it leaves the unit; everything else is post-processing of all reports.

    Args:
        cost: what one unit's part in the whole run costs: the plans of all sums (`distributed`), the event of the
            aggregator's mechanism (`central`), or the pure epsilon over all of the unit's reports (`local`).
        together: with `distributed`, what all sums cost, where that is less than one after the other.

    Raises:
        AccountingError: an unknown trust model, or a cost that is not one of it.
    """
    if trust == "local" and isinstance(cost, float):
        check_epsilon_delta(cost, delta)
        return tuple(Protection(party, cost, 0.0, "noise-of-report") for party in _PARTIES)
    if trust == "distributed" and isinstance(cost, Sequence) and cost:
        event: DpEvent = together or dp_event.ComposedDpEvent([plan.event for plan in cost])
    elif trust == "central" and not isinstance(cost, (float, int, Sequence)):
        event = cost
    else:
        raise AccountingError(f"trust {trust!r} with another model's cost; accepted: {', '.join(TRUSTS)}")
    spent = epsilon(event, delta).epsilon
    if trust == "central":
        rest = tuple(Protection(party, spent, delta, "noise-of-aggregator") for party in _PARTIES[1:])
        return (Protection("aggregator", None, None, "nothing"), *rest)
    found = [Protection(party, spent, delta, "noise-of-honest-participants") for party in _PARTIES]
    if isinstance(cost, Sequence) and min(plan.colluders for plan in cost) == 0:
        found[1] = Protection("participants", None, None, "nothing")
    return tuple(found)


_PARTIES: tuple[Literal["aggregator", "participants", "recipient"], ...] = ("aggregator", "participants", "recipient")
