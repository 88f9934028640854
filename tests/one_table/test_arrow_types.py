"""Every Arrow type under every declaration: the right values, or one clear refusal with the way out; no third."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from dpsynth_platform.compute.plain_types import laid_out, plain, plain_type, roomy
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import DpsynthError, SourceError
from dpsynth_platform.one_table import Options, synthesize
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.scrub.fingerprints import FingerprintKeys
from dpsynth_platform.scrub.scrub import ScrubKeys, scrub_batches
from dpsynth_platform.sources.declared_types import is_bytes, read_as
from dpsynth_platform.synth.tabular.domain import domain_of
from dpsynth_platform.synth.tabular.restore import release_schema

ROWS = 80  # of which each value that occurs is in 20 or more, so that no run stops
MOMENT = dt.datetime(2024, 2, 29, 12, 30)
NUMBERS = [1, 2, 3, None]
TEXTS = ["1", "2", "3", None]
TIMES = ["07:30", "08:00", None, "23:59"]
TRUTHS = ["true", "false", None, "true"]


def cycled(values: list[Any], type_: pa.DataType | None = None) -> pa.Array:
    return pa.array((values * ROWS)[:ROWS], type_)


def viewed(type_: pa.DataType, values: list[Any] = TEXTS) -> pa.Array:
    return laid_out(cycled(values).cast(plain_type(type_)), type_)


ARRAYS: dict[str, pa.Array] = {
    **{str(type_): cycled(NUMBERS, type_) for type_ in (pa.int8(), pa.int64(), pa.uint8(), pa.uint64())},
    **{str(type_): cycled([1.0, 2.0, 3.0, None]).cast(type_) for type_ in (pa.float16(), pa.float32(), pa.float64())},
    **{
        str(type_): cycled([Decimal(1), Decimal(2), Decimal(3), None], type_)
        for type_ in (
            pa.decimal32(5, 2),
            pa.decimal64(12, 2),
            pa.decimal128(20, 2),
            pa.decimal256(40, 2),
            pa.decimal32(5, 0),
            pa.decimal128(5, 0),
            pa.decimal128(38, 0),
            pa.decimal256(40, 0),
        )
    },
    **{str(type_): viewed(type_) for type_ in (pa.string(), pa.large_string(), pa.string_view())},
    **{
        str(type_): viewed(type_)
        for type_ in (
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.uint32(), pa.large_string()),
            pa.dictionary(pa.int16(), pa.int32()),
        )
    },
    "texts that are times": cycled(TIMES),
    "views that are times": cycled(TIMES).cast(pa.string_view()),
    "texts that are true": cycled(TRUTHS),
    "views that are true": cycled(TRUTHS).cast(pa.string_view()),
    "codes that are true": viewed(pa.dictionary(pa.int8(), pa.large_string()), TRUTHS),
    "bool": cycled([True, False, None]),
    "bool8": laid_out(cycled([True, False, None]), pa.bool8()),
    "json": laid_out(cycled(TEXTS), pa.json_()),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), cycled([b"0123456789abcdef", None], pa.binary(16))),
    "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "a", "b"), cycled(TEXTS)),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [2]), cycled([[1, 2]], pa.list_(pa.int8(), 2))
    ),
    **{
        str(type_): cycled([b"1", b"2"], type_)
        for type_ in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
    },
    "date32": cycled([MOMENT.date(), None], pa.date32()),
    "date64": cycled([MOMENT.date(), None], pa.date64()),
    **{
        str(type_): cycled([MOMENT, None], pa.timestamp("us")).cast(pa.timestamp(unit)).cast(type_)
        for unit in ("s", "ms", "us", "ns")
        for type_ in (pa.timestamp(unit, zone) for zone in (None, "UTC", "Asia/Kolkata", "+05:30"))
    },
    **{
        str(type_): cycled([dt.time(7, 30), None], type_)
        for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    },
    **{str(pa.duration(unit)): cycled([1, 2, None, 3], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")},
    "null": pa.nulls(ROWS),
    **{
        str(type_): cycled([["1"], None], type_)
        for type_ in (
            pa.list_(pa.string()),
            pa.large_list(pa.string()),
            pa.list_view(pa.string()),
            pa.large_list_view(pa.string()),
            pa.list_(pa.string(), 1),
        )
    },
    "struct": cycled([{"a": 1}, None]),
    "map": cycled([[("a", 1)], None], pa.map_(pa.string(), pa.int8())),
    "struct of a view": cycled([{"a": "1"}]).cast(pa.struct([("a", pa.string_view())])),
}

DECLARED: dict[str, dict[str, Any]] = {
    "integer": {"type": "integer", "min": 0, "max": 9},
    "float": {"type": "float", "min": 0, "max": 9},
    "date": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"},
    "datetime": {"type": "datetime", "min": "2024-01-01T00:00:00", "max": "2024-12-31T00:00:00"},
    "time": {"type": "time"},
    "codes": {"type": "categorical", "values": [1, 2, 3]},
    "texts": {"type": "categorical", "values": ["1", "x"]},
    "learned": {"type": "categorical", "values": "learned"},
    "boolean": {"type": "boolean"},
    "identifier": {"type": "identifier"},
    "text": {"type": "text"},
    "ignored": {"ignore": True},
}

_INTEGERS = {"int8", "int64", "uint8", "uint64"}
_WHOLE = _INTEGERS | {"dictionary<values=int32, indices=int16, ordered=0>"}
_FLOATS = {"halffloat", "float", "double"}
_TEXTS = {
    name for name, array in ARRAYS.items() if pa.types.is_string(plain_type(array.type)) or name == "large_string"
}
_TEXTS |= {name for name in ARRAYS if "large_string" in name} | {"codes that are true"}
_DATES = {"date32", "date64"}
_MOMENTS = {name for name in ARRAYS if name.startswith("timestamp")}
_TIMES = {name for name in ARRAYS if name.startswith("time3") or name.startswith("time6")}
_DECIMALS = {name for name in ARRAYS if name.startswith("decimal")}
_WHOLE_DECIMALS = {name for name in _DECIMALS if name.endswith(", 0)")}
_DURATIONS = {name for name in ARRAYS if name.startswith("duration")}
_BYTES = {name for name, array in ARRAYS.items() if is_bytes(plain_type(array.type))}
_OF_TIMES = {"texts that are times", "views that are times"}
_OF_TRUTH = {name for name in ARRAYS if name.endswith("that are true")}
READ: dict[str, set[str]] = {
    "integer": _WHOLE | _FLOATS | _WHOLE_DECIMALS | _DURATIONS,
    "float": _FLOATS | _DECIMALS,
    "date": _DATES | _MOMENTS,
    "datetime": _MOMENTS,
    "time": _TIMES | _TEXTS,
    "codes": _TEXTS | _WHOLE | _FLOATS | _WHOLE_DECIMALS,
    "texts": _TEXTS,
    "learned": _TEXTS | _WHOLE | _WHOLE_DECIMALS,
    "boolean": {"bool", "bool8"} | _TEXTS,
    "identifier": _TEXTS | _WHOLE | _WHOLE_DECIMALS | _BYTES,
    "text": set(ARRAYS),
    "ignored": set(ARRAYS),
}
"""Which of the types a declaration reads. Texts are not read, and come out empty."""


UNMATCHED = {
    "time": _TEXTS - _OF_TIMES,
    "codes": _OF_TIMES | _OF_TRUTH,
    "texts": _OF_TIMES | _OF_TRUTH,
    "boolean": _TEXTS - _OF_TRUTH,
}
"""What can be read, and has no value that is declared."""
ONLY = {
    ("struct", "struct of a view"): "declarations of its fields instead, by names with dots such as address.zip",
    tuple(_BYTES): "type identifier, for ids; or ignore: true",
    tuple(_DURATIONS): "type integer, which is the number of its unit; or ignore: true",
}
"""What is accepted for types that one declaration reads, or none as a whole."""
_LIKE_TEXTS = {kind for kind in DECLARED if "string" in READ[kind]}
WHOLE = np.arange(ROWS) % 7
SEVEN = {"type": "integer", "min": 0, "max": 6}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def values_of(column: pa.ChunkedArray | pa.Array) -> set[Any]:
    found = plain(column)
    numbers = found.cast(pa.float64()) if pa.types.is_decimal(found.type) else found
    numbers = numbers.cast(pa.int64()) if pa.types.is_duration(found.type) else numbers
    return set(numbers.to_pylist()) - {None}


def options_for(directory: Path, columns: dict[str, Any]) -> Options:
    (directory / "t.yaml").write_text(yaml.safe_dump({"columns": columns}))
    return Options(
        epsilon=100,
        delta=1e-5,
        method="independent",
        schema=directory / "t.yaml",
        accept_weak_guarantee="fictional numbers",
    )


@pytest.mark.parametrize("declared", list(DECLARED))
def test_every_type_under_a_declaration(tmp_path: Path, declared: str) -> None:
    """What is not read is refused by its own name before anything is read; all others make rows of the right values."""
    read: dict[str, pa.Array] = {}
    file = tmp_path / "t.parquet"
    for name, array in ARRAYS.items():
        pq.write_table(pa.table({"x": array, "whole": WHOLE}), file)
        try:
            task_of(file, options_for(tmp_path, {"x": DECLARED[declared], "whole": SEVEN}))
        except DpsynthError as error:
            assert name not in READ[declared], name
            check_refusal(str(error), name)
            continue
        assert name in READ[declared], name
        if name not in UNMATCHED.get(declared, ()):
            read[name] = array
    names = {f"c{place}": array for place, array in enumerate(read.values())}
    pq.write_table(pa.table(names | {"whole": WHOLE}), file)
    columns = dict.fromkeys(names, DECLARED[declared]) | {"whole": SEVEN}
    made = synthesize(file, tmp_path / "out", options_for(tmp_path, columns))
    found = pq.read_table(made.synthetic)
    found.validate(full=True)
    if declared == "ignored":
        assert found.column_names == ["whole"]
        return
    own = pq.read_schema(file).types
    # Fresh ids may be more than a dictionary of the source has indices for.
    assert found.schema.types == ([roomy(type_) for type_ in own] if declared == "identifier" else own)
    for name, array in names.items():
        if declared == "text":
            assert found[name].null_count == len(found)
        elif declared in ("codes", "texts", "boolean", "learned"):
            listed = set(map(str, DECLARED[declared].get("values", "")))
            drawn, real = values_of(found[name]), values_of(array)
            assert drawn & real, array.type  # nearly all, at this budget
            assert drawn <= real | (listed if declared == "texts" else set()), array.type
        elif declared in ("integer", "float"):
            assert values_of(found[name]) <= set(range(10)) or declared == "float", array.type


def check_refusal(said: str, name: str) -> None:
    assert ("columns.x: declared " in said or "columns.x.values: 'x'" in said) and "; accepted: " in said, said
    assert "unexpected" not in said and "\n" not in said, said
    alone = not any(name in READ[kind] for kind in DECLARED if kind not in ("text", "ignored"))
    only = next((only for names, only in ONLY.items() if name in names), None)
    assert ("accepted: ignore: true, which leaves the column out" in said) == (alone and only is None), said
    assert only is None or f"accepted: {only}" in said, said


CONTRACT: dict[str, Any] = {
    "dataset": "t",
    "description": "A fictional table.",
    "owners": ["t@example.org"],
    "source": {"uri": "unused", "key": ["who"]},
    "family": "t",
    "privacy": {
        "unit": "user",
        "owner_columns": ["who"],
        "namespace": "t",
        "max_contributions": 1,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    },
    "generate": {"rows": 10},
    "release": {"uri": "unused"},
}
IN_MEMORY = ARRAYS | {
    "run ends": pc.run_end_encode(cycled(TEXTS)),
    "run ends of numbers": pc.run_end_encode(cycled(NUMBERS)),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None] * (ROWS // 4), pa.int8()), pa.array(["1", "2", "3"], pa.string_view())
    ),
    "interval": cycled([(1, 2, 3), None], pa.month_day_nano_interval()),
    "union": pa.UnionArray.from_dense(
        pa.array([0] * ROWS, pa.int8()), pa.array(range(ROWS), pa.int32()), [pa.array(range(ROWS))]
    ),
}


@pytest.mark.parametrize("declared", list(DECLARED))
def test_every_type_in_the_asset_line(declared: str) -> None:
    """The check of the source, scrubbing, the release's schema, and cells that go there and back."""
    also = {
        "run ends": _LIKE_TEXTS,
        "dictionary of views": _LIKE_TEXTS,
        "run ends of numbers": {kind for kind in DECLARED if "int64" in READ[kind]} - {"text"},
    }
    keys = ScrubKeys(FingerprintKeys(b"a" * 32, (b"b" * 32,)), b"c" * 32, b"d" * 32)
    columns = {"who": {"type": "identifier"}, "whole": SEVEN, "x": DECLARED[declared]}
    contract = parse_contract(CONTRACT | {"columns": columns}, where="t.yaml", variables={})
    for name, array in IN_MEMORY.items():
        if declared == "texts" and name in _WHOLE | _WHOLE_DECIMALS | {"run ends of numbers"}:
            continue  # a contract's plan refuses them, see above
        table = pa.table({"who": range(ROWS), "whole": WHOLE, "x": array})
        if declared == "boolean" and name in UNMATCHED["boolean"] | {"run ends", "dictionary of views"}:
            continue
        reads = declared in also[name] if name in also else name in READ[declared]
        if declared == "text":
            reads = pa.types.is_string(plain_type(array.type)) or pa.types.is_large_string(plain_type(array.type))
        kind, values = contract.columns["x"].type, plain(array)
        stored = table.set_column(2, "x", array if declared == "ignored" else read_as(kind, values))
        try:
            schema, batches, _ = scrub_batches(stored.to_batches(), contract, stored.schema, keys, processes=1)
        except SourceError as error:
            assert not reads, name
            assert "columns.x: declared " in str(error) and "; accepted: " in str(error)
            continue
        assert reads or declared == "ignored", name
        if name in UNMATCHED.get(declared, ()) or (declared == "time" and name in also):
            continue
        scrubbed = pa.Table.from_batches(batches)
        assert scrubbed.schema == schema
        assert declared != "ignored" or "x" not in schema.names
        release = release_schema(contract, table.schema)
        assert ("x" in release.schema.names) == (declared != "ignored")
        if "x" not in contract.modelled or declared == "learned":
            continue
        (domain,) = (column for column in domain_of(contract) if column.name == "x")
        codes = domain.encode(scrubbed["x"])
        assert codes.tolist() == domain.encode(table["x"]).tolist(), name
        assert (codes != domain.missing).any(), name
        back = domain.decode(codes, array.type, np.random.default_rng(1))
        assert back.type == array.type
        # Of single and half precision, a cell's numbers may round into the next one.
        assert declared == "float" or domain.encode(back).tolist() == codes.tolist(), name
