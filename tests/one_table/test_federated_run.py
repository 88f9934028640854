"""The coordinator's side of federated runs: plans from declarations, tables with statements, and the commands."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federated_cases import COORDINATOR, KEYS, NAMES, plan_of, policy_document, public
from relay_cases import carried
from test_nodes import Wires, nodes_of, states
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.federation import relays
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    GrantRefused,
    LedgerError,
    MechanismFailed,
    RoundRefused,
)
from dpsynth_platform.one_table import federated_run as coordinating
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_plan import protections_in_words, read_plan, rounds_shown
from dpsynth_platform.one_table.federated_run import new_run_name, run_federated
from dpsynth_platform.one_table.paying import Interrupted
from dpsynth_platform.one_table.place import EXCHANGES, KEPT_DAYS, held

ROSTER = Roster({name: KEYS[name].public_key() for name in NAMES})
SCHEMA = """
columns:
  drink: {type: categorical, values: [tea, milk, beer]}
  food: {type: categorical, values: [rice, bread]}
  town: {type: categorical, values: [Aix, Bern, Cork, Delft]}
  age: {type: integer, min: 0, max: 9}
"""
ASKED = {
    "--schema": "columns.yaml",
    "--participants": "keys.yaml",
    "--dataset": "meals",
    "--epsilon": "2",
    "--delta": "1e-5",
    "--expected-units": "2000",
    "--owners": "person",
    "--contributions": "1",
    "--minimum": "3",
    "--most-records": "10000",
    "--out": "plan.json",
}


def run_with(nodes, out, plan=None, change=lambda name, kind, message: message, **options):
    link = nullcontext(Wires(nodes, change))
    return run_federated(plan or plan_of("independent"), ROSTER, COORDINATOR, link, out, **options)


class Place(type(Path())):
    """The working directory of commands, which give status and all output."""

    def plan(self, *more, **changes):
        asked = ASKED | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        given = [word for name, value in asked.items() if value is not None for word in (name, value)]
        return self.command("plan", *given, *more)

    def run(self, *more):
        given = ("--participants", "keys.yaml", "--key", "coordinator", "--socket", "s", "--out", "out")
        return self.command("run", "plan.json", *given, *more)

    def command(self, *arguments):
        done = CliRunner().invoke(app, ["federate", *arguments])
        return done.exit_code, done.output + "".join(self.captured.readouterr())


@pytest.fixture
def place(tmp_path, monkeypatch, capfd):
    """A `Place` with the public files."""
    keys = "".join(f"  {name}: {public(KEYS[name])}\n" for name in NAMES)
    (tmp_path / "columns.yaml").write_text(SCHEMA)
    (tmp_path / "keys.yaml").write_text(f"participants:\n{keys}")
    monkeypatch.chdir(tmp_path)
    made = Place(tmp_path)
    made.captured = capfd
    return made


def test_a_run_makes_a_table_with_a_statement(tmp_path):
    nodes = nodes_of(tmp_path)
    made = run_with(nodes, tmp_path / "out", plan_of("mst"), rows=300)
    assert pq.read_table(made.synthetic).num_rows == made.rows == 300
    assert pq.read_table(made.synthetic).column_names == ["person", "drink", "food", "town", "age"]
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    assert made.spent and made.guarantee.epsilon <= 2
    said = made.statement.read_text()
    for words in (
        "One user is protected",
        "of which each participant uses at most 1 record",
        "in the rows of one participant alone, as declared (silos 1)",
        "whether they are in the data at all",
        "| the coordinator, which opens the sums | 2 | ",
        "1 participant, together and with the coordinator",
        "at least 2 honest participants of the 3 or more",
        "may read, lose, delay, repeat and make up messages",
        "Integrity is not claimed",
        "are not kept as such: not declared as nullable",
        "So at least 2 participants of those that finish",
        "Started, and has spent: east, north, south, west.",
        "Round 3 is the sum of 4",
        "ledger entries are at the participants",
    ):
        assert words in said
    document = json.loads((tmp_path / "out/statement.json").read_text())
    assert document["plan"]["digest"] == made.plan_digest and document["took_part"]["started"] == list(NAMES)
    assert document["guarantee"]["epsilon"] == made.guarantee.epsilon
    for directory in ("out", "out/restricted", f"out/restricted/models/{made.run}"):
        assert stat.S_IMODE((tmp_path / directory).stat().st_mode) == 0o700


def test_no_reply_is_longer_than_a_relay_may_bring(tmp_path):
    plan, wires = plan_of("mst"), Wires(nodes_of(tmp_path))
    run_federated(plan, ROSTER, COORDINATOR, nullcontext(wires), tmp_path / "out")
    assert max(len(reply) for _, _, reply in wires.heard) <= plan.most_reply_bytes


def test_a_finished_run_is_not_replaced(tmp_path):
    nodes = nodes_of(tmp_path)
    run_with(nodes, tmp_path / "out")
    with pytest.raises(ConfigurationError, match=r"has the table of a finished run; accepted: a new directory"):
        run_with(nodes, tmp_path / "out")
    assert states(nodes) == {name: ["spent"] for name in NAMES}


def test_who_drops_out_is_in_the_statement(tmp_path):
    """West answers the first round, of six messages to each of four, and no later one."""
    steps = []

    def change(name, kind, message):
        steps.append(kind)
        return None if name == "west" and kind == "sum" and steps.count("sum") > 24 else message

    made = run_with(nodes_of(tmp_path), tmp_path / "out", plan_of("mst"), change)
    said = made.statement.read_text()
    assert "Round 3 is the sum of 3: east, north, south." in said and ": west dropped out (" in said


def test_a_paid_model_is_drawn_from_when_writing_failed(tmp_path, monkeypatch):
    nodes, plan = nodes_of(tmp_path), plan_of("independent")
    with monkeypatch.context() as patched:

        def full(*_):
            raise MechanismFailed("no space")

        patched.setattr(coordinating, "write_rows", full)
        with pytest.raises(MechanismFailed, match="is paid for, and its model is kept"):
            run_with(nodes, tmp_path / "out", plan, run="first")
    with pytest.raises(ConfigurationError, match="model of another plan"):
        run_with(nodes, tmp_path / "out", plan_of("mst"))
    made = run_with({}, tmp_path / "out", plan, rows=20)
    assert (made.run, made.rows, made.spent) == ("first", 20, False)
    assert states(nodes) == {name: ["spent"] for name in NAMES}


def test_a_lost_note_of_the_end_loses_no_table(tmp_path):
    nodes = nodes_of(tmp_path)

    class Breaking(Wires):
        def ask(self, requests):
            if any(b'"complete"' in body.partition(b"\n")[0] for body in requests.values()):
                raise ConfigurationError("the relay has gone")
            return super().ask(requests)

    link = nullcontext(Breaking(nodes))
    made = run_federated(plan_of("independent"), ROSTER, COORDINATOR, link, tmp_path / "out", rows=10)
    assert made.rows == 10 and states(nodes) == {name: ["started"] for name in NAMES}


def ends_at(kind, error):
    """A link's change that raises at the first message of a kind."""

    def change(name, found, message):
        if found == kind:
            raise error
        return message

    return change


