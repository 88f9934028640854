"""What survives a ledger beside a synthetic table: files that name entries and links which the ledger must have.

What belongs here: holding a ledger against them before a row is read. A ledger that was deleted, or replaced by an
older copy, would grant again what was spent. What does not: the same for a deployment (`backup.witnesses`), and what a
ledger says of itself (`ledger.verification`).

| file | what the ledger must have |
| --- | --- |
| OUT/restricted/models/<entry>/ | the entry, started or spent |
| OUT/restricted/table.json, OUT/statement.json | the entry, spent; the link that was the chain's last |
| LEDGER/head.json | the link that was the chain's last at the last reservation or the last end of a run |
| OUT/synthetic.parquet and the like | any entry that was started |

A run writes the ledger first and these files afterwards, so none of them is ahead of a ledger that lost nothing, at
whatever moment the run is killed. A file that cannot be read is no witness. Where the ledger is deleted with all of
them, nothing is left to notice it by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
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
from dpsynth_platform.one_table.place import Place
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.sources.table_files import Format

_HEAD = "head.json"
_ENTRY_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Witness:
    """One file.

    Attributes:
        entry_id: the entry that it names, if any.
        states: which the entry may be in by now.
        head: the chain's last link when it was written, if it says so.
    """

    path: Path
    entry_id: str | None = None
    states: tuple[str, ...] = (SPENT,)
    head: Head | None = None


def intact_ledger(place: Place, directory: Path) -> Ledger:
    """The ledger in a directory, if it is all that an output and the directory itself know of it.

    Raises:
        LedgerError: it is gone, older, another one, or was edited. No new one was made.
    """
    witnesses = [*_of_output(place), *_of_directory(directory)]  # read first: the ledger is written before them
    tables = _tables(place)
    url = embedded_ledger(directory.resolve())
    if not Path(str(make_url(url).database)).is_file() and (paid := [*(item.path for item in witnesses), *tables]):
        raise _lost(paid[0], "no ledger is there", directory)
    ledger = Ledger(url)
    events = ledger.history()
    if events and (problems := ledger.verify().problems):
        raise LedgerError(
            f"the ledger in {directory} is not as it was written: {problems[0]}. Nothing was read or spent. Accepted: "
            f"its latest state, put back from a backup. All that is wrong with it: DPSYNTH_LEDGER_URL={url} dpsynth "
            "ledger verify"
        )
    states = {entry.entry_id: entry.state for entry in ledger.entries()}
    known = KnownChain("it", {event.sequence: event.hash for event in events})
    for item in witnesses:
        if item.entry_id is not None and states.get(item.entry_id) not in item.states:
            said = f"entry {item.entry_id} is {states.get(item.entry_id, 'missing')}"
            raise _lost(item.path, said, directory)
        problem = known.problem(asdict(item.head)) if item.head is not None and item.head.sequence > 0 else None
        if problem is not None:
            raise _lost(item.path, f"the link that it names {problem}", directory)
    if tables and not set(states.values()) & {STARTED, SPENT}:
        raise _lost(tables[0], "it has paid for nothing", directory)
    return ledger


def note_head(directory: Path, ledger: Ledger) -> None:
    """Leaves the chain's last link beside the ledger, for all outputs that share it."""
    write_durably(directory / _HEAD, json.dumps(asdict(ledger.head())))


def _lost(path: Path, problem: str, directory: Path) -> LedgerError:
    return LedgerError(
        f"{path} was paid for, and the ledger in {directory} does not know it: {problem}. The ledger was deleted, is "
        "an older copy, or is another one, and would grant again what was spent. Nothing was read or spent. Accepted: "
        "the ledger that has paid, in its latest state (put it back, or name its directory with --ledger). Where it is "
        "lost for good, another --out begins anew, and what was spent here adds to it uncounted"
    )


def _of_output(place: Place) -> Iterator[Witness]:
    for path in (place.record, place.root / "statement.json"):
        document = _read(path)
        entry = document.get("entry_id", document.get("ledger_entry"))
        if isinstance(entry, str):
            yield Witness(path, entry, head=_head(document.get("ledger_head")))
    for path in sorted(place.models.glob("*")):
        if _ENTRY_ID.fullmatch(path.name):
            yield Witness(path, path.name, (STARTED, SPENT))


def _of_directory(directory: Path) -> Sequence[Witness]:
    head = _head(_read(directory / _HEAD))
    return [] if head is None else [Witness(directory / _HEAD, head=head)]


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


def _tables(place: Place) -> list[Path]:
    from dpsynth_platform.one_table.output import synthetic_path

    return [path for name in get_args(Format) if (path := synthetic_path(place.root, name)).exists()]
