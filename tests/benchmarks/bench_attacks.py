"""How strong the attacks on tables are, on adult, with noise and without. Not a test: run it, and it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_attacks.py                       # half an hour on busy cores
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_attacks.py --methods aim         # shadow models take longer

What belongs here: area under the curve and true positive rates of every attack, on people and on canaries, with the
seconds that each takes. What does not: asserting; `tests/audit` holds what must hold.

Without noise, the mechanism is patched as tests do it: all that an attack can find is there to be found, and one that
finds nothing then is not worth its place. People are attacked by somebody who has 20,000 others of the same population.
Canaries are attacked with that table, and with nothing but the release. Everybody has one record, as the plan says.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_tabular import adult_columns, plan_of, say, stored

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.tables import ATTACKS, Evidence
from dpsynth_platform.audit.tables.agreement import draw_queries
from dpsynth_platform.audit.tables.attributes import infer_attribute
from dpsynth_platform.audit.tables.copies import count_copies
from dpsynth_platform.audit.tables.shadows import fit_shadows
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.model import load_model

DELTA = 1e-5
REFERENCES = 20_000
CANARIES = 500


@dataclass(frozen=True)
class Attacked:
    """A table with targets of which some are in it."""

    rows: pa.Table
    targets: pa.Table
    included: np.ndarray
    canaries: bool


def people(data: pa.Table, rows: int, order: np.ndarray) -> Attacked:
    """So many people, and as many targets: half of them in, up to a thousand."""
    each = min(1000, rows // 2)
    targets = data.take(order[rows - each : rows + each])
    return Attacked(data.take(order[:rows]), targets, np.arange(2 * each) < each, canaries=False)


def with_canaries(data: pa.Table, rows: int, order: np.ndarray, domain: Domain) -> Attacked:
    """So many people and canaries, each canary in by a coin; values as `audit.canaries` makes them."""
    rng = np.random.default_rng()
    codes = [rng.permutation(np.resize(np.flatnonzero(column.allowed), CANARIES)).astype(np.int32) for column in domain]
    targets = pa.table(
        {
            column.name: column.decode(mine, data.schema.field(column.name).type, rng)
            for column, mine in zip(domain, codes, strict=True)
        }
    )
    included = rng.random(CANARIES) < 0.5
    joining = targets.filter(pa.array(included)).cast(data.schema)
    return Attacked(pa.concat_tables([data.take(order[:rows]), joining]), targets, included, canaries=True)


@contextmanager
def noise(epsilon: float | None) -> Iterator[None]:
    """The mechanism as it is, or without any noise."""
    kept = drawing.sample_rounded_gaussian, drawing.select_by_exponential_mechanism
    if epsilon is None:
        drawing.sample_rounded_gaussian = lambda counts, sigma: counts.copy()
        drawing.select_by_exponential_mechanism = lambda scores, epsilon, sensitivity: int(np.argmax(scores))
    try:
        yield
    finally:
        drawing.sample_rounded_gaussian, drawing.select_by_exponential_mechanism = kept


def attack(plan: SealedPlan, attacked: Attacked, reference: pa.Table | None, shadows: int, sensitive: str) -> None:
    """Fits, samples and prints a line for each attack."""
    method = generator(plan.method)
    with stored(attacked.rows) as bounded, tempfile.TemporaryDirectory() as directory:
        method.measure(plan, bounded, Path(directory))
        method.estimate(plan, Path(directory))
        model, synthetic = load_model(Path(directory)), method.sample(Path(directory), attacked.rows.num_rows)
    evidence = Evidence(
        domain=model.domain,
        targets=attacked.targets,
        synthetic=synthetic,
        reference=reference,
        canaries=attacked.canaries,
        model=model,
    )
    started = time.monotonic()
    queries = draw_queries(len(model.domain), np.random.default_rng())
    evidence = replace(
        evidence,
        shadows=fit_shadows(plan, evidence, models=shadows, records=attacked.rows.num_rows, queries=queries),
    )
    say(f"{shadows} shadow models: {time.monotonic() - started:.0f} s")
    say(f"{'':20}{'AUC':>8}{'TPR 1%':>9}{'TPR 0.1%':>10}{'TNR 1%':>9}{'seconds':>9}")
    for name, entry in ATTACKS.items():
        if entry.needs - evidence.held:
            continue
        started = time.monotonic()
        line(name, entry.run(evidence).scores, attacked.included, time.monotonic() - started)
    if reference is not None:
        started = time.monotonic()
        inferred = infer_attribute(evidence, sensitive)
        line(f"{sensitive} inferred", inferred.scores, attacked.included, time.monotonic() - started)
        for group, who in (("in", attacked.included), ("out", ~attacked.included)):
            release, population = inferred.right_from_release[who].mean(), inferred.right_from_population[who].mean()
            say(f"   {sensitive} of those {group}: {release:.3f} right from the release, {population:.3f} without it")
    codes = evidence.target_codes
    for off in (0, 1):
        copies = count_copies(
            codes[attacked.included], codes[~attacked.included], evidence.synthetic_codes, columns_off=off
        )
        say(
            f"   copies with {off} columns off: {copies.members} of {copies.of_members} in, {copies.held_out} of "
            f"{copies.of_held_out} out (p = {copies.p_value:.2g})"
        )


def line(name: str, scores: np.ndarray, included: np.ndarray, seconds: float) -> None:
    """One attack's figures."""
    rates = [bounds.true_positive_rate(scores, included, false_positive_rate=rate).value for rate in (0.01, 0.001)]
    negative = bounds.true_positive_rate(-scores, ~included).value
    say(
        f"{name:20}{bounds.area_under_curve(scores, included):8.3f}{rates[0]:9.3f}{rates[1]:10.3f}{negative:9.3f}"
        f"{seconds:9.1f}"
    )


def main() -> None:
    """Every combination that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["mst"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 20_000])
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--epsilons", nargs="+", default=["none", "1", "4"])
    parser.add_argument("--targets", nargs="+", choices=["people", "canaries"], default=["people", "canaries"])
    parser.add_argument("--sensitive", default="income")
    chosen = parser.parse_args()
    source = Path(os.environ["DPSYNTH_BENCH_DATA"]) / "adult/adult_dp2stage_split.parquet"
    data = pq.read_table(source).drop(["split"])
    columns = {name: adult_columns()[name] for name in data.column_names}
    for method in chosen.methods:
        for rows in chosen.rows:
            order = np.random.default_rng().permutation(data.num_rows)
            reference = data.take(order[-REFERENCES:])
            for asked in chosen.epsilons:
                epsilon = None if asked == "none" else float(asked)
                plan = plan_of(method, columns, data.schema, epsilon or 1.0, DELTA)
                words = "without noise" if epsilon is None else f"epsilon {epsilon:g}"
                crowd, baited = (
                    people(data, rows, order),
                    with_canaries(data, rows, order, Domain.from_json(plan.columns)),
                )
                with noise(epsilon):
                    settings = [(crowd, reference, "people attacked, with a reference table")]
                    if rows >= CANARIES * 8:
                        settings += [
                            (baited, reference, "canaries attacked, with a reference table"),
                            (baited, None, "canaries attacked, with the release alone"),
                        ]
                    for attacked, known, how in settings:
                        if ("canaries" if attacked.canaries else "people") in chosen.targets:
                            say(f"\n{method}, {rows} people, {words}: {len(attacked.included)} {how}")
                            attack(plan, attacked, known, chosen.shadows, chosen.sensitive)


if __name__ == "__main__":
    main()