@pytest.mark.parametrize(
    ("error", "kind", "raised", "words"),
    [
        (KeyboardInterrupt(), "propose", Interrupted, "nothing is spent"),
        (KeyboardInterrupt(), "sum", Interrupted, "what they started is spent in their ledgers"),
        (ConfigurationError("gone"), "propose", ConfigurationError, "gone. No participant was asked to start: nothing"),
        (ConfigurationError("gone"), "sum", ConfigurationError, "gone. Participants were asked to start run first"),
    ],
)
def test_what_ends_a_run_says_what_is_spent(tmp_path, error, kind, raised, words):
    nodes = nodes_of(tmp_path)
    with pytest.raises(raised) as caught:
        run_with(nodes, tmp_path / "out", change=ends_at(kind, error), run="first")
    assert words in str(caught.value)
    assert ("spent in their" in words or "asked to start run" in words) == ("started" in str(states(nodes)))


def test_too_few_spend_nothing_and_the_message_says_so(tmp_path):
    nodes = nodes_of(tmp_path)
    lost = {"north", "west"}
    with pytest.raises(LedgerError, match=r"north, west.*No participant was asked to start: nothing is spent"):
        run_with(nodes, tmp_path / "out", change=lambda name, kind, message: None if name in lost else message)


def test_too_few_that_remain_say_what_is_spent(tmp_path):
    lost = {"north", "west"}

    def change(name, kind, message):
        return None if name in lost and kind == "sum" else message

    with pytest.raises(RoundRefused, match="what they started is spent"):
        run_with(nodes_of(tmp_path), tmp_path / "out", change=change)


