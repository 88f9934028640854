"""What each process of `test_ledger_races` does; imported once by a fork server, so that hundreds start quickly."""

import os

import alembic.command  # noqa: F401  here, so that the fork server has all that opening a ledger needs
import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401
from ledger_cases import KEYS, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.ledger import Ledger

RACE_RHO = 0.004
LIFE_RHO = 2e-6  # the cap, above 0.1 of it, pays for 50,000 starts: more than any pause of who kills them lets happen

request(RACE_RHO)  # imports what accounting needs


def race(url, name, turns, told):
    """Asks `turns` times, starts what is granted, and tells how many were granted and refused."""
    ledger = Ledger(url)
    granted = refused = 0
    for turn in range(turns):
        try:
            cost = request(RACE_RHO, plan=f"{name}-{turn}")
            entry = ledger.reserve("everyone", f"{name}-{turn}", cost, None, "compose")
        except BudgetExceeded as refusal:
            assert "does not fit under the cap of family everyone" in str(refusal)
            refused += 1
            continue
        ledger.start(entry.entry_id)
        granted += 1
    tell(told, f"{granted} {refused}")


def live(url, name, told):
    """Whole lives of entries, on and on; tells each start after it returned."""
    ledger = Ledger(url)
    for turn in range(1_000_000):
        family = ("everyone", "each")[turn % 2]
        cost = request(LIFE_RHO, plan=f"{name}-{turn}")
        entry = ledger.reserve(family, f"{name}-{turn}", cost, people(turn % 7, 50), "compose", key_ids=KEYS)
        ledger.start(entry.entry_id)
        tell(told, entry.entry_id)
        if turn % 3:
            ledger.complete(entry.entry_id, "m")


def tell(path, line):
    """One write to the end of a file: whole, whenever the process dies."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
