"""Where one output lies: its directory, and what in it is for this user alone.

What belongs here: names of files, who may read them, one run at a time, and what a killed run left behind. What does
not: what is written (`run`).

    DIR/synthetic.parquet                the rows (.csv; for Delta a directory)
    DIR/statement.md, statement.json     the guarantee in words, and for programs
    DIR/restricted/ledger/               the budget, unless it lies elsewhere
    DIR/restricted/keys/                 for owners' fingerprints, the order of their records, and grants
    DIR/restricted/models/<entry>/       noisy measurements and the fitted model, by the entry that paid for them
    DIR/restricted/table.json            what later draws from the last run's model need to know
    DIR/restricted/work-<random>/        rows while a run needs them; gone afterwards
    DIR/restricted/logs/                 what libraries say when they fail
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpsynth_platform.foundation.errors import ConfigurationError, DpsynthError, file_problem
from dpsynth_platform.foundation.permissions import closed_directory, private_directory
from dpsynth_platform.foundation.redaction import UNEXPECTED, detached, safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, logs_of, new_log
from dpsynth_platform.secrets.vault import Vault

_T = TypeVar("_T")
_ODD = "%?#"
"""Characters that mean something else in the URLs by which Delta tables are found."""


@dataclass(frozen=True)
class Place:
    """An output's directory, held by one run at a time (`held`)."""

    root: Path

    @property
    def restricted(self) -> Path:
        """What is for this user alone."""
        return self.root / "restricted"

    @property
    def vault(self) -> Vault:
        """The keys."""
        return Vault(self.restricted / "keys")

    @property
    def ledger(self) -> Path:
        """Directory of the output's own ledger."""
        return self.restricted / "ledger"

    @property
    def models(self) -> Path:
        """Directory of the models."""
        return self.restricted / "models"

    def model(self, entry_id: str) -> Path:
        """Directory of the model that an entry pays for."""
        return self.models / entry_id

    @property
    def record(self) -> Path:
        """What the last run leaves for later draws."""
        return self.restricted / "table.json"

    def log(self) -> Path:
        """A path for a new log."""
        return new_log(logs_of(self.restricted), "synthesis")

    def guarded(self, body: Callable[[], _T]) -> _T:
        """What `body` returns; errors of libraries inside of it go to a log, and only their type is said.

        Raises:
            DpsynthError: those that are safe as they are, and one in place of any other; neither with a context.
        """
        try:
            return body()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the panics of libraries in Rust are no `Exception`
            caught = error
        # Out here nothing that fails can carry the error as its context.
        if isinstance(caught, DpsynthError):
            detached(caught)
            raise caught
        log = self.log()
        code, what = safe_error(caught)
        kept = keep_traceback(log, caught).replace(f"restricted log {log.name}", str(log))
        failure = DpsynthError(f"{'unexpected error: ' if code == UNEXPECTED else ''}{what} ({kept})")
        failure.code = code
        raise failure

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A directory for rows, which are gone when the block ends."""
        directory = private_directory(self.restricted / f"work-{secrets.token_hex(8)}")
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def held(root: Path) -> Iterator[Place]:
    """The output's directory, made where it is missing, for the length of a block; what a killed run left is deleted.

    Raises:
        ConfigurationError: it cannot be made or closed to others, or another run is at work in it.
    """
    place = Place(root)
    odd = sorted(set(_ODD) & set(str(root.resolve())))
    if odd:
        raise ConfigurationError(f"{root}: the path holds {' '.join(odd)}; accepted: one without {' '.join(_ODD)}")
    try:
        closed_directory(place.restricted)
        lock = (place.restricted / "lock").open("w")
    except OSError as error:
        problem = file_problem(error)
    else:
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another run is at work in this directory; wait for its end"
            else:
                for left in place.restricted.glob("work-*"):
                    shutil.rmtree(left, ignore_errors=True)
                yield place
                return
    raise ConfigurationError(f"{root}: {problem}; accepted: a directory that this user can write to")
