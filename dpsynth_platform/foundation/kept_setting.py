"""Which of a contract's candidate settings a mechanism kept, for readers.

What belongs here: what tells the kept setting from the others, by declared values alone. What does not: the choice
(`synth.tuning`). Verifiers need this module without contracts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def kept_setting(candidates: Sequence[Mapping[str, Any]], kept: int) -> dict[str, Any]:
    """The kept candidate's number from 1, its method, and its keys that differ from candidates of the same method.

    Args:
        candidates: as in a contract's `generate.tune`, as JSON.
        kept: index of the kept one.

    Raises:
        IndexError: there is no such candidate.
    """
    method = candidates[kept]["method"]
    alike = [dict(_values(each)) for each in candidates if each["method"] == method]
    own = dict(_values(candidates[kept]))
    keys = {key: value for key, value in sorted(own.items()) if any(each.get(key) != value for each in alike)}
    shown = "".join(f"; {key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in keys.items())
    return {"number": kept + 1, "method": method, "keys": keys, "in_words": f"{kept + 1} ({method}{shown})"}


def _values(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a part by their paths; lists are values."""
    for key, value in part.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
