"""The directory of one output, with its restricted part.

What belongs here: names and permissions of files, one run at a time, and cleaning up after a killed run. What does not:
the content of files (`run`).

    DIR/synthetic.parquet                the rows (.csv; for Delta a directory)
    DIR/statement.md, statement.json     the guarantee in words, and for programs
    DIR/restricted/ledger/               the budget, unless --ledger names another directory
    DIR/restricted/keys/                 for owners' fingerprints, the order of their records, and grants
    DIR/restricted/models/<entry>/       noisy measurements and the fitted model, by the entry that paid for them
    DIR/restricted/table.json            facts for later draws from the last run's model
    DIR/restricted/work-<random>/        rows while a run needs them; deleted at its end
    DIR/restricted/rows-<entry>/         those of an interrupted mechanism, until it is complete or they expire
    DIR/restricted/logs/                 output and tracebacks of libraries
"""

from __future__ import annotations

import datetime as dt
import fcntl
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpsynth_platform.foundation.errors import ConfigurationError, file_problem
from dpsynth_platform.foundation.permissions import closed_directory, private_directory
from dpsynth_platform.foundation.redaction import safely
from dpsynth_platform.foundation.restricted_log import keep_traceback, logs_of, new_log
from dpsynth_platform.foundation.storage import EXAMPLES, HANDED, unusable_place
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.sources.table_files import Format

_T = TypeVar("_T")
SYNTHETIC, ANSWERS = "synthetic", "answers"
"""Names of an output's tables, of which a directory can have both."""
STATEMENT, ANSWERS_STATEMENT = "statement", "answers-statement"
ROWS, BOUNDED, EXCHANGES = "rows-", "bounded", "exchanges"
"""Beginning of a directory's name, and the table in it that a mechanism reads."""
KEPT_DAYS = 7
"""The time-to-live of the rows of an interrupted mechanism, from its last progress on: the next command deletes them
then."""
_SUFFIXES: dict[Format, str] = {"parquet": ".parquet", "csv": ".csv", "delta": ""}


@dataclass(frozen=True)
class Place:
    """An output's directory, locked by one run at a time (`held`)."""

    root: Path

    @property
    def restricted(self) -> Path:
        return self.root / "restricted"

    @property
    def vault(self) -> Vault:
        return Vault(self.restricted / "keys")

    @property
    def ledger(self) -> Path:
        return self.restricted / "ledger"

    @property
    def models(self) -> Path:
        return self.restricted / "models"

    def model(self, entry_id: str) -> Path:
        return self.models / entry_id

    def rows(self, entry_id: str) -> Path:
        return self.restricted / f"{ROWS}{entry_id}"

    @property
    def record(self) -> Path:
        return self.restricted / "table.json"

    def guarded(self, body: Callable[[], _T]) -> _T:
        """Calls `body`; a library's error goes to a log, and a safe one with its type is raised without context."""

        def keep(error: BaseException) -> str:
            log = new_log(logs_of(self.restricted), "synthesis")
            return keep_traceback(log, error).replace(f"restricted log {log.name}", str(log))

        return safely(body, keep)

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A directory for rows, which is deleted at the end of the block."""
        directory = private_directory(self.restricted / f"work-{secrets.token_hex(8)}")
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def synthetic_path(root: Path, format_: Format, name: str = SYNTHETIC) -> Path:
    """The path of an output's table."""
    return root / f"{name}{_SUFFIXES[format_]}"


def _expire(place: Place) -> None:
    """Deletes rows whose mechanism has written no file for so long, and what was said in a run that has not gone on.

    Times of directories say nothing: they change with what is deleted.
    """
    for rows in place.restricted.glob(f"{ROWS}*"):
        model = place.model(rows.name.removeprefix(ROWS))
        written = [file.stat().st_mtime for file in (rows / "plan.json", *model.rglob("*")) if file.is_file()]
        if time.time() - max(written, default=0.0) > dt.timedelta(days=KEPT_DAYS).total_seconds():
            shutil.rmtree(rows, ignore_errors=True)
    exchanges = place.restricted / EXCHANGES
    said = [file.stat().st_mtime for file in exchanges.glob("*")]
    if time.time() - max(said, default=0.0) > dt.timedelta(days=KEPT_DAYS).total_seconds():
        shutil.rmtree(exchanges, ignore_errors=True)


@contextmanager
def held(root: Path) -> Iterator[Place]:
    """Makes and locks the output's directory for the block, and deletes what a killed run left."""
    place = Place(root)
    unusable = unusable_place(root.resolve())
    if unusable is not None:
        raise ConfigurationError(f"{root}: {unusable}")
    try:
        closed_directory(place.restricted)
        # The output may lie in somebody's repository, and `git add` takes keys and rows, too.
        (place.restricted / ".gitignore").write_text("*\n", encoding="utf-8")
        lock = (place.restricted / "lock").open("w")
    except OSError as error:
        problem = file_problem(error)
    else:
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another run uses this directory; wait for its end"
            else:
                _expire(place)
                sorted_rows, tokens = place.models.glob(f"*{HANDED}"), place.models.glob(f"*/{EXAMPLES}")
                for left in (*place.restricted.glob("work-*"), *sorted_rows, *tokens):
                    shutil.rmtree(left, ignore_errors=True)
                yield place
                return
    raise ConfigurationError(f"{root}: {problem}; accepted: a directory that this user can write to")
