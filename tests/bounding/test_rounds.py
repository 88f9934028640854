"""Parallel rounds: exactly the greedy's records, on both engines, for every order and bound."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bounding_cases import KEY, Owners, check_maximal, edges, graph, graphs, greedy_kept, kept_by, ordered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.bounding import rounds
from dpsynth_platform.bounding.order import ORDER_NAMES, Order
from dpsynth_platform.bounding.rounds import bound_edges
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import BoundingError

ORDERS = [Order("random"), Order("fewest-owners-first"), Order("weight", "score")]
light = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as spill, DuckDBChoice(threads=1).open(Path(spill)) as engine:
        yield engine


@pytest.fixture(params=["rounds only", "finished in process", "one round, then in process"])
def finishing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "finished in process":
        monkeypatch.setattr(rounds, "FINISH_EDGES", 0)
    if request.param == "one round, then in process":
        monkeypatch.setattr(rounds, "MAX_ROUNDS", 1)
    return str(request.param)


def chosen(engine: Engine, owners: Owners, b: int, order: Order, weights: Any = None, key: bytes = KEY) -> set[str]:
    engine.register("edges", edges(owners, weights))
    bound_edges(engine, "edges", "dropped", max_contributions=b, key=key, order=order)
    return kept_by(engine, owners)


def large(records: int, people: int, seed: int) -> dict[str, list[str]]:
    """A graph with a few owners of very many records."""
    random = np.random.default_rng(seed)
    return graph(
        (people * random.random(size) ** 3).astype(int).tolist() for size in random.integers(1, 6, size=records)
    )


@light
@given(owners=graphs, b=st.integers(1, 4), order=st.sampled_from(ORDERS), data=st.data())
def test_rounds_are_the_greedy_and_maximal(
    duckdb: Engine, finishing: str, owners: Owners, b: int, order: Order, data: st.DataObject
) -> None:
    scores = st.integers(-2, 2) | st.none()
    weights = {record: data.draw(scores) for record in owners} if order.name == "weight" else None
    kept = chosen(duckdb, owners, b, order, weights)
    assert kept == greedy_kept(owners, ordered(owners, order.name, weights), b)
    check_maximal(owners, kept, b)


@light
@given(owners=graphs, b=st.integers(1, 3), data=st.data())
def test_neither_the_order_of_the_input_nor_its_parts_matter(
    duckdb: Engine, owners: Owners, b: int, data: st.DataObject
) -> None:
    kept = chosen(duckdb, owners, b, ORDERS[0])
    assert chosen(duckdb, owners, b, ORDERS[0]) == kept
    table = edges(owners)
    table = table.take(data.draw(st.permutations(range(table.num_rows))))
    cut = data.draw(st.integers(0, table.num_rows))
    duckdb.register("edges", pa.concat_tables([table.slice(0, cut), table.slice(cut)]))
    bound_edges(duckdb, "edges", "dropped", max_contributions=b, key=KEY)
    assert kept_by(duckdb, owners) == kept


@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_both_engines_keep_the_greedys_records(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, order: Order, b: int
) -> None:
    monkeypatch.setattr(rounds, "FINISH_EDGES", 0)
    monkeypatch.setattr(rounds, "MAX_ROUNDS", rounds.MAX_ROUNDS if (order, b) == (ORDERS[0], 3) else 1)
    owners = large(700, 300, seed=b)
    weights = {record: number % 7 or None for number, record in enumerate(owners)} if order.name == "weight" else None
    kept = chosen(engine, owners, b, order, weights)
    assert kept == greedy_kept(owners, ordered(owners, order.name, weights), b)
    assert 0.1 * len(owners) < len(kept) < 0.95 * len(owners)


def test_few_rounds_suffice_in_a_random_order_and_a_chain_is_finished_in_process(
    duckdb: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "FINISH_EDGES", 0)
    duckdb.register("edges", edges(large(20_000, 8_000, seed=0)))
    assert bound_edges(duckdb, "edges", "dropped", max_contributions=2, key=KEY).rounds < 20
    chain = graph([number, number + 1] for number in range(600))
    duckdb.register("edges", edges(chain, {record: -place for place, record in enumerate(chain)}))
    went = bound_edges(duckdb, "edges", "dropped", max_contributions=1, key=KEY, order=ORDERS[2])
    assert went.rounds == rounds.MAX_ROUNDS and went.finished > 0
    assert kept_by(duckdb, chain) == set(list(chain)[::2])


def test_no_table_of_its_own_is_left(duckdb: Engine) -> None:
    chosen(duckdb, graph([[1, 2], [2, 3], [2]]), 1, ORDERS[0])
    tables = duckdb.scalar("SELECT count(*) AS n FROM information_schema.tables WHERE table_name LIKE 'bound_%'")
    assert tables == 0


def test_the_key_decides(duckdb: Engine) -> None:
    owners = graph([[0]] * 40)
    assert chosen(duckdb, owners, 5, ORDERS[0]) != chosen(duckdb, owners, 5, ORDERS[0], key=b"x" * 32)


def test_nothing_to_decide(engine: Engine) -> None:
    nobody: dict[str, list[str]] = {}
    assert chosen(engine, nobody, 1, ORDERS[0]) == set()
    apart = graph([[1], [2], [3, 4]])
    assert chosen(engine, apart, 1, ORDERS[0]) == set(apart)


def test_orders_are_read_and_refused() -> None:
    assert [str(Order.parse(text)) for text in ("random", "weight:score")] == ["random", "weight:score"]
    assert {Order.parse(name).name for name in ORDER_NAMES if name != "weight"} == {"random", "fewest-owners-first"}
    for text in ("", "weight", "weight:", "random:score", "largest", "weights:score"):
        with pytest.raises(BoundingError, match="accepted: random"):
            Order.parse(text)
    with pytest.raises(BoundingError, match="1 or more"):
        bound_edges(None, "edges", "dropped", max_contributions=0, key=KEY)  # type: ignore[arg-type]
