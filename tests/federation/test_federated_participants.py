"""What a participant approves, pays and computes, with a ledger of its own in SQLite."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from federated_cases import (
    COLUMNS,
    KEYS,
    NAMES,
    participant,
    plain_sum,
    plan_of,
    policy_document,
    public,
    rows,
    started,
    vector,
)
from seeded_stream import Counted

from dpsynth_platform.federation import noise, participants, plans
from dpsynth_platform.federation.coordinator import run_rounds
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.participants import load_policy
from dpsynth_platform.federation.sums import SCALE
from dpsynth_platform.foundation.errors import (
    AccountingError,
    BudgetExceeded,
    ContractError,
    LedgerError,
    SpendRepeated,
)
from dpsynth_platform.privacy.events import event_to_json


@pytest.fixture(scope="module")
def plan():
    return plan_of()


@pytest.fixture(scope="module")
def text(plan):
    return plan.to_json()


def keys(*names):
    return {name: public(KEYS[name]) for name in names}


def agreed(plan, names=NAMES):
    return dict.fromkeys(names, plan.digest)


# The policy.


def test_a_policy_is_a_file(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(policy_document()))
    assert load_policy(path).family.cap.epsilon == 5.0
    for wrong, named in (
        ({"name": "other"}, "without other"),
        ({"family": policy_document()["family"] | {"mode": "per-owner"}}, "per-owner"),
        ({"family": policy_document()["family"] | {"owner_normalization": ["trim"]}}, "owner_normalization"),
        ({"minimum": 1}, "minimum"),
        ({"methods": ["gem"]}, "methods"),
        ({"more": 1}, "more"),
    ):
        path.write_text(yaml.safe_dump(policy_document() | wrong))
        with pytest.raises(ContractError, match=named):
            load_policy(path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dataset": "drinks"}, "dataset"),
        ({"methods": ["independent"]}, "methods"),
        ({"columns": list(COLUMNS)[1:]}, "columns: drink"),
        ({"participants": keys("east", "north", "south", "third")}, "participants: west"),
        ({"participants": keys(*NAMES, "fifth"), "name": "fifth"}, "participants: without fifth"),
        ({"minimum": 4}, "minimum: 3"),
        ({"colluders": 2}, "colluders: 1"),
        ({"silos": 2}, "silos: 1"),
        ({"max_contributions": 2}, "max_contributions: 1"),
        ({"family": policy_document()["family"] | {"unit": "example"}}, "family.unit"),
        ({"family": policy_document()["family"] | {"adjacency": "replace-one"}}, "family.adjacency"),
    ],
)
def test_a_plan_beyond_the_policy_is_refused_before_anything_is_reserved(tmp_path, text, changes, key):
    party = participant(tmp_path, **changes)
    with pytest.raises(ContractError, match=key):
        party.reserve("run", text)
    assert party.ledger.entries() == []


def test_what_exceeds_a_cap_is_refused_here_and_nowhere_else(tmp_path, plan, text):
    small = policy_document() | {"run_cap": {"epsilon": 1.9, "delta": 1e-5}}
    with pytest.raises(BudgetExceeded, match=r"epsilon 1\.9"):
        participant(tmp_path / "run", run_cap=small["run_cap"]).reserve("run", text)
    with pytest.raises(BudgetExceeded, match="delta 1e-06"):
        participant(tmp_path / "delta", run_cap={"epsilon": 3.0, "delta": 1e-6}).reserve("run", text)
    poor, rich = participant(tmp_path, "east", epsilon=2.3), participant(tmp_path, "north", epsilon=5.0)
    for party in (poor, rich):
        party.reserve("first", text)
        party.start("first", agreed(plan))
    with pytest.raises(BudgetExceeded):
        poor.reserve("second", text)
    assert rich.reserve("second", text) == plan.digest
    assert [entry.state for entry in poor.ledger.entries()] == ["started"]
    # A reservation counts, and one that is withdrawn does not.
    other = participant(tmp_path, "south", epsilon=2.3)
    other.reserve("first", text)
    with pytest.raises(BudgetExceeded):
        other.reserve("second", text)
    other.withdraw("first")
    other.reserve("second", text)
    with pytest.raises(LedgerError, match="not reserved"):
        other.withdraw("first")
    assert all(party.ledger.verify().ok for party in (poor, rich, other))


def test_no_word_of_a_server_changes_what_a_plan_costs(tmp_path, plan):
    """Less noise than the guarantee needs, with the event that it makes, or with the honest one."""
    party = participant(tmp_path)
    less = [float(variance // 4) for variance in plan.terms.share_variances]
    dishonest = replace(plan.sealed, parameters=plan.sealed.parameters | {"share_variances": less})
    with pytest.raises(AccountingError, match="not that of its parameters"):
        party.reserve("run", dishonest.to_json())
    event = event_to_json(MarginalsPlan(dishonest).event)
    with pytest.raises(AccountingError, match="costs epsilon"):
        party.reserve("run", replace(dishonest, event=event).to_json())
    assert party.ledger.entries() == []


# The ledger.


def test_a_run_is_reserved_and_spent_once(tmp_path, plan, text):
    party = participant(tmp_path)
    assert party.reserve("run", text) == party.reserve("run", text) == plan.digest
    (entry,) = party.ledger.entries()
    assert (entry.state, entry.plan_digest, entry.request.guarantee) == ("reserved", plan.digest, plan.guarantee)
    assert entry.request.event == plan.sealed.event
    with pytest.raises(LedgerError, match="another plan"):
        party.reserve("run", plan_of("independent").to_json())
    party.start("run", agreed(plan))
    with pytest.raises(LedgerError, match="not reserved"):
        party.start("run", agreed(plan))
    for again in (party, participant(tmp_path)):
        with pytest.raises(SpendRepeated):
            again.reserve("run", text)
    assert [entry.state for entry in party.ledger.entries()] == ["started"]


@pytest.mark.parametrize(
    "reserved",
    [
        {"north": 0, "south": 0, "west": 0},
        {"east": 0, "north": 0},
        {"east": 0, "north": 0, "south": "other"},
        {"east": 0, "north": 0, "south": 0, "fifth": 0},
    ],
)
def test_a_run_starts_only_where_all_that_take_part_have_reserved(tmp_path, plan, text, reserved):
    party = participant(tmp_path)
    party.reserve("run", text)
    with pytest.raises(LedgerError, match="not all"):
        party.start("run", {name: plan.digest if digest == 0 else digest for name, digest in reserved.items()})
    assert [entry.state for entry in party.ledger.entries()] == ["reserved"]
    party.start("run", agreed(plan, NAMES[:3]))
    assert [entry.state for entry in party.ledger.entries()] == ["started"]


def test_two_processes_of_one_participant_start_once(tmp_path, plan, text):
    one, other = participant(tmp_path), participant(tmp_path)
    for party in (one, other):
        party.reserve("run", text)
    one.start("run", agreed(plan))
    with pytest.raises(SpendRepeated):
        other.start("run", agreed(plan))


# Vectors.


def test_a_vector_is_the_counts_with_a_share_of_noise_and_is_computed_once(tmp_path, plan, text, monkeypatch):
    stream, table = Counted(11), rows(500)
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    asked, squares, entries = plan.next_round([]), 0.0, 0
    for number in range(30):
        party = participant(tmp_path, table=table, epsilon=500.0)
        party.reserve(f"run-{number}", text)
        run = party.start(f"run-{number}", agreed(plan))
        found = vector(run, asked.to_json())
        squares += float(((found - SCALE * asked.counted(table, plan.domain)) ** 2).sum())
        entries += found.size
    variance = asked.sum.share_variance
    # Deviation of a mean of squares: sqrt((2 V^2 + V) / n); a normal tail of six is 1e-9.
    assert abs(squares / entries / variance - 1) < 6 * math.sqrt(2.01 / entries)
    with pytest.raises(SpendRepeated, match="each round once"):
        vector(run, asked.to_json())
    second = plan.next_round([asked.noisy(asked.counted(table, plan.domain) * SCALE, 4)])
    third = plan.round(2, second.cliques[:3], second.cell_groups)
    assert vector(run, third.to_json()).size == third.sum.length
    with pytest.raises(SpendRepeated, match="round 1"):
        vector(run, second.to_json())
    assert run.complete("0" * 64).state == "spent"


def test_a_plan_with_more_cells_than_the_policy_allows_is_refused_before_it_costs(tmp_path, plan, text):
    most = max(each.length for each in plan.sums)
    party = participant(tmp_path, most_cells=most - 1)
    with pytest.raises(ContractError, match=r"most_cells: up to \d+ in a round; accepted: up to"):
        party.reserve("run", text)
    assert party.ledger.entries() == []
    participant(tmp_path, most_cells=most).reserve("run", text)


@pytest.mark.parametrize("what", ["message", "reply"])
def test_a_plan_with_longer_messages_than_can_be_sent_is_refused_before_it_costs(tmp_path, monkeypatch, what):
    plan = plan_of()
    most, name = getattr(plan, f"most_{what}_bytes"), f"MOST_{what.upper()}_BYTES"
    monkeypatch.setattr(plans, name, most - 1)
    party = participant(tmp_path)
    with pytest.raises(AccountingError, match=f"could have {most} bytes in a run of this plan; accepted: up to"):
        party.reserve("run", plan.to_json())
    with pytest.raises(AccountingError, match=f"could have {most} bytes"):
        plan_of()
    assert party.ledger.entries() == []
    monkeypatch.setattr(plans, name, most)
    party.reserve("run", plan.to_json())


def test_noise_that_would_take_days_to_draw_is_refused_before_it_costs(tmp_path, monkeypatch):
    plan = plan_of("independent")
    large = replace(plan.sealed, parameters=plan.sealed.parameters | {"share_variances": [2.0**40]})
    large = replace(large, event=event_to_json(MarginalsPlan(large).event))
    party, draws = participant(tmp_path), 2**14 * plan.sums[0].length
    monkeypatch.setattr(participants, "MOST_DRAWN", draws)
    party.allowed(large.to_json())
    monkeypatch.setattr(participants, "MOST_DRAWN", draws - 1)
    with pytest.raises(ContractError, match=f"share_variances: {draws} draws of noise in a round"):
        party.allowed(large.to_json())


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "round",
        {},
        {"index": 0, "cliques": [(0,)]},
        {"index": 0, "cliques": [(0,)], "cell_groups": [], "more": 1},
        {"index": 0, "cliques": [(0,)], "cell_groups": []},
        {"index": "x" * 5_000, "cliques": [], "cell_groups": []},
    ],
)
def test_a_round_of_another_plan_or_form_is_not_computed(tmp_path, plan, text, document):
    party = participant(tmp_path)
    party.reserve("run", text)
    run = party.start("run", agreed(plan))
    with pytest.raises(AccountingError) as refused:
        run.open(document)
    assert len(str(refused.value)) < 200
    with pytest.raises(AccountingError):
        run.open(plan.next_round([]).to_json() | {"cliques": [(0, 1)]})
    for wrong in ("", "z" * 64, "a" * 65, "\x1b[2J"):
        with pytest.raises(LedgerError, match="64 hexadecimal digits"):
            run.complete(wrong)


def test_a_withdrawn_run_is_not_started_by_the_same_messages_again(tmp_path, plan, text):
    party = participant(tmp_path)
    party.reserve("run", text)
    party.withdraw("run")
    with pytest.raises(SpendRepeated, match="withdrawn"):
        party.reserve("run", text)
    with pytest.raises(LedgerError):
        party.start("run", agreed(plan))
    assert [entry.state for entry in party.ledger.entries()] == ["void"]


def test_counts_beyond_the_public_bound_are_clipped(tmp_path):
    plan = plan_of("independent", most_records=100)
    run = started(plan, tmp_path, rows(2000))[0]
    found = run.counts(run.open(plan.next_round([]).to_json()))
    assert found.max() == 100 * SCALE and found.min() == 0


def test_the_rows_are_in_no_representation(tmp_path, plan, text):
    party = participant(tmp_path)
    party.reserve("run", text)
    assert "bounded" not in repr(party) + repr(party.start("run", agreed(plan)))


def test_each_has_spent_its_part_when_a_run_fails(tmp_path, plan):
    runs = started(plan, tmp_path, rows(100))
    (tmp_path / "model").mkdir()

    def failing(asked):
        if asked.index == 1:
            raise OSError("the network")
        return plain_sum(runs)(asked)

    with pytest.raises(OSError, match="network"):
        run_rounds(plan, tmp_path / "model", failing)
    for run in runs:
        (entry,) = run.ledger.entries()
        assert entry.state == "started" and run.ledger.verify().ok
        with pytest.raises(SpendRepeated):
            participant(tmp_path, run.policy.name, colluders=0).reserve("run", plan.to_json())


# Kills.

KILLED = """
import os, pathlib, signal, sys
from federated_cases import NAMES, participant, rows, vector
from dpsynth_platform.federation import participants
from dpsynth_platform.federation.marginals import MarginalsPlan

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