@pytest.mark.parametrize("options", [{"run": "../up"}, {"run": ""}, {"run": "a b"}, {"rows": 0}])
def test_impossible_options_of_a_run(tmp_path, options):
    with pytest.raises(ContractError, match="accepted"):
        run_with({}, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_no_participant_of_a_command_has_the_auditor_s_name(place):
    keys = "".join(f"  {name}: {public(KEYS[name])}\n" for name in ("auditor", *NAMES))
    (place / "keys.yaml").write_text(f"participants:\n{keys}")
    status, said = place.plan()
    assert status == 1 and "auditor is what a deployment calls the participant that it adds" in said


def test_each_run_has_another_name():
    assert new_run_name() != new_run_name()


def test_a_key_is_made_once_for_its_user_alone(tmp_path):
    first = federation_key(tmp_path / "node").private_bytes_raw()
    assert federation_key(tmp_path / "node").private_bytes_raw() == first
    assert stat.S_IMODE((tmp_path / "node/keys/identity.key").stat().st_mode) == 0o600
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="accepted: a directory that this user can write to"):
        federation_key(tmp_path / "file")


def test_a_plan_is_made_of_declarations_alone(place):
    status, said = place.plan("--json")
    shown = json.loads(said)
    assert status == 0 and shown["participants"] == list(NAMES)
    made = read_plan(place / "plan.json")
    assert made.digest == shown["digest"] and made.sealed.dataset == "meals"
    assert (made.guarantee.unit, made.guarantee.epsilon, made.guarantee.delta) == ("user", 2.0, 1e-5)
    assert shown["columns"] == list(made.domain.reads) == ["drink", "food", "town", "age"]
    assert made.domain == plan_of("mst").domain and made.sealed.parameters == plan_of("mst").sealed.parameters
    assert [item.tables for item in rounds_shown(made)] == [4, 6, 3]
    assert [item["epsilon"] <= 2 for item in shown["protections"]] == [True] * 3


def test_the_cells_of_a_round_are_at_most_those_shown(tmp_path, monkeypatch):
    asked, real = [], MarginalsPlan.next_round
    monkeypatch.setattr(MarginalsPlan, "next_round", lambda *given: asked.append(real(*given)) or asked[-1])
    plan = plan_of("mst")
    run_with(nodes_of(tmp_path), tmp_path / "out", plan)
    found = [one.sum.length for one in asked if one is not None]
    assert [one <= shown.most_cells for one, shown in zip(found, rounds_shown(plan), strict=True)] == [True] * 3
    assert found[0] == rounds_shown(plan)[0].most_cells


def test_a_plan_in_words(place):
    status, said = place.plan(silos="2")
    assert status == 0
    for words in (
        "participants: east, north, south, west; at least 3 finish each round, of whom 1 may be curious",
        "the chosen pairs again",
        "One user may be in the rows of up to 2 participants, with at most 1 record in each",
        "for these 2 records together",
        "the coordinator, which opens the sums",
        "digest: ",
    ):
        assert words in " ".join(said.split())


@pytest.mark.parametrize(
    ("trust", "method", "words", "noise"),
    [
        ("central", "mst", "exact sums of all who finish a round", "6.96"),
        ("local", "independent", "the unit's own report alone", None),
    ],
)
def test_plans_with_another_trust(place, tmp_path, trust, method, words, noise):
    """As commands: what is promised against whom, and runs whose statements say the same."""
    status, said = place.plan("--trust", trust, "--method", method)
    assert status == 0, said
    plan = read_plan(place / "plan.json")
    assert plan.trust == trust
    assert noise is None or noise in said
    found = protections_in_words(plan)
    assert words in " ".join(item.rests_on for item in found)
    assert [item.numbers for item in found] == (
        [("none", "none"), ("2", "1e-05"), ("2", "1e-05")] if trust == "central" else 3 * [("2", "0")]
    )
    family = policy_document()["family"] | {"adjacency": plan.guarantee.adjacency}
    nodes = nodes_of(tmp_path / "nodes", trust=[trust], family=family)
    made = run_with(nodes, tmp_path / "out", plan, rows=100)
    document = json.loads((tmp_path / "out/statement.json").read_text())
    assert [item["epsilon"] for item in document["plan"]["protections"]] == [item.epsilon for item in found]
    assert document["plan"]["trust"] == trust and made.guarantee.epsilon <= 2
    text = made.statement.read_text()
    assert "Skellam" not in text and words in text
    assert ("It is pure: delta is 0 at epsilon 2." in text) == (trust == "local")
    assert ("whether they are in the data at all" in text) == (trust == "central")


def test_trust_that_a_method_does_not_have_is_refused(place):
    for trust, method in (("local", "mst"), ("local", "aim")):
        status, said = place.plan("--trust", trust, "--method", method)
        assert status == 1 and f"trust '{trust}' with method '{method}'; accepted: independent, or distributed" in said
    status, said = place.plan("--trust", "local", "--method", "independent", contributions="2")
    assert status == 1 and "up to 2 records of a unit in all silos; accepted: replace-one, and one record" in said


