"""How good and how fast the generators of tables are. Not a test: run it, and it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_tabular.py --marginals            # minutes
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_tabular.py --marginals --oracle   # and AIM on mbi: an hour
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_tabular.py --quality --seeds 8    # 20 minutes
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_tabular.py --cuts 12              # 10 minutes
    python tests/benchmarks/bench_tabular.py --sampling --growth                           # made-up tables, minutes

What belongs here: distances of marginals beside AIM on `mbi`, figures of the DP-2Stage benchmark beside those that were
published, time and memory of tables and models that grow. What does not: asserting; `tests/synth` holds what must hold.

Plans are made from contracts in their default configuration. Real tables' domains are public facts: ranges and lists of
values from UCI's documentation of Adult and from the data dictionary of the Texas inpatient file. The one exception is
the table of `--marginals`, whose columns are coded beforehand as in mbi's own example, categories as they are found.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import yaml
from bench_tabular_quality import PUBLISHED, SOURCES, line

from dpsynth_platform.bounding.evaluation import peak_memory
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.methods import WORKLOAD_METHODS
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import zcdp_limit
from dpsynth_platform.quality.columns import align
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.quality.similarity import measure_similarity
from dpsynth_platform.quality.utility import measure_utility
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.aim import ROUND_ITERATIONS, Aim
from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.cost import Work
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, junction_tree
from dpsynth_platform.synth.tabular.marginals import ITERATIONS
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator

METHODS = (
    "aim",
    "mwem",
    "rap",
    "gem",
    "grem",
    "appgm",
    "mst",
    "privsyn",
    "mrf",
    "privbayes",
    "histogram",
    "independent",
    "arn",
    "tbart",
    "dp_vae",
    "table_diffusion",
    "dp_gan",
)
LIMITS = ("1s", "2s")
PERSON = "person_id"
"""Stands in contracts; mechanisms do not look at it."""
ROOT = Path(__file__).parents[2]
MARGINALS = (1.0, 1e-9)
QUALITY_EPSILONS = (1.0, 8.0)
QUALITY_DELTA = 1e-5


# One run of a generator.


@dataclass(frozen=True)
class Timed:
    """A sample, and the seconds of what led to it."""

    rows: pa.Table
    measuring: float
    estimating: float
    sampling: float

    @property
    def seconds(self) -> float:
        """Of all together."""
        return self.measuring + self.estimating + self.sampling


def plan_of(
    method: str,
    columns: dict[str, Any],
    schema: pa.Schema,
    epsilon: float,
    delta: float,
    target: str | None = None,
    limit: str | None = None,
    public: Path | None = None,
    more: Mapping[str, Any] | None = None,
) -> SealedPlan:
    """The sealed plan of a contract with these columns, one record a person; with a public table, if one is given.

    `more` are further keys of `generate`; with any, the target is declared as that of quality.
    """
    document = {
        "dataset": "benchmark",
        "description": "A table of a benchmark.",
        "owners": ["benchmarks@example.org"],
        "source": {"uri": "/nowhere", "key": [PERSON]},
        "family": "benchmarks",
        "privacy": {
            "unit": "example",
            "owner_columns": [PERSON],
            "namespace": "person",
            "max_contributions": 1,
            "guarantee": {"epsilon": epsilon, "delta": delta},
            "expected_units": 30_000,
        },
        "columns": {PERSON: {"type": "identifier"}, **columns},
        "generate": {
            "method": method,
            "rows": 1000,
            "time_limit": limit,
            **({"workload": {"target": target}} if target and method in WORKLOAD_METHODS else {}),
            **({"public": {"uri": str(public), "why": "rows of a benchmark"}} if public else {}),
            **(more or {}),
        },
        **({"quality": {"target": target}} if target and more else {}),
        "release": {"uri": "/nowhere/public"},
    }
    contract = parse_contract(document, where="benchmark", variables={})
    return generator(method).plan(contract, schema.append(pa.field(PERSON, pa.string())), Guarantee.target(contract))


def conduct(plan: SealedPlan, bounded: Path, rows: int, device: str) -> Timed:
    """Measures, estimates and samples."""
    method = generator(plan.method)
    with tempfile.TemporaryDirectory() as directory:
        clock = [time.monotonic()]
        method.measure(plan, bounded, Path(directory))
        clock.append(time.monotonic())
        method.estimate(plan, Path(directory), device=device)
        clock.append(time.monotonic())
        made = method.sample(Path(directory), rows).drop([PERSON])
        clock.append(time.monotonic())
    return Timed(made, *np.diff(clock))


@contextmanager
def stored(table: pa.Table) -> Iterator[Path]:
    """The table as a Delta table, as mechanisms read it."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "bounded"
        write_table(place, table.schema, table.to_batches(max_chunksize=100_000))
        yield place


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


