"""A small contract with every column type, a table that fits it, and a sealed plan."""

import copy
import datetime as dt
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.synth.planning import check_constraints

DOCUMENT = {
    "dataset": "people",
    "description": "Fictional people.",
    "owners": ["tests@example.org"],
    "source": {"uri": "/nowhere", "key": ["person_id"]},
    "family": "test-people",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person_id"],
        "namespace": "person",
        "max_contributions": 2,
        "guarantee": {"epsilon": 4.0, "delta": 1e-5},
        "expected_units": 2000,
    },
    "columns": {
        "person_id": {"type": "identifier"},
        "age": {"type": "integer", "min": 0, "max": 9},
        "score": {"type": "float", "min": -1.0, "max": 1.0, "bins": [-0.5, 0.0, 0.5]},
        "day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31", "bins": 4},
        "city": {"type": "categorical", "values": ["Aix", "Bern", "Cork"], "nullable": True},
        "member": {"type": "boolean"},
        "remark": {"type": "text", "pii": "replace"},
        "name": {"type": "text", "pii": "drop"},
    },
    "generate": {"rows": 500},
    "release": {"uri": "/nowhere/public"},
}

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("person_id", pa.string(), nullable=False),
        pa.field("city", pa.dictionary(pa.int32(), pa.large_string())),
        pa.field("age", pa.int8(), nullable=False),
        pa.field("score", pa.float32()),
        pa.field("day", pa.timestamp("us", "UTC")),
        pa.field("member", pa.bool_()),
        pa.field("remark", pa.string(), nullable=False),
    ]
)


def contract_with(**changes):
    """The contract, with `a__b=value` for the key path a.b."""
    document = copy.deepcopy(DOCUMENT)
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = document
        for parent in parents:
            part = part[parent]
        part[last] = value
    contract = parse_contract(document, where="test", variables={})
    check_constraints(contract, "test")
    return contract


def people(rows, seed=0):
    """Bounded records: city depends on age, member on city; a few nulls."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 10, rows)
    city = (age // 4 + (rng.uniform(size=rows) < 0.1)) % 3
    member = (city == 1) ^ (rng.uniform(size=rows) < 0.05)
    return pa.table(
        {
            "age": pa.array(age, pa.int8()),
            "score": pa.array(rng.uniform(-1, 1, rows), pa.float32()),
            "day": pa.array([dt.date(2026, 1, 1) + dt.timedelta(days=int(day)) for day in rng.integers(0, 365, rows)]),
            "city": pa.array(np.array(["Aix", "Bern", "Cork"])[city], mask=rng.uniform(size=rows) < 0.05),
            "member": pa.array(member),
            "_owner": pa.array([f"{index // 2:032x}" for index in range(rows)]),
            "_record": pa.array([f"{index:064x}" for index in range(rows)]),
        }
    )


def write_bounded(table, path):
    """A bounded Delta table of several batches."""
    write_table(path, table.schema, table.to_batches(max_chunksize=700))
    return path


def grant_for(plan):
    """What `fit` reads of a verified grant."""
    return SimpleNamespace(plan_digest=plan.digest)