def test_rows_as_units_have_no_ids_in_the_table(place):
    assert place.plan(owners=None, contributions=None, method="independent")[0] == 0
    plan = read_plan(place / "plan.json")
    assert plan.guarantee.unit == "example" and plan.sealed.release["order"][-1] == "row"
    family = policy_document()["family"] | {"unit": "example"}
    made = run_with(nodes_of(place, family=family), place / "out", plan, rows=30)
    assert pq.read_table(made.synthetic).column_names == ["drink", "food", "town", "age"]
    assert "One record is protected." in made.statement.read_text()


def test_no_promise_against_participants_where_no_share_is_counted_as_known():
    found = protections_in_words(plan_of("mst", colluders=0))
    assert found[1].numbers == ("none", "none") and "knows its own share" in found[1].rests_on
    assert found[0].numbers[0] == "2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minimum": "2"}, "--minimum 2 of a sum; accepted: a whole number, 3 to 4"),
        ({"minimum": "9"}, "--minimum 9 of a sum; accepted: a whole number, 3 to 4"),
        ({"colluders": "2"}, "--colluders 2 of a sum; accepted: a whole number, 0 to 1"),
        ({"colluders": "3"}, "3 colluders of 3 that finish; accepted: fewer colluders"),
        ({"silos": "5"}, "--silos 5 of a sum; accepted: a whole number, 1 to 4"),
        ({"dataset": "My meals"}, "--dataset 'My meals'; accepted: a lower-case letter"),
        ({"epsilon": "11"}, "--epsilon 11; accepted: above 0, up to 10"),
        ({"contributions": None}, "--owners and --contributions go together"),
        ({"schema": "nowhere.yaml"}, "nowhere.yaml"),
        ({"participants": "nowhere.yaml"}, "nowhere.yaml"),
    ],
)
def test_impossible_options_of_a_plan(place, changes, words):
    status, said = place.plan(**changes)
    assert status == 1 and words in said and not (place / "plan.json").exists()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("drink: {type: drinks}", "columns.drink"),
        ("drink: {type: categorical, values: learned}", "columns.drink.values: learned; accepted in a federated run"),
        ("a b: {type: boolean}", "columns.a b: the name of a column; accepted in a federated run: letters"),
        ("drink: {type: text}", "columns: at least one of integer"),
    ],
)
def test_columns_that_no_federated_plan_has(place, columns, words):
    (place / "columns.yaml").write_text(f"columns:\n  {columns}\n")
    status, said = place.plan()
    assert status == 1 and words in said


def test_constraints_are_refused(place):
    (place / "columns.yaml").write_text(f"{SCHEMA}constraints:\n  - {{forbid: {{drink: [beer], food: [rice]}}}}\n")
    status, said = place.plan()
    assert status == 1 and "constraints" in said and "accepted" in said


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("participants: {east: ab}", "participants"),
        ("participants: {east: ab, north: cd}", "the key of 'east' is not a public key; accepted: 64 hexadecimal"),
        ("keys: {}", "participants"),
        (f"participants: {{east: {'ab' * 32}, north: {'ab' * 32}}}", "two participants of a roster have one key"),
    ],
)
def test_keys_that_are_none(place, keys, words):
    (place / "keys.yaml").write_text(keys)
    status, said = place.plan()
    assert status == 1 and words in said


def test_a_plan_is_not_replaced(place):
    assert place.plan()[0] == 0
    status, said = place.plan()
    assert status == 1 and "--out plan.json exists; accepted: a new file" in said


def test_a_plan_that_was_altered_is_not_run(place):
    place.plan()
    document = json.loads((place / "plan.json").read_text())
    document["plan"]["guarantee"]["epsilon"] = 0.1
    (place / "plan.json").write_text(json.dumps(document))
    with pytest.raises(GrantRefused):
        read_plan(place / "plan.json")
    status, said = place.run()
    assert status == 1 and "altered" in said


def test_a_run_needs_the_key_that_participants_know(place):
    place.plan()
    status, said = place.run()
    assert status == 1 and "--key coordinator: there is no key; accepted: a directory with" in said


def test_a_run_without_the_flower_app(place, monkeypatch):
    place.plan()
    federation_key(place / "coordinator")
    monkeypatch.setattr(relays, "CONNECTING_SECONDS", 0.1)
    status, said = place.run()
    assert status == 1 and "no relay has connected" in said and "flwr run deploy/flower" in said
    assert not (place / "s").exists() and not (place / "out/statement.md").exists()


