"""A public table of small pictures with four labels, and contracts that warm a network up with it, for tests."""

from __future__ import annotations

import numpy as np
from diffusion_cases import SIZE, picture_contract

from dpsynth_platform.sources.pictures import encoded

REASON = "made up for tests and published"
LEVELS = {"bright": 200, "dim": 120, "dark": 50, "night": 5}
OF_EACH = 12


def public_table(place):
    """Class folders: grey pictures, darker from label to label."""
    generator = np.random.default_rng(3)
    for label, level in LEVELS.items():
        (place / label).mkdir(parents=True)
        for number in range(OF_EACH):
            noise = generator.normal(0, 10, (*SIZE, 1))
            picture = np.clip(level + noise, 0, 255).astype(np.uint8)
            (place / label / f"{number}.png").write_bytes(encoded(picture, "png"))
    return place


def table_contract(place, **table):
    """A contract whose network first learns from the table; further keys are of the table."""
    b = table.pop("b", 2)
    part = {"warm_up": "table", "table": {"directory": str(place), "public": REASON, **table}}
    return picture_contract(b=b, generate={"method": "image_diffusion", "image": {"diffusion": part}})


def nearest_contract(place, nearest=1, **table):
    """By the nearest labels."""
    return table_contract(place, nearest_classes=nearest, nearest_share=0.3, **table)
