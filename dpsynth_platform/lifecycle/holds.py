"""Legal holds: outputs that must not be deleted, although their retention is over.

What belongs here: placing, lifting and listing holds. What does not: which outputs are due (`retention`), and deleting
them (`purging`).

A hold is an event of the ledger's hash chain: it permanently records who, when and why, and `dpsynth ledger verify`
detects the removal of a hold. A place may have several holds; it is free when the last one is lifted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.store import Ledger

PLACED, LIFTED = "hold-placed", "hold-lifted"


@dataclass(frozen=True)
class Hold:
    """One active hold.

    Attributes:
        number: of its event in the chain.
        place: without a period, all of a dataset's periods.
        at: the time of the event in the chain.
    """

    number: int
    place: Place
    by: str
    at: str
    reason: str

    def covers(self, place: Place) -> bool:
        """Whether a place's outputs must stay."""
        return self.place.dataset == place.dataset and self.place.period in (None, place.period)


def place_hold(ledger: Ledger, place: Place, *, by: str, reason: str) -> Hold:
    """Places a hold; durable on return, and honoured by every deletion that begins afterwards."""
    payload = {"dataset": place.dataset, "period": place.period, "by": by, "reason": reason}
    return _hold(ledger.record(PLACED, place.label, payload))


def lift_hold(ledger: Ledger, place: Place, *, by: str, reason: str, number: int | None = None) -> Hold:
    """Lifts the hold on exactly this place, or the one with that number.

    Raises:
        NotFound: there is no such hold, or there are several and no number was given.
    """
    standing = holds(ledger)
    found = [hold for hold in standing if hold.place == place and number in (None, hold.number)]
    if len(found) != 1:
        known = ", ".join(f"{hold.number} on {hold.place.label}" for hold in found or standing) or "none"
        wanted = place.label if number is None else f"{place.label}, number {number}"
        raise NotFound(f"{'several holds' if found else 'no hold'} on {wanted}; active holds: {known}")
    (hold,) = found
    ledger.record(LIFTED, place.label, {"hold": hold.number, "by": by, "reason": reason})
    return hold


def holds(ledger: Ledger) -> list[Hold]:
    """The active holds, oldest first."""
    events = ledger.history(kinds=[PLACED, LIFTED])
    lifted = {event.payload["hold"] for event in events if event.kind == LIFTED}
    return [_hold(event) for event in events if event.kind == PLACED and event.sequence not in lifted]


def covering(standing: Iterable[Hold], place: Place | None) -> Hold | None:
    """The oldest hold on a place's outputs, or None. Files of no dataset (place None) cannot be held."""
    return None if place is None else next((hold for hold in standing if hold.covers(place)), None)


def _hold(event: ChainEvent) -> Hold:
    payload = event.payload
    place = Place(payload["dataset"], payload["period"])
    return Hold(event.sequence, place, payload["by"], event.at, payload["reason"])
