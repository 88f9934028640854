"""A federated dataset through the whole line: sums of participants' rows, audited, approved, published and verified."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError
from deployment import Deployment
from federated_cases import COLUMNS, KEYS, NAMES, SCHEMA, participant, plan_of, policy_document, public, rows
from line_cases import Ran, ledger_of, lineage_of, run_here, storage_of
from relay_cases import carried
from test_nodes import Wires, states

from assets.line import FEDERATED
from dpsynth_platform.audit.canaries import read_canaries
from dpsynth_platform.console.pages.markup import render
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.candidates import candidate
from dpsynth_platform.contracts.federation import AUDITOR
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation import coordinator, secure_sum
from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.mechanisms import plan_of as plan_of_text
from dpsynth_platform.federation.nodes import Node
from dpsynth_platform.federation.relays import RelayLink
from dpsynth_platform.federation.sums import SCALE
from dpsynth_platform.foundation.errors import ConfigurationError, MechanismFailed
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, steps_of
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.one_table.federated_lineage import coordinator_run
from dpsynth_platform.operations import federating
from dpsynth_platform.operations.federating import COORDINATOR, federation_keys
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.decisions import approve
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.measured import read_measured

pytestmark = pytest.mark.end_to_end

MEALS = Place("meals")
JOB = "meals_candidate"
CONTRACT: dict[str, Any] = {
    "dataset": "meals",
    "description": "Fictional people.",
    "owners": ["tests@example.org"],
    "source": {
        "uri": "federation://meals",
        "format": "federated",
        "key": ["person"],
        "federation": {
            "participants": {name: public(KEYS[name]) for name in NAMES},
            "minimum": 3,
            "colluders": 1,
            "most_records": 10_000,
        },
    },
    "family": "guests",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person"],
        "namespace": "person",
        "max_contributions": 1,
        "guarantee": {"epsilon": 2.0, "delta": 1e-5},
        "expected_units": 2000,
    },
    "columns": {"person": {"type": "identifier"}, **COLUMNS},
    "generate": {"method": "mst", "rows": 300},
    # What is shown does not depend on the verdict: so few canaries show nothing at such a confidence.
    "audit": {"canaries": 60, "confidence": 0.999999, "accept_inconclusive": "a test of other things"},
    "release": {"uri": "${DPSYNTH_HOME}/public/meals", "approvals": 1},
}
FAMILY: dict[str, Any] = {
    "family": "guests",
    "unit": "user",
    "adjacency": "add-or-remove",
    "namespace": "person",
    "mode": "family",
    "cap": {"epsilon": 6.0, "delta": 1e-4},
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: a socket's has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="fl-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


class Federated(Deployment):
    """A deployment at a coordinator, which knows where its relay connects."""

    @property
    def settings(self) -> Settings:
        return replace(super().settings, federation=self.root / "deploy" / "federation.yaml")

    @property
    def socket(self) -> Path:
        return self.root / "s"

    def run(self, wires: Wires, job: str = JOB, **options: Any) -> Ran:
        with carried(self.socket, wires):
            return run_here(self, job, **options)


def federated(place: Path, **changes: Any) -> Federated:
    """With changed parts of the contract."""
    contract = copy.deepcopy(CONTRACT)
    for part, values in changes.items():
        contract[part] |= values
    made = Federated(place, contract=contract, family=copy.deepcopy(FAMILY)).write()
    (place / "deploy" / "federation.yaml").write_text(f"default: {{socket: {made.socket}}}\n")
    return made  # type: ignore[return-value]  # `write` returns itself


def nodes_of(deployment: Deployment, number: int = 2_000, **changes: Any) -> dict[str, Node]:
    """The participants' nodes, whose policies name the deployment's keys."""
    keys = federation_keys(Vault(deployment.settings.vault))
    named = {name: public(KEYS[name]) for name in NAMES} | {AUDITOR: public(keys[AUDITOR])}
    terms = {"participants": named, "coordinator": public(keys[COORDINATOR])} | changes
    table, place = rows(number), deployment.root / "nodes"
    parts = {name: table.take(np.arange(index, number, len(NAMES))) for index, name in enumerate(NAMES)}
    return {name: Node(participant(place, name, part, **terms), KEYS[name]) for name, part in parts.items()}


def declared_domain_of(deployment: Deployment) -> Domain:
    return planned_domain(parse_contract(deployment.contract, where="test", variables={"DPSYNTH_HOME": "/nowhere"}))


def entries_of(deployment: Deployment) -> list[str]:
    return [entry.state for entry in ledger_of(deployment).entries()]


def published(deployment: Federated) -> tuple[Path, dict[str, Any]]:
    """The approved release, and its dossier."""
    approve(deployment.settings, MEALS, "reviewer", "")
    ran = run_here(deployment, "meals_release")
    assert ran.success, ran.failures
    folder = Path(storage_of(deployment).require(MEALS, "released").facts["path"])
    return folder, json.loads((folder / "dossier.json").read_text())


def silent(*dropped: tuple[str, str], after: int = 0) -> Any:
    """What wires lose: messages of a kind to a participant, after so many of this kind in all."""
    heard: Counter[str] = Counter()

    def change(name: str, kind: str, message: bytes) -> bytes | None:
        heard[kind] += 1
        return None if (name, kind) in dropped and heard[kind] > after else message

    return change


def test_the_whole_line(place: Path) -> None:
    deployment = federated(place)
    nodes = nodes_of(deployment)
    ran = deployment.run(Wires(nodes))
    assert ran.success, ran.failures
    assert set(ran.materializations) == {step.name for step in FEDERATED} - {"released"}
    assert states(nodes) == {name: ["spent"] for name in NAMES} and entries_of(deployment) == ["spent"]
    again = run_here(deployment, JOB)  # no relay is there, and none is needed
    assert again.success and entries_of(deployment) == ["spent"]
    assert all(again.materializations[step]["reused"] for step in ("raw", "canaries", "model", "synthetic", "audit"))
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    statement = dossier["statement"]
    assert statement["setting"].startswith("Distributed model: the rows stay with 4 participants (east, north, south")
    assert [item["epsilon"] for item in statement["against"]] == 3 * [dossier["guarantee"]["epsilon"]]
    assert "at least 2 honest participants of the 3 or more" in statement["against"][0]["rests_on"]
    assert "Integrity is not claimed" in statement["not_covered"][0]
    assert not any("quality report" in sentence for sentence in statement["not_covered"])
    assert dossier["contract"]["federation"]["participants"] == list(NAMES)
    assert dossier["mechanism"]["took_part"]["finished"] == 3 * [[AUDITOR, *NAMES]]
    page = (folder / "dossier.html").read_text()
    assert "Who took part: auditor, east, north, south, west" in (folder / "README.md").read_text()
    assert "The auditor is the publisher's own" in page and "Round 3 is the sum of auditor, east" in page
    assert tuple(step.name for step in FEDERATED) == steps_of(separate_audit_model=False, federated=True)


def test_the_whole_line_with_the_noise_of_a_trusted_coordinator(place: Path) -> None:
    """Interrupted once: the noise of the first sums is that of the model."""
    federation = CONTRACT["source"]["federation"] | {"trust": "central"}
    deployment = federated(place, source={"federation": federation})
    refusing = nodes_of(deployment)  # whose policies are for distributed noise
    assert not deployment.run(Wires(refusing)).success
    assert states(refusing) == {name: [] for name in NAMES}
    nodes = nodes_of(deployment, trust=["central"])
    with ending(10, ConfigurationError("the relay has gone")):  # in the second of two rounds
        deployment.run(Wires(nodes))
    (entry,) = ledger_of(deployment).entries()
    log = storage_of(deployment).location(MEALS, "model") / entry.entry_id / "measurements.jsonl"
    before = log.read_bytes()
    assert before.count(b'"one-way"') == 4
    ran = deployment.run(Wires(nodes))
    assert ran.success, ran.failures
    assert log.read_bytes().startswith(before)
    assert states(nodes) == {name: ["spent"] for name in NAMES} and entries_of(deployment) == ["spent"]
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    statement = dossier["statement"]
    assert statement["setting"].startswith("Central model: the rows stay with 4 participants (east, north, south, we")
    assert [item["party"] for item in statement["against"]] == [
        "all other participants, together and without the coordinator",
        "all who see the synthetic table",
    ]
    assert statement["not_covered"][0].startswith("A record against the coordinator: it opens the participants' exact")
    assert any(
        "The coordinator draws the noise of the plan once" in item["assumption"] for item in statement["assumptions"]
    )
    assert dossier["mechanism"]["took_part"]["finished"] == 2 * [[AUDITOR, *NAMES]]
    alone = generator("mst").plan(
        parse_contract(deployment.contract, where="test", variables={"DPSYNTH_HOME": "/nowhere"}),
        SCHEMA,
        Guarantee(2.0, 1e-5, "user", "add-or-remove", 1),
    )
    assert statement["event"] == alone.event


def test_the_whole_line_with_private_reports(place: Path) -> None:
    federation = CONTRACT["source"]["federation"] | {"trust": "local"}
    parts = {"privacy": {"adjacency": "replace-one"}, "generate": {"method": "independent"}}
    deployment = federated(place, source={"federation": federation}, **parts)
    deployment.family["adjacency"] = "replace-one"
    deployment.write()
    family = policy_document()["family"] | {"adjacency": "replace-one"}
    nodes = nodes_of(deployment, trust=["local"], family=family)
    ran = deployment.run(Wires(nodes))
    assert ran.success, ran.failures
    assert states(nodes) == {name: ["spent"] for name in NAMES} and entries_of(deployment) == ["spent"]
    folder, dossier = published(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    assert dossier["statement"]["setting"].startswith("Local model: the rows stay with 4 participants")
    assert [(item["epsilon"], item["delta"]) for item in dossier["statement"]["against"]] == 3 * [(2.0, 0.0)]
    assert dossier["statement"]["event"]["kind"] == "local-reports"
    assert dossier["fidelity"] is None  # estimates of one column have different noise


def test_the_plan_counts_the_auditor_besides(place: Path) -> None:
    """So as many shares of noise protect a record as in a run by the command without an auditor."""
    deployment = federated(place)
    deployment.run(Wires(nodes_of(deployment)))
    raw = storage_of(deployment).require(MEALS, "raw")
    sealed = plan_of_text((raw.directory / "plan.json").read_text())
    alone = plan_of("mst", 2.0)
    assert (sealed.terms.minimum, sealed.terms.colluders) == (4, 2)
    assert sealed.terms.share_variances == alone.terms.share_variances and sealed.event == alone.event
    tables = read_measured(storage_of(deployment).require(MEALS, "synthetic").directory)
    assert tables is not None  # the auditor adds none on top
    noise = (len(NAMES) * np.array(alone.terms.share_variances)) ** 0.5 / SCALE
    assert {round(table["sigma"], 6) for table in tables["tables"]} <= {round(each, 6) for each in noise}


def test_lineage_leads_from_the_participants_to_the_release(place: Path) -> None:
    deployment = federated(place)
    deployment.run(Wires(nodes_of(deployment)))
    folder, _ = published(deployment)
    above = {str(item.dataset) for item in lineage_of(deployment).upstream(naming.dataset_name(folder / "data"))}
    assert {f"dpsynth:meals/participant-{name}/sums" for name in (AUDITOR, *NAMES)} <= above
    assert "federation://meals:/" in above
    told = json.dumps([event.payload for event in LineageStore(deployment.settings.ledger_url).events()])
    assert not any(f'"{word}"' in told for word in ("Aix", "tea", "milk"))
    started = {
        item.job_name: item.payload["run"]["facets"]["parent"]["run"]
        for item in LineageStore(deployment.settings.ledger_url).events()
        if item.kind == "START"
    }
    assert started["meals.federated"] == started["meals.model"]


def test_the_run_of_a_killed_coordinator_is_closed_with_its_dagster_run(place: Path) -> None:
    """As those of steps are, by the sensor that knows which Dagster runs have ended."""
    deployment = federated(place)
    emitter = LineageEmitter.of(deployment.settings)
    emitter.start(coordinator_run(plan_of(), "run-1", launcher="dagster", job=JOB))
    assert emitter.close_out(["run-2"]) == [] and len(emitter.close_out(["run-1"])) == 1
    events = LineageStore(deployment.settings.ledger_url).events()
    assert [(item.job_name, item.kind) for item in events] == [
        ("meals.federated", "START"),
        ("meals.federated", "FAIL"),
    ]


def test_participants_that_refuse_cost_nothing(place: Path) -> None:
    deployment = federated(place)
    refusing = nodes_of(deployment, methods=["aim"])
    ran = deployment.run(Wires(refusing))
    assert list(ran.failures) == ["model"]
    assert "1 participant has reserved the run; accepted: the plan's 4 or more" in ran.failures["model"]
    assert "Nothing is spent" in ran.failures["model"]
    assert entries_of(deployment) == ["reserved"] and states(refusing) == {name: [] for name in NAMES}
    agreeing = nodes_of(deployment)
    assert deployment.run(Wires(agreeing)).success
    assert entries_of(deployment) == ["spent"] and states(agreeing) == {name: ["spent"] for name in NAMES}


def test_a_policy_counts_the_auditor_besides(place: Path) -> None:
    """A coordinator that hides its auditor among `minimum` or `colluders` finds no participant."""
    deployment = federated(place)
    for key, least in (("minimum", 4), ("colluders", 2)):
        wires = Wires(nodes_of(deployment, **{key: least}))
        assert not deployment.run(wires).success
        assert {str(error).partition(" refuses the plan: ")[2] for _, _, error in wires.refusals} == {
            f"{key}: {least}; accepted: from {least + 1}, with the auditor"
        }


def test_participants_that_drop_out_are_named(place: Path) -> None:
    deployment = federated(place)
    # In round 1 go six messages to each of four.
    wires = Wires(nodes_of(deployment), silent(("west", "sum"), after=24))
    assert deployment.run(wires).success
    folder, dossier = published(deployment)
    took_part = dossier["mechanism"]["took_part"]
    assert took_part["started"] == [AUDITOR, *NAMES]
    assert [sorted(names) for names in took_part["finished"][1:]] == 2 * [[AUDITOR, "east", "north", "south"]]
    assert "Round 2: west dropped out (no reply" in (folder / "dossier.html").read_text()


def test_a_run_that_too_few_finish_stays_paid(place: Path) -> None:
    deployment = federated(place)
    nodes = nodes_of(deployment)
    failed = deployment.run(Wires(nodes, silent(("west", "sum"), ("east", "sum"))))
    assert list(failed.failures) == ["model"]
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started" and f"--spend-again {entry.entry_id}" in failed.failures["model"]
    assert states(nodes) == {name: ["started"] for name in NAMES}
    again = deployment.run(Wires(nodes))
    assert "started and did not complete" in again.failures["clearance"]
    assert states(nodes) == {name: ["started"] for name in NAMES}
    assert deployment.run(Wires(nodes), spend_again=entry.entry_id).success
    assert states(nodes) == {name: ["started", "spent"] for name in NAMES}
    _, dossier = published(deployment)
    last = dossier["statement"]["assumptions"][-1]
    assert last["assumption"].startswith("The coordinator started 2 runs") and last["holds"] == "yes"


def test_sums_without_the_auditor_cannot_be_audited(place: Path) -> None:
    deployment = federated(place)
    nodes, answer = nodes_of(deployment), Node.answer

    def lost(node: Node, message: bytes) -> bytes:
        if node.name == AUDITOR and b'"kind":"sum"' in message[:200]:
            raise MechanismFailed("lost")
        return answer(node, message)

    with patch.object(Node, "answer", lost):
        ran = deployment.run(Wires(nodes))
    (entry,) = ledger_of(deployment).entries()
    assert f"--spend-again {entry.entry_id}" in ran.failures["model"] and entry.state == "started"
    assert not storage_of(deployment).location(MEALS, "model").joinpath(entry.entry_id, "took_part.json").exists()
    # Nor is a model of sums that others have made without it accepted.
    before = {"finished": [[AUDITOR, *NAMES], list(NAMES), list(NAMES)], "started": [AUDITOR, *NAMES], "dropped": []}
    with patch.object(TookPart, "read", lambda directory: TookPart.from_json(before)):
        ran = deployment.run(Wires(nodes), spend_again=entry.entry_id)
    assert "the auditor is not in all sums of this run" in ran.failures["model"]


def test_an_auditor_that_does_not_reserve_starts_nothing(place: Path) -> None:
    deployment = federated(place)
    nodes = nodes_of(deployment)
    with patch.object(federating, "MOST_CAP", 1.0):  # its ledger refuses
        ran = deployment.run(Wires(nodes))
    assert "0 participants have reserved" in ran.failures["model"] and "Nothing is spent" in ran.failures["model"]
    assert entries_of(deployment) == ["reserved"] and states(nodes) == {name: [] for name in NAMES}


def test_open_sums_are_fitted_without_asking_again(place: Path) -> None:
    """A coordinator that is killed between the last sum and the model has paid, and needs nobody."""
    deployment = federated(place)
    nodes = nodes_of(deployment)
    with patch.object(coordinator, "digest_directory", side_effect=MechanismFailed("killed")):
        ran = deployment.run(Wires(nodes))
    assert "killed" in ran.failures["model"] and entries_of(deployment) == ["started"]
    again = run_here(deployment, JOB)
    assert again.success, again.failures
    assert "the sums of an interrupted run are all open" in " ".join(again.said["model"])
    assert entries_of(deployment) == ["spent"]


def test_other_words_spend_nothing_and_a_raised_version_is_another_run(place: Path) -> None:
    deployment = federated(place)
    nodes = nodes_of(deployment)
    deployment.run(Wires(nodes))
    deployment.contract["description"] = "Fictional people at table."
    deployment.contract["source"]["federation"]["participants"]["west"] = 64 * "0"  # a new key
    deployment.write()
    assert run_here(deployment, JOB).success and entries_of(deployment) == ["spent"]
    deployment.contract = copy.deepcopy(CONTRACT)
    deployment.contract["source"]["version"] = 1
    deployment.write()
    assert deployment.run(Wires(nodes)).success
    assert entries_of(deployment) == ["spent", "spent"] and states(nodes) == {name: 2 * ["spent"] for name in NAMES}


def test_the_audit_finds_a_run_without_noise(place: Path) -> None:
    """Of 300 canaries in 400 cells of each of 20 columns without other records, exact counts tell which joined.

    In its own 20 cells, one that joined counts 20 and about 7 more of others (Poisson), and another one about 7 alone.
    That one of 150 others counts 25 or more has a chance of 6e-5, and two of them, which the bound would not bear, one
    below 2e-9.
    """
    values = [f"v{number}" for number in range(400)]
    declared = {name: {"type": "categorical", "values": values} for name in "abcdefghijklmnopqrst"}
    deployment = federated(place, audit={"canaries": 300, "confidence": 0.95}, generate={"method": "independent"})
    deployment.contract["columns"] = {"person": {"type": "identifier"}, **declared}
    deployment.write()
    nodes = nodes_of(deployment, columns=list(declared))
    table = pa.table({"person": ["1"]} | {name: ["v0"] for name in declared})
    for node in nodes.values():
        node.participant = replace(node.participant, bounded=table, domain=declared_domain_of(deployment))

    def audited() -> dict[str, Any]:
        ran = deployment.run(Wires(nodes))
        assert ran.success, ran.failures
        return ran.materializations["audit"]

    with patch.object(secure_sum, "sample_skellam", lambda variance, size: np.zeros(size, np.int64)):
        found = audited()
    assert found["verdict"] == "fail" and found["epsilon_lower_bound"] > 2
    deployment.contract["source"]["version"], deployment.contract["audit"]["confidence"] = 1, 0.999999
    deployment.write()
    assert audited()["epsilon_lower_bound"] < 2  # false with a chance of 1e-6, by the contract's confidence


def test_a_person_in_several_silos_is_one_canary_with_the_records_of_all(place: Path) -> None:
    deployment = federated(place, source={"federation": CONTRACT["source"]["federation"] | {"silos": 2}})
    nodes = nodes_of(deployment)
    assert deployment.run(Wires(nodes)).success
    canaries = read_canaries(storage_of(deployment).require(MEALS, "canaries").directory / "table")
    assert canaries.records_per_owner == 2
    _, dossier = published(deployment)
    assert dossier["guarantee"]["max_contributions"] == 2 and dossier["contract"]["federation"]["silos"] == 2
    assert "the guarantee is for these 2 records together" in dossier["statement"]["unit"]
    (entry,) = ledger_of(deployment).entries()
    assert entry.request.guarantee.max_contributions == 2
    refusing = Wires(nodes_of(deployment, silos=3))
    deployment.contract["source"]["version"] = 1
    deployment.write()
    assert not deployment.run(refusing).success
    assert {str(error)[-19:] for _, _, error in refusing.refusals} == {"2; accepted: from 3"}


def test_rows_that_are_units_of_their_own(place: Path) -> None:
    deployment = federated(place, privacy={"unit": "example"})
    deployment.family["unit"] = "example"
    deployment.write()
    nodes = nodes_of(deployment, family=policy_document()["family"] | {"unit": "example"})
    assert deployment.run(Wires(nodes)).success
    _, dossier = published(deployment)
    assert dossier["statement"]["unit"].startswith("One record is protected.")
    assert dossier["guarantee"]["unit"] == "example"


def test_commands_and_pages_know_federated_datasets(place: Path) -> None:
    deployment = federated(place)
    shown = deployment.here("plan", "meals").stdout
    assert "3 sums of participants, each with the Skellam noise of at least 2 honest participants" in shown
    keys = deployment.json("federate", "keys")
    assert keys == {name: public(key) for name, key in federation_keys(Vault(deployment.settings.vault)).items()}
    deployment.run(Wires(nodes_of(deployment)))
    shown = deployment.here("release", "show", "meals").stdout
    assert "1 participant, together and with the coordinator" in shown
    assert "not measured: the real rows stay with the participants" in shown
    place_of = next((deployment.settings.restricted / "meals").glob("*/dossier/*/reviewers.html"))
    restricted = place_of.read_text()
    assert "Not measured: the real rows stay with the participants" in restricted and "purged, or of" not in restricted
    assert "comparisons with real rows" not in restricted and "took part" in restricted.lower()
    view = candidate(deployment.settings, list(Action), "meals")
    may = {"may": lambda action: True, "Action": Action, "settings": deployment.settings}
    page = render("candidate.html.j2", view=view, **may)
    assert "Against whom the guarantee holds" in page and "1 participant, together and with the coordinator" in page
    assert len(view.against) == 3 and "quality" not in {check.point for check in view.checks}
    for command, words in (
        (("plan", "meals", "--rehearse"), "a rehearsal would need participants"),
        (("bound", "learn", "meals", "--epsilon", "0.5"), "the rows stay with participants"),
        (("run", "meals", "--up-to", "scrubbed"), "accepted: raw, canaries, clearance, model, synthetic, audit"),
    ):
        done = deployment.here(*command)
        assert done.returncode == 1 and words in done.stderr


def test_a_deployment_without_a_relay_spends_nothing(place: Path) -> None:
    deployment = federated(place)
    (place / "deploy" / "federation.yaml").write_text("datasets: {}\n")
    ran = run_here(deployment, JOB)
    assert "default: missing; accepted: a file such as federation.yaml" in ran.failures["clearance"]
    assert entries_of(deployment) == []
    shown = deployment.here("plan", "meals")
    assert shown.returncode == 1 and "default: missing" in shown.stderr


def test_a_wrong_key_in_one_place_is_found_before_anybody_starts(place: Path) -> None:
    """The policy of one participant names another auditor; the contract then another key of one participant."""
    deployment = federated(place)
    strange = {name: public(KEYS[name]) for name in NAMES} | {AUDITOR: 64 * "1"}
    nodes = nodes_of(deployment)
    nodes["south"] = nodes_of(deployment, participants=strange)["south"]
    nodes["west"] = nodes_of(deployment, participants=strange)["west"]
    ran = deployment.run(Wires(nodes))
    assert "south, west: has reserved with other keys of participants in its policy" in ran.failures["model"]
    assert entries_of(deployment) == ["reserved"] and states(nodes) == {name: ["void"] for name in NAMES}
    keys = deployment.contract["source"]["federation"]["participants"]
    keys |= {name: 64 * digit for name, digit in (("south", "2"), ("west", "3"))}
    deployment.write()
    nodes = nodes_of(deployment)
    ran = deployment.run(Wires(nodes))
    assert "south, west: replied, and not by the key that the coordinator knows" in ran.failures["model"]
    assert states(nodes) == {name: ["void", "void"] for name in NAMES}


def test_a_run_goes_on_without_one_that_has_other_keys(place: Path) -> None:
    deployment = federated(place)
    nodes = nodes_of(deployment)
    strange = {name: public(KEYS[name]) for name in NAMES} | {AUDITOR: 64 * "1"}
    nodes["south"] = nodes_of(deployment, participants=strange)["south"]
    ran = deployment.run(Wires(nodes))
    assert ran.success, ran.failures
    assert "without south: has reserved with other keys of participants in its policy" in " ".join(ran.said["model"])
    assert states(nodes) == {name: ["void" if name == "south" else "spent"] for name in NAMES}


def test_a_run_that_is_stopped_says_what_is_spent(place: Path) -> None:
    deployment = federated(place)
    nodes = nodes_of(deployment)
    with patch.object(coordinator, "digest_directory", side_effect=DagsterExecutionInterruptedError):
        ran = deployment.run(Wires(nodes))
    (entry,) = ledger_of(deployment).entries()
    assert "the run was stopped. Ledger entry" in ran.failures["model"] and entry.state == "started"
    assert f"--spend-again {entry.entry_id}" in ran.failures["model"]
    events = LineageStore(deployment.settings.ledger_url).events()
    assert [item.kind for item in events if item.job_name == "meals.federated"] == ["START", "ABORT"]


def ending(number: int, error: BaseException | type[BaseException]) -> Any:
    """Ends a coordinator at an exchange: participants have answered, and are not heard."""
    ask, asked = RelayLink.ask, list[int]()

    def ended(link: RelayLink, requests: dict[str, bytes]) -> Any:
        asked.append(len(requests))
        replies = ask(link, requests)
        if len(asked) == number:
            raise error
        return replies

    return patch.object(RelayLink, "ask", ended)


@pytest.mark.parametrize("error", [DagsterExecutionInterruptedError, ConfigurationError("the relay has gone")])
def test_a_run_continues_where_its_coordinator_was_interrupted(place: Path, error: BaseException) -> None:
    """With the auditor, which says the same again. What participants have paid is not lost, and not paid twice."""
    deployment = federated(place)
    nodes = nodes_of(deployment)
    with ending(10, error):  # in the second of three rounds
        stopped = deployment.run(Wires(nodes))
    assert not stopped.success and entries_of(deployment) == ["started"]
    assert states(nodes) == {name: ["started"] for name in NAMES}
    again = deployment.run(Wires(nodes))
    assert again.success, again.failures
    assert "continuing run" in " ".join(again.said["model"])
    assert entries_of(deployment) == ["spent"] and states(nodes) == {name: ["spent"] for name in NAMES}
    kept = storage_of(deployment).location(MEALS, "model")
    assert not [path for path in kept.iterdir() if path.name.endswith("-job")]
    folder, dossier = published(deployment)
    assert [sorted(names) for names in dossier["mechanism"]["took_part"]["finished"]] == 3 * [[AUDITOR, *NAMES]]
    assert verification.verify(deployment.settings, str(folder), None).ok
    above = {str(item.dataset) for item in lineage_of(deployment).upstream(naming.dataset_name(folder / "data"))}
    assert {f"dpsynth:meals/participant-{name}/sums" for name in (AUDITOR, *NAMES)} <= above


def test_other_canaries_do_not_continue_a_run(place: Path) -> None:
    """The audit would look for fictional people who are not in the first rounds' sums."""
    deployment = federated(place)
    nodes = nodes_of(deployment)
    with ending(5, ConfigurationError("the relay has gone")):
        deployment.run(Wires(nodes))
    (entry,) = ledger_of(deployment).entries()
    kept = storage_of(deployment).location(MEALS, "model") / f"{entry.entry_id}-exchanges-job" / "run.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"canaries": "others"}))
    ran = deployment.run(Wires(nodes))
    assert "an interrupted run of another canaries, and cannot continue" in ran.failures["model"]
    assert f"--spend-again {entry.entry_id}" in ran.failures["model"]
