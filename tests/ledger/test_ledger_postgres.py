"""The same ledger on a PostgreSQL server of the tests' own. Skipped where none is installed, but in CI that fails."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from ledger_cases import KEYS, family, people, request
from ledger_forks import outputs
from sqlalchemy import create_engine
from test_ledger_processes import RACE, START

from dpsynth_platform.foundation.errors import BudgetExceeded, SpendRepeated
from dpsynth_platform.ledger import Ledger, schema


@pytest.fixture
def url(postgresql_url):
    return postgresql_url


def test_a_whole_life(ledger, url):
    cost = request(0.2)
    first = ledger.reserve("everyone", "k", cost, people(1, 2), "compose", key_ids=KEYS)
    ledger.start(first.entry_id)
    with pytest.raises(SpendRepeated):
        ledger.start(first.entry_id)
    ledger.complete(first.entry_id, "m")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("everyone", "l", request(0.2, plan="l"), None, "compose")
    assert len(Ledger(url).participants(first.entry_id)) == 2
    assert [event.kind for event in ledger.history()] == ["opened", "opened", "reserved", "started", "spent", "blocked"]
    assert ledger.verify([ledger.head()]).ok


def test_replaced_rows_are_said_to_stay(ledger):
    assert "PostgreSQL keeps replaced rows until it has vacuumed their tables" in ledger.erase_replaced()


def test_migrations_arrive_at_the_same_tables(url):
    Ledger(url)
    with create_engine(url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_racing_processes_never_overspend(processes, url):
    alone = Ledger(url)
    alone.open_account(family("f", mode="family"), KEYS)
    sealed, curve = alone.account("f").filter, request(0.05).curve
    expected = next(count for count in range(1, 100) if not sealed.fits([(curve, 0.0)] * (count + 1)))
    found = outputs(processes.run(RACE, *([url, who, "family"] for who in range(4))))
    assert sum(len(told) - 1 for told in found) == expected
    assert alone.verify().ok


def test_processes_that_open_an_empty_ledger_together_agree(processes, url):
    outputs(processes.run(RACE, *([url, who, "per-owner"] for who in range(3))))
    ledger = Ledger(url)
    assert len(ledger.accounts()) == 1
    assert len(ledger.entries()) == 18
    assert ledger.verify().ok


def test_an_entry_starts_in_one_process_only(processes, ledger, url):
    entry = ledger.reserve("everyone", "k", request(), people(1), "compose", key_ids=KEYS)
    found = outputs(processes.run(START, *[[url, entry.entry_id]] * 3))
    assert sorted(found) == [["repeated"]] * 2 + [["started"]]
