"""A small table of fictional people, and what is declared of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dpsynth_platform.one_table import Synthesis

SECRET = "Zaphodina Quillmarker"
SCHEMA = """
columns:
  age: {type: integer, min: 0, max: 99}
  city: {type: categorical, values: [Aix, Bern, Chur]}
  income: {type: float, min: 0, max: 1000, bins: 8}
  joined: {type: date, min: 2020-01-01, max: 2025-12-31, bins: 12}
  rich: {type: boolean}
  note: {type: text}
"""
Make = Callable[..., Synthesis]


def people(rows: int = 1200, owners: int = 300) -> pa.Table:
    """Rows of which each owner has about four; age and city go together."""
    rng = np.random.default_rng(7)
    age = rng.integers(0, 100, rows)
    return pa.table(
        {
            "person": rng.integers(0, owners, rows),
            "age": pa.array(age, pa.int16()),
            "city": pa.array(np.where(age > 50, "Aix", "Bern")).dictionary_encode(),
            "income": rng.uniform(0, 1000, rows),
            "joined": pa.array(rng.integers(18_262, 20_453, rows), pa.int32()).cast(pa.date32()),
            "rich": age > 70,
            "note": pa.array([SECRET] * rows),
        }
    )
