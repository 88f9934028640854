"""Learning a bound under the ledger: paid first and once, of those whom the entry charges, and of nobody else."""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.util
import json
import re
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import BoundingError, BudgetExceeded, LedgerError, SpendRepeated, StaleInput
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage, write_table
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lifecycle.owner_keys import KEY_IDS
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.operations import bound_learning, running
from dpsynth_platform.operations.bound_learning import Question, learn_bound
from dpsynth_platform.scrub.fingerprints import distinct_owners, write_fingerprints

KEYS = ["first", "second"]
PLACE = Place("letters")
# Two hundred owners of three letters, ten of twelve.
RECORDS = {number: 3 if number < 200 else 12 for number in range(210)}
SHARP = Question(Fraction(1, 2), 20, 3.0)  # so many owners that the answer is all but certain
DOCUMENT: dict[str, Any] = {
    "dataset": "letters",
    "description": "Letters of fictional people.",
    "owners": ["letters@example.org"],
    "source": {"uri": "/nowhere", "key": ["customer"]},
    "family": "letters",
    "privacy": {
        "unit": "user",
        "owner_columns": ["customer"],
        "namespace": "customer",
        "max_contributions": 3,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    },
    "columns": {
        "customer": {"type": "identifier"},
        "age": {"type": "integer", "min": 0, "max": 120},
        "member": {"type": "boolean"},
    },
    "generate": {"rows": 10},
    "release": {"uri": "/nowhere/public"},
}


def contract(**privacy: Any) -> DataContract:
    return parse_contract(DOCUMENT | {"privacy": DOCUMENT["privacy"] | privacy}, where="x", variables={})


def seal(storage: Storage, of: DataContract, source: str = "table@4") -> StepRecord:
    return storage.record(PLACE, "raw", run_key="run", facts={"source": source, "contract": of.snapshot()})


