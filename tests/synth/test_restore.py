import numpy as np
import pyarrow as pa
import pytest
from synth_cases import SCHEMA, contract_with

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.tabular.domain import domain_of
from dpsynth_platform.synth.tabular.restore import ReleaseSchema, completed, release_schema


def restored(domain, codes, release):
    rng = np.random.default_rng(0)
    kinds = {column.name: release.schema.field(column.name).type for column in domain}
    values = {column.name: column.decode(codes[:, n], kinds[column.name], rng) for n, column in enumerate(domain)}
    return completed(values, codes.shape[0], release)


def test_the_sources_schema_comes_back(contract):
    domain, release = domain_of(contract), release_schema(contract, SCHEMA)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, column.size - 1, 40) for column in domain], axis=1).astype(np.int32)
    table = restored(domain, codes, release)
    table.validate(full=True)
    assert table.schema.names == ["person_id", "city", "age", "score", "day", "member", "remark"]
    assert [field.type for field in table.schema] == [SCHEMA.field(name).type for name in table.schema.names]
    assert table.schema.field("remark").nullable
    assert not table.schema.field("age").nullable
    assert table["remark"].null_count == 40
    assert table["person_id"].to_pylist()[:2] == ["S0000001", "S0000002"]
    np.testing.assert_array_equal(domain.encode(table), codes)
    assert release.treatments == {
        "name": "absent",
        "person_id": "regenerated",
        "city": "modelled",
        "age": "modelled",
        "score": "modelled",
        "day": "modelled",
        "member": "modelled",
        "remark": "empty",
    }
    again = ReleaseSchema.from_json(release.to_json())
    assert again == release
    assert list(again.treatments) == list(release.treatments)


def test_integer_identifiers_count_from_one(contract):
    schema = SCHEMA.set(1, pa.field("person_id", pa.int16()))
    codes = np.zeros((3, 5), dtype=np.int32)
    release = release_schema(contract, schema)
    table = restored(domain_of(contract), codes, release)
    assert table["person_id"].to_pylist() == [1, 2, 3]
    with pytest.raises(ContractError, match="40000 surrogate ids"):
        restored(domain_of(contract), np.zeros((40_000, 5), dtype=np.int32), release)


@pytest.mark.parametrize(
    ("name", "type_", "words"),
    [
        ("age", pa.string(), "declared integer, but the source holds string"),
        ("score", pa.int32(), "declared float"),
        ("day", pa.string(), "declared date"),
        ("city", pa.float64(), "declared categorical"),
        ("member", pa.int8(), "declared boolean"),
        ("age", pa.dictionary(pa.int8(), pa.string()), "declared integer"),
        ("age", pa.list_(pa.struct([("key of a row", pa.int8())])), "declared integer, but the source holds nested;"),
    ],
)
def test_types_that_cannot_be_restored_are_refused(contract, name, type_, words):
    schema = SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, type_))
    with pytest.raises(ContractError, match=rf"columns\.{name}: {words}"):
        release_schema(contract, schema)


def test_a_range_that_does_not_fit_the_type_is_refused():
    contract = contract_with(columns__age={"type": "integer", "min": 0, "max": 1000})
    with pytest.raises(ContractError, match="does not fit the source's type int8"):
        release_schema(contract, SCHEMA)


def test_a_missing_column_is_refused(contract):
    with pytest.raises(ContractError, match=r"columns\.city: declared, but"):
        release_schema(contract, SCHEMA.remove(SCHEMA.get_field_index("city")))
