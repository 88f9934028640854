"""Methods side by side on a public table, before one is chosen for a private table like it.

What belongs here: the tries, what is measured of them, and the result for people. What does not: a run (`run`), and
measures (`quality`).

On a private table each method reads the rows and is paid for, and the choice by its results is a further loss. So the
table is declared public, with a reason, and is none that a deployment guards, as far as its files and its lineage know.
Nothing here is paid for: what is drawn is of public rows, and its statement and ledger are not kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_platform.contracts.methods import LANGUAGE_METHODS, TARGET_METHODS, TableMethodName
from dpsynth_platform.contracts.workload import Workload
from dpsynth_platform.foundation.errors import ContractError, MechanismFailed, SourceError
from dpsynth_platform.foundation.figures import rounded
from dpsynth_platform.foundation.markdown import cell, plain
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.scratch import scratch_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.one_table.assumed import MOST_CATEGORIES, empty_columns
from dpsynth_platform.one_table.declaration import read_declared
from dpsynth_platform.one_table.one_try import RESULT
from dpsynth_platform.one_table.public_material import checked_public
from dpsynth_platform.one_table.task import Options
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.quality.one_type import read_tables
from dpsynth_platform.quality.plots import Chart
from dpsynth_platform.quality.report import QualityReport, Task, markdown_row, measure_tables

METHODS: tuple[str, ...] = tuple(
    name for name in get_args(TableMethodName) if name not in ("auto", "jam", *LANGUAGE_METHODS)
)
"""All that one table may have; `jam` needs a second public one, and language models take long."""
_ACCEPTED = ("auto", *METHODS, *LANGUAGE_METHODS)
_FOR_TARGET = (*TARGET_METHODS, "auto")
LEAST_ROWS = 200
HELD_OUT = 0.2
NAME = "comparison"
REAL = "real rows"
NOTICE = (
    "The figures are of a table that is declared public; no mechanism protects its rows. A method that is chosen by "
    "them costs a private table nothing. They say how methods do on tables like this one, and promise nothing of "
    "another table."
)
LEGEND = (
    "pairs, triples: mean total variation distance of two- and three-way marginals from the rows that were learned "
    "(0: the same; real rows: a bootstrap of them). CorAcc: share of pairs of columns that are as strongly associated "
    "as in the held-out rows. F1, AUC, accuracy, R squared: of models that learn from synthetic rows and are tested on "
    "the held-out rows. seconds, MB: processor time, and the largest memory, of the whole process."
)


@dataclass(frozen=True)
class Try:
    """What one method made at one epsilon.

    Attributes:
        chosen: the method that ran, where `method` is `auto`.
        seconds: of the processor.
        megabytes: the most memory of its process.
        measures: by the names in `Comparison.header`.
        refused: why there are no rows; None if there are.
    """

    method: str
    epsilon: float
    chosen: str | None = None
    seconds: float = 0.0
    megabytes: float = 0.0
    measures: Mapping[str, float] | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Methods on one public table.

    Attributes:
        public: the table, and why it is public.
        left_out: columns that every method would leave empty: undeclared ones of free text, or of one value.
        real: the measures of the real rows themselves, as far as there are any.
        delta: of each guarantee.
    """

    public: str
    why: str
    target: str
    rows: int
    held_out: int
    delta: float
    real: Mapping[str, float]
    tries: tuple[Try, ...]
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"notice": NOTICE}

    @property
    def measures(self) -> list[str]:
        """The names of all measures, in order."""
        return list(dict.fromkeys(name for item in self.tries for name in item.measures or {}))

    @property
    def header(self) -> tuple[str, ...]:
        return ("epsilon", "method", *self.measures, "seconds", "MB")

    def table(self) -> list[tuple[str, ...]]:
        """A row for each try with a result, the best in its first measure first; the real rows last."""
        first = self.measures[:1]
        made = [item for item in self.tries if item.measures is not None]
        made.sort(key=lambda item: (item.epsilon, *((item.measures or {}).get(name, 2.0) for name in first)))
        rows = [
            (
                f"{item.epsilon:g}",
                item.method if item.chosen in (None, item.method) else f"{item.method} ({item.chosen})",
                *self._figures(item.measures or {}),
                rounded(item.seconds),
                rounded(item.megabytes),
            )
            for item in made
        ]
        return [*rows, ("", REAL, *self._figures(self.real), "", "")]

    def _figures(self, found: Mapping[str, float]) -> Iterator[str]:
        yield from (f"{found[name]:.3f}" if name in found else "" for name in self.measures)

    @property
    def refused(self) -> list[str]:
        """A line for each try without a result."""
        return [
            f"{item.method}, epsilon {item.epsilon:g}: {item.refused}"
            for item in self.tries
            if item.refused is not None
        ]

    @property
    def about(self) -> str:
        names = ", ".join(self.left_out)
        without = f" Left out, as no domain can be read off them (free text, one value): {names}." if names else ""
        return (
            f"{self.public}, public: {self.why}. {self.rows:,} rows were learned, {self.held_out:,} held out; target "
            f"{self.target}; each row is its own unit; delta {self.delta:.3g}.{without}"
        )

    def markdown(self) -> str:
        """The whole comparison."""
        parts = ["# Methods compared", "", plain(self.about), "", plain(NOTICE), ""]
        parts += [markdown_row(self.header), markdown_row(["---"] * len(self.header))]
        parts += [markdown_row([cell(text) for text in row]) for row in self.table()]
        parts += ["", plain(LEGEND), "", *(f"- {plain(line)}" for line in self.refused)]
        return "\n".join(parts).rstrip() + "\n"

    def charts(self) -> dict[str, Chart]:
        """Each measure, and the time, by methods and epsilons."""
        made = [item for item in self.tries if item.measures is not None]
        if not made:
            return {}
        methods = list(dict.fromkeys(item.method for item in made))
        found: dict[str, Chart] = {}
        for name in (*self.measures, "seconds"):
            series: dict[str, tuple[list[str], list[float]]] = {}
            for epsilon in sorted({item.epsilon for item in made}):
                by_method = {
                    item.method: item.seconds if name == "seconds" else (item.measures or {}).get(name, float("nan"))
                    for item in made
                    if item.epsilon == epsilon
                }
                values = [by_method.get(method, float("nan")) for method in methods]
                series[f"epsilon {epsilon:g}"] = (methods, values)
            found[name] = Chart(
                title=name,
                description=f"{name} of each method and epsilon on a public table.",
                x_label="method",
                y_label=name,
                series=series,
                bars=True,
            )
        return found


