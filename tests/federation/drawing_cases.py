"""Small made-up pictures of several people, and the policies of those who hold them."""

import numpy as np
import pyarrow as pa
from federated_cases import NAMES

from dpsynth_platform.sources.pictures import encoded

SIDE = 4
KINDS = ["dark", "light"]
COLUMNS = {
    "kind": {"type": "categorical", "values": KINDS},
    "drawing": {
        "type": "image",
        "size": [SIDE, SIDE],
        "channels": 1,
        "accept_unscrubbed": "the drawings are made up for tests",
    },
}
PICTURED = {"dataset": "drawings", "methods": ["image_moments"], "columns": ["kind", "drawing"], "max_contributions": 2}


def drawings(people, *, damaged=0):
    """One to three pictures of each person as PNG files, of which some are none; dark or light."""
    rng = np.random.default_rng(0)
    owners = [f"{person:04d}" for person in range(people) for _ in range(1 + person % 3)]
    kinds = rng.integers(0, 2, len(owners))
    grey = np.clip(60 + 130 * kinds[:, None, None, None] + rng.normal(0, 20, (len(owners), SIDE, SIDE, 1)), 0, 255)
    files = [encoded(picture, "png") for picture in np.rint(grey).astype(np.uint8)]
    files[:damaged] = [b"none"] * damaged
    return pa.table(
        {"person": owners, "kind": [KINDS[kind] for kind in kinds], "drawing": pa.array(files, pa.binary())}
    )


def by_all(**changes):
    return dict.fromkeys(NAMES, PICTURED | changes)