# Distances of marginals, beside AIM on mbi.

NUMBERS = {
    "age": (17, 102, 85),
    "fnlwgt": (0, 1_500_000, 100),
    "education-num": (1, 17, 16),
    "capital-gain": (0, 100_000, 100),
    "capital-loss": (0, 4400, 100),
    "hours-per-week": (1, 100, 99),
}
"""Low end, high end and number of bins, as in mbi's example."""


def coded_adult(data: Path) -> tuple[list[str], np.ndarray, tuple[int, ...]]:
    """Adult in the domain of mbi's example: names, codes (rows, columns), sizes."""
    table = pq.read_table(data / "adult/adult.parquet").drop(["education", "uci_split"])
    codes, sizes = [], []
    for name in table.column_names:
        if name in NUMBERS:
            low, high, bins = NUMBERS[name]
            values = table[name].to_numpy().astype(float)
            codes.append(np.clip((values - low) / (high - low) * bins, 0, bins - 1).astype(np.int64))
            sizes.append(bins)
        else:
            found, code = np.unique(table[name].to_numpy().astype(str), return_inverse=True)
            codes.append(code)
            sizes.append(len(found))
    return table.column_names, np.stack(codes, axis=1), tuple(sizes)


def marginals(data: Path, seeds: int, device: str, oracle: bool) -> None:
    """Mean total variation of all one-, two- and three-way marginals, and seconds of everything with sampling."""
    names, codes, sizes = coded_adult(data)
    columns = {
        name: {"type": "integer", "min": 0, "max": size - 1}
        if name in NUMBERS
        else {"type": "categorical", "values": [str(code) for code in range(size)]}
        for name, size in zip(names, sizes, strict=True)
    }
    arrays = [pa.array(codes[:, i] if name in NUMBERS else codes[:, i].astype(str)) for i, name in enumerate(names)]
    table = pa.table(dict(zip(names, arrays, strict=True)))
    rng = np.random.default_rng()

    def show(name: str, found: list[tuple[np.ndarray, float]]) -> float:
        distances = np.array(
            [[k_way_distance(codes, made, sizes, ways).mean for ways in (1, 2, 3)] for made, _ in found]
        )
        seconds = float(np.mean([time for _, time in found]))
        mean, deviation = distances.mean(axis=0), distances.std(axis=0, ddof=min(1, len(found) - 1))
        cells = "".join(f"{m:9.4f} ±{d:.4f}" for m, d in zip(mean, deviation, strict=True))
        say(f"{name:28}{cells}{seconds:10.1f}")
        return seconds

    epsilon, delta = MARGINALS
    say(f"\nadult, {len(codes)} rows, {len(sizes)} columns, epsilon {epsilon:g}, delta {delta:g}, {seeds} seeds")
    say(f"{'mean total variation':28}{'1-way':>17}{'2-way':>17}{'3-way':>17}{'seconds':>10}")
    again = codes[rng.integers(0, len(codes), len(codes))]
    show("real rows drawn again", [(again, 0.0)])
    show("independent columns", [(np.stack([rng.permutation(column) for column in codes.T], axis=1), 0.0)])
    seconds = {}
    with stored(table) as bounded:
        for method, limit in (*((method, None) for method in METHODS), *(("aim", limit) for limit in LIMITS)):
            plan = plan_of(method, columns, table.schema, epsilon, delta, limit=limit)
            runs = [conduct(plan, bounded, len(codes), device) for _ in range(seeds)]
            made = [np.stack([run.rows[name].to_numpy().astype(np.int64) for name in names], axis=1) for run in runs]
            pairs = [(rows, run.seconds) for rows, run in zip(made, runs, strict=True)]
            seconds[method, limit] = show(f"{method} within {limit}" if limit else method, pairs)
            parts = np.mean([(run.measuring, run.estimating, run.sampling) for run in runs], axis=0)
            say("   measuring {:.2f} s, estimating {:.2f} s, sampling {:.2f} s".format(*parts))
    if oracle:
        found = [aim_on_mbi(codes, sizes, zcdp_limit(epsilon, delta), seed) for seed in range(seeds)]
        slow = show("aim on mbi", found)
        say(f"aim here takes 1/{slow / seconds['aim', None]:.0f} of the time of aim on mbi")


