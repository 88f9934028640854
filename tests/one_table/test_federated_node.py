"""A participant's node: its directory, its rows, approvals and status, with messages over its real socket."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from federated_cases import COLUMNS, NAMES, plan_of, rows
from node_cases import SCHEMA_FILE, coordinator, policy, public, up
from relay_cases import answers

from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.participants import Policy
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, GrantRefused, LedgerError, NotFound
from dpsynth_platform.one_table import federated_node
from dpsynth_platform.one_table.federated_node import Approvals, node_status, node_up


@pytest.fixture
def place():
    """A short path: a socket's has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="fn-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_a_run_that_persons_approve_and_that_is_approved_once(place):
    plan, person = plan_of("independent"), {"approval": "person"}
    with up(place, north=person, west=person) as lines:
        with pytest.raises(LedgerError, match="2 participants have reserved"):
            coordinator(place).run("first", plan, place / "none")
        assert [each.digest for each in node_status(place / "north").waiting] == [plan.digest]
        north = node_status(place / "north")
        assert (north.entries, north.cap, north.left, north.approved) == ([], 5.0, 5.0, [])
        assert node_status(place / "east").cap == 5.0
        for name in ("north", "west"):
            approvals = Approvals(place / name)
            approvals.approve(approvals.find(plan.digest[:8]), "a reviewer")
        assert node_status(place / "north").to_json()["approved"] == [{"plan": plan.digest, "by": "a reviewer"}]
        with pytest.raises(ContractError, match=r"is approved already, by a reviewer, and no run has used that"):
            approvals.approve(approvals.find(plan.digest), "another reviewer")
        made = coordinator(place).run("second", plan, place / "model")
        assert set(made.participants) == set(NAMES)
        with pytest.raises(LedgerError, match="2 participants have reserved"):
            coordinator(place).run("third", plan, place / "other")
    assert any("the approval was for run second" in line for line in lines["north"])
    assert node_status(place / "north").approved == []
    assert not list(place.glob("*/node.sock")) and not list(place.glob("*/restricted/work-*"))
    status = node_status(place / "east").to_json()
    assert [run["state"] for run in status["runs"]] == ["void", "spent", "void"]
    assert status["cap_epsilon"] == 5.0 and status["left_epsilon"] < 5.0


def test_a_plan_that_a_changed_policy_approves_waits_no_more(place):
    plan, person = plan_of("independent"), {"approval": "person"}
    with up(place, north=person, west=person), pytest.raises(LedgerError, match="2 participants have reserved"):
        coordinator(place).run("first", plan, place / "none")
    assert [each.digest for each in node_status(place / "north").waiting] == [plan.digest]
    with up(place):
        coordinator(place).run("second", plan, place / "model")
    assert node_status(place / "north").waiting == []


def test_columns_that_are_declared_otherwise_here_are_refused_before_they_cost(place):
    others = COLUMNS | {"age": {"type": "integer", "min": 0, "max": 99}}
    with up(place) as lines, pytest.raises(LedgerError, match="0 participants have reserved"):
        coordinator(place).run("first", plan_of("independent", columns=others), place / "model")
    assert all("columns: age is declared otherwise here" in line for (_, line) in lines.values())
    assert all(node_status(place / name).entries == [] for name in NAMES)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_stopped_leaves_no_rows_and_ends_its_runs(place, ending):
    """By a service manager or a person; the run that it was in is ended in its lineage."""
    north = place / "north"
    pq.write_table(rows(50), place / "rows.parquet")
    (place / "columns.yaml").write_text(yaml.safe_dump(SCHEMA_FILE))
    declared = policy(place, "north").model_dump(mode="json", exclude_none=True)
    (place / "policy.yaml").write_text(yaml.safe_dump(declared))
    given = [place / "rows.parquet", "--policy", place / "policy.yaml", "--schema", place / "columns.yaml"]
    command = [sys.executable, "-m", "dpsynth_platform", "node", "up", north, *given, "--owners", "person"]
    with (place / "log").open("w") as log:
        heard = partial(signal.signal, ending, signal.SIG_DFL)  # ignored where the tests run in the background
        node = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, preexec_fn=heard)
    end = time.monotonic() + 120
    while not answers(north / "node.sock"):
        assert time.monotonic() < end and node.poll() is None, (place / "log").read_text()
        time.sleep(0.05)
    assert list(north.glob("restricted/work-*/*"))
    node.send_signal(ending)
    node.wait(60)
    assert not list(north.glob("restricted/work-*")) and not (north / "node.sock").exists()
    assert (place / "log").read_text().count("is up") == 1 and "Traceback" not in (place / "log").read_text()


def test_a_policy_with_another_cap_than_the_account_s_does_not_come_up(place):
    with up(place):
        coordinator(place).run("first", plan_of("independent"), place / "model")
    raised = policy(place, "north").family.model_dump() | {"cap": {"epsilon": 40.0, "delta": 1e-4}}
    declared = policy(place, "north", family=raised)
    with pytest.raises(LedgerError, match=r"cap\.epsilon: 40\.0, but the account holds 5"):
        node_up(place / "north", place / "north.parquet", declared, SCHEMA_FILE, owners="person", report=print)


