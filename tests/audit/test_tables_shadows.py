"""Shadow models by the product's own generator, and the attacks that need a model, on a small table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from synth_cases import SCHEMA, contract_with, people, write_bounded

from dpsynth_platform.audit.tables import ATTACKS, Evidence, attacks, shadows
from dpsynth_platform.audit.tables.agreement import draw_queries
from dpsynth_platform.audit.tables.shadows import fit_shadows
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.model import load_model

ROWS = 400


@pytest.fixture(scope="module")
def plan() -> SealedPlan:
    contract = contract_with(privacy__weighting="owners")
    return generator("mst").plan(contract, SCHEMA, Guarantee.target(contract))


@pytest.fixture(scope="module")
def evidence(plan: SealedPlan, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Of twelve people, the only ones of their city, six are in; a model without noise."""
    place = tmp_path_factory.mktemp("attacked")
    crowd = people(ROWS)
    crowd = crowd.filter(pa.compute.invert(pa.compute.equal(crowd["city"].fill_null("Aix"), "Cork")))
    targets = people(12, seed=1).set_column(3, "city", pa.array(["Cork"] * 12))
    joining = targets.slice(0, 6).select(crowd.column_names).cast(crowd.schema)
    joining = joining.set_column(
        joining.column_names.index("_owner"), "_owner", pa.array([f"{i:032x}" for i in range(900, 906)])
    )
    bounded = write_bounded(pa.concat_tables([crowd, joining]), place / "bounded")
    model = place / "model"
    model.mkdir()
    method = generator("mst")
    with pytest.MonkeyPatch.context() as patch:
        silence(patch)
        method.measure(plan, bounded, model)
    method.estimate(plan, model)
    fitted = load_model(model)
    return Evidence(fitted.domain, targets, method.sample(model, ROWS), reference=crowd, model=fitted)


def silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: counts.copy())
    patch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, epsilon, most: int(np.argmax(scores)))


def test_shadow_models_have_half_of_the_targets_and_every_attack_runs_with_them(
    plan: SealedPlan, evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch)
    sizes = []
    write = shadows.write_table
    monkeypatch.setattr(shadows, "write_table", lambda uri, schema, batches: sizes.append(write(uri, schema, batches)))
    queries = draw_queries(len(evidence.domain), np.random.default_rng(1))
    found = fit_shadows(plan, evidence, models=4, records=300, queries=queries, workspace=tmp_path)
    assert sizes == [300] * 4
    assert (found.included.sum(axis=0) == 2).all()
    assert found.likelihoods.shape == found.included.shape == (4, 12)
    assert found.agreements.shape == (4, 12, len(queries))
    assert not list(tmp_path.iterdir()), "tables and models are gone"
    scored = attacks(replace(evidence, shadows=found))
    assert [item.attack.name for item in scored] == list(ATTACKS)
    assert all(np.isfinite(item.scores).all() and item.scores.shape == (12,) for item in scored)


def test_a_target_has_all_its_records_and_they_have_one_owner(
    plan: SealedPlan, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = []
    write = shadows.write_table

    def keep(uri: Path, schema: pa.Schema, batches: list[pa.RecordBatch]) -> int:
        tables.append(pa.Table.from_batches(batches))
        return write(uri, schema, batches)

    monkeypatch.setattr(shadows, "write_table", keep)
    found = fit_shadows(plan, replace(evidence, records_per_target=2), models=4, records=100)
    assert found.agreements.shape == (4, 12, 0)
    for table, included in zip(tables, found.included, strict=True):
        owners = table["_owner"].to_pylist()
        assert table.num_rows == 100
        assert len(set(owners)) == 100 - included.sum()
        assert table["city"].to_pylist().count("Cork") >= 2 * included.sum()


def test_shadow_models_that_cannot_be_are_refused(plan: SealedPlan, evidence: Evidence) -> None:
    for models, records in ((5, 300), (2, 300), (4, 5)):
        with pytest.raises(AccountingError, match="an even number of models"):
            fit_shadows(plan, evidence, models=models, records=records)
    with pytest.raises(AccountingError, match="methods that make tables"):
        fit_shadows(replace(plan, method="dp_finetune"), evidence, models=4, records=300)
