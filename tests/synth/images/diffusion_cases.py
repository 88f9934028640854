"""A contract with small pictures, its bounded table, and a diffusion model's parameters, for tests of diffusion."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.images.diffusion import ImageDiffusion
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, Solver, WarmUpNumbers
from dpsynth_platform.synth.images.diffusion_plan import DiffusionOptions, DiffusionParameters
from dpsynth_platform.synth.interface import Checkpoints, MechanismRun, PlanInputs, SealedPlan

SOURCE = pa.schema([("id", pa.string()), ("writer", pa.string()), ("kind", pa.string()), ("picture", pa.binary())])
KEY = b"k" * 32
SIZE = (8, 6)


def picture_contract(epsilon=8.0, owners=100, b=2, generate=None):
    return parse_contract(
        {
            "dataset": "sketches",
            "description": "Sketches of two kinds by writers.",
            "owners": ["sketches@example.org"],
            "source": {"uri": "/nowhere", "key": ["id"]},
            "family": "writers",
            "privacy": {
                "unit": "user",
                "owner_columns": ["writer"],
                "namespace": "writer",
                "max_contributions": b,
                "guarantee": {"epsilon": epsilon, "delta": "auto"},
                "expected_units": owners,
            },
            "columns": {
                "id": {"type": "identifier"},
                "writer": {"type": "identifier"},
                "kind": {"type": "categorical", "values": ["bright", "dark"]},
                "picture": {
                    "type": "image",
                    "size": list(SIZE),
                    "channels": 1,
                    "accept_unscrubbed": "They are made up for tests.",
                },
            },
            "generate": generate or {"method": "image_moments"},
            "release": {"uri": "/nowhere/public"},
        },
        where="sketches.yaml",
        variables={},
    )


def options(**changes):
    usual = {
        "steps": 6,
        "replay_steps": 4,
        "batch_size": 20,
        "sketch_share": None,
        "warm_up": WarmUpNumbers(pictures=200, steps=3, batch=16),
        "loss": DiffusionLoss(draws=2),
        "solver": Solver(steps=4),
    }
    return DiffusionOptions(**(usual | changes))


def diffusion_plan(contract=None, **changes):
    """The sealed plan of a contract, without trying the network."""
    contract = contract or picture_contract()
    inputs = PlanInputs(contract, SOURCE, Guarantee.target(contract))
    parameters = DiffusionParameters.with_options(inputs, options(**changes))
    return SealedPlan.of(ImageDiffusion.method, inputs, parameters.parts(inputs))


def pictures(number=80):
    """Bright ones of kind 0 and dark ones of kind 1, with noise."""
    generator = np.random.default_rng(7)
    kinds = np.arange(number) % 2
    means = np.where(kinds == 0, 200, 50)[:, None, None, None]
    pixels = np.clip(means + generator.normal(0, 20, (number, *SIZE, 1)), 0, 255).astype(np.uint8)
    return pixels, kinds


def bounded_pictures(place, number=80):
    """Two records of each owner."""
    pixels, kinds = pictures(number)
    table = pa.table(
        {
            "kind": [("bright", "dark")[kind] for kind in kinds],
            "picture": pa.array([pixel.tobytes() for pixel in pixels], pa.binary()),
            OWNER_COLUMN: [f"{row // 2:032x}" for row in range(number)],
            RECORD_COLUMN: [f"{row:032x}" for row in range(number)],
        }
    )
    write_table(place, table.schema, table.to_batches())
    return place


def job(plan, bounded, directory, *, resume=False, key=KEY):
    directory.mkdir(parents=True, exist_ok=True)
    grant = SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32)
    return MechanismRun(plan, bounded, grant, directory, checkpoints=Checkpoints(None, key, resume=resume))
