"""Lineage of federated runs: a run in each place, and what none of them says of rows."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from federated_cases import NAMES, plan_of, rows
from node_cases import Sockets, coordinator, public, up
from test_central import central_plan

from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.errors import LedgerError, MechanismFailed
from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.one_table import federated_run
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_lineage import NodeLineage, coordinator_run, own_emitter, participant_run
from dpsynth_platform.one_table.federated_run import run_federated
from dpsynth_platform.one_table.place import Place


@pytest.fixture
def place():
    """A short path: a socket's has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="fl-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def run(place, name="monday", plan=None):
    roster = Roster.from_texts({each: public(place / each) for each in NAMES})
    link = nullcontext(Sockets(place))
    return run_federated(
        plan or plan_of("independent"), roster, federation_key(place / "coordinator"), link, place / "out", run=name
    )


def graph(directory):
    """The graph beside a directory's own ledger."""
    return LineageStore(embedded_ledger(directory / "restricted/ledger"))


def events(directory):
    """Recorded there, as (kind, job, event)."""
    return [(found.kind, found.job_name, found.payload) for found in graph(directory).events()]


def test_sums_without_noise_have_no_guarantee(tmp_path):
    """Of a trusted coordinator the model has one, and what participants send has not."""
    for plan, words in ((plan_of("independent"), "Noisy sums"), (central_plan("independent"), "Exact sums, for the")):
        made = participant_run(plan, "monday", "north", tmp_path / "north.parquet", "entry")
        (sums,) = made.outputs
        promised = [name for name in sums.facets if "uarantee" in name]
        assert made.description.startswith(words) and bool(promised) == (plan.trust == "distributed")
        model = coordinator_run(plan, "monday", NAMES, tmp_path / "model").outputs[0]
        assert [name for name in model.facets if "uarantee" in name]


def test_each_place_has_a_run_of_its_own_below_the_coordinator_s(place, check):
    with up(place):
        made = run(place)
    assert made.warnings == ()
    started, ended, *drawn = events(place / "out")
    assert [item[:2] for item in (started, ended, *drawn)] == [
        ("START", "meals.federated"),
        ("COMPLETE", "meals.federated"),
        ("START", "meals.federated-synthetic"),
        ("COMPLETE", "meals.federated-synthetic"),
    ]
    assert [item["name"] for item in ended[2]["inputs"]] == [f"meals/participant-{name}/sums" for name in NAMES]
    (table,) = drawn[-1][2]["outputs"]
    assert table["name"] == str(made.synthetic)
    assert {field["name"] for field in table["facets"]["schema"]["fields"]} >= {"drink", "age"}
    parent = {"run": {"runId": ended[2]["run"]["runId"]}, "job": {"namespace": "dpsynth", "name": "meals.federated"}}
    of_nodes = {name: events(place / name) for name in NAMES}
    for name, own in of_nodes.items():
        assert [item[:2] for item in own] == [(kind, f"meals.participant-{name}") for kind in ("START", "COMPLETE")]
        (entry,) = Ledger(embedded_ledger(place / name / "restricted/ledger")).entries()
        for _, _, event in own:
            found = event["run"]["facets"]["parent"]
            assert all(found[key].items() >= parent[key].items() for key in parent)
            assert [item["name"] for item in event["inputs"]] == [str(place / f"{name}.parquet")]
            assert [item["name"] for item in event["outputs"]] == [f"meals/participant-{name}/sums"]
            paid = event["outputs"][0]["facets"]["dpsynth_guarantee"]
            assert (paid["epsilon"], paid["ledgerEntry"], paid["method"]) == (2.0, entry.entry_id, "independent")
    for _, _, event in [started, ended, *drawn, *(item for own in of_nodes.values() for item in own)]:
        check(event)
    written = (place / "north/restricted/lineage/events.jsonl").read_text().splitlines()
    assert [json.loads(line)["eventType"] for line in written] == ["START", "COMPLETE"]


