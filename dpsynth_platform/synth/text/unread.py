"""Whether an interrupted mechanism had read a record: the file exists as long as it had not.

What belongs here: the file. What does not: continuing after records were read (`training.journal`,
`synth.evolution.journal`, `resampling`).

A language model is loaded and tried before the first record is read, which fails if a device is in use or too small.
Nothing was drawn by then, so that the same ledger entry may begin again. One process deletes the file, durably, before
the first record is read: if it is missing, for any reason, nothing begins again.
"""

from __future__ import annotations

from pathlib import Path

from dpsynth_platform.foundation.errors import ResumeRefused
from dpsynth_platform.foundation.storage import sync, write_durably

FILE_NAME = "unread"


def declare_unread(directory: Path) -> None:
    """Declares that no record was read for a model directory whose ledger entry was claimed just now."""
    write_durably(directory / FILE_NAME, "")


def is_unread(directory: Path) -> bool:
    """Whether no record was read for a model directory."""
    return (directory / FILE_NAME).is_file()


def begin_reading(directory: Path) -> None:
    """Allows records to be read; durable on return. Raises `ResumeRefused` if another process was first."""
    try:
        (directory / FILE_NAME).unlink()
    except FileNotFoundError:
        raise ResumeRefused("another process is at work on this model; wait for its end, or end it") from None
    sync(directory)
