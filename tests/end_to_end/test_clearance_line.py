"""Clearance with real assets: checkpoints known by others' events, and what is learned of them after the model."""

import json

import pytest
from inside import inside
from line_cases import PEOPLE, add_dataset, ledger_of, released, run_here, small_deployment, small_table, storage_of
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.contracts import cross_checks
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.clearance import Clearance
from dpsynth_platform.lineage.overlaps import Overlaps
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.reviewing.decisions import approve

pytestmark = pytest.mark.end_to_end

OTHERS = Place("others")


def trained(name, *inputs):
    """Another team's event: a checkpoint was trained on something."""
    return {
        "eventType": "COMPLETE",
        "eventTime": "2026-01-01T00:00:00Z",
        "producer": "https://example.org/trainer",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": f"00000000-0000-4000-8000-{abs(hash((name, inputs))) % 10**12:012}", "facets": {}},
        "job": {"namespace": "team", "name": f"train.{name}"},
        "inputs": [
            {"namespace": item.namespace, "name": item.name, "facets": {}}
            if isinstance(item, naming.DatasetName)
            else {"namespace": "hub", "name": item, "facets": {"datasetType": {"datasetType": "MODEL"}}}
            for item in inputs
        ],
        "outputs": [{"namespace": "hub", "name": name, "facets": {"datasetType": {"datasetType": "MODEL"}}}],
    }


def test_a_model_that_starts_from_a_checkpoint_two_trainings_deep(tmp_path, monkeypatch):
    """Guide, E2: people -> release -> A -> B, from which training on others starts. Then more is learned of A."""
    monkeypatch.setattr(cross_checks, "BASE_MODEL_METHODS", ("mst",))
    deployment = small_deployment(tmp_path)
    add_dataset(deployment, "others", small_table(seed=5, first_person=500))
    file = deployment.settings.contracts / "others.yaml"
    file.write_text(file.read_text().replace("method: mst", "method: mst\n  base_model: hub:B"))
    graph = LineageStore(deployment.settings.ledger_url)

    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    data = naming.dataset_name(released(deployment) / "data")

    def run_others():
        return run_here(deployment, "others_candidate", accelerator=inside(deployment))

    refused = run_others()
    assert set(refused.failures) == {"raw"}  # before a record is read
    assert "unknown origin" in refused.failures["raw"]
    assert len(ledger_of(deployment).entries()) == 1

    for event in (trained("A", data), trained("B", "A", naming.DatasetName("hub", "web"))):
        graph.record(event, origin="ingested", source="team")
    ran = run_others()
    assert ran.success, ran.failures
    first, second = ledger_of(deployment).entries()
    record = storage_of(deployment).require(OTHERS, "clearance")
    found = Clearance.from_json(record.facts["clearance"])
    (finding,) = found.adding
    assert (finding.kind, finding.entry, found.decision) == ("base-model", first.entry_id, "compose")
    assert finding.path == (
        "hub:B",
        "base hub:A",
        f"trained-on {data}",
        f"paid-by dpsynth:ledger:{first.entry_id}",
    )
    one, together = second.request.guarantee.epsilon, found.resulting
    assert one < together.epsilon < 2 * one
    shown = ran.materializations["clearance"]
    assert "Together with what was found" in shown["what is known of earlier mechanisms"]
    kept = Overlaps.read(storage_of(deployment), OTHERS, second.entry_id)
    assert 0 < kept.by_entry[first.entry_id] < kept.offered == kept.charged
    assert str(kept.by_entry) not in json.dumps(record.facts)
    assert "by_entry" not in str(shown)
    bases = [edge for edge in graph.edges(naming.DatasetName("hub", "B")) if edge.relation == "base"]
    assert naming.dataset_name(storage_of(deployment).location(OTHERS, "model")) in {edge.child for edge in bases}

    environment = deployment.environment
    planned = CliRunner().invoke(app, ["lineage", "check", "--dataset", "others", "--json"], env=environment)
    assert planned.exit_code == 0, planned.output

    approve(deployment.settings, OTHERS, "reviewer", "")
    rows = naming.dataset_name(storage_of(deployment).location(PEOPLE, "scrubbed"))
    graph.record(trained("A", rows), origin="ingested", source="team")
    late = run_here(deployment, "others_release")
    assert "would not be cleared any more: a guarded table" in late.failures["released"]
    assert not (deployment.settings.home / "public" / "others").exists()
    again = run_others()
    assert "a guarded table that a base has seen" in again.failures["clearance"]
    assert len(ledger_of(deployment).entries()) == 2


def test_a_new_attempt_cannot_leave_out_its_own_people(tmp_path):
    """Whoever took part in the attempt that failed has taken part: `exclude` would train on nobody."""
    deployment = small_deployment(tmp_path, on_overlap="exclude")
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    ledger = ledger_of(deployment)
    (entry,) = ledger.entries()
    ledger.start(entry.entry_id)
    refused = run_here(deployment, spend_again=entry.entry_id)
    assert "excludes them from another attempt" in refused.failures["clearance"]
    assert len(ledger.entries()) == 1


def test_a_checkpoint_is_checked_before_it_is_planned_for(tmp_path, capfd):
    """The command: for a checkpoint that no contract names yet."""
    deployment = small_deployment(tmp_path)
    environment = deployment.environment

    def check(*arguments):
        return CliRunner().invoke(app, ["lineage", "check", "--dataset", "people", *arguments], env=environment)

    check("--json")
    alone = json.loads(capfd.readouterr().out)
    assert (alone["decision"], alone["findings"]) == ("compose", [])
    refused = check("--base-model", "mystery")
    assert refused.exit_code == 3
    assert "declare-public" in capfd.readouterr().out
    said = check("--base-model", " ")
    assert said.exit_code == 1
    store = LineageStore(deployment.settings.ledger_url)
    store.declare_public(naming.DatasetName("dpsynth:products", "mystery"), by="Ada", reason="made of random numbers")
    assert check("--base-model", "mystery").exit_code == 0
