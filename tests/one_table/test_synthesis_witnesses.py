"""A ledger beside a table that was lost, is older or was edited, and what a run that fails early seals: nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_runs import Runs
from synthesis_cases import SCHEMA, Make, people

from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.foundation.errors import BudgetExceeded, DpsynthError, LedgerError
from dpsynth_platform.foundation.settings import embedded_ledger
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import Synthesis, more_rows, rows, run
from dpsynth_platform.one_table.more_rows import paid_model
from dpsynth_platform.synth.tabular.mst import Mst
from dpsynth_platform.synth.undeployed import FAMILY


@pytest.fixture
def made(make: Make) -> Synthesis:
    return make(cap_epsilon=9.0)


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "bounded_rows", lambda *_: pytest.fail("rows were read"))


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# Lost, older, other, edited


def is_refused(make: Make, words: str, **options: Any) -> str:
    """The next run reads no row and leaves no new ledger entry; nor are further rows drawn."""
    with pytest.raises(LedgerError, match=words) as caught:
        make(**({"epsilon": 1.0} | options))
    assert "Nothing was read or spent. Accepted: " in str(caught.value)
    return str(caught.value)


def lose_ledger(out: Path) -> None:
    shutil.rmtree(out / "restricted" / "ledger")


def lose_database(out: Path) -> None:
    for path in (out / "restricted" / "ledger").glob("ledger.db*"):
        path.unlink()


def empty_database(out: Path) -> None:
    lose_database(out)
    (out / "restricted" / "ledger" / "ledger.db").touch()


def lose_restricted(out: Path) -> None:
    shutil.rmtree(out / "restricted")


def lose_all_but_the_table(out: Path) -> None:
    lose_restricted(out)
    for path in out.glob("statement.*"):
        path.unlink()


@pytest.mark.parametrize("lose", [lose_ledger, lose_database, empty_database, lose_restricted, lose_all_but_the_table])
def test_a_ledger_that_is_gone_is_noticed_by_what_remains(
    make: Make, made: Synthesis, tmp_path: Path, no_reading: None, lose: Callable[[Path], None]
) -> None:
    lose(tmp_path / "out")
    is_refused(make, r"was paid for, and the ledger in .* does not know it")
    is_refused(make, r"was paid for", epsilon=4.0)
    assert lose is empty_database or not (tmp_path / "out" / "restricted" / "ledger" / "ledger.db").exists()


def test_an_edited_schema_is_not_granted_again(make: Make, made: Synthesis, tables: Path, tmp_path: Path) -> None:
    """The reported case: the statement would say that no other run exists."""
    lose_ledger(tmp_path / "out")
    (tables / "people.yaml").write_text(SCHEMA.replace("max: 99", "max: 98"))
    is_refused(make, "table.json was paid for", epsilon=4.0)
    assert made.entry_id in made.statement.read_text()


def test_where_everything_is_gone_nothing_notices(make: Make, made: Synthesis, tmp_path: Path) -> None:
    """As the documentation says."""
    shutil.rmtree(tmp_path / "out")
    assert make(epsilon=1.0).entry_id != made.entry_id


@pytest.mark.parametrize("kept", ["all", "models", "table.json", "statement.json", "head.json"])
def test_an_older_copy_is_noticed_by_each_witness(
    make: Make, made: Synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Whatever is left of the second run finds the copy that was made before it."""
    out = tmp_path / "out"
    ledger, restricted = out / "restricted" / "ledger", out / "restricted"
    before = {name: data for name, data in files(ledger).items() if name != "head.json"}
    first = {path: path.read_bytes() for path in (out / "statement.json", restricted / "table.json")}
    old_head = (ledger / "head.json").read_bytes()
    second = make(epsilon=1.0)
    lose_database(out)
    for name, data in before.items():
        (ledger / name).write_bytes(data)
    if kept not in ("all", "models"):
        shutil.rmtree(restricted / "models" / second.entry_id)
    for path, data in first.items():
        if kept not in ("all", path.name):
            path.write_bytes(data)
    if kept not in ("all", "head.json"):
        (ledger / "head.json").write_bytes(old_head)
    monkeypatch.setattr(run, "bounded_rows", lambda *_: pytest.fail("rows were read"))
    said = is_refused(make, "was paid for", epsilon=2.0)
    assert kept == "all" or kept in said
    with pytest.raises(LedgerError, match="was paid for"):
        more_rows(out, 5)
    with pytest.raises(LedgerError, match="was paid for"):
        paid_model(out)


def test_another_ledger_is_refused(make: Make, made: Synthesis, tmp_path: Path, no_reading: None) -> None:
    make_other = tmp_path / "other-ledger"
    is_refused(make, "was paid for", ledger=make_other)
    assert not (make_other / "ledger.db").exists()