def aim_on_mbi(codes: np.ndarray, sizes: tuple[int, ...], rho: float, seed: int) -> tuple[np.ndarray, float]:
    """Rows of `aim_on_mbi.py`, in a process of its own, and its seconds."""
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "source.npz", Path(directory) / "target.npz"
        np.savez(source, codes=codes.astype(np.int32), sizes=np.array(sizes), rho=rho, seed=seed)
        script = Path(__file__).with_name("aim_on_mbi.py")
        subprocess.run([sys.executable, "-W", "ignore", script, source, target], check=True)
        with np.load(target) as made:
            say(f"   aim on mbi, seed {seed}: {made['seconds']:.0f} s, {made['estimating']:.0f} s of it estimating")
            return made["codes"], float(made["seconds"])


# Figures of DP-2Stage.


def adult_columns() -> dict[str, Any]:
    """Adult's columns by UCI's documentation, which stands in the demonstration's contract.

    The benchmark writes texts with one capital, and `?` for what is missing.
    """
    declared = yaml.safe_load((ROOT / "deploy/contracts/census.yaml").read_text(encoding="utf-8"))["columns"]
    columns: dict[str, Any] = {}
    for name, column in declared.items():
        column = dict(column)
        if column["type"] == "categorical":
            values = [value.capitalize() for value in column["values"]]
            column = {"type": "categorical", "values": [*values, "?"] if column.pop("nullable", False) else values}
        elif column["type"] != "integer" or name == "wave":
            continue
        column.pop("bins", None)
        columns[name.replace("_", "-")] = column
    columns["capital-gain"]["points"] = [0, 99999]
    columns["capital-loss"]["points"] = [0]
    return columns


def texas_columns() -> dict[str, Any]:
    """Columns by the data dictionary of the Texas Hospital Inpatient Discharge Public Use Data File of 2013.

    Texts are written with one capital, and codes that the file marks as invalid are `Invalid`. Amounts are in dollars
    and cents; their upper ends are round numbers that no stay is expected to reach. The benchmark keeps two of the
    classes of mortality risk.
    """

    def codes(values: str) -> dict[str, Any]:
        return {"type": "categorical", "values": [*values.split(), "Invalid"]}

    def amount(most: int) -> dict[str, Any]:
        return {"type": "float", "min": 0, "max": most, "decimals": 2, "points": [0]}

    return {
        "discharge": codes("2012q4 2013q1 2013q2 2013q3 2013q4"),
        "type_of_admission": codes("1 2 3 4 5 9"),
        "pat_state": codes("Ar La Nm Ok Tx Zz Fc Xx"),
        "pat_status": codes(
            "1 2 3 4 5 6 7 8 9 20 21 30 40 41 42 43 50 51 61 62 63 64 65 66 69 70 71 72 81 82 83 84 85 86 87 88 89 90 "
            "91 92 93 94 95"
        ),
        "sex_code": codes("F M U"),
        "race": codes("1 2 3 4 5"),
        "ethnicity": codes("1 2"),
        "admit_weekday": codes("1 2 3 4 5 6 7"),
        "pat_age": codes(" ".join(f"{code:02}" for code in range(27))),
        "risk_mortality": {"type": "categorical", "values": ["1", "3"]},
        "illness_severity": codes("0 1 2 3 4"),
        "length_of_stay": {"type": "float", "min": 1, "max": 1000, "decimals": 0},
        "total_charges": amount(10_000_000),
        "total_non_cov_charges": amount(1_000_000),
        "total_charges_accomm": amount(10_000_000),
        "total_non_cov_charges_accomm": amount(1_000_000),
        "total_charges_ancil": amount(10_000_000),
        "total_non_cov_charges_ancil": amount(1_000_000),
    }


COLUMNS = {"adult": adult_columns, "texas": texas_columns}


