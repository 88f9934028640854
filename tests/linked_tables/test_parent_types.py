"""Hidden types of a parent: found by pairs of columns alone, and rows that share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import fix

from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.linked_tables.task import linked_task
from dpsynth_platform.synth.relational.parent_types import _Feature, latent_classes, with_known

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
    by_chance = (orders["item"].value_counts(normalize=True) ** 2).sum()
    return float((pairs - by_chance) / (1 - by_chance))


def made(place: Path, **more: Any) -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        options = TablesOptions(epsilon=4, delta=1e-6, schema=declared(**more))
        found = synthesize_tables(tables(), place, options)
    return pd.DataFrame(pq.read_table(found.synthetic / "orders.parquet").to_pandas())


def test_rows_of_one_parent_share_its_type(tmp_path: Path) -> None:
    """Noise, choices and drawing are the same each time (`conftest.fix`)."""
    real, without, typed = shop()["orders"], made(tmp_path / "without"), made(tmp_path / "typed", types=4)
    lost, left = (agreement(real) - agreement(orders) for orders in (without, typed))
    assert lost > 0.03 and abs(left) < lost / 2
    shares = [orders["item"].value_counts(normalize=True).sort_index().to_numpy() for orders in (real, typed)]
    assert np.abs(shares[0] - shares[1]).sum() / 2 < 0.05


def test_exact_pairs_give_the_types() -> None:
    own, before, region = _Feature(0, 0, np.eye(6)), _Feature(1, 0, np.eye(6)), _Feature(2, 1, np.eye(3))
    pair = (ITEMS.T * KINDS) @ ITEMS
    classes = latent_classes([(own, before, pair)], 4)
    order = np.argsort(-classes.weights)
    np.testing.assert_allclose(classes.weights[order], KINDS, atol=0.04)
    np.testing.assert_allclose(classes.given[0][:, order], ITEMS.T, atol=0.12)
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
        ({"lags": 0}, "tables.orders.types: rows do not depend on those before"),
        ({"max_children": 1}, "tables.orders.types: rows do not depend on those before"),
        ({"columns": {"on": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"}}, "order_by": ["on"]},
         "tables.orders.types: rows have an order"),
    ],
)  # fmt: skip
def test_types_that_nothing_tells_are_refused(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        LinkedTables.model_validate(declared(types=4, **change))
    LinkedTables.model_validate(declared(**change))
