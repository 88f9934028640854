"""A repeated run: nothing is made again while everything is as it was, and a step finds whatever is not."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import event_cases
import pytest
import yaml
from deltalake import write_deltalake
from deployment import Deployment
from frozen import Frozen
from inside import inside
from line_cases import (
    PEOPLE,
    ledger_of,
    line_to_candidate,
    released,
    run_here,
    small_deployment,
    small_table,
    storage_of,
)
from scenario_cases import Scene, records

import assets.audit
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.ledger import chain
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.operations.operating import Outcome, run_dataset
from dpsynth_platform.reviewing.catalogue import sealed_contract
from dpsynth_platform.reviewing.decisions import approve
from dpsynth_platform.secrets.vault import Vault


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """A run in this process exports its deployment's settings, which no later test may find."""
    with patch.dict(os.environ):
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Frozen[Deployment]:
    directory = tmp_path_factory.mktemp("repeated")
    deployment = line_to_candidate(directory / "here")
    return Frozen.of(deployment, deployment.root, directory / "kept")


@pytest.fixture
def deployment(kept: Frozen[Deployment]) -> Deployment:
    return kept.put_back()


def run(deployment: Deployment) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    made = run_dataset(deployment.settings, "people", None, None, said.append, in_process=build_definitions)
    return made, said


def test_nothing_starts_while_all_is_as_it_was(deployment: Deployment) -> None:
    before = ledger_of(deployment).history()
    made, said = run(deployment)
    assert made.run_ids == () and made.new_entries == () and not made.failures
    assert any("nothing new was spent" in line for line in said)
    assert any("release approve" in line for line in made.next_steps)
    assert ledger_of(deployment).history() == before


def test_an_approved_candidate_is_published_without_another_run_of_its_line(deployment: Deployment) -> None:
    release = released(deployment)
    made, _ = run(deployment)
    assert len(made.run_ids) == 1 and made.release == str(release)


def _edited(deployment: Deployment) -> None:
    path = deployment.settings.contracts / "people.yaml"
    document = yaml.safe_load(path.read_text())
    document["description"] = "People, described anew."
    path.write_text(yaml.safe_dump(document))


def _appended(deployment: Deployment) -> None:
    rows = small_table(20, first_person=5000)
    write_deltalake(deployment.settings.home / "sources" / "people", rows, mode="append")


def _rotated(deployment: Deployment) -> None:
    vault = Vault(deployment.settings.vault)
    owner_keys.rotate(vault, ledger_of(deployment), storage_of(deployment), "person", by="keeper", reason="stolen")


def _without(step: str) -> Callable[[Deployment], None]:
    return lambda deployment: shutil.rmtree(storage_of(deployment).require(PEOPLE, step).directory)


def _changed(deployment: Deployment) -> None:
    found: Path = next(storage_of(deployment).require(PEOPLE, "synthetic").directory.rglob("*.parquet"))
    found.write_bytes(found.read_bytes() + b" ")


@pytest.mark.parametrize(
    "change",
    [_edited, _rotated, _changed, *map(_without, ("scrubbed", "quality", "synthetic"))],
    ids=["contract", "keys", "content", "scrubbed", "quality", "synthetic"],
)
def test_what_is_not_as_it_was_is_found_by_a_run_of_the_line(
    deployment: Deployment, change: Callable[[Deployment], None]
) -> None:
    change(deployment)
    made, _ = run(deployment)
    assert made.run_ids and made.new_entries == ()


def test_a_source_with_other_rows_makes_another_run(deployment: Deployment) -> None:
    before = storage_of(deployment).require(PEOPLE, "raw").facts["source"]
    _appended(deployment)
    made, _ = run(deployment)
    assert made.run_ids and storage_of(deployment).require(PEOPLE, "raw").facts["source"] != before


def test_a_quality_report_is_of_what_the_contract_asks_for(deployment: Deployment) -> None:
    path = deployment.settings.contracts / "people.yaml"
    document = yaml.safe_load(path.read_text())
    target = "region" if document.get("quality", {}).get("target") == "outcome" else "outcome"
    path.write_text(yaml.safe_dump(document | {"quality": {"target": target, "holdout": 0.1}}))
    before = storage_of(deployment).require(PEOPLE, "quality").content_hash
    made, _ = run(deployment)
    after = storage_of(deployment).require(PEOPLE, "quality")
    assert not made.failures and made.new_entries == () and after.content_hash != before
    assert target in (after.directory / "report.json").read_text()
    sealed = sealed_contract(deployment.settings, PEOPLE)
    assert sealed is not None and sealed.quality.target == target


def test_a_file_that_differs_from_the_account_is_refused_before_and_at_publication(deployment: Deployment) -> None:
    """The dossier tells the family's cap: that which the ledger keeps to."""
    (path,) = deployment.settings.families.glob("*.yaml")
    document = yaml.safe_load(path.read_text())
    document["cap"]["epsilon"] /= 2
    path.write_text(yaml.safe_dump(document))
    approve(deployment.settings, PEOPLE, "reviewer", "")
    made, _ = run(deployment)
    assert made.release is None and "sealed for life" in dict(made.failures)["raw"]
    published = run_here(deployment, "people_release")
    assert "sealed for life" in published.failures["released"]


def test_what_is_reported_late_of_the_source_is_cleared_again(tmp_path: Path) -> None:
    """As the refused publication advises: another family's table turns out to be what the source was made from."""
    scene = Scene(tmp_path)
    scene.family("reviews")
    scene.family("elsewhere", namespace="guest")
    scene.dataset("reviews", "reviews", records(range(150)))
    scene.dataset("bars", "elsewhere", records(range(2000, 2100)), approvals=1)
    scene.release("reviews")
    assert scene.run("bars").success
    approve(scene.deployment.settings, Place("bars"), "reviewer", "")
    names = {name: dataset_name(scene.source(name)) for name in ("reviews", "bars")}
    one, other = ({"namespace": name.namespace, "name": name.name, "facets": {}} for name in names.values())
    scene.tell(event_cases.event("COMPLETE", [one], [other]))
    made = run_dataset(scene.deployment.settings, "bars", None, None, lambda _: None, in_process=build_definitions)
    assert len(made.run_ids) == 1 and made.release is None  # another clearance is another candidate
    assert "source" in {finding.kind for finding in scene.cleared("bars").findings}


def test_what_an_earlier_run_reserved_is_new_to_the_one_that_spends_it(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    steps = ["raw", "scrubbed", "canaries", "clearance"]
    assert run_here(deployment, accelerator=inside(deployment), steps=steps).success
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "reserved"
    made, said = run(deployment)
    assert made.new_entries == (entry.entry_id,)
    assert any("which this run will spend" in line for line in said)
    assert not any("nothing new" in line for line in said)


def test_a_candidate_that_was_not_recorded_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its event no reviewer gets a notice, and it cannot be released once its model has expired."""
    deployment = small_deployment(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(assets.audit, "record_candidate", Mock(side_effect=LedgerError("out of reach")))
        assert list(run_here(deployment, accelerator=inside(deployment)).failures) == ["audit"]
    run(deployment)
    assert ledger_of(deployment).history(kinds=[chain.CANDIDATE])