def quality(data: Path, seeds: int, device: str) -> None:
    """F1, AUC, accuracy, CorAcc, Pair and HIST of synthetic rows against test rows, beside published ones.

    Pair stands there as the mean of 20 and 50 bins, as in the paper's tables, and of 50 bins, as in its code.
    """
    for source, (path, target) in SOURCES.items():
        table = pq.read_table(data / path)
        train, test = (table.filter(pc.equal(table["split"], part)).drop(["split"]) for part in ("train", "test"))
        columns = {name: COLUMNS[source]()[name] for name in train.column_names}
        say(f"\n{source}, {train.num_rows} training rows, delta {QUALITY_DELTA:g}, {seeds} seeds")
        say(f"{'':32}      F1     AUC     ACC  CorAcc    Pair    HIST Pair 50")
        for name, published in PUBLISHED[source].items():
            line(f"published: {name}", published)
        line("real training rows", figures(test, train, target))
        with stored(train) as bounded:
            for epsilon, method in itertools.product(QUALITY_EPSILONS, METHODS):
                aimed = target if method == "aim" else None
                plan = plan_of(method, columns, train.schema, epsilon, QUALITY_DELTA, aimed)
                found, seconds = [], []
                for seed in range(seeds):
                    run = conduct(plan, bounded, train.num_rows, device)
                    found.append(figures(test, run.rows, target))
                    seconds.append(run.seconds)
                    line(f"   {method}, epsilon {epsilon:g}, seed {seed}", found[-1], f"   {run.seconds:.1f} s")
                line(
                    f"{method}, epsilon {epsilon:g}: mean",
                    tuple(np.mean(found, axis=0)),
                    f"   {np.mean(seconds):.1f} s",
                )
                if seeds > 1:
                    line(f"{method}, epsilon {epsilon:g}: deviation", tuple(np.std(found, axis=0, ddof=1)))


def cuts(data: Path, number: int, device: str) -> None:
    """The same of AIM at epsilon 1, each time on another random cut of the rows into training and test.

    How strongly columns are associated hangs on which rows are in the test part, of heavy-tailed columns most of all:
    one cut's CorAcc says little.
    """
    for source, (path, target) in SOURCES.items():
        table = pq.read_table(data / path)
        training, tested = (pc.sum(pc.equal(table["split"], part)).as_py() for part in ("train", "test"))
        plain = table.drop(["split"])
        columns = {name: COLUMNS[source]()[name] for name in plain.column_names}
        plan = plan_of("aim", columns, plain.schema, 1.0, QUALITY_DELTA, target)
        say(f"\n{source}, {number} cuts into {training} training and {tested} test rows, epsilon 1")
        say(f"{'':32}      F1     AUC     ACC  CorAcc    Pair    HIST Pair 50")
        found: dict[str, list[tuple[float, ...]]] = {"real training rows": [], "aim": []}
        for cut in range(number):
            order = np.random.default_rng(1000 + cut).permutation(plain.num_rows)
            train, test = plain.take(order[:training]), plain.take(order[-tested:])
            with stored(train) as bounded:
                made = conduct(plan, bounded, training, device).rows
            for name, rows in (("real training rows", train), ("aim", made)):
                found[name].append(figures(test, rows, target))
                line(f"   {name}, cut {cut}", found[name][-1])
        for name, rows in found.items():
            line(f"{name}: mean", tuple(np.mean(rows, axis=0)))
            line(f"{name}: standard error", tuple(np.std(rows, axis=0, ddof=1) / np.sqrt(number)))


def figures(test: pa.Table, made: pa.Table, target: str) -> tuple[float, ...]:
    """The six figures, in percent, and Pair of 50 bins alone, which the published code computes."""
    columns = align({"real": test, "synthetic": made})
    similar, scores = measure_similarity(columns), measure_utility(columns, target)[0].synthetic.mean
    shares = (scores.f1, scores.roc_auc, scores.accuracy)
    alike = (similar.association_accuracy, similar.pair, similar.histogram, similar.pair_50)
    return tuple(100 * share for share in (*shares, *alike))


# Made-up tables that grow.

CELLS = 10


