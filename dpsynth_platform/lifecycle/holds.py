"""Legal holds: what must not be deleted for now, however long ago its time was up.

What belongs here: placing and lifting a hold, and which holds stand. What does not: what is due (`retention`), and
deleting it (`purging`).

A hold is an event of the ledger's hash chain and nothing else: who, when and why stand there for ever and in every copy
of it, and a hold that somebody made away with would show in `dpsynth ledger verify`. Two may stand on one place, for
two reasons; it is free when the last is lifted.
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
    """One hold that stands.

    Attributes:
        number: of its event in the chain.
        place: what is held; without a period all of a dataset's periods.
        at: when it was placed, as the chain has it.
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
    """Places a hold; durable on return, and seen by every sweep that begins to delete afterwards."""
    payload = {"dataset": place.dataset, "period": place.period, "by": by, "reason": reason}
    return _hold(ledger.record(PLACED, place.label, payload))


def lift_hold(ledger: Ledger, place: Place, *, by: str, reason: str, number: int | None = None) -> Hold:
    """Lifts the hold on exactly this place, or of several the one of that number.

    Raises:
        NotFound: there is no such hold, or there are several and no number was given.
    """
    standing = holds(ledger)
    found = [hold for hold in standing if hold.place == place and number in (None, hold.number)]
    if len(found) != 1:
        known = ", ".join(f"{hold.number} on {hold.place.label}" for hold in found or standing) or "none"
        wanted = place.label if number is None else f"{place.label}, number {number}"
        raise NotFound(f"{'several holds' if found else 'no hold'} on {wanted}; holds that stand: {known}")
    (hold,) = found
    ledger.record(LIFTED, place.label, {"hold": hold.number, "by": by, "reason": reason})
    return hold


def holds(ledger: Ledger) -> list[Hold]:
    """The holds that stand now, oldest first."""
    events = ledger.history(kinds=[PLACED, LIFTED])
    lifted = {event.payload["hold"] for event in events if event.kind == LIFTED}
    return [_hold(event) for event in events if event.kind == PLACED and event.sequence not in lifted]


def covering(standing: Iterable[Hold], place: Place | None) -> Hold | None:
    """A hold that keeps a place's outputs, the oldest, or None. What is of no dataset (None) cannot be held."""
    return None if place is None else next((hold for hold in standing if hold.covers(place)), None)


def _hold(event: ChainEvent) -> Hold:
    payload = event.payload
    place = Place(payload["dataset"], payload["period"])
    return Hold(event.sequence, place, payload["by"], event.at, payload["reason"])
