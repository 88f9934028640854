from collections import Counter

import pytest
from synth_cases import contract_with

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.mock import mock_table, source_schema_of
from dpsynth_platform.synth.tabular.domain import domain_of
from dpsynth_platform.synth.tabular.restore import release_schema


def test_a_mock_table_fits_its_contract(contract):
    table = mock_table(contract, 400)
    table.validate(full=True)
    assert table.num_rows == 400
    assert table.schema == source_schema_of(contract)
    release_schema(contract, table.schema)
    domain = domain_of(contract)
    codes = domain.encode(table)
    for index, column in enumerate(domain):
        assert column.allowed[codes[:, index]].all()
    assert 0 < table["city"].null_count < 400
    assert "@example." in table["remark"][0].as_py()


def test_bounding_has_work_to_do(contract):
    records = Counter(mock_table(contract, 400)["person_id"].to_pylist())
    assert max(records.values()) == contract.privacy.max_contributions + 1
    assert len(records) > 100


@pytest.mark.parametrize(
    "declared",
    [
        {"type": "identifier"},
        {"type": "text", "pii": "hash"},
    ],
)
def test_owners_of_every_accepted_type(declared):
    contract = contract_with(columns__person_id=declared)
    table = mock_table(contract, 50)
    table.validate(full=True)
    assert len(set(table["person_id"].to_pylist())) > 15


def test_a_period_is_kept():
    contract = contract_with(
        source={"uri": "/x", "key": ["person_id"], "period_column": "day"},
        release={"uri": "/y", "cadence": "monthly", "start": "2026-01"},
    )
    assert {day.month for day in mock_table(contract, 50, "2026-03")["day"].to_pylist()} == {3}
    with pytest.raises(ContractError, match="period"):
        mock_table(contract, 5, "2031-03")


def test_no_rows(contract):
    assert mock_table(contract, 0).num_rows == 0


@pytest.mark.parametrize("weight", ["age", "score", "day"])
def test_a_weight_that_is_not_modelled_has_values_all_the_same(weight):
    contract = contract_with(privacy__adjacency="fixed-graph", privacy__record_order=f"weight:{weight}")
    assert weight not in contract.modelled
    table = mock_table(contract, 200)
    table.validate(full=True)
    declared = contract.columns[weight]
    assert all(declared.min <= value <= declared.max for value in table[weight].to_pylist())
    assert len(set(table[weight].to_pylist())) > 5