def made_up(rows: int, columns: int) -> pa.Table:
    """Columns of ten values, each a noisy copy of the one before."""
    rng = np.random.default_rng(columns)
    values = [rng.integers(0, CELLS, rows, dtype=np.int8)]
    for _ in range(columns - 1):
        kept = rng.random(rows, dtype=np.float32) < 0.7
        values.append(np.where(kept, values[-1], rng.integers(0, CELLS, rows, dtype=np.int8)))
    return pa.table({f"c{index}": column for index, column in enumerate(values)})


def made_up_plan(method: str, columns: int, limit: str | None = None) -> SealedPlan:
    """Of such a table, at epsilon 1."""
    declared = {f"c{index}": {"type": "integer", "min": 0, "max": CELLS - 1} for index in range(columns)}
    return plan_of(method, declared, pa.schema({name: pa.int8() for name in declared}), 1.0, 1e-6, limit=limit)


def sampling(rows: int, device: str) -> None:
    """Seconds for many rows of twenty columns."""
    with stored(made_up(100_000, 20)) as bounded:
        for method in METHODS:
            run = conduct(made_up_plan(method, 20), bounded, rows, device)
            say(f"{method}: {rows} rows of 20 columns in {run.sampling:.2f} s")


def limits(device: str) -> None:
    """Seconds that were planned for AIM under a time limit, and that it took; 30,000 rows, as are expected."""
    say(f"\n{'columns':>10}{'limit':>8}{'rounds':>8}{'per fit':>9}{'cells':>10}{'planned s':>11}{'taken s':>9}")
    for columns, chosen in itertools.product((14, 30, 80), (*LIMITS, "10s", "1h")):
        plan = made_up_plan("aim", columns, chosen)
        assert plan.time_limit is not None
        drawn = Aim().sealed(plan.parameters)
        work = Work(
            records=30_000,
            columns=columns,
            cliques=len(drawn.workload),
            rounds=drawn.rounds,
            choices_per_fit=drawn.choices_per_fit,
            model_cells=drawn.model_cells,
            steps=ROUND_ITERATIONS,
            last_steps=ITERATIONS,
        )
        with stored(made_up(30_000, columns)) as bounded:
            taken = conduct(plan, bounded, 30_000, device).seconds
        say(
            f"{columns:>10}{chosen:>8}{drawn.rounds:>8}{drawn.choices_per_fit:>9}{drawn.model_cells:>10}"
            f"{work.seconds(plan.time_limit):>11.1f}{taken:>9.1f}"
        )


def growth(device: str) -> None:
    """Time and memory by columns, by rows, and by the model's size."""
    say("\n100,000 rows, aim; peak memory beyond the program's own")
    say(f"{'columns':>10}{'measuring s':>13}{'estimating s':>14}{'sampling s':>12}{'peak MB':>10}{'predicted MB':>14}")
    for columns in (10, 40, 80, 200):
        alone(_columns, columns, device)
    say("\n20 columns, counting: in the mechanism's process, and by DuckDB with 2 GB and two threads")
    say(f"{'rows':>12}{'counted by':>12}{'one-way s':>12}{'all pairs s':>13}{'peak MB':>10}")
    for rows in (100_000, 1_000_000, 10_000_000):
        with stored_rows(rows) as bounded:
            for by in ("process", "duckdb"):
                alone(_rows, rows, bounded, by)
    say(f"\nbelief propagation, double precision, {torch.get_num_threads()} threads, device {device}")
    say(f"{'model MB':>10}{'cliques':>10}{'ms':>10}{'peak MB':>10}")
    for megabytes in (1, 8, 80):
        alone(_model, megabytes, device)


def alone(work: Callable[..., None], *arguments: object) -> None:
    """Does it in a process of its own, so that its peak memory is its own."""
    process = multiprocessing.get_context("spawn").Process(
        target=_with_threads, args=(torch.get_num_threads(), work, *arguments)
    )
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def _with_threads(threads: int, work: Callable[..., None], *arguments: object) -> None:
    torch.set_num_threads(threads)
    work(*arguments)


def _columns(columns: int, device: str) -> None:
    plan = made_up_plan("aim", columns)
    with stored(made_up(100_000, columns)) as bounded:
        Records(bounded, Domain.from_json(plan.columns)).one_way()  # everything is loaded
        before = peak_memory()
        run = conduct(plan, bounded, 100_000, device)
        peak = (peak_memory() - before) / 1e6
    predicted = plan.describe()["predicted_memory_bytes"] / 1e6
    say(
        f"{columns:>10}{run.measuring:>13.2f}{run.estimating:>14.2f}{run.sampling:>12.2f}{peak:>10.0f}{predicted:>14.0f}"
    )


