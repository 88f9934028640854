from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy import stats

from dpsynth_platform.audit.canaries import (
    RESERVED_PREFIX,
    CanarySet,
    is_canary,
    make_canaries,
    read_canaries,
    without_canaries,
    write_canaries,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.storage import table_schema
from dpsynth_platform.synth.tabular.constraints import Conditions, Judge
from dpsynth_platform.synth.tabular.domain import domain_of


@pytest.fixture
def canaries(contract: DataContract, schema: pa.Schema) -> CanarySet:
    return make_canaries(contract, schema, 480, 2, None)


def test_columns_and_types_are_those_after_scrubbing(canaries: CanarySet, schema: pa.Schema) -> None:
    names = ["day", "level", "level_number", "region", "wage", "insured", "_owner", "_record"]
    assert canaries.joining.schema == pa.schema([schema.field(name) for name in names])
    assert canaries.table.schema.names == [*names, "included"]


def test_every_owner_has_b_records_that_differ_in_their_id_only(canaries: CanarySet) -> None:
    table = canaries.table
    assert len(canaries.owners) == 480
    assert canaries.records_per_owner == 2
    assert len(set(table["_record"].to_pylist())) == 960
    alike = table.drop_columns(["_record"])
    assert alike.take(list(range(0, 960, 2))).equals(alike.take(list(range(1, 960, 2))))


def test_fingerprints_are_reserved(canaries: CanarySet) -> None:
    assert all(len(owner) == 32 and is_canary(owner) and int(owner, 16) for owner in canaries.owners)
    real = [hmac.new(b"key", str(number).encode(), hashlib.sha256).hexdigest()[:32] for number in range(1000)]
    assert not any(is_canary(owner) for owner in real)
    assert len(RESERVED_PREFIX) == 16


def test_the_values_spread_evenly_over_the_cells_of_the_domain(canaries: CanarySet, contract: DataContract) -> None:
    domain = domain_of(contract)
    codes = domain.encode(canaries.values.combine_chunks())
    for index, column in enumerate(domain):
        allowed = np.flatnonzero(column.allowed)
        counts = np.bincount(codes[:, index], minlength=column.size)
        assert counts[allowed].max() - counts[allowed].min() <= 1
        assert counts.sum() == counts[allowed].sum()


def test_columns_are_independent(contract: DataContract, schema: pa.Schema) -> None:
    domain = domain_of(contract)
    codes = domain.encode(make_canaries(contract, schema, 4800, 1, None).values.combine_chunks())
    first, second = domain.names.index("level"), domain.names.index("level_number")
    table = np.zeros((24, 24))
    np.add.at(table, (codes[:, first], codes[:, second]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-7


def test_the_coins_are_fair_and_drawn_for_each_owner(contract: DataContract, schema: pa.Schema) -> None:
    coins = make_canaries(contract, schema, 20_000, 1, None).included
    assert stats.binomtest(int(coins.sum()), coins.size, 0.5).pvalue > 1e-7
    changes = int((coins[1:] != coins[:-1]).sum())
    assert stats.binomtest(changes, coins.size - 1, 0.5).pvalue > 1e-7


def test_only_included_owners_join_and_all_their_records_do(canaries: CanarySet) -> None:
    included = [owner for owner, coin in zip(canaries.owners, canaries.included, strict=True) if coin]
    assert 0 < len(included) < 480
    assert sorted(canaries.joining["_owner"].to_pylist()) == sorted(included * 2)


def test_two_sets_have_nothing_in_common(contract: DataContract, schema: pa.Schema) -> None:
    first, second = (make_canaries(contract, schema, 100, 2, None) for _ in range(2))
    assert not set(first.owners) & set(second.owners)
    assert first.values != second.values


def test_they_can_be_kept_and_read_back_in_the_same_order(canaries: CanarySet, tmp_path: Path) -> None:
    assert write_canaries(canaries, tmp_path / "table") == 960
    assert "included" in table_schema(tmp_path / "table").names
    back = read_canaries(tmp_path / "table")
    assert back.owners == canaries.owners
    assert np.array_equal(back.included, canaries.included)
    assert back.values.column("wage").equals(canaries.values.column("wage"))
    assert back.values["level"].to_pylist() == canaries.values["level"].to_pylist()


def test_real_records_remain_when_canaries_are_taken_out(canaries: CanarySet) -> None:
    person = "f" * 32
    row = canaries.joining.slice(0, 1).set_column(6, "_owner", pa.array([person]))
    left = without_canaries(pa.concat_tables([canaries.joining, row]))
    assert left["_owner"].to_pylist() == [person]


def test_dates_stay_inside_the_period(contract_of: Callable[..., DataContract], schema: pa.Schema) -> None:
    contract = contract_of(source={"period_column": "day"}, release={"cadence": "monthly", "start": "2026-01"})
    days = make_canaries(contract, schema, 200, 2, "2026-02").values["day"]
    assert pc.min(days).as_py() >= dt.date(2026, 2, 1)
    assert pc.max(days).as_py() <= dt.date(2026, 2, 28)
    with pytest.raises(ContractError, match="2031-02"):
        make_canaries(contract, schema, 200, 2, "2031-02")


def test_a_schema_that_does_not_fit_is_named(contract: DataContract, schema: pa.Schema) -> None:
    without = schema.remove(schema.get_field_index("region"))
    with pytest.raises(SourceError, match="'region' is not in the scrubbed table"):
        make_canaries(contract, without, 20, 2, None)
    wrong = schema.set(schema.get_field_index("level"), pa.field("level", pa.int32()))
    with pytest.raises(SourceError, match="'level' has the Arrow type int32"):
        make_canaries(contract, wrong, 20, 2, None)


def constrained(contract_of: Callable[..., DataContract], *kinds: str) -> DataContract:
    """Insured people are in three regions, and people of a low level have no high number."""
    rules = [
        {"forbid": {"insured": True, "region": [f"region-{number}" for number in range(3, 24)]}},
        {"forbid": {"level": [f"level-{number}" for number in range(12)], "level_number": [13, 24]}},
    ]
    return contract_of(generate={"rows": 5000, "constraints": rules}, audit={"canary_rows": list(kinds)})


def test_plausible_rows_keep_what_is_declared_and_are_spread_over_it(
    contract_of: Callable[..., DataContract], schema: pa.Schema
) -> None:
    contract = constrained(contract_of, "plausible")
    made = make_canaries(contract, schema, 2000, 2, None)
    assert made.kinds == []
    assert made.joining.schema == make_canaries(contract_of(), schema, 20, 2, None).joining.schema
    domain = domain_of(contract)
    judge = Judge(domain, Conditions.of(domain, contract.generate.constraints))
    columns = {name: made.values[name].combine_chunks() for name in domain.names}
    assert judge.keeps(columns).all()
    assert not judge.keeps({name: make_canaries(contract_of(), schema, 2000, 2, None).values[name].combine_chunks()
                            for name in domain.names}).all()  # fmt: skip
    codes = domain.encode(made.values.combine_chunks())
    for index, column in enumerate(domain):
        assert set(codes[:, index]) == set(np.flatnonzero(column.allowed)), column.name


def test_several_sets_share_the_canaries(contract_of: Callable[..., DataContract], schema: pa.Schema) -> None:
    contract = constrained(contract_of, "random", "plausible")
    made = make_canaries(contract, schema, 401, 2, None)
    assert sorted(made.kinds, reverse=True) == ["random"] * 201 + ["plausible"] * 200
    assert "_kind" not in made.joining.schema.names and "_kind" not in made.values.schema.names
    domain = domain_of(contract)
    judge = Judge(domain, Conditions.of(domain, contract.generate.constraints))
    kept = judge.keeps({name: made.values[name].combine_chunks() for name in domain.names})
    assert kept[np.asarray(made.kinds) == "plausible"].all()
    assert not kept[np.asarray(made.kinds) == "random"].all()
    assert contract.mechanism_snapshot()["canary_rows"] == ["random", "plausible"]


def test_plausible_rows_need_constraints(contract_of: Callable[..., DataContract]) -> None:
    with pytest.raises(ContractError, match=r"'plausible' without generate\.constraints"):
        contract_of(audit={"canary_rows": ["plausible"]})
    with pytest.raises(ContractError, match="random, random contains duplicates"):
        contract_of(audit={"canary_rows": ["random", "random"]})