def owner(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


@pytest.fixture
def ledger(tmp_path):
    budget = {
        "family": "letters",
        "unit": "user",
        "namespace": "customer",
        "mode": "per-owner",
        "cap": {"epsilon": 4.0, "delta": 1e-3},
    }
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    for family in ("letters", "fresh"):
        opened.open_account(FamilyBudget.model_validate(budget | {"family": family}), KEYS)
    return opened


@pytest.fixture
def storage(tmp_path):
    kept = Storage(tmp_path / "restricted")
    raw = seal(kept, contract())
    table = pa.table({"_owner": [owner(number) for number, times in RECORDS.items() for _ in range(times)]})
    with kept.new_output(PLACE, "scrubbed") as directory:
        write_table(directory / "table", table.schema, table.to_batches())
        write_fingerprints(directory / "participants", distinct_owners(table.to_batches()))
        kept.record(PLACE, "scrubbed", run_key="run", directory=directory, inputs=[raw], facts={KEY_IDS: KEYS})
    return kept


DATABASE = "sqlite:///{}/lineage/ledger.db"


@pytest.fixture
def emitter(tmp_path):
    return LineageEmitter(DATABASE.format(tmp_path), tmp_path / "lineage", client=lambda: None)


@pytest.fixture
def learn(ledger, storage, emitter):
    def ask(question=SHARP, of=None):
        return learn_bound(
            of or contract(), None, question, ledger=ledger, storage=storage, lineage=emitter, runner="Ada"
        )

    return ask


def test_the_answer_is_the_quantile_and_is_paid_for(learn, ledger):
    found = learn()
    assert 3 <= found.max_contributions <= 11  # equally good; any other with probability 11/9 exp(-30)
    assert not found.reused
    (entry,) = ledger.entries("letters")
    assert (entry.entry_id, entry.state, entry.request.runner) == (found.entry_id, "spent", "Ada")
    assert entry.request.guarantee.epsilon == 3.0
    assert entry.request.curve.epsilon(1e-3) == pytest.approx(3.0, rel=0.2)
    assert ledger.verify().ok


def test_the_same_question_is_paid_once(learn, ledger):
    first, again = learn(), learn()
    assert (again.max_contributions, again.entry_id, again.reused) == (first.max_contributions, first.entry_id, True)
    assert len(ledger.entries("letters")) == 1


def test_another_table_in_the_sources_place_is_another_question(learn, ledger, storage):
    """Versions are numbered from nought in every table: the same number is not the same rows."""
    first = learn()
    directory = storage.require(PLACE, "scrubbed").directory
    raw = seal(storage, contract(), "another@4")
    storage.record(PLACE, "scrubbed", run_key="run", directory=directory, inputs=[raw], facts={KEY_IDS: KEYS})
    other = learn()
    assert not other.reused
    assert other.entry_id != first.entry_id
    assert len(ledger.entries("letters")) == 2


def test_another_question_is_another_spend_until_nobody_can_pay(learn, ledger):
    learn()
    found = learn(Question(Fraction(1, 2), 20, 3.5))
    # Everybody is exhausted and left out in silence: an answer about nobody, by which nothing shows.
    assert len(ledger.participants(found.entry_id)) == 0
    assert 1 <= found.max_contributions <= 20
    with pytest.raises(BudgetExceeded):
        learn(Question(Fraction(1, 2), 20, 5.0))


def test_only_those_whom_the_entry_charges_are_counted(learn, ledger, storage, monkeypatch):
    """The ten with many letters are exhausted: the answer for all owners but a few must not see them."""
    few = distinct_owners([pa.record_batch({"_owner": [owner(number) for number in range(200, 210)]})])
    charged = Ledger.participants
    monkeypatch.setattr(Ledger, "participants", lambda self, entry_id: few)
    assert learn(Question(Fraction(1), 20, 3.5)).max_contributions >= 12  # fails with probability 11/9 exp(-17.5)
    monkeypatch.setattr(Ledger, "participants", charged)
    scrubbed = storage.require(PLACE, "scrubbed")
    assert sorted(bound_learning._records_per_owner(scrubbed, few)) == [12] * 10


def test_the_entry_is_started_before_a_record_is_read(learn, ledger, monkeypatch):
    states = []

    def look(*_):
        states.append(ledger.entries("letters")[0].state)
        raise OSError

    monkeypatch.setattr("dpsynth_platform.operations.bound_learning.read_table", lambda *_, **__: look())
    with pytest.raises(OSError):
        learn()
    assert states == ["started"]
    with pytest.raises(SpendRepeated, match="was started and left no answer; what it cost stays spent"):
        learn()


@pytest.mark.parametrize(
    ("question", "privacy", "message"),
    [
        (SHARP, {"on_overlap": "exclude"}, "on_overlap: 'exclude' excludes owners with earlier charges"),
        (SHARP, {"adjacency": "fixed-graph"}, "a bound cannot be learned from them"),
        (Question(Fraction(1, 2), 0, 1.0), {}, "at_most 0; accepted: 1 to"),
        (Question(Fraction(3, 2), 9, 1.0), {}, "quantile 3/2; accepted: above 0, at most 1"),
    ],
)
def test_what_cannot_be_asked_costs_nothing(learn, ledger, storage, question, privacy, message):
    seal(storage, contract(**privacy))
    with pytest.raises(BoundingError, match=message):
        learn(question)
    assert ledger.entries("letters") == []


def test_the_contract_counts_under_which_the_rows_were_made(learn, ledger):
    """The file as it is now could name an account on which the same people have spent nothing yet."""
    found = learn(of=contract().model_copy(update={"family": "fresh"}))
    assert ledger.entries("fresh") == []
    assert [entry.entry_id for entry in ledger.entries("letters")] == [found.entry_id]


def test_rows_of_another_run_or_of_earlier_keys_are_refused(learn, ledger, storage):
    scrubbed = storage.require(PLACE, "scrubbed")
    stale = {"run_key": "run", "directory": scrubbed.directory, "facts": {KEY_IDS: ["first", "other"]}}
    storage.record(PLACE, "scrubbed", **stale)
    with pytest.raises(LedgerError, match="materialize scrubbed again"):
        learn()
    storage.record(PLACE, "scrubbed", **stale | {"run_key": "another"})
    with pytest.raises(StaleInput, match="of another run than raw"):
        learn()
    assert ledger.entries("letters") == []


def events_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "lineage" / "events.jsonl").read_text().splitlines()]