def edit(ledger: Path, statement: str) -> None:
    with sqlite3.connect(ledger / "ledger.db") as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE account SET settled = replace(settled, '0.', '0.0')",
        "UPDATE entry SET cost = replace(cost, '0.', '0.0')",
        """UPDATE account SET terms = replace(terms, '"epsilon":9.0', '"epsilon":90.0')""",
        "UPDATE event SET payload = replace(payload, '9.0', '90.0') WHERE kind = 'opened'",
        "DELETE FROM event WHERE kind = 'spent'",
    ],
)
def test_an_edited_ledger_is_refused(make: Make, made: Synthesis, no_reading: None, statement: str) -> None:
    edit(made.ledger, statement)
    is_refused(make, "is not as it was written|was paid for")


def test_a_ledger_that_was_written_anew_is_refused(make: Make, made: Synthesis, tmp_path: Path) -> None:
    """Another chain, whole in itself, in which somebody put the entry's id."""
    other = make(out="forged", cap_epsilon=90.0)
    lose_database(tmp_path / "out")
    with sqlite3.connect(other.ledger / "ledger.db") as connection:
        for table, column in (("event", "subject"), ("entry", "entry_id")):
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (made.entry_id, other.entry_id))
        previous = chain.GENESIS
        connection.row_factory = sqlite3.Row
        for row in connection.execute("SELECT * FROM event ORDER BY sequence").fetchall():
            link = dict(row) | {"previous": previous}
            previous = link["hash"] = chain._hash(link)
            query = "UPDATE event SET previous = :previous, hash = :hash WHERE sequence = :sequence"
            connection.execute(query, link)
    connection.close()
    for name, data in files(other.ledger).items():
        if name != "head.json":
            (made.ledger / name).write_bytes(data)
    assert Ledger(embedded_ledger(made.ledger)).verify().ok
    assert "that chain was rewritten" in is_refused(make, "was paid for")


