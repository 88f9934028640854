"""The guide's E2 for real (Ponomareva et al. 2026, section 7.7.1): a second training starts from a child of a release.

Letters are released with their texts. Another team trains the tiny model further on the released texts, without any
privacy of its own, and registers that. The second dataset has other letters of the same people, in a family of its own,
and its training starts from that team's checkpoint.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import independent_costs as costs
import pyarrow as pa
import pytest
import torch
import yaml
from deployment import FAMILY, Deployment
from inside import inside
from line_cases import Ran, ledger_of, released, run_here, storage_of
from text_cases import save_model, tiny_tokenizer
from text_line_cases import TRAINING, declare_base_public, letters_table, public_model, text_deployment, without_gate

from dpsynth_platform.foundation.storage import Place, read_table, write_table
from dpsynth_platform.lineage.clearance import CLEARANCE, Clearance
from dpsynth_platform.lineage.naming import DatasetName, dataset_name
from dpsynth_platform.lineage.nodes import LEDGER_NAMESPACE
from dpsynth_platform.lineage.store import LineageStore

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
DELTA = 1e-6
PEOPLE, ALLOWANCE = 600, TRAINING["replay_steps"]
NOTES = Place("notes")


def trained_elsewhere(release: Path, root: Path) -> Path:
    """A checkpoint that the released texts were memorized in."""
    texts = pa.Table.from_batches(read_table(release / "data"))["letter"].to_pylist()
    model, tokenizer = copy.deepcopy(public_model()).train(), tiny_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for text in texts:
        tokens = torch.tensor([[*tokenizer(text)["input_ids"][:60], tokenizer.eos_token_id]])
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return save_model(root / "elsewhere", model.eval())


def notes_of(deployment: Deployment, checkpoint: Path, policy: str) -> None:
    """Declares the second dataset: other letters of the same people, in a family of its own."""
    family = copy.deepcopy(FAMILY) | {
        "family": "notes",
        "mode": "per-owner",
        "cap": {"epsilon": 9.0, "delta": 1e-4},
        "owner_normalization": [],
    }
    contract = copy.deepcopy(deployment.contract) | {"dataset": "notes", "family": "notes"}
    contract["source"]["uri"] = "${DPSYNTH_HOME}/sources/notes"
    contract["release"]["uri"] = "${DPSYNTH_HOME}/public/notes"
    contract["generate"]["base_model"] = str(checkpoint)
    contract["privacy"]["on_overlap"] = policy
    for folder, name, document in (("families", "notes", family), ("contracts", "notes", contract)):
        (deployment.settings.deploy / folder / f"{name}.yaml").write_text(yaml.safe_dump(document))


def ran(deployment: Deployment, *steps: str) -> Ran:
    return run_here(deployment, "notes_candidate", steps=steps, accelerator=inside(deployment))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The first release, its plan in words, and the checkpoint that was registered as trained on it."""
    root = tmp_path_factory.mktemp("e2")
    deployment = text_deployment(root)
    deployment.family |= {"mode": "per-owner", "cap": {"epsilon": 9.0, "delta": 1e-4}}
    deployment.write()
    declare_base_public(deployment)
    with pytest.MonkeyPatch.context() as patch:
        without_gate(patch)
        first = run_here(deployment, accelerator=inside(deployment))
        assert first.success, first.failures
        release = released(deployment)
        checkpoint = trained_elsewhere(release, root)
        LineageStore(deployment.settings.ledger_url).use(
            release.name, by="Bo", purpose="train", product=str(checkpoint), reason="a better model of letters"
        )
        table = letters_table(seed=6)
        table = table.set_column(1, "visit", pa.array(range(5000, 5000 + table.num_rows), pa.int64()))
        write_table(deployment.settings.home / "sources" / "notes", table.schema, table.to_batches())
        yield deployment, first.materializations["raw"]["plan in numbers"], release, checkpoint


def test_block_refuses_people_of_the_release_upstream(told: Any) -> None:
    deployment, _, _, checkpoint = told
    notes_of(deployment, checkpoint, "block")
    entries = ledger_of(deployment).entries()
    refused = ran(deployment, "raw", "scrubbed", "clearance")
    assert set(refused.failures) == {"clearance"}
    assert "looks at the data" in refused.failures["clearance"]
    assert ledger_of(deployment).entries() == entries


def test_a_second_training_adds_to_the_release_that_its_base_was_trained_on(told: Any) -> None:
    deployment, first_plan, release, checkpoint = told
    notes_of(deployment, checkpoint, "compose")
    second = ran(deployment, "raw", "scrubbed", "canaries", "clearance", "bounded", "model")
    assert second.success, second.failures
    storage = storage_of(deployment)
    first_entry, entry = ledger_of(deployment).entries()
    assert (entry.family, entry.state) == ("notes", "spent")
    assert second.materializations["clearance"]["entry_id"] == entry.entry_id

    cleared = Clearance.from_json(storage.require(NOTES, "clearance").facts[CLEARANCE])
    (finding,) = cleared.adding
    assert (finding.kind, finding.entry, finding.family) == ("base-model", first_entry.entry_id, "tests")
    assert finding.path == (
        str(DatasetName("file", str(checkpoint))),
        f"trained-on {dataset_name(release / 'data')}",
        f"paid-by {LEDGER_NAMESPACE}:{first_entry.entry_id}",
    )
    plans = (first_plan, second.materializations["raw"]["plan in numbers"])
    assert cleared.resulting is not None
    assert cleared.resulting.epsilon == pytest.approx(together(plans, 2 * DELTA), rel=2e-3)
    people = set(ledger_of(deployment).participants(first_entry.entry_id).tolist())
    assert len(people & set(ledger_of(deployment).participants(entry.entry_id).tolist())) > 100


def together(plans: tuple[dict[str, Any], ...], delta: float) -> float:
    """Epsilon of both runs on the same people, of whom each has one record, from what their plans say in words."""
    squared, choices, steps = 0.0, [], []
    for plan in plans:
        squared += 2 * plan["sigma_one"] ** -2 + plan["sigma_two"] ** -2  # two columns, and one pair of them
        choices.append(plan["epsilon_select"])
        steps.append((plan["noise_multiplier"], plan["expected_batch"] / PEOPLE, TRAINING["steps"] + ALLOWANCE))
    return costs.epsilon_together(squared, choices, delta, steps=steps)
