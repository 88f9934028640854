"""Whether shadow models help the audit of a trained language model. Not a test: run it, and it prints a line.

    python tests/benchmarks/bench_text_shadows.py --noise 0 --steps 25      # a minute of one core
    python tests/benchmarks/bench_text_shadows.py --noise 0.1 --steps 60    # two and a half

What belongs here: LiRA (Carlini et al., IEEE S&P 2022) beside the score of the asset line, on the tests' tiny language
model. What does not: asserting.

So many models are trained by one sealed plan with a planted mistake: their noise is the plan's times `--noise`. Each
has 60 made-up people and 300 canaries with coins of its own; each in turn is attacked, the others are its shadow
models. None reads anything real: a line could train them on its released texts and its canaries.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "synth"))

from test_dp_finetune import GENERATOR, SOURCE, TEXTS, contract_for
from text_cases import fitted, save_model

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import likelihood_scores
from dpsynth_platform.audit.canaries import INCLUDED, make_canaries
from dpsynth_platform.audit.tables.lira import online_scores
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.text.dp_finetune import log_likelihoods
from dpsynth_platform.training import health, noise, soundness

PEOPLE, CANARIES, DELTA = 60, 300, 1e-8
Floats = npt.NDArray[np.float64]


def trained(root: Path, *, steps: int, models: int, adapter: bool) -> tuple[npt.NDArray[np.bool_], Floats, Floats]:
    """Coins, gains of log-likelihood, and scores of the asset line; each of shape (models, canaries)."""
    rank = {"rank": 4, "alpha": 8} if adapter else "none"
    declared = contract_for(
        save_model(root / "base"), steps=steps, batch_size=150, adapter=rank, learning_rate=0.02, replay_steps=0
    )
    guarantee = declared.privacy.guarantee.model_copy(update={"epsilon": 0.5, "delta": DELTA})
    privacy = {"max_contributions": 1, "expected_units": PEOPLE + CANARIES // 2, "guarantee": guarantee}
    contract = declared.model_copy(update={"privacy": declared.privacy.model_copy(update=privacy)})
    plan = GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))
    canaries = make_canaries(contract, SOURCE, CANARIES, 1, None)
    ids = [f"{number:032x}" for number in range(PEOPLE)]
    people = pa.table(
        {
            "topic": ["sport", "trade"] * (PEOPLE // 2),
            "year": pa.array([2000] * PEOPLE, pa.int32()),
            "body": [TEXTS["sport"], TEXTS["trade"]] * (PEOPLE // 2),
            OWNER_COLUMN: ids,
            RECORD_COLUMN: ids,
        }
    )
    bait = canaries.table.drop_columns([INCLUDED]).select(people.column_names).cast(people.schema)
    rng, coins, gains, scores = np.random.default_rng(), [], [], []
    for number in range(models):
        coins.append(rng.random(CANARIES) < 0.5)
        table = pa.concat_tables([people, bait.filter(pa.array(coins[-1]))])
        write_table(root / f"table-{number}", table.schema, table.to_batches())
        place = fitted(plan, root / f"table-{number}", root / f"model-{number}")
        before, after = log_likelihoods(plan, place, canaries.values)
        gains.append(after - before)
        scores.append(likelihood_scores(before, after))
    return np.array(coins), np.array(gains), np.array(scores)


def found(scores: Floats, coins: npt.NDArray[np.bool_]) -> list[float]:
    """Area under the curve, bound on epsilon at 95% by an eighth guessed in and out, and found at 1% false alarms."""
    each = scores.size // 8
    right = bounds.count_right(scores, coins, guess_in=each, guess_out=each)
    asked = {"canaries": scores.size, "guesses": 2 * each, "delta": DELTA, "confidence": 0.95}
    return [
        bounds.area_under_curve(scores, coins),
        bounds.epsilon_lower_bound(right=right, **asked),
        bounds.true_positive_rate(scores, coins, false_positive_rate=0.01).value,
    ]


def show(name: str, results: Sequence[Sequence[float]]) -> None:
    area, bound, rate = np.mean(results, axis=0)
    print(f"{name:24} AUC {area:.2f}   epsilon at least {bound:.2f}   found at 1% false alarms {rate:.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, default=0.0, help="times the plan's")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--adapter", action="store_true", help="of rank 4, instead of all weights")
    said = parser.parse_args()
    add = noise.GaussianNoise.add_
    # The gate and the watch would find the mistake first.
    soundness.refuse_unsound = lambda *_, **__: None
    health.Watch.step = lambda *_: None

    def planted(self: noise.GaussianNoise, sums: object, deviation: float) -> None:
        if said.noise:
            add(self, sums, said.noise * deviation)

    noise.GaussianNoise.add_ = planted
    with tempfile.TemporaryDirectory() as place:
        os.environ["DPSYNTH_HOME"] = f"{place}/home"
        started = time.process_time()
        coins, gains, scores = trained(Path(place), steps=said.steps, models=said.models, adapter=said.adapter)
        print(f"{said.models} models: {time.process_time() - started:.0f} seconds of a core")
    show("the line's score", [found(own, coin) for own, coin in zip(scores, coins, strict=True)])
    for shadows in sorted({min(4, said.models - 1), said.models - 1}):
        results = []
        for target in range(said.models):
            others = [number for number in range(said.models) if number != target][:shadows]
            known = coins[others]
            both = known.any(axis=0) & ~known.all(axis=0)
            ratios = online_scores(gains[target][both], gains[others][:, both], known[:, both])
            results.append(found(ratios, coins[target][both]))
        show(f"LiRA, {shadows} shadow models", results)


if __name__ == "__main__":
    main()
