"""Files beside a ledger that name entries and chain links which the ledger must contain.

What belongs here: checking a ledger against them before a row is read. A ledger that was deleted, or replaced by an
older copy, would permit spending a second time. What does not: the same for a deployment (`backup.witnesses`), and a
ledger's own verification (`ledger.verification`).

| file | what the ledger must have |
| --- | --- |
| OUT/restricted/models/<entry>/ | the entry, started or spent |
| OUT/restricted/table.json, OUT/statement.json, OUT/answers-statement.json | the entry, spent; the link then last |
| LEDGER/head.json | the link that was the chain's last at the last reservation or the last end of a run |
| OUT/synthetic.parquet, .csv, synthetic; OUT/answers likewise | any entry that was started |

A run writes the ledger before these files: none of them is ahead of an intact ledger, even if the run is killed. An
unreadable file counts as missing. Nothing detects a ledger that was deleted together with all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from sqlalchemy.engine import make_url

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.settings import embedded_ledger
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.ledger.chain import SPENT, STARTED
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table.place import ANSWERS, ANSWERS_STATEMENT, STATEMENT, SYNTHETIC, Place, synthetic_path
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.sources.table_files import Format

_HEAD = "head.json"
_ENTRY_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Witness:
    """One file, with the entry that it names and the possible states of that, and the chain's last link then."""

    path: Path
    entry_id: str | None = None
    states: tuple[str, ...] = (SPENT,)
    head: Head | None = None


def is_missing(place: Place, directory: Path) -> bool:
    """Whether there is no ledger yet. Raises `LedgerError` if the output's or the directory's files name one."""
    if Path(str(make_url(embedded_ledger(directory.resolve())).database)).is_file():
        return False
    if paid := [*(item.path for item in _witnesses(place, directory)), *_tables(place)]:
        raise _lost(paid[0], "no ledger is there", directory)
    return True


def intact_ledger(place: Place, directory: Path) -> Ledger:
    """The ledger in a directory, if it contains everything that the output's and the directory's files name.

    Raises `LedgerError`, and makes no new one, if it is missing, older, another one, or was edited.
    """
    is_missing(place, directory)
    witnesses = list(_witnesses(place, directory))  # read first: the ledger is written before them
    tables = _tables(place)
    url = embedded_ledger(directory.resolve())
    ledger = Ledger(url)
    events = ledger.history()
    if events and (problems := ledger.verify().problems):
        raise LedgerError(
            f"the ledger in {directory} is not as it was written: {problems[0]}. Nothing was read or spent. Accepted: "
            f"its latest state, restored from a backup. List all problems with: DPSYNTH_LEDGER_URL={url} dpsynth "
            "ledger verify"
        )
    states = {entry.entry_id: entry.state for entry in ledger.entries()}
    known = KnownChain("it", {event.sequence: event.hash for event in events})
    for item in witnesses:
        if item.entry_id is not None and states.get(item.entry_id) not in item.states:
            found = f"entry {item.entry_id} is {states.get(item.entry_id, 'missing')}"
            raise _lost(item.path, found, directory)
        problem = known.problem(asdict(item.head)) if item.head is not None and item.head.sequence > 0 else None
        if problem is not None:
            raise _lost(item.path, f"the link that it names {problem}", directory)
    if tables and not set(states.values()) & {STARTED, SPENT}:
        raise _lost(tables[0], "it has paid for nothing", directory)
    return ledger


def note_head(directory: Path, ledger: Ledger) -> None:
    """Writes the chain's last link beside the ledger, for all outputs that share it."""
    write_durably(directory / _HEAD, json.dumps(asdict(ledger.head())))


def _lost(path: Path, problem: str, directory: Path) -> LedgerError:
    return LedgerError(
        f"{path} was paid for, and the ledger in {directory} does not know it: {problem}. The ledger was deleted, is "
        "an older copy, or is another one, and would permit spending a second time. Nothing was read or spent. "
        "Accepted: the ledger that has paid, in its latest state (restore it, or name its directory with --ledger). If "
        "it is lost, start with another --out; the cost spent here then adds to that uncounted"
    )


def _tables(place: Place) -> list[Path]:
    paths = (synthetic_path(place.root, of, name) for of in get_args(Format) for name in (SYNTHETIC, ANSWERS))
    return [path for path in paths if path.exists()]


def _witnesses(place: Place, directory: Path) -> Iterator[Witness]:
    stated = (place.root / f"{name}.json" for name in (STATEMENT, ANSWERS_STATEMENT))
    for path in (place.record, *stated):
        document = _read(path)
        entry = document.get("entry_id", document.get("ledger_entry"))
        if isinstance(entry, str):
            yield Witness(path, entry, head=_head(document.get("ledger_head")))
    for path in sorted(place.models.glob("*")):
        if _ENTRY_ID.fullmatch(path.name):
            yield Witness(path, path.name, (STARTED, SPENT))
    if (last := _head(_read(directory / _HEAD))) is not None:
        yield Witness(directory / _HEAD, head=last)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _head(document: Any) -> Head | None:
    try:
        return Head(int(document["sequence"]), str(document["hash"]))
    except (KeyError, TypeError, ValueError):
        return None