def test_a_node_is_up_once_it_can_be_reached(place):
    lines, far = [], place / ("x" * 120)
    pq.write_table(rows(50), place / "rows.parquet")
    given = {"owners": "person", "report": lines.append, "socket": far}
    with pytest.raises(ConfigurationError, match="no socket can be made"):
        node_up(place / "north", place / "rows.parquet", policy(place, "north"), SCHEMA_FILE, **given)
    assert lines == []


def test_one_process_for_each_directory(place):
    with up(place), pytest.raises(ConfigurationError, match="another run uses this directory"):
        node_up(
            place / "north", place / "north.parquet", policy(place, "north"), SCHEMA_FILE, owners="person", report=print
        )


def test_a_node_without_its_own_key_or_unit_does_not_come_up(place):
    pq.write_table(rows(50), place / "rows.parquet")
    keys = {name: public(place / name) for name in NAMES}
    swapped = keys | {"north": keys["west"], "west": keys["north"]}
    given = {"report": print, "goes_on": lambda: False}
    with pytest.raises(ConfigurationError, match="another key of north"):
        wrong = policy(place, "north", participants=swapped)
        node_up(place / "north", place / "rows.parquet", wrong, SCHEMA_FILE, owners="person", **given)
    with pytest.raises(ContractError, match="the policy's unit is 'user'; accepted: --owners"):
        node_up(place / "north", place / "rows.parquet", policy(place, "north"), SCHEMA_FILE, **given)
    assert not (place / "north" / "node.sock").exists()


def test_a_ledger_that_was_taken_back_keeps_a_node_down(place):
    with up(place):
        coordinator(place).run("first", plan_of("independent"), place / "model")
    ledger = place / "north" / "restricted" / "ledger"
    for file in ledger.glob("*.db*"):
        file.unlink()
    with pytest.raises(LedgerError, match="does not know it"):
        given = {"owners": "person", "report": print, "goes_on": lambda: False}
        node_up(place / "north", place / "north.parquet", policy(place, "north"), SCHEMA_FILE, **given)


def test_an_approval_is_of_a_kept_plan_by_a_person(place):
    approvals, plan = Approvals(place), plan_of()
    with pytest.raises(GrantRefused, match=r"run first: plan .* waits for a person: dpsynth node approve"):
        approvals.check("first", plan)
    assert approvals.waiting() == [plan]
    for wrong in ("", "0" * 64, plan.digest[:7], "*" * 8):
        with pytest.raises(NotFound, match="accepted: 8 or more digits"):
            approvals.find(wrong)
    with pytest.raises(ContractError, match="a person's name"):
        approvals.approve(plan, " ")
    approvals.approve(approvals.find(plan.digest), "a reviewer")
    assert approvals.waiting() == []
    approvals.check("first", plan)
    approvals.check("first", plan)
    with pytest.raises(GrantRefused, match="the approval was for run first"):
        approvals.check("second", plan)
    (noted,) = place.glob("plans/*.approved")
    assert json.loads(noted.read_text())["by"] == "a reviewer"
    assert MarginalsPlan.from_json((place / "plans" / f"{plan.digest}.json").read_text()) == plan


def test_the_status_of_a_new_node_and_of_no_node(place):
    with pytest.raises(NotFound, match="no node's directory"):
        node_status(place / "none")
    assert node_status_of_new(place) == {
        "cap_epsilon": None,
        "left_epsilon": None,
        "runs": [],
        "waiting": [],
        "approved": [],
    }


def node_status_of_new(place):
    key = public(place / "new")
    found = node_status(place / "new").to_json()
    assert found.pop("public_key") == key
    return found


def test_a_policy_is_read_from_yaml(place):
    document = policy(place, "north").model_dump(mode="json")
    assert Policy.model_validate(yaml.safe_load(yaml.safe_dump(document))) == policy(place, "north")
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        policy(place, "north", coordinator="none")


def test_no_more_plans_wait_than_a_person_can_read(place, monkeypatch):
    monkeypatch.setattr(federated_node, "MOST_WAITING", 2)
    approvals = Approvals(place)
    for epsilon in (1.0, 1.5):
        with pytest.raises(GrantRefused, match="waits for a person"):
            approvals.check("run", plan_of("independent", epsilon))
    with pytest.raises(GrantRefused, match="2 plans wait"):
        approvals.check("run", plan_of("independent", 2.0))
    assert len(approvals.waiting()) == 2


def test_an_undeclared_column_has_the_ways_out_of_a_node(place):
    table = rows(50).append_column("more", [list(range(50))])
    pq.write_table(table, place / "rows.parquet")
    given = {"owners": "person", "report": print, "goes_on": lambda: False}
    with pytest.raises(ContractError) as refused:
        node_up(place / "north", place / "rows.parquet", policy(place, "north"), SCHEMA_FILE, **given)
    assert "nothing is declared of: more" in str(refused.value) and "`ignore: true`" in str(refused.value)
    assert "--learn-values" not in str(refused.value)
    ignoring = {"columns": COLUMNS | {"more": {"ignore": True}}}
    node_up(place / "north", place / "rows.parquet", policy(place, "north"), ignoring, **given)
