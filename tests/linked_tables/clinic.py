"""A small clinic: fictional patients, their stays in order, diagnoses by a public list."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

DAY = dt.date(2024, 1, 1)
TABLES: dict[str, Any] = {
    "tables": {
        "patients": {
            "key": ["patient id"],
            "columns": {
                "birth": {"type": "date", "min": "1930-01-01", "max": "2023-12-31"},
                "sex": {"type": "categorical", "values": ["F", "M"]},
                "remark": {"type": "text"},
            },
        },
        "stays": {
            "key": ["stay"],
            "parent": {"table": "patients", "columns": ["patient id"]},
            "max_children": 4,
            "order_by": ["admitted"],
            "columns": {
                "admitted": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"},
                "left": {"type": "date", "min": "2024-01-01", "max": "2025-03-01"},
                "ward": {"type": "categorical", "values": ["A", "B", "C"]},
            },
            "constraints": [{"ascending": ["admitted", "left"]}],
        },
        "diagnoses": {
            "key": ["stay", "line"],
            "parent": {"table": "stays", "columns": ["stay"]},
            "max_children": 3,
            "lookups": {"code": "codes"},
            "columns": {"severity": {"type": "integer", "min": 1, "max": 5}},
        },
        "codes": {"public": "The clinic lists them.", "key": ["code"]},
    }
}


def clinic(number: int = 3000, seed: int = 0) -> dict[str, pa.Table]:
    """Women are in ward A and older people in ward B; the ward stays the same in seven of ten cases."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, number)
    birth = rng.integers(-30_000, -1, number)
    stays: dict[str, list[Any]] = {name: [] for name in ("stay", "patient id", "admitted", "left", "ward")}
    codes: dict[str, list[Any]] = {name: [] for name in ("stay", "line", "code", "severity")}
    for patient in range(number):
        day, ward = int(rng.integers(0, 150)), int(rng.integers(0, 3)) if rng.random() < 0.2 else int(sex[patient])
        for _ in range(min(5, rng.poisson(1 + 2 * sex[patient]))):
            if day > 365:
                break
            stay = f"s{len(stays['stay'])}"
            row = (
                stay,
                patient + 500,
                DAY + dt.timedelta(day),
                DAY + dt.timedelta(day + int(rng.integers(0, 9))),
                ward,
            )
            for values, value in zip(stays.values(), row, strict=True):
                values.append(value)
            for line in range(int(rng.integers(0, 4))):
                code = int((ward + rng.integers(0, 2)) % 3)
                for values, value in zip(codes.values(), (stay, line + 1, code, int(rng.integers(1, 6))), strict=True):
                    values.append(value)
            day += 1 + int(rng.geometric(1 / 20))
            ward = ward if rng.random() < 0.7 else int(rng.integers(0, 3))
    named = np.array(["A", "B", "C"])
    return {
        "patients": pa.table(
            {
                "patient id": np.arange(number) + 500,
                "birth": [DAY + dt.timedelta(days=int(day)) for day in birth],
                "sex": np.array(["F", "M"])[sex],
                "remark": [f"patient {number} likes tea" for number in range(number)],
            }
        ),
        "stays": pa.table(stays | {"ward": named[np.array(stays["ward"], dtype=int)]}),
        "diagnoses": pa.table(codes | {"code": np.array(["x", "y", "z"])[np.array(codes["code"], dtype=int)]}),
        "codes": pa.table({"code": ["x", "y", "z"], "words": ["ex", "why", "zed"]}),
    }


def written(directory: Path, tables: dict[str, pa.Table]) -> Path:
    """The directory, with a Parquet file for each table and the declaration beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, directory / f"{name}.parquet")
    directory.with_suffix(".yaml").write_text(yaml.safe_dump(TABLES))
    return directory
