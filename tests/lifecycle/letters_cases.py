"""What the tests of deletion share: a dataset of letters that nothing reads, and a deployment that has a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place

PLACE = Place("letters")
LETTERS: dict[str, Any] = {
    "dataset": "letters",
    "description": "Letters.",
    "owners": ["tests@example.org"],
    "source": {"uri": "unused", "key": ["person"]},
    "family": "letters",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person"],
        "namespace": "person",
        "max_contributions": 1,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    },
    "columns": {"person": {"type": "identifier"}, "one": {"type": "boolean"}, "two": {"type": "boolean"}},
    "generate": {"rows": 10},
    "release": {"uri": "unused"},
}


def with_ledger(home: Path) -> Settings:
    """A deployment where a ledger may be made."""
    made = Settings.from_environment({"DPSYNTH_HOME": str(home)})
    made.ledger.mkdir(parents=True)
    return made
