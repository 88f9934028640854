"""What people say about a candidate, and who looks at it. Restricted: it is never published.

What belongs here: remarks and assignments of one candidate, kept durably in the restricted zone. What does not:
decisions, which the ledger records for ever. Nothing here changes what may be released.
"""

from __future__ import annotations

import datetime as dt
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dpsynth_platform.foundation.errors import ReleaseRefused, StaleInput
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import HeldByAnother, held, write_durably

MOST_REMARKS = 500
"""On one candidate."""
NAME = "discussion"
"""Directory of the restricted zone, with a file for each candidate by its digest."""


@dataclass(frozen=True)
class Remark:
    """A comment, or the assignment of a candidate to the person that `text` names; `at` is ISO 8601, UTC."""

    kind: Literal["comment", "assignment"]
    by: str
    at: str
    text: str


def remarks(settings: Settings, candidate: str) -> tuple[Remark, ...]:
    """All remarks on a candidate, by its digest, the newest last; none from a damaged file, which stops no decision."""
    with suppress(StaleInput):
        return _read(_path(settings, candidate))
    return ()


def _read(path: Path) -> tuple[Remark, ...]:
    try:
        return tuple(Remark(**item) for item in json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ()
    except (ValueError, TypeError):
        raise StaleInput(f"{path}: the remarks on a candidate are damaged; restore or remove the file") from None


def assigned(found: tuple[Remark, ...]) -> str | None:
    """Who looks at the candidate, by the last assignment."""
    return next((item.text for item in reversed(found) if item.kind == "assignment"), None)


def comment(settings: Settings, candidate: str, by: str, text: str) -> Remark:
    """Adds a comment.

    Raises:
        ConfigurationError: it is empty, too long, or has control characters.
        StaleInput: the candidate's file is damaged. It is left as it is.
        ReleaseRefused: there are too many, or another one is being written.
    """
    return _add(
        settings,
        candidate,
        Remark("comment", recorded_name(by, "who comments"), _now(), recorded(text, "the comment")),
    )


def assign(settings: Settings, candidate: str, by: str, to: str) -> Remark:
    """Assigns a candidate to a person. Raises like `comment`, for what is no name."""
    who = recorded_name(to, "who is to look at it")
    return _add(settings, candidate, Remark("assignment", recorded_name(by, "who assigns"), _now(), who))


def _add(settings: Settings, candidate: str, remark: Remark) -> Remark:
    path = _path(settings, candidate)
    try:
        with held(private_directory(path.parent)):
            found = _read(path)
            if len(found) >= MOST_REMARKS:
                raise ReleaseRefused(f"this candidate has {MOST_REMARKS} remarks; no more are kept")
            text = json.dumps([asdict(item) for item in (*found, remark)], indent=1, ensure_ascii=False)
            write_durably(path, text)
    except HeldByAnother:
        raise ReleaseRefused("another remark is just being written; send yours again") from None
    return remark


def _path(settings: Settings, candidate: str) -> Path:
    return settings.restricted / NAME / f"{candidate}.json"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
