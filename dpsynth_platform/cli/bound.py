"""`dpsynth bound evaluate|learn`: what each contribution bound would keep, and one that is learned with privacy.

What belongs here: arguments, and showing what the library returns. What does not: reading, choosing and counting
(`bounding`, `bound_learning`). `evaluate` needs no deployment: it reads the table that it is given, and writes to a
temporary directory only. `learn` asks about a dataset of the deployment, and pays.
"""

from __future__ import annotations

import enum
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import SEVERAL, Json, TerminalOutput, command, listed, workspace
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.bounding.evaluation import Evaluation
    from dpsynth_platform.compute.choice import EngineChoice
    from dpsynth_platform.operations.bound_learning import Question

bound_app = typer.Typer(
    no_args_is_help=True, help="Contribution bounds: what each would keep of a table, or one learned with privacy."
)

_BOUNDS = "1,2,5,10"
OPERATOR = (
    "Exact numbers of the data: for the operator's eyes. A bound that is chosen by looking at them is an access that "
    "no guarantee covers."
)


class EngineName(enum.StrEnum):
    """The SQL engines."""

    duckdb = "duckdb"
    spark = "spark"


@bound_app.command("evaluate")
@command
def bound_evaluate(
    table: Annotated[Path, typer.Argument(help="Delta table, Parquet file, or directory of Parquet files.")],
    owners: Annotated[list[str], typer.Option(help=f"Columns of owners' ids, or of lists of them, {SEVERAL}.")],
    contributions: Annotated[
        list[str] | None, typer.Option(help=f"The bounds to try, {SEVERAL}; default: {_BOUNDS}.")
    ] = None,
    order: Annotated[
        str, typer.Option(help="Which records come first: random, fewest-owners-first, weight:COLUMN (larger first).")
    ] = "random",
    separate: Annotated[
        bool, typer.Option("--separate", help="Equal ids in different columns are different people, not one.")
    ] = False,
    engine: Annotated[EngineName, typer.Option(help="The SQL engine.")] = EngineName.duckdb,
    memory: Annotated[
        str | None, typer.Option(help="Memory of the engine, above which it spills, such as 2GB.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the engine.", min=1)] = 2,
    master: Annotated[
        str | None, typer.Option(help="spark: where it runs, such as local-cluster[2,1,2048]; default: local[threads].")
    ] = None,
    spill: Annotated[
        Path | None,
        typer.Option(help="Where the temporary directory is made, which holds owners' ids; default: the system's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Kept share, upper bound, rounds, time and memory of each bound. Exact numbers: for the operator's eyes only."""
    from dpsynth_platform.bounding.evaluation import evaluate
    from dpsynth_platform.bounding.order import Order
    from dpsynth_platform.sources.tables import open_table

    output = TerminalOutput(as_json)
    bounds, by, data = _bounds(contributions or [_BOUNDS]), Order.parse(order), open_table(table)
    choice = _choice(engine, memory, threads, master)
    with workspace("dpsynth-bound-", spill) as directory, choice.open(directory) as opened:
        found = evaluate(
            data,
            _names(owners),
            engine=opened,
            workspace=directory,
            contributions=bounds,
            order=by,
            separate=separate,
            progress=output.print,
        )
    output.json(asdict(found) | {"table": str(table), "engine": engine.value, "note": OPERATOR})
    _show(output, found)


@bound_app.command("learn")
@command
def bound_learn(
    dataset: Annotated[str, typer.Argument(help="A dataset whose scrubbed step is materialized.")],
    epsilon: Annotated[float, typer.Option(help="What the answer may cost, from the family's budget for life.")],
    period: Annotated[str | None, typer.Option(help="YYYY-MM, for datasets with a cadence.")] = None,
    quantile: Annotated[
        float, typer.Option(help="Share of the owners that shall keep all their records; thousandths or coarser.")
    ] = 0.5,
    at_most: Annotated[int, typer.Option(help="The largest bound that may come out.")] = 20,
    as_json: Json = False,
) -> None:
    """Learns a bound with differential privacy, and charges the family's budget; asked again, it costs nothing."""
    from dpsynth_platform.foundation.storage import Storage
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.operations.bound_learning import learn_bound
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.synth.planning import check_period, load_dataset

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    contract, _ = load_dataset(settings, dataset)
    check_period(contract, period)
    found = learn_bound(
        contract,
        period,
        _question(quantile, at_most, epsilon),
        ledger=accounts.ledger(settings),
        storage=Storage(settings.restricted),
        lineage=LineageEmitter.of(settings),
        runner=settings.user,
        warn=output.print,
    )
    output.json({"dataset": dataset, "period": period} | found.to_json())
    paid = "was paid before by" if found.reused else f"cost epsilon {epsilon:g}, by"
    output.print(f"max_contributions: {found.max_contributions}   ({paid} ledger entry {found.entry_id})")
    output.print(
        "It is differentially private: write it into the contract, or choose another; nothing else was learned."
    )


def _question(quantile: float, at_most: int, epsilon: float) -> Question:
    """What is asked, if it can be. Raises `BoundingError` naming the option."""
    from dpsynth_platform.contracts.privacy import MOST_CONTRIBUTIONS
    from dpsynth_platform.operations.bound_learning import Question
    from dpsynth_platform.privacy.events import PARAMETERS

    least, most = PARAMETERS
    if not least <= epsilon <= most:
        raise BoundingError(f"--epsilon {epsilon:g}; accepted: above 0 ({least:g} to {most:g})")
    if not 1 <= at_most <= MOST_CONTRIBUTIONS:
        raise BoundingError(f"--at-most {at_most}; accepted: 1 to {MOST_CONTRIBUTIONS}")
    if not 0 < quantile <= 1:
        raise BoundingError(f"--quantile {quantile:g}; accepted: above 0, at most 1")
    return Question(Fraction(str(quantile)), at_most, epsilon)


def _choice(name: EngineName, memory: str | None, threads: int, master: str | None) -> EngineChoice:
    from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice
    from dpsynth_platform.contracts.validation import validated

    given: dict[str, str | int] = {} if memory is None else {"memory": memory}
    if name is EngineName.spark:
        given |= {"engine": "spark", "master": master or f"local[{threads}]"}
        return validated(SparkChoice, given, "--engine spark")
    if master is not None:
        raise BoundingError("--master is Spark's; accepted: with --engine spark")
    return validated(DuckDBChoice, given | {"threads": threads}, "--engine duckdb")


def _bounds(texts: list[str]) -> list[int]:
    parts = listed(texts)
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise BoundingError(f"--contributions {','.join(parts)!r}; accepted: whole numbers from 1, {SEVERAL}")
    return [int(part) for part in parts]


def _names(texts: list[str]) -> list[str]:
    names = listed(texts)
    if not all(names) or len(set(names)) < len(names):
        raise BoundingError(f"--owners {','.join(names)!r}; accepted: names of different columns, {SEVERAL}")
    return names


def _show(output: TerminalOutput, found: Evaluation) -> None:
    output.print(
        f"{found.records} records, {found.owners} owners, {found.edges} ownerships; the owner who has most has "
        f"{found.most_records} records"
    )
    output.print(
        f"left out: {found.records_without_owner} records without an owner; owners: {found.null_owners} null or empty, "
        f"{found.repeated_owners} repeated on their record"
    )
    output.table(
        (
            "b",
            "kept",
            "share of the owned",
            "no choice keeps more than",
            "owners above b (must be 0)",
            "rounds",
            "seconds",
        ),
        [
            (
                bound.max_contributions,
                bound.kept,
                f"{bound.kept_share:.1%}",
                "unknown" if bound.upper_bound_share is None else f"{bound.upper_bound_share:.1%}",
                bound.owners_above,
                bound.rounds,
                f"{bound.seconds:.2f}",
            )
            for bound in found.bounds
        ],
    )
    for reason in {bound.upper_bound_reason for bound in found.bounds if bound.upper_bound_reason}:
        output.print(f"upper bound unknown: {reason}")
    output.print(
        f"order: {found.order}; reading took {found.reading_seconds:.2f} s; peak memory of this process "
        f"{found.peak_memory_bytes / 1e6:.0f} MB"
    )
    output.print(OPERATOR)