directory, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
text = (directory / "plan.json").read_text()
plan, party = MarginalsPlan.from_json(text), participant(directory, table=rows(50))
party.reserve("run", text)
if moment == "reserved":
    die()
run = party.start("run", dict.fromkeys(NAMES, plan.digest))
if moment == "started":
    die()
participants.clip = die
vector(run, plan.next_round([]).to_json())
"""


@pytest.mark.parametrize("moment", ["reserved", "started", "counting"])
def test_a_killed_participant_neither_loses_nor_repeats_what_it_paid_for(tmp_path, plan, text, moment):
    (tmp_path / "plan.json").write_text(text)
    path = os.pathsep.join(sys.path)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, moment],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    party = participant(tmp_path, epsilon=5.0)
    (entry,) = party.ledger.entries()
    if moment == "reserved":
        party.reserve("run", text)
        assert party.start("run", agreed(plan)).entry_id == entry.entry_id
    else:
        with pytest.raises(SpendRepeated, match="started"):
            party.reserve("run", text)
        with pytest.raises(LedgerError):
            party.start("run", agreed(plan))
    assert [each.state for each in party.ledger.entries()] == ["started"]
    assert party.ledger.verify().ok


def test_the_cap_of_an_account_is_not_raised_by_a_policy(tmp_path, text):
    participant(tmp_path).reserve("run", text)
    with pytest.raises(LedgerError, match="cap"):
        participant(tmp_path, epsilon=50.0).reserve("other", text)