def compare(
    table: str | Path,
    why: str,
    target: str,
    options: Options,
    *,
    out: str | Path | None = None,
    drop: Sequence[str] = (),
    methods: Sequence[str] = METHODS,
    epsilons: Sequence[float] = (1.0,),
    task: Task = "classification",
    workload: Workload | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Runs methods on a table that is declared public, each in a process of its own, and measures what they make.

    Args:
        table: a Parquet or CSV file, a directory of them, or a Delta table.
        why: why it is public; printed in the result.
        target: the column that models predict.
        options: of each run, but for its method and epsilon. Without a schema, domains are read from the table.
        out: directory of the result and of each synthetic table; None: nothing is kept.
        drop: columns that are left out, such as ids.
        workload: marginals that matter; their error is measured, too.

    Raises:
        ContractError: the table is not declared as it should be or is guarded by the deployment, or methods or epsilons
            cannot be run.
        LedgerError: the deployment's ledger, which knows the lineage of tables, is out of reach.
        SourceError: the table cannot be read, has too few rows, or lacks the target.
        MechanismFailed: no method has made a table; the message has each reason.
    """
    unknown = sorted({*methods} - {*_ACCEPTED})
    if unknown or not methods or not epsilons:
        raise ContractError(
            f"methods: {', '.join(unknown) or 'none'}; accepted: {', '.join(_ACCEPTED)}; and one epsilon at least"
        )
    checked_public(Settings.from_environment(), table, why, "the public table")
    with private_files(), scratch_directory("dpsynth-compare-") as work:
        kept, held_out, schema = _parts(Path(table), options, drop)
        if target not in kept.column_names:
            raise SourceError(f"target: no column {target!r} in {table}; accepted: {', '.join(kept.column_names)}")
        assumed = schema is None or options.assume_public_domain
        declared = {} if schema is None else schema["columns"]
        left_out = empty_columns(kept, [name for name in kept.column_names if assumed and name not in declared])
        if target in left_out:
            raise SourceError(
                f"target: column {target!r} has one value, or more than {MOST_CATEGORIES:,} different texts; accepted: "
                "one with two or more, or values declared in a schema"
            )
        if {*kept.column_names} == {target, *left_out}:
            raise SourceError(
                f"{table}: the target {target!r} has no column beside it that a method could learn; accepted: one at "
                "least, of two or more values, or with values declared in a schema"
            )
        kept, held_out = kept.drop_columns(left_out), held_out.drop_columns(left_out)
        learned = work / "learned.parquet"
        pq.write_table(kept, learned)
        units = options.expected_units or len(kept)
        options = replace(
            options,
            schema=schema,
            expected_units=units,
            delta=1 / units**1.1 if options.delta is None else options.delta,
            assume_public_domain=assumed,
            accept_weak_guarantee="a comparison on a public table",
        )
        place = None if out is None else private_directory(Path(out))
        tries: list[Try] = []
        real: dict[str, float] = {}
        asked = [(method, float(epsilon)) for epsilon in epsilons for method in dict.fromkeys(methods)]
        for number, (method, epsilon) in enumerate(asked):
            progress("methods", number, len(asked))
            own = {"method": method, "epsilon": epsilon, "target": target if method in _FOR_TARGET else None}
            found, synthetic = tried(learned, work / f"{number}", replace(options, **own))  # type: ignore[arg-type]
            if synthetic is not None:
                drawn = pq.read_table(synthetic)
                if place is not None:
                    pq.write_table(drawn, place / f"{method}-epsilon-{epsilon:g}.parquet")
                real_rows, made, read = (each.select(drawn.column_names) for each in (held_out, drawn, kept))
                report = measure_tables(
                    real_rows, made, target, train=read, task=task, workload=workload, of_rows=False
                )
                measures, real = _figures(report)
                found = replace(found, measures=measures)
            tries.append(found)
        progress("methods", len(asked), len(asked))
    delta = float(options.delta or 0)
    result = Comparison(str(table), why, target, len(kept), len(held_out), delta, real, tuple(tries), tuple(left_out))
    if not any(item.measures for item in tries):
        raise MechanismFailed("\n".join(["no method has made a table", *result.refused]))
    if place is not None:
        _write(result, place)
    return result


def _parts(table: Path, options: Options, drop: Sequence[str] = ()) -> tuple[pa.Table, pa.Table, dict[str, Any] | None]:
    """Rows to learn, a fifth of the rows, held out, and the schema of what is read: the same for the same table.

    Ids, texts and ignored columns are left out. Raises `SourceError` if a column to `drop` is not there.
    """
    _check_dropped(table, drop)
    schema = read_yaml(Path(options.schema)) if isinstance(options.schema, str | Path) else options.schema
    constraints = None if options.constraints is None else Path(options.constraints)
    columns = read_declared(schema, constraints).columns if schema is not None else {}
    coded = [name for name, item in columns.items() if item.type == "categorical"]
    (whole,) = read_tables({"public": table}, without=drop, categorical=coded, declared=columns).values()
    if whole.num_rows < LEAST_ROWS:
        raise SourceError(
            f"{table}: {whole.num_rows} rows; accepted: {LEAST_ROWS} at least, of which a fifth is held out"
        )
    if schema is not None:
        read = {name: item for name, item in schema["columns"].items() if name in whole.column_names}
        schema = {**schema, "columns": read}
    order = np.random.default_rng(0).permutation(whole.num_rows)
    cut = round(HELD_OUT * whole.num_rows)
    kept, held_out = (whole.take(pa.array(np.sort(part))) for part in (order[cut:], order[:cut]))
    return kept, held_out, schema


def _check_dropped(table: Path, drop: Sequence[str]) -> None:
    """Refuses names of no column, neither of a struct nor of a field: a misspelled id would be learned."""
    names = read_file(table).column_names if drop else []
    known = {".".join(parts[: end + 1]) for parts in (name.split(".") for name in names) for end in range(len(parts))}
    if unknown := sorted({*drop} - known):
        raise SourceError(f"drop: no column {', '.join(map(repr, unknown))} in {table}; accepted: {', '.join(names)}")


def tried(learned: Path, place: Path, options: Options) -> tuple[Try, Path | None]:
    """One run in its own process, and its table; None if it has made none."""
    place.mkdir()
    job = place / "job.json"
    given = {name: value for name, value in asdict(options).items() if value is not None}
    asked = {"table": str(learned), "out": str(place / "out"), "options": given}
    write_durably(job, json.dumps(asked, default=str))
    command = [sys.executable, "-m", "dpsynth_platform.one_table.one_try", str(job)]
    said = place / "errors"
    with said.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process:
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    result = place / RESULT
    made = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    if "synthetic" not in made:
        last = said.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
        ended = f"its process ended with status {process.returncode}" + (f" ({last})" if last else "")
        why = made.get("refused", ended)
        return Try(options.method, options.epsilon, refused=why), None
    found = Try(
        options.method,
        options.epsilon,
        chosen=made["method"],
        seconds=used.ru_utime + used.ru_stime,
        megabytes=used.ru_maxrss / (1 if sys.platform != "darwin" else 1024) / 1000,
    )
    return found, Path(made["synthetic"])


def _figures(report: QualityReport) -> tuple[dict[str, float], dict[str, float]]:
    """The measures of a synthetic table, and of the real rows."""
    fidelity, utility = report.fidelity, report.utility
    both: dict[str, tuple[float | None, float | None]] = {}
    if report.workload is not None:
        both["workload"] = (report.workload.synthetic, report.workload.resampled)
    if fidelity.pairs:
        both["pairs"] = (fidelity.mean_pair, float(np.mean([item.resampled for item in fidelity.pairs])))
    if fidelity.triples is not None and fidelity.resampled_triples is not None:
        both["triples"] = (fidelity.triples.mean, fidelity.resampled_triples.mean)
    if report.similarity is not None and report.real_similarity is not None:
        both["CorAcc"] = (report.similarity.association_accuracy, report.real_similarity.association_accuracy)
    if utility.synthetic is not None and utility.real is not None:
        for name, measure in (("F1", "f1"), ("AUC", "roc_auc"), ("accuracy", "accuracy")):
            both[name] = (getattr(utility.synthetic.mean, measure, None), getattr(utility.real.mean, measure, None))
    if (numbers := report.regression) is not None and numbers.synthetic is not None and numbers.real is not None:
        both["R squared"] = tuple(getattr(item.mean, "r_squared", None) for item in (numbers.synthetic, numbers.real))  # type: ignore[assignment]
    made, real = (
        {name: found[side] for name, found in both.items() if found[side] is not None and found[side] == found[side]}
        for side in (0, 1)
    )
    return made, real  # type: ignore[return-value]  # no None is left


def _write(result: Comparison, place: Path) -> None:
    write_durably(place / f"{NAME}.json", json.dumps(result.to_json(), indent=1))
    write_durably(place / f"{NAME}.md", result.markdown())
    for name, chart in result.charts().items():
        write_durably(place / f"{NAME}-{name.lower().replace(' ', '-')}.svg", chart.svg)
