"""A ledger of the first version comes up to the present one with everything that it held."""

import pytest
from alembic import command
from alembic.config import Config
from deploy_cases import deployment, spend, spent
from ledger_cases import people
from sqlalchemy import MetaData, create_engine, insert, select

from dpsynth_platform.ledger import Ledger, database, schema

FIRST = (schema.event, schema.account, schema.entry, schema.participants)


@pytest.fixture(params=["sqlite", "postgresql"])
def old_url(request, tmp_path):
    """Where the old ledger is."""
    if request.param == "postgresql":
        return request.getfixturevalue("new_postgresql")()
    (tmp_path / "old").mkdir(mode=0o700)
    return f"sqlite:///{tmp_path / 'old' / 'ledger.db'}"


def as_of_the_first_version(url, now):
    """Writes what a ledger holds as the first version would have held it: without what later ones have added."""
    config = Config()
    config.set_main_option("script_location", str(database._MIGRATIONS))
    with create_engine(url).begin() as old, create_engine(now).connect() as new:
        config.attributes["connection"] = old
        command.upgrade(config, "0001")
        tables = MetaData()
        tables.reflect(old)
        for table in FIRST:
            was = tables.tables[table.name]
            order = (schema.entry.c.attempt,) if table is schema.entry else table.primary_key.columns
            rows = new.execute(select(*(table.c[column.name] for column in was.columns)).order_by(*order)).mappings()
            old.execute(insert(was), [dict(row) for row in rows])
        assert "cost" not in tables.tables["entry"].columns
        assert "standing" not in tables.tables


def rows_of(url):
    with create_engine(url).connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table)).all()))
            for table in (*FIRST, schema.standing)
        }


def test_a_ledger_of_the_first_version_is_carried_over_whole(old_url, tmp_path):
    """What later versions keep beside the chain is what they would have kept from the beginning."""
    settings = spent(deployment(tmp_path / "home"))
    for number in range(3):
        spend(settings, "each", f"more-{number}", people(number, number + 1))
    as_of_the_first_version(old_url, settings.ledger_url)
    upgraded = Ledger(old_url)
    assert upgraded.verify([Ledger(settings.ledger_url).head()]).ok
    assert rows_of(old_url) == rows_of(settings.ledger_url)
    assert upgraded.used_of_all() == Ledger(settings.ledger_url).used_of_all()
    entry = upgraded.reserve("everyone", "later", upgraded.entries("everyone")[0].request, None, "compose")
    assert upgraded.start(entry.entry_id).state == "started"
