"""A repeated run: nothing is made again while everything is as it was, and a step finds whatever is not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from deltalake import write_deltalake
from deployment import Deployment
from frozen import Frozen
from line_cases import PEOPLE, ledger_of, line_to_candidate, released, small_table, storage_of

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.operations.operating import Outcome, run_dataset
from dpsynth_platform.secrets.vault import Vault


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