@contextmanager
def stored_rows(rows: int) -> Iterator[Path]:
    """A bounded table of so many rows of 20 columns, as long as the block lasts."""
    with tempfile.TemporaryDirectory() as directory:
        bounded, part = Path(directory) / "bounded", min(rows, 1_000_000)
        batches = (batch for _ in range(rows // part) for batch in made_up(part, 20).to_batches(max_chunksize=100_000))
        write_table(bounded, made_up(1, 20).schema, batches)
        yield bounded


def _rows(rows: int, bounded: Path, by: str) -> None:
    domain = Domain.from_json(made_up_plan("mst", 20).columns)
    chosen = DuckDBChoice()
    with tempfile.TemporaryDirectory() as spill, chosen.open(Path(spill)) as engine:
        before, clock = peak_memory(), [time.monotonic()]
        records = Records(bounded, domain, engine=engine if by == "duckdb" else None)
        exact = records.one_way()
        clock.append(time.monotonic())
        states = compress(domain, [NoisyCounts((index,), counts, 1.0) for index, counts in enumerate(exact)])
        records.cliques(states, itertools.combinations(range(20), 2))
        clock.append(time.monotonic())
        one_way, pairs = np.diff(clock)
        say(f"{rows:>12}{by:>12}{one_way:>12.2f}{pairs:>13.2f}{(peak_memory() - before) / 1e6:>10.0f}")


def _model(megabytes: int, device: str) -> None:
    sizes = (CELLS,) * 40
    rng = np.random.default_rng(3)
    cliques: list[Clique] = [(index,) for index in range(len(sizes))]
    for pair in rng.permutation(list(itertools.combinations(range(len(sizes)), 2))).tolist():
        if 8 * junction_tree(Attributes.of(sizes), [*cliques, tuple(pair)]).cells <= megabytes * 1e6:
            cliques.append(tuple(pair))
    tree, layout = junction_tree(Attributes.of(sizes), cliques), Layout(sizes, tuple(cliques))
    potentials = torch.from_numpy(rng.normal(size=layout.cells)).to(device)
    propagator = Propagator(tree, layout)
    before, times = peak_memory(), []
    for _ in range(10):
        began = time.monotonic()
        float(propagator.run(potentials)[0].log_partition)  # waits for the device
        times.append(time.monotonic() - began)
    say(f"{8e-6 * tree.cells:>10.1f}{len(cliques):>10}{1000 * np.median(times):>10.1f}"
        f"{(peak_memory() - before) / 1e6:>10.0f}")  # fmt: skip


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--marginals", action="store_true", help="distances of marginals on adult")
    parser.add_argument("--oracle", action="store_true", help="with --marginals: AIM on mbi, too (extra `oracle`)")
    parser.add_argument("--quality", action="store_true", help="the DP-2Stage benchmark")
    parser.add_argument("--cuts", type=int, default=0, help="the same on so many random cuts, two or more")
    parser.add_argument("--sampling", action="store_true", help="a million rows of twenty columns")
    parser.add_argument("--limits", action="store_true", help="what is planned under time limits, and what it takes")
    parser.add_argument("--growth", action="store_true", help="columns, rows and models that grow")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of PyTorch; by default all")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if chosen.marginals or chosen.quality or chosen.cuts:
        if "DPSYNTH_BENCH_DATA" not in os.environ:
            sys.exit("DPSYNTH_BENCH_DATA names the directory with adult and texas_hospital_2013")
        data = Path(os.environ["DPSYNTH_BENCH_DATA"])
        if chosen.marginals:
            marginals(data, chosen.seeds, chosen.device, chosen.oracle)
        if chosen.quality:
            quality(data, chosen.seeds, chosen.device)
        if chosen.cuts:
            cuts(data, chosen.cuts, chosen.device)
    if chosen.sampling:
        sampling(1_000_000, chosen.device)
    if chosen.limits:
        limits(chosen.device)
    if chosen.growth:
        growth(chosen.device)


if __name__ == "__main__":
    main()