def test_the_command_runs_over_a_relay(place, monkeypatch):
    nodes = nodes_of(place / "nodes")
    monkeypatch.setattr(coordinating, "federation_key", lambda directory: COORDINATOR)
    federation_key(place / "coordinator")
    place.plan(method="independent")
    with carried(place / "s", Wires(nodes)):
        status, said = place.run("--rows", "50", "--run", "first")
    assert status == 0, said
    assert "waiting at s for the Flower app" in said and "50 synthetic rows" in said
    assert "run first was paid by its participants" in said and "Started, and has spent: east" in said
    assert pq.read_table(place / "out/synthetic.parquet").num_rows == 50
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    assert not (place / "s").exists()


def test_an_unknown_coordinator_starts_nothing(place):
    nodes = nodes_of(place)
    link = nullcontext(Wires(nodes))
    with pytest.raises(LedgerError, match="0 participants have reserved"):
        run_federated(plan_of(), ROSTER, Ed25519PrivateKey.generate(), link, place / "out")
    assert states(nodes) == {name: [] for name in NAMES}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigurationError("gone")])
def test_the_same_call_continues_a_run_that_was_stopped(tmp_path, error):
    """Participants work on no round twice and pay once; another name or plan does not continue it."""
    nodes, plan, steps = nodes_of(tmp_path), plan_of("mst"), []

    def change(name, kind, message):
        steps.append(kind)
        if steps.count("sum") == 30:  # in the second round
            raise error
        return message

    with pytest.raises((Interrupted, ConfigurationError), match="The same command continues this one"):
        run_with(nodes, tmp_path / "out", plan, change)
    with pytest.raises(ContractError, match=r"--run other: run \S+ was interrupted here; accepted: its name"):
        run_with(nodes, tmp_path / "out", plan, run="other")
    with pytest.raises(ConfigurationError, match="an interrupted run of another plan; accepted"):
        run_with(nodes, tmp_path / "out", plan_of("independent"))
    made = run_with(nodes, tmp_path / "out", plan, rows=25)
    assert made.rows == 25 and made.spent and states(nodes) == {name: ["spent"] for name in NAMES}
    assert not (tmp_path / "out/restricted/exchanges").exists()
    assert len(list((tmp_path / "out/restricted/models").iterdir())) == 1


def test_too_few_that_remain_end_a_run_and_the_same_call_is_another_one(tmp_path):
    nodes = nodes_of(tmp_path)
    with pytest.raises(RoundRefused, match=r"in their ledgers\. Another run costs again, also one by the same command"):
        run_with(nodes, tmp_path / "out", change=lambda name, kind, message: message if kind != "sum" else None)
    made = run_with(nodes, tmp_path / "out")
    assert made.spent and states(nodes) == {name: ["started", "spent"] for name in NAMES}


def test_the_same_command_continues_the_run_of_a_killed_process(place):
    nodes, steps = nodes_of(place / "nodes", coordinator=public(federation_key(place / "coordinator"))), []
    assert place.plan()[0] == 0
    command = [sys.executable, "-m", "dpsynth_platform", "federate", "run", "plan.json", "--participants", "keys.yaml"]
    command += ["--key", "coordinator", "--socket", "s", "--out", "out", "--rows", "20"]
    running = []

    def change(name, kind, message):
        steps.append(kind)
        if steps.count("sum") == 30:  # in the second round; the others of this step still answer
            running[0].kill()
        return message

    with carried(place / "s", Wires(nodes, change)):
        running.append(subprocess.Popen(command, cwd=place))
        assert running[0].wait(120) == -signal.SIGKILL
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    assert pq.read_table(place / "out/synthetic.parquet").num_rows == 20


def test_what_was_said_in_a_run_that_does_not_go_on_expires(tmp_path):
    """It has masked vectors, which somebody who breaks the cryptography later could open."""
    nodes, out = nodes_of(tmp_path), tmp_path / "out"
    with pytest.raises(Interrupted, match="The same command continues this one"):
        run_with(nodes, out, change=ends_at("sum", KeyboardInterrupt()))
    kept = out / "restricted" / EXCHANGES
    assert kept.is_dir() and {stat.S_IMODE(file.stat().st_mode) for file in kept.iterdir()} == {0o600}
    for days, there in ((KEPT_DAYS - 1, True), (KEPT_DAYS + 1, False)):
        for file in kept.iterdir():
            os.utime(file, (time.time() - days * 86_400,) * 2)
        with held(out):
            assert kept.exists() == there
