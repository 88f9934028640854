"""A line that a public table helps: sealed, a base in lineage, said in the dossier; a changed one costs nothing."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from line_cases import SMALL, add_dataset, ledger_of, released, run_here, small_table

from dpsynth_platform.foundation.errors import ClearanceRefused, ContractError, SourceError
from dpsynth_platform.foundation.yaml_files import dump, read_yaml
from dpsynth_platform.reviewing.forecasts import check_public_table, clearance_forecast, forecast
from dpsynth_platform.synth import guarded_sources
from dpsynth_platform.synth.planning import load_dataset, public_table
from dpsynth_platform.synth.tabular.public_rows import SealedRows

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
WHY = "made up for tests, and published by ourselves"


def test_a_line_with_a_public_table(tmp_path: Path) -> None:
    place = tmp_path / "earlier.parquet"
    rows = small_table(300, seed=8, first_person=9000)
    pq.write_table(rows, place)
    generate = {**SMALL["generate"], "method": "jam", "public": {"uri": str(place), "why": WHY}}
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.write().with_source(small_table())
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    pq.write_table(rows.slice(1), place)
    refused = run_here(deployment, steps=["model"]).failures["model"]
    assert "its rows are not those of the plan" in refused
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    pq.write_table(rows, place)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert "other rows" not in str(forecast(deployment.settings, "people", None).public_in_words)
    pq.write_table(rows.slice(1), place)
    ahead = forecast(deployment.settings, "people", None)
    assert ahead.standing == entry.entry_id
    assert "299 rows" in str(ahead) and "a run keeps the plan that is paid for, which has other rows of" in str(ahead)
    kept = run_here(deployment)
    assert kept.success, kept.failures
    (said,) = [line for line in kept.said["raw"] if "public table" in line]
    assert "its rows are not those of the plan. This run keeps the plan that ledger entry" in said
    assert entry.entry_id in said and "another spend" in said and "--spend-again" in said
    assert ledger_of(deployment).entries() == [entry], "nothing is spent"
    text = (released(deployment) / "dossier.json").read_text()
    dossier = json.loads(text)
    assert dossier["mechanism"]["method"] == "jam"
    assert [said for said in dossier["statement"]["not_covered"] if WHY in said and "earlier.parquet" in said]
    assert str(tmp_path) not in text


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment with another dataset, `others`, beside `people`, which may have a public table."""
    deployment = Deployment(tmp_path, contract=copy.deepcopy(SMALL))
    deployment.write().with_source(small_table())
    add_dataset(deployment, "others", small_table(400, seed=9, first_person=9000))
    monkeypatch.setenv("DPSYNTH_HOME", str(deployment.settings.home))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(deployment.settings.deploy))
    monkeypatch.setattr(SealedRows, "of", lambda *given: pytest.fail("it was read"))
    return deployment


def helped_by(deployment: Deployment, public: Path) -> None:
    deployment.contract["generate"] |= {"method": "jam", "public": {"uri": str(public), "why": WHY}}
    deployment.write()


def refusals(deployment: Deployment) -> list[str]:
    """What a run, its forecast and the check of the contract say."""
    settings, found = deployment.settings, [run_here(deployment, steps=["raw"]).failures["raw"]]
    contract, _ = load_dataset(settings, "people")
    for ask in (lambda: forecast(settings, "people", None), lambda: public_table(contract)):
        with pytest.raises(ContractError) as refused:
            ask()
        found.append(str(refused.value))
    return found


@pytest.mark.parametrize("inside", ["", "part.parquet"])
def test_the_source_of_a_dataset_that_never_ran_is_no_public_table(own: Deployment, inside: str) -> None:
    """Nor where the other contract is a draft, as long as its source is valid."""
    source = own.settings.home / "sources/others"
    helped_by(own, source / inside)
    draft = own.settings.contracts / "others.yaml"
    draft.write_text(draft.read_text().replace("columns:", "colums:"))
    for said in refusals(own):
        assert "generate.public.uri" in said and "and the source of dataset others overlap" in said


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_copy_of_a_source_that_ran_is_no_public_table(own: Deployment, kind: str, tmp_path: Path) -> None:
    source = own.settings.home / "sources/others"
    copied = tmp_path / ("copy" if kind == "delta" else "copy.parquet")
    if kind == "parquet":
        pq.write_table(small_table(400, seed=9, first_person=9000), source.with_suffix(".parquet"))
        file = own.settings.contracts / "others.yaml"
        document = read_yaml(file)
        document["source"] |= {"uri": str(source.with_suffix(".parquet")), "format": "parquet"}
        file.write_text(dump(document))
        shutil.copy(source.with_suffix(".parquet"), copied)
    else:
        shutil.copytree(source, copied)
    assert run_here(own, "others_candidate", steps=["raw"]).success
    helped_by(own, copied)
    for said in refusals(own):
        assert "has the content of a source that this deployment guards; accepted: a table that is public" in said
    if kind == "parquet":  # what cannot be looked up is not taken for public
        (own.settings.restricted / "source-versions.json").write_text("{")
        with pytest.raises(SourceError, match=r"source-versions\.json"):
            guarded_sources.check_public_table(own.settings, load_dataset(own.settings, "people")[0])


def test_a_table_that_became_a_source_is_refused_where_an_unpaid_plan_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan was sealed while the table was public; once it is paid for, nothing is refused or spent."""
    place = tmp_path / "home/sources/others"
    generate = {**SMALL["generate"], "method": "jam", "public": {"uri": str(place), "why": WHY, "format": "delta"}}
    deployment = Deployment(tmp_path, contract=copy.deepcopy(SMALL))
    deployment.write().with_source(small_table())
    add_dataset(deployment, "others", small_table(300, seed=8, first_person=9000))
    others = deployment.settings.contracts / "others.yaml"
    monkeypatch.setenv("DPSYNTH_HOME", str(deployment.settings.home))
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(deployment.settings.deploy))
    kept = others.read_text()
    others.unlink()
    deployment.contract["generate"] = generate
    deployment.write()
    assert run_here(deployment, steps=["raw"]).success
    others.write_text(kept)
    assert "and the source of dataset others overlap" in run_here(deployment, steps=["raw"]).failures["raw"]
    others.unlink()
    assert run_here(deployment).success
    others.write_text(kept)
    assert run_here(deployment, steps=["raw"]).success
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]


def test_a_guarded_table_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number and digest of its rows would be in the plan, unpaid."""
    deployment = Deployment(tmp_path, contract=copy.deepcopy(SMALL))
    deployment.write().with_source(small_table())
    add_dataset(deployment, "others", small_table(400, seed=9, first_person=9000))
    assert run_here(deployment, "others_candidate", steps=["raw"]).success
    public = {"uri": str(deployment.settings.home / "sources/others"), "why": WHY}
    deployment.contract["generate"] |= {"method": "jam", "public": public}
    deployment.write()
    monkeypatch.setattr(SealedRows, "of", lambda *given: pytest.fail("it was read"))
    assert "not cleared" in run_here(deployment, steps=["raw"]).failures["raw"]
    settings = deployment.settings
    with pytest.raises(ClearanceRefused, match="not cleared"):
        forecast(settings, "people", None)
    with pytest.raises(ClearanceRefused, match="not cleared"):
        check_public_table(settings, *load_dataset(settings, "people"))
    cleared, entry = clearance_forecast(settings, "people", None, None)
    assert cleared.decision == "refuse" and entry is None
