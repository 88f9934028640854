"""What people say about a candidate, and who looks at it. Restricted: it is never published.

What belongs here: remarks and assignments of one candidate, kept durably in the restricted zone. What does not:
decisions, which the ledger records for ever. Nothing here changes what may be released.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass
from typing import Literal

from dpsynth_platform.foundation.errors import ReleaseRefused, StaleInput
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import HeldByAnother, Place, Storage, held, write_durably

MOST_REMARKS = 500
"""On one candidate."""
_STEP = "discussion"


@dataclass(frozen=True)
class Remark:
    """A comment, or the assignment of a candidate to the person that `text` names; `at` is ISO 8601, UTC."""

    kind: Literal["comment", "assignment"]
    by: str
    at: str
    text: str


def remarks(settings: Settings, place: Place, candidate: str) -> tuple[Remark, ...]:
    """All remarks on a candidate, by its digest, the newest last. Raises `StaleInput` if their file is damaged."""
    path = Storage(settings.restricted).location(place, _STEP) / f"{candidate[:16]}.json"
    try:
        return tuple(Remark(**item) for item in json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ()
    except (ValueError, TypeError):
        raise StaleInput(f"{place.label}: the remarks on its candidate are damaged; restore or remove {path}") from None


def assigned(found: tuple[Remark, ...]) -> str | None:
    """Who looks at the candidate, by the last assignment."""
    return next((item.text for item in reversed(found) if item.kind == "assignment"), None)


def comment(settings: Settings, place: Place, candidate: str, by: str, text: str) -> Remark:
    """Adds a comment. Raises `ConfigurationError` for an empty or too long one, or one with control characters."""
    return _add(
        settings,
        place,
        candidate,
        Remark("comment", recorded_name(by, "who comments"), _now(), recorded(text, "the comment")),
    )


def assign(settings: Settings, place: Place, candidate: str, by: str, to: str) -> Remark:
    """Assigns a candidate to a person. Raises `ConfigurationError` for what is no name."""
    who = recorded_name(to, "who is to look at it")
    return _add(settings, place, candidate, Remark("assignment", recorded_name(by, "who assigns"), _now(), who))


def _add(settings: Settings, place: Place, candidate: str, remark: Remark) -> Remark:
    directory = private_directory(Storage(settings.restricted).location(place, _STEP))
    try:
        with held(directory):
            found = remarks(settings, place, candidate)
            if len(found) >= MOST_REMARKS:
                raise ReleaseRefused(f"{place.label}: its candidate has {MOST_REMARKS} remarks; no more are kept")
            text = json.dumps([asdict(item) for item in (*found, remark)], indent=1, ensure_ascii=False)
            write_durably(directory / f"{candidate[:16]}.json", text)
    except HeldByAnother:
        raise ReleaseRefused(f"{place.label}: another remark is just being written. Send yours again") from None
    return remark


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