def test_graphs_that_are_brought_together_lead_from_each_table_to_the_synthetic_one(place):
    with up(place):
        made = run(place)
    made_of = {}
    for directory in ("out", *NAMES):
        for _, _, event in events(place / directory):
            names = [{(item["namespace"], item["name"]) for item in event[side]} for side in ("inputs", "outputs")]
            for name in names[1]:
                made_of.setdefault(name, set()).update(names[0])
    found, last = set(), {("file", str(made.synthetic))}
    while last:
        found |= last
        last = {name for each in last for name in made_of.get(each, ())}
    assert {("file", str(place / f"{name}.parquet")) for name in NAMES} <= found


def test_events_depend_on_no_row_and_name_no_other_place_s_table(place):
    """The same run over other rows, and as many more, has the same events, but for times and ledger entries."""

    def said(number, seed):
        root = place / str(number)
        with up(root, rows(number, seed)):
            run(root)
        found = {name: json.dumps([event for _, _, event in events(root / name)]) for name in ("out", *NAMES)}
        for name, text in found.items():
            assert [other for other in NAMES if other != name and f"{other}.parquet" in text] == []
        varying = r'"eventTime": "[^"]+"|"ledgerEntry": "[0-9a-f]{32}"'
        return {name: re.sub(varying, "", text.replace(str(root), "")) for name, text in found.items()}

    assert said(400, 1) == said(1000, 2)


def test_runs_that_end_otherwise_are_ended_in_lineage(place, monkeypatch):
    plan = plan_of("independent")

    def stopped(*_, **__):
        raise KeyboardInterrupt

    def failed(*_, **__):
        raise MechanismFailed("no model")

    with up(place):
        for number, how in enumerate((stopped, failed)):
            with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, MechanismFailed)):
                patch.setattr(federated_run, "_took_part", how)
                run(place, f"run-{number}")
        monkeypatch.setattr(Coordinator := type(coordinator(place)), "ask", _without_ends(Coordinator.ask))
        run(place, "tuesday", plan)
    kinds = [item[:2] for item in events(place / "out")]
    assert [kind for kind, _ in kinds[:4]] == ["START", "ABORT", "START", "FAIL"]
    # The end of the last run was never reported to the nodes, which were stopped.
    assert [kind for kind, _, _ in events(place / "north")] == ["START", "ABORT"]


def _without_ends(ask):
    return lambda self, kind, *given: {} if kind == "complete" else ask(self, kind, *given)


def test_a_run_of_a_killed_node_is_ended_when_it_is_up_again(place):
    own = Place(place)
    emitter = own_emitter(own)

    class Paid:
        plan, entry_id = plan_of("independent"), "0e" * 16

    lines = []
    killed = NodeLineage(emitter, "north", place / "north.parquet", lines.append)
    killed.started("monday", Paid)
    killed._later.shutdown()  # and no exit
    with NodeLineage(own_emitter(own), "north", place / "north.parquet", lines.append):
        assert [kind for kind, _, _ in events(place)] == ["START", "FAIL"]
    assert lines == []


def test_lineage_that_cannot_be_written_or_sent_is_said_and_stops_no_run(place, monkeypatch):
    transport = {"type": "http", "url": "http://127.0.0.1:9", "retry": {"total": 0}}  # where nothing listens
    (place / "openlineage.yml").write_text(yaml.safe_dump({"transport": transport}))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(place / "openlineage.yml"))
    with up(place) as lines:
        made = run(place)
    kept = "did not reach the OpenLineage transport (ConnectionError); it is kept and tried again."
    assert made.rows and any(kept in line for line in made.warnings)
    assert any(line.startswith("lineage: ") and kept in line for line in lines["east"])
    assert [kind for kind, _, _ in events(place / "east")] == ["START", "COMPLETE"]


def test_where_a_deployment_has_a_ledger_its_graph_has_the_coordinator_s_run(place, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    Ledger(Settings.from_environment().ledger_url)
    with up(place):
        made = run(place)
    store = LineageStore(Settings.from_environment().ledger_url)
    assert store.node(DatasetName("file", str(made.synthetic))) is not None
    assert not (place / "out/restricted/lineage").exists()


def test_a_refused_run_costs_nothing_and_has_no_run_at_a_node(place):
    with up(place), pytest.raises(LedgerError, match="0 participants have reserved"):
        run(place, plan=plan_of("independent", minimum=3, epsilon=4.0))
    assert all(events(place / name) == [] for name in NAMES)
    assert [kind for kind, _, _ in events(place / "out")] == ["START", "FAIL"]
