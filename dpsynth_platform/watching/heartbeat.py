"""The sign of life of `dpsynth watch`: a file with the time of its last complete look.

What belongs here: writing and judging the sign. What does not: the watch. A supervisor asks `dpsynth watch --check`;
`dpsynth health` asks too, once a watch has run.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably

QUIET = dt.timedelta(minutes=30)
"""Without a sign for so long the watch counts as dead. Look at least every quarter of an hour."""


def _file(settings: Settings) -> Path:
    return settings.home / "watch" / "heartbeat"


def write_sign(settings: Settings, now: dt.datetime) -> None:
    """Notes a complete look."""
    private_directory(_file(settings).parent)
    write_durably(_file(settings), now.isoformat())


def last_sign(settings: Settings) -> dt.datetime | None:
    """Time of the last complete look; None if there was none, or the file is damaged."""
    try:
        return dt.datetime.fromisoformat(_file(settings).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def has_run(settings: Settings) -> bool:
    """Whether a watch was ever started here."""
    return _file(settings).parent.is_dir()


def silence(settings: Settings, now: dt.datetime) -> str:
    """Why the watch counts as dead, in words; empty while it lives."""
    last = last_sign(settings)
    if last is None:
        return "the watch has not completed a look yet; start it: dpsynth watch"
    if now - last > QUIET:
        return f"the watch has completed no look since {moment(last.isoformat())}; start it again: dpsynth watch"
    return ""
