"""Hidden types of a parent: found by pairs of columns alone, and rows that share them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import fix

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.linked_tables.task import linked_task
from dpsynth_platform.synth.relational import parent_types
from dpsynth_platform.synth.relational.drawing import LinkedDrawing
from dpsynth_platform.synth.relational.generator import planned
from dpsynth_platform.synth.relational.parent_types import (
    LEAST_EXPLAINED,
    MOST_FARTHER,
    TYPE,
    _Feature,
    explained,
    farther,
    latent_classes,
    typed,
    with_known,
)
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular import marginals
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.model import load_model

KINDS = np.array([0.4, 0.3, 0.2, 0.1])
ITEMS = np.full((4, 6), 0.04) + 0.76 * np.eye(4, 6)
"""P(item | kind)."""
REGIONS = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])


def shop(number: int = 3000) -> dict[str, pd.DataFrame]:
    """Customers of four kinds, which no column has, whose orders are independent given the kind."""
    rng = np.random.default_rng(0)

    def drawn(shares: np.ndarray) -> np.ndarray:
        return np.asarray((rng.random((len(shares), 1)) > shares.cumsum(axis=1)).sum(axis=1))

    kind = rng.choice(4, number, p=KINDS)
    parent = np.repeat(np.arange(number), rng.integers(1, 7, number) + 2 * (kind == 3))
    item = drawn(ITEMS[kind[parent]])
    size = np.where(rng.random(len(item)) < 0.3, item % 4, rng.integers(0, 4, len(item)))
    return {
        "customers": pd.DataFrame({"customer": np.arange(number), "region": drawn(REGIONS[kind]).astype(str)}),
        "orders": pd.DataFrame({"customer": parent, "item": item.astype(str), "size": size.astype(str)}),
    }


def tables(number: int = 3000) -> dict[str, pa.Table]:
    return {name: pa.Table.from_pandas(rows, preserve_index=False) for name, rows in shop(number).items()}


def declared(**more: Any) -> dict[str, Any]:
    def texts(number: int) -> dict[str, Any]:
        return {"type": "categorical", "values": [str(each) for each in range(number)]}

    orders = {"parent": {"table": "customers", "columns": ["customer"]}, "max_children": 8}
    columns = {"item": texts(6), "size": texts(4)}
    customers = {"key": ["customer"], "columns": {"region": texts(3)}}
    return {"tables": {"customers": customers, "orders": orders | {"columns": columns} | more}}


def agreement(orders: pd.DataFrame) -> float:
    """Of two orders of one customer, the share with the same item, over chance (kappa)."""
    number = orders.groupby("customer").size()
    same = orders.groupby(["customer", "item"]).size()
    pairs = (same * (same - 1)).sum() / (number * (number - 1)).sum()
    expected = (orders["item"].value_counts(normalize=True) ** 2).sum()
    return float((pairs - expected) / (1 - expected))


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory: noise and choices are the same each time (`conftest.fix`)."""
    place = tmp_path_factory.mktemp("paid")
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        patch.setenv("DPSYNTH_HOME", str(place / "home"))
        patch.setenv("DPSYNTH_USER", "tester")
        options = TablesOptions(epsilon=4, delta=1e-6, schema=declared())
        synthesize_tables(tables(), place / "out", options)
    return next((place / "out/restricted/models").iterdir())


def drawn(paid: Path, types: int | None, words: str = "", **more: Any) -> pd.DataFrame:
    plan = planned(paid)
    declared = LinkedTables.model_validate(SealedTables.of(plan).declared)
    orders = declared.tables["orders"].model_copy(update={"types": types, **more})
    whole = declared.model_copy(update={"tables": declared.tables | {"orders": orders}})
    sealed = replace(SealedTables.of(plan), declared=whole.model_dump(mode="json"))
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        made = LinkedDrawing.of(replace(plan, parameters=sealed.to_json()), paid)
        assert words in made.types_in_words.get("orders", "")
        batches = [batch["orders"] for batch in made.batches(made.roots)]
    return pd.DataFrame(pa.Table.from_batches(batches).to_pandas())


def test_rows_of_one_parent_share_its_type(paid: Path) -> None:
    """The same model drawn without and with types; drawing is the same each time (`conftest.fix`)."""
    real, without, with_types = shop()["orders"], drawn(paid, None), drawn(paid, 4, "by 4 hidden types")
    lost, left = (agreement(real) - agreement(orders) for orders in (without, with_types))
    assert lost > 0.05 and abs(left) < 0.02
    shares = [orders["item"].value_counts(normalize=True).sort_index().to_numpy() for orders in (real, with_types)]
    assert np.abs(shares[0] - shares[1]).sum() / 2 < 0.05


