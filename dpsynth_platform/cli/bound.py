"""`dpsynth bound evaluate|learn`: what each contribution bound would keep, and one that is learned with privacy.

What belongs here: arguments and output. What does not: reading, choosing and counting (`bounding`,
`operations.bound_learning`). `evaluate` needs no deployment; `learn` spends a family's budget.
"""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpsynth_platform.cli.terminal import (
    SEVERAL,
    Commands,
    Period,
    TerminalOutput,
    column_names,
    listed,
    workspace,
)
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.bounding.evaluation import Evaluation
    from dpsynth_platform.compute.choice import EngineChoice
    from dpsynth_platform.operations.bound_learning import Question

bound_app = Commands(
    no_args_is_help=True, help="Contribution bounds: what each would keep of a table, or one learned with privacy."
)

_BOUNDS = "1,2,5,10"
OPERATOR = (
    "Exact numbers of the data: for the operator only. A bound chosen by these numbers is an access to the data that "
    "no guarantee covers."
)


@bound_app.command("evaluate")
def bound_evaluate(
    output: TerminalOutput,
    table: Annotated[Path, typer.Argument(help="Delta table, Parquet file, or directory of Parquet files.")],
    owners: Annotated[list[str], typer.Option(help=f"Columns of owner ids or of lists of owner ids, {SEVERAL}.")],
    contributions: Annotated[
        list[str] | None, typer.Option(help=f"The bounds to try, {SEVERAL}; default: {_BOUNDS}.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(help="Which records are kept first: random, fewest-owners-first, weight:COLUMN (larger first)."),
    ] = "random",
    separate: Annotated[
        bool, typer.Option("--separate", help="Equal ids in different columns are different people, not one.")
    ] = False,
    engine: Annotated[Literal["duckdb", "spark"], typer.Option(help="The SQL engine.")] = "duckdb",
    memory: Annotated[
        str | None, typer.Option(help="Memory limit of the engine, such as 2GB; above, it spills.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the engine.", min=1)] = 2,
    master: Annotated[
        str | None, typer.Option(help="spark: its master, such as local-cluster[2,1,2048]; default: local[threads].")
    ] = None,
    spill: Annotated[
        Path | None,
        typer.Option(help="Parent of the temporary directory, which contains owner ids; default: the system's."),
    ] = None,
) -> None:
    """Kept share, upper bound, rounds, time and memory of each bound. Exact numbers, for the operator only."""
    from dpsynth_platform.bounding.evaluation import evaluate
    from dpsynth_platform.bounding.order import Order
    from dpsynth_platform.sources.tables import open_table

    parts = listed(contributions or [_BOUNDS])
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise BoundingError(f"--contributions {','.join(parts)!r}; accepted: whole numbers from 1, {SEVERAL}")
    by, data = Order.parse(order), open_table(table)
    choice = _choice(engine, memory, threads, master)
    with workspace("dpsynth-bound-", spill) as directory, choice.open(directory) as opened:
        found = evaluate(
            data,
            column_names("--owners", owners, BoundingError),
            engine=opened,
            workspace=directory,
            contributions=list(map(int, parts)),
            order=by,
            separate=separate,
            progress=output.print,
        )
    output.json(asdict(found) | {"table": str(table), "engine": engine, "note": OPERATOR})
    _show(output, found)


@bound_app.command("learn")
def bound_learn(
    output: TerminalOutput,
    dataset: Annotated[str, typer.Argument(help="A dataset whose scrubbed step is materialized.")],
    epsilon: Annotated[float, typer.Option(help="What the answer may cost, of the family's lifetime budget.")],
    period: Period = None,
    quantile: Annotated[
        float, typer.Option(help="Share of the owners who shall keep all their records; at most three decimals.")
    ] = 0.5,
    at_most: Annotated[int, typer.Option(help="The largest possible result.")] = 20,
) -> None:
    """Learns a bound with differential privacy at the cost of the family's budget; repeating it costs nothing."""
    from dpsynth_platform.foundation.storage import Storage
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.operations.bound_learning import learn_bound
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.synth.planning import check_period, load_dataset

    settings = Settings.from_environment()
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
    output.json({"dataset": dataset, "period": period} | asdict(found))
    paid = "was paid before by" if found.reused else f"cost epsilon {epsilon:g}, by"
    output.print(f"max_contributions: {found.max_contributions}   ({paid} ledger entry {found.entry_id})")
    output.print(
        "It is differentially private: write it into the contract, or choose another; no other number was learned."
    )


def _question(quantile: float, at_most: int, epsilon: float) -> Question:
    """The question. Raises `BoundingError` with the option's name for an impossible value."""
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


def _choice(name: str, memory: str | None, threads: int, master: str | None) -> EngineChoice:
    from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice
    from dpsynth_platform.contracts.validation import validated

    given: dict[str, str | int] = {} if memory is None else {"memory": memory}
    if name == "spark":
        given |= {"engine": "spark", "master": master or f"local[{threads}]"}
        return validated(SparkChoice, given, "--engine spark")
    if master is not None:
        raise BoundingError("--master; accepted: only with --engine spark")
    return validated(DuckDBChoice, given | {"threads": threads}, "--engine duckdb")


def _show(output: TerminalOutput, found: Evaluation) -> None:
    output.print(
        f"{found.records} records, {found.owners} owners, {found.edges} ownerships; at most "
        f"{found.most_records} records of one owner"
    )
    output.print(
        f"left out: {found.records_without_owner} records without an owner; owners: {found.null_owners} null or empty, "
        f"{found.repeated_owners} repeated on their record"
    )
    output.table(
        (
            "b",
            "kept",
            "share of owned records",
            "upper bound of the share",
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
