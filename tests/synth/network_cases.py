"""Plans and runs of networks over a table's columns for their tests."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
from synth_cases import SCHEMA, contract_with

from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import Checkpoints, MechanismRun, generator
from dpsynth_platform.synth.neural.network_generator import StateRecords
from dpsynth_platform.training.rows import RowDivision

KEY = b"k" * 32
SHORT = {"steps": 6, "replay_steps": 4, "batch_size": 40}


def network_plan(method="arn", schema=SCHEMA, network=None, **changes):
    contract = contract_with(generate__method=method, generate__network=network or {}, **changes)
    return generator(method).plan(contract, schema, Guarantee.target(contract))


@cache
def short_plan(method="arn", sampled="records"):
    return network_plan(method, network={**SHORT, "sampled": sampled})


def job(plan, bounded, directory, *, resume=False, key=KEY):
    directory.mkdir(parents=True, exist_ok=True)
    grant = SimpleNamespace(plan_digest=plan.digest, entry_id="e" * 32)
    return MechanismRun(plan, bounded, grant, directory, checkpoints=Checkpoints(None, key, resume=resume))


def moved_by_an_owner(kind, network, plan, rows, draws=1):
    """How the clipped sum over 40 records of ten owners moves without one owner: a function, and units that go.

    Args:
        kind: of clipped sums.
        rows: `StateRows`; each record has the same rows of them in both tables.
    """
    rng = np.random.default_rng(3)
    states = np.stack([rng.integers(0, size, 40) for size in rows.sizes], axis=1).astype(np.int32)
    records = StateRecords(states, np.tile(np.arange(10), 4), draws)
    units = records.units(plan.sampled) or [[record] for record in range(40)]
    fewer = [unit for unit in units if 3 not in {record % 10 for record in unit}]
    whole = rows.drawn({"states": torch.from_numpy(states.astype(np.int64))}, draws)

    def drawn(batch, draws):
        places = (draws * batch["number"][:, None] + torch.arange(draws)).flatten()
        return {name: values[places] for name, values in whole.items()}

    def clipped_sum(of):
        with kind(network, plan, rows.losses) as sums:
            chosen = [record for unit in of for record in unit]
            batch = {**records.batch(chosen), "number": torch.tensor(chosen)}
            division = RowDivision(8 * draws, draws, drawn, plan.batch_size, torch.device("cpu"))
            for (part,) in division.parts(batch, list(map(len, of)), 8 * draws):
                sums.add(part.batch, part.weights)
        return torch.cat([total.flatten() for total in sums.totals.values()])

    return lambda: float((clipped_sum(units) - clipped_sum(fewer)).norm()), len(units) - len(fewer)