def check_of_events():
    """The lineage tests' own check of one event, against our facets and, where it is at hand, the specification."""
    spec = importlib.util.spec_from_file_location("lineage_checks", PACKAGE_ROOT / "tests" / "lineage" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._check


def test_each_asking_leaves_a_start_and_one_end(learn, ledger, storage, tmp_path):
    found = learn()
    learn()
    events = events_of(tmp_path)
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 2
    assert len({event["run"]["runId"] for event in events}) == 2
    for event in events:
        check_of_events()(event)
        assert event["job"]["name"] == "letters.learned-bound"
        parent = event["run"]["facets"]["parent"]["job"]
        assert (parent["namespace"], parent["name"]) == ("dpsynth", "bound-learn")
        assert "processing_engine" not in event["run"]["facets"]
    start, complete = events[:2]
    assert not start.get("outputs")
    (read,), (made,) = complete["inputs"], complete["outputs"]
    assert read["name"] == str(storage.location(PLACE, "scrubbed"))
    assert read["facets"]["version"]["datasetVersion"] == storage.require(PLACE, "scrubbed").directory.name
    guarantee = made["facets"]["dpsynth_guarantee"]
    assert (guarantee["ledgerEntry"], guarantee["maxContributions"]) == (found.entry_id, 1)
    assert guarantee["epsilon"] <= 3.0
    facets = complete["run"]["facets"]
    assert facets["dpsynth_clearance"]["ledgerEntry"] == found.entry_id
    assert facets["dpsynth_participants"]["commitment"] == ledger.entry(found.entry_id).commitment


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            OSError("Ada Marked"),
            "FAIL",
            "unexpected: The command failed; its message was shown to the user who ran it.",
        ),
        (KeyboardInterrupt("Ada Marked"), "ABORT", "interrupted: The command was interrupted."),
    ],
)
def test_what_ends_badly_is_told_without_its_message(learn, tmp_path, monkeypatch, error, kind, words):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("dpsynth_platform.operations.bound_learning.read_table", fails)
    with pytest.raises(type(error)):
        learn()
    start, end = events_of(tmp_path)
    assert (start["eventType"], end["eventType"]) == ("START", kind)
    assert end["run"]["facets"]["errorMessage"]["message"] == words
    check_of_events()(end)


def test_a_refusal_is_an_end_too_and_says_how_to_ask_again(learn, tmp_path):
    with pytest.raises(BudgetExceeded, match="Lower --epsilon to about ") as refused:
        learn(Question(Fraction(1, 2), 20, 5.0))
    start, end = events_of(tmp_path)
    assert (start["eventType"], end["eventType"]) == ("START", "FAIL")
    assert end["run"]["facets"]["errorMessage"]["message"].startswith("budget: ")
    advised = float(re.search(r"about ([0-9.]+)\. Nothing", str(refused.value))[1])
    assert 3.8 < advised <= 4
    learn(Question(Fraction(1, 2), 20, advised))


def test_the_ledger_tells_what_an_entry_pays_for(learn, ledger):
    learn()
    (entry,) = ledger.entries("letters")
    assert entry.request.purpose == "bound"


def test_a_command_that_was_killed_is_closed_by_a_later_run_and_one_at_work_is_not(
    storage, emitter, tmp_path, monkeypatch
):
    place = SimpleNamespace(ledger_url=DATABASE.format(tmp_path), lineage_file=tmp_path / "lineage" / "events.jsonl")
    run = bound_learning._lineage_run(contract(), PLACE, storage)
    emitter.start(run)
    with dg.DagsterInstance.ephemeral() as instance:
        assert running.close_lineage(place, instance) == 0
        monkeypatch.setattr(running, "_LONGEST_COMMAND", dt.timedelta(0))
        assert running.close_lineage(place, instance) == 1
        assert running.close_lineage(place, instance) == 0
    assert [event["eventType"] for event in events_of(tmp_path)] == ["START", "FAIL"]
    check_of_events()(events_of(tmp_path)[1])