def test_rows_with_types_keep_constraints(paid: Path) -> None:
    never = Constraint(forbid={"item": ["0"], "previous.item": ["1"]})
    rows = drawn(paid, 4, "by 4 hidden types", constraints=[never])
    after = rows[rows["customer"] == rows["customer"].shift()]
    items = list(zip(rows["item"].shift()[after.index], after["item"], strict=True))
    assert items.count(("1", "0")) == 0 < items.count(("0", "1")) and agreement(rows) > 0.5


@pytest.mark.parametrize(("limit", "value"), [("MOST_FARTHER", -1.0), ("LEAST_EXPLAINED", 1.0)])
def test_without_evidence_of_types_the_first_model_is_drawn(
    paid: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(parent_types, limit, value)
    pd.testing.assert_frame_equal(drawn(paid, 4, "without hidden types"), drawn(paid, None))


def test_the_fit_with_types_keeps_states_and_columns(paid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joint counts are over the states of the first fit: by the number of rows with types, these may be others."""

    def of_some(domain: Domain, one_way: Any) -> tuple[ColumnStates, ...]:
        assert domain.names == (TYPE,) or TYPE not in domain.names
        return compress(domain, one_way)

    monkeypatch.setattr(marginals, "compress", of_some)
    model = load_model(paid / "orders")
    found = typed(model, LinkedTables.model_validate(declared(types=4)), "orders")
    assert found is not None
    for kept, states in zip(found.states, model.states, strict=False):
        np.testing.assert_array_equal(kept.state_of, states.state_of)
    assert farther(found, model) < 0.002
    assert farther(replace(model, potentials={}), model) > MOST_FARTHER


def test_exact_pairs_give_the_types() -> None:
    own, before, region = _Feature(0, 0, np.eye(6)), _Feature(1, 0, np.eye(6)), _Feature(2, 1, np.eye(3))
    pair = (ITEMS.T * KINDS) @ ITEMS
    classes = latent_classes([(own, before, pair)], 4)
    order = np.argsort(-classes.weights)
    np.testing.assert_allclose(classes.weights[order], KINDS, atol=0.04)
    np.testing.assert_allclose(classes.given[0][:, order], ITEMS.T, atol=0.12)
    assert explained([(own, before, pair)], classes) > 0.95
    alone = np.outer(pair.sum(axis=1), pair.sum(axis=0))
    assert explained([(own, before, alone)], latent_classes([(own, before, alone)], 4)) == 0
    avoiding = alone * (1 - np.eye(6))
    unlike = [(own, before, avoiding / avoiding.sum())]
    assert explained(unlike, latent_classes(unlike, 4)) < LEAST_EXPLAINED
    joint = with_known([(own, region, (ITEMS.T * KINDS) @ REGIONS)], classes)[1]
    np.testing.assert_allclose(joint[:, order], (REGIONS * KINDS[:, None]).T, atol=0.04)


def test_types_cost_nothing_and_plans_without_them_stay(tmp_path: Path) -> None:
    plans = []
    for types in (None, 2, 8):
        options = TablesOptions(epsilon=4, delta=1e-6, schema=declared(**({} if types is None else {"types": types})))
        plans.append(linked_task(tables(10), options).plan)
    assert plans[0].event == plans[1].event == plans[2].event
    assert "types" not in str(plans[0].parameters) and len({plan.digest for plan in plans}) == 3


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"lags": 0}, "tables.orders.types: 4, but rows do not depend on those before"),
        ({"max_children": 1}, "tables.orders.types: 4, but rows do not depend on those before"),
        ({"columns": {"on": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"}}, "order_by": ["on"]},
         "tables.orders.types: 4, but rows have an order"),
    ],
)  # fmt: skip
def test_types_that_nothing_tells_are_refused(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        LinkedTables.model_validate(declared(types=4, **change))
    LinkedTables.model_validate(declared(**change))


@pytest.mark.parametrize("method", ["arn", "tbart"])
def test_networks_have_no_marginals_that_tell_types(method: str) -> None:
    options = TablesOptions(epsilon=4, delta=1e-6, schema=declared(types=4), method=method)
    with pytest.raises(ContractError, match=f"tables.orders.types: 4 with method '{method}'.*accepted: aim, mst"):
        linked_task(tables(10), options)