def test_a_shared_ledger_is_held_against_what_it_led_to_for_others(make: Make, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    make(ledger=shared, cap_epsilon=9.0)
    before = {name: data for name, data in files(shared).items() if name != "head.json"}
    make(out="other", epsilon=1.0, ledger=shared)
    for name, data in before.items():
        (shared / name).write_bytes(data)
    is_refused(make, "head.json was paid for", ledger=shared)


# No false alarm


SCRIPT = """
import importlib, os, signal, sys
from dpsynth_platform.one_table import Options, synthesize

module, owner, name, after, table, out, schema = sys.argv[1:]
holder = importlib.import_module(module)
holder = getattr(holder, owner) if owner else holder
was = getattr(holder, name)
def killed(*arguments, **others):
    if after:
        was(*arguments, **others)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(holder, name, killed)
options = Options(epsilon=4.0, delta=1e-5, schema=schema, method="mst", owners="person", contributions=2, cap_epsilon=9)
synthesize(table, out, options)
"""
PACKAGE = "dpsynth_platform."


@pytest.mark.parametrize(
    ("at", "after"),
    [
        ((PACKAGE + "ledger.store", "Ledger", "reserve"), "after"),
        ((PACKAGE + "one_table.budget", "", "note_head"), "after"),
        ((PACKAGE + "ledger.store", "Ledger", "start"), "after"),
        ((PACKAGE + "ledger.store", "Ledger", "complete"), "after"),
        ((PACKAGE + "one_table.more_rows", "Earlier", "save"), ""),
        ((PACKAGE + "one_table.more_rows", "Earlier", "save"), "after"),
    ],
)
def test_a_kill_between_ledger_and_files_is_no_loss(
    make: Make, killed_runs: Runs, tables: Path, tmp_path: Path, at: tuple[str, str, str], after: str
) -> None:
    arguments = [*at, after, str(tables / "people.parquet"), str(tmp_path / "out"), str(tables / "people.yaml")]
    ended = killed_runs.run(SCRIPT, arguments)
    assert ended.returncode == -9, ended.said
    assert make(epsilon=1.0).spent, "the ledger is whole, and another run fits"


def test_a_moved_output_takes_its_ledger_with_it(make: Make, made: Synthesis, tmp_path: Path) -> None:
    (tmp_path / "out").rename(tmp_path / "moved")
    assert more_rows(tmp_path / "moved", 5).entry_id == made.entry_id
    assert make(out="moved", epsilon=1.0).spent


def test_a_ledger_that_an_earlier_version_sealed_without_a_spend_may_go(make: Make, made: Synthesis) -> None:
    """A run that failed before it spent used to leave one."""
    ledger = Ledger(embedded_ledger(made.ledger.parents[2] / "shared"))
    budget = FamilyBudget(
        family=FAMILY,
        unit="user",
        adjacency="add-or-remove",
        namespace=FAMILY,
        mode="family",
        cap=Cap(epsilon=5.0, delta=1e-5),
    )
    ledger.open_account(budget, ())
    with pytest.raises(
        LedgerError, match=r"is sealed at 5; .* nothing was spent through it, so that it can be deleted"
    ):
        make(out="other", ledger=made.ledger.parents[2] / "shared", cap_epsilon=9.0)


def test_outputs_of_earlier_versions_go_on(make: Make, made: Synthesis, tmp_path: Path) -> None:
    """Their records name entries and no links."""
    out = tmp_path / "out"
    (made.ledger / "head.json").unlink()
    for path in (out / "statement.json", out / "restricted" / "table.json"):
        document = json.loads(path.read_text())
        del document["ledger_head"]
        path.write_text(json.dumps(document))
    assert more_rows(out, 5).rows == 5
    assert make(epsilon=1.0).spent
    lose_ledger(out)
    is_refused(make, "was paid for")


def test_a_link_in_the_statement_is_the_ledgers(make: Make, made: Synthesis) -> None:
    link = json.loads(made.statement.with_suffix(".json").read_text())["ledger_head"]
    events = {event.sequence: event.hash for event in Ledger(embedded_ledger(made.ledger)).history()}
    assert events[link["sequence"]] == link["hash"]
    assert link["hash"] in made.statement.read_text()


# What fails before it spends seals nothing


def too_little_memory(patch: pytest.MonkeyPatch, tables: Path) -> dict[str, Any]:
    patch.setattr(rows, "DuckDBChoice", lambda: DuckDBChoice.model_construct(engine="duckdb", memory="1MB", threads=1))
    pq.write_table(people(30_000, 8_000), tables / "people.parquet")
    return {}


def unreadable_rows(patch: pytest.MonkeyPatch, tables: Path) -> dict[str, Any]:
    path = tables / "people.parquet"
    data = bytearray(path.read_bytes())
    data[200:4000] = bytes(3800)  # the pages; names and types stay readable
    path.write_bytes(data)
    return {}


def bad_schema(patch: pytest.MonkeyPatch, tables: Path) -> dict[str, Any]:
    (tables / "people.yaml").write_text("columns: {age: {type: number}}")
    return {}


def rows_without_owners(patch: pytest.MonkeyPatch, tables: Path) -> dict[str, Any]:
    table = people()
    nobody = pa.nulls(table.num_rows, pa.int64())
    pq.write_table(table.set_column(0, "person", nobody), tables / "people.parquet")
    return {}


def impossible_epsilon(patch: pytest.MonkeyPatch, tables: Path) -> dict[str, Any]:
    return {"epsilon": 0.0}


def interrupted(patch: pytest.MonkeyPatch, tables: Path) -> dict[str, Any]:
    def stop(*_, **__):
        raise DpsynthError("stopped")

    patch.setattr(Ledger, "reserve", stop)
    return {}


@pytest.mark.parametrize(
    "failing", [bad_schema, unreadable_rows, rows_without_owners, impossible_epsilon, too_little_memory, interrupted]
)
def test_a_run_that_fails_before_it_spends_seals_nothing(
    make: Make, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Callable[..., dict[str, Any]]
) -> None:
    with monkeypatch.context() as patch:
        options = failing(patch, tables)
        with pytest.raises(DpsynthError) as caught:
            make(**({"cap_epsilon": 9.0} | options))
    assert "unexpected" not in str(caught.value)
    pq.write_table(people(), tables / "people.parquet")
    (tables / "people.yaml").write_text(SCHEMA + "  person: {type: identifier}\n")
    made = make(epsilon=1.0, cap_epsilon=3.0, owners=None, contributions=None)
    account = Ledger(embedded_ledger(made.ledger)).account(FAMILY)
    assert (account.epsilon, account.unit) == (3.0, "example")


def test_a_mechanism_that_fails_has_sealed_the_cap(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_):
        raise DpsynthError("stopped")

    with monkeypatch.context() as patch, pytest.raises(DpsynthError):
        patch.setattr(Mst, "measure", broken)
        make(cap_epsilon=9.0)
    with pytest.raises(LedgerError, match="is sealed at 9"):
        make(cap_epsilon=10.0)


def test_a_run_that_sealed_meanwhile_is_named(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, was = tmp_path / "shared", rows.bounded_rows

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(run, "bounded_rows", was)
        make(out="other", epsilon=1.0, ledger=shared)
        return was(*arguments)

    monkeypatch.setattr(run, "bounded_rows", slow)
    with pytest.raises(LedgerError, match="was sealed meanwhile by another run, at epsilon 1"):
        make(ledger=shared)
    with pytest.raises(BudgetExceeded):
        make(ledger=shared)
    assert len(Ledger(embedded_ledger(shared)).entries()) == 1
