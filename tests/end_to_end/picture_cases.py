"""A small deployment of pictures: three public kinds of strokes, each in a class, with one or two pictures a person."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deployment import CONTRACT, Deployment
from line_cases import NO_CHANCE

from dpsynth_platform.sources.pictures import encoded

KINDS = ["bar", "cross", "disc"]
SIDE = 12
PICTURES: dict[str, Any] = copy.deepcopy(CONTRACT) | {
    "columns": {
        "person": {"type": "identifier"},
        "visit": {"type": "identifier"},
        "kind": {"type": "categorical", "values": KINDS},
        "drawing": {
            "type": "image",
            "size": [SIDE, SIDE],
            "channels": 1,
            "accept_unscrubbed": "the drawings show strokes that were made up for tests",
        },
    },
    "generate": {"method": "image_moments", "rows": 120},
    "audit": {"canaries": 60} | NO_CHANCE,
    "quality": {"target": "kind", "holdout": 0.1},
}


def drawings(kinds: npt.NDArray[np.int64], random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """A grey stroke of each kind, moved at random; shape (drawings, SIDE, SIDE, 1)."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    centre = SIDE / 2 + random.uniform(-1.5, 1.5, (2, len(kinds), 1, 1))
    down, across = rows - centre[0], columns - centre[1]
    bar = np.abs(across) < 1.5
    cross = (np.abs(across) < 1.2) | (np.abs(down) < 1.2)
    disc = down**2 + across**2 < 14
    chosen = np.choose(kinds[:, None, None], [bar, cross, disc])
    light = random.uniform(150, 255, (len(kinds), 1, 1))
    return (chosen * light).astype(np.uint8)[..., None]


def drawings_table(rows: int = 3000, *, seed: int = 5) -> pa.Table:
    """Fictional people with one or two drawings each, as PNG files."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, len(KINDS), rows)
    return pa.table(
        {
            "person": pa.array([f"P{number * 2 // 3:05d}" for number in range(rows)]),
            "visit": pa.array(np.arange(rows), pa.int64()),
            "kind": pa.array([KINDS[kind] for kind in kinds]),
            "drawing": pa.array([encoded(drawing, "png") for drawing in drawings(kinds, random)], pa.binary()),
        }
    )


def picture_deployment(root: Path, **generate: Any) -> Deployment:
    """A deployment with the contract of drawings and its source."""
    deployment = Deployment(root, contract=copy.deepcopy(PICTURES))
    deployment.contract["generate"] |= generate
    return deployment.write().with_source(drawings_table())
