"""The method `answers`: noisy tables for queries, and the table of answers that follows from them.

What belongs here: the sealed plan of queries, the mechanism and the released table. What does not: which tables are
measured (`layout`), exact numbers (`measuring`), and intervals (`estimates`).

All tables are planned beforehand, each with Gaussian noise, and their precisions add up to that of the event: a
mechanism without choices of `privacy.selection`. A table that one unit may move farther than counts (`Table.stretch`)
has its noise stretched likewise.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.privacy.events import event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import calibrate_selection, selection_event
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.answers.estimates import Answers, Noisy, answers, expected_in_words
from dpsynth_platform.synth.answers.layout import AMOUNT_UNIT, Table, check_tables, queries_of, tables_of
from dpsynth_platform.synth.answers.measuring import exact_tables
from dpsynth_platform.synth.answers.products import products_of, with_products
from dpsynth_platform.synth.answers.sharing import combined, shared
from dpsynth_platform.synth.answers.strategies import UNIT
from dpsynth_platform.synth.interface import (
    Drawing,
    DrawRequest,
    Generator,
    MechanismRun,
    PlanInputs,
    PlanParts,
    SealedPlan,
)
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain, domain_of
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, is_complete, read_tables
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.tabular.rounds import SelectionParameters

MISSING = "missing or unlisted"
"""The group of rows without a declared value."""
UNITS = [AMOUNT_UNIT, UNIT]
NO_NOISE = 1e-9
"""The deviation of exact numbers, where a quotient needs one."""
PLAN_FILE = "plan.json"
"""Beside the measurements: with them, it is all that the answers follow from."""


@dataclass(frozen=True)
class AnswerParameters(SelectionParameters):
    """The parameters of a plan; JSON values.

    Attributes:
        queries: name and document of each, in their order.
        units: of which fraction of a record amounts and prefixes are whole multiples.
        sharing: whether queries about the same rows may share their measurements (`sharing`).
        products: the queries that are measured together by their ranges, and how (`products`).
    """

    queries: list[list[Any]]
    units: list[int]
    sharing: bool = False
    products: list[list[Any]] = field(default_factory=list)


class AnswerGenerator(Generator):
    """The method `answers`."""

    method = "answers"

    def parts(self, inputs: PlanInputs) -> PlanParts:
        """Calibrates the noise to the guarantee.

        Raises:
            ContractError: more groups than can be measured, or values that a column cannot have.
            AccountingError: no noise scale meets the guarantee.
        """
        contract, guarantee = inputs.contract, inputs.guarantee
        read = {name for query in contract.queries.values() for name in query.columns}
        read = read or {contract.modelled[0]}  # rows of no column cannot be read
        domain = Domain(tuple(column for column in domain_of(contract, inputs.period) if column.name in read))
        queries = [[name, query.model_dump(mode="json")] for name, query in contract.queries.items()]
        parameters = AnswerParameters(**asdict(calibrate_selection(guarantee, 0, 0.0)), queries=queries, units=UNITS)
        alone = tables_of(contract.queries, domain, guarantee.adjacency)
        check_tables(alone, contract.dataset)
        tables = shared(alone, guarantee.adjacency)
        parameters = replace(parameters, sharing=tables != alone, products=products_of(tables))
        try:
            _check_noise(parameters, with_products(tables, parameters.products), guarantee)
        except AccountingError:  # whole numbers of products have wider noise
            parameters = replace(parameters, products=[])
            _check_noise(parameters, tables, guarantee)
        return PlanParts(
            columns=domain.to_json(),
            release=ReleaseSchema(answer_schema(contract), {}).to_json(),
            parameters=_documented(parameters),
            event=selection_event(parameters, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting),
        )

    def describe(self, plan: SealedPlan) -> dict[str, Any]:
        parameters, tables = _sealed(plan), _tables(plan)
        weighting = Guarantee.from_json(plan.guarantee).weighting
        cells = sum(table.size for table in tables)
        noisy = [
            Noisy.of(table, np.zeros(_shape(table), np.int64), parameters.noise(table.share), weighting)
            for table in tables
        ]
        return {
            "event": f"{len(tables)} tables of {cells} counts and sums with rounded Gaussian noise, for "
            f"{len(parameters.queries)} {'query' if len(parameters.queries) == 1 else 'queries'}",
            "rho": parameters.rho,
            "sigma_total": parameters.sigma_total,
            "columns": [],
            "queries_in_words": list(expected_in_words(combined(noisy))),
            "most_cells_measured": cells,
            "predicted_memory_bytes": 2**26 + 72 * cells,  # measured: 69 for each of ten million
            "predicted_noise_seconds": sum(
                item.table.size * _draw_seconds(item.deviation * item.table.scale(weighting)) for item in noisy
            ),
        }

    def check(self, plan: SealedPlan) -> None:
        guarantee = Guarantee.from_json(plan.guarantee)
        event = selection_event(_sealed(plan), guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)
        if event_to_json(event) != plan.event or _sealed(plan).units != UNITS:
            raise GrantRefused(
                "the plan's privacy event or units are not those of its noise scales; materialize the line from raw"
            )

    def run(self, run: MechanismRun) -> None:
        self.measure(run.plan, run.bounded, run.directory, run.progress)
        self.estimate(run.plan, run.directory, device=run.device, progress=run.progress)

    def measure(self, plan: SealedPlan, bounded: Path, directory: Path, progress: Progress = silent) -> None:
        """Everything that reads the data. Raises as `MarginalGenerator.measure`."""
        self.check(plan)
        parameters, tables = _sealed(plan), _tables(plan)
        weighting = Guarantee.from_json(plan.guarantee).weighting
        left = parameters.precision
        with MeasurementLog.create(directory, plan.digest) as log:
            progress("counting groups", 0, 1)
            exact = exact_tables(Records(bounded, Domain.from_json(plan.columns), weighting), tables)
            progress("counting groups", 1, 1)
            for number, (table, values) in enumerate(zip(tables, exact, strict=True), 1):
                sigma = parameters.noise(table.share)
                left = left.spend(sigma)
                log.table(sample_rounded_gaussian(values, table.noise(sigma, weighting)), sigma)
                progress("measuring queries", number, len(tables))
            log.complete()

    def is_complete(self, directory: Path) -> bool:
        return is_complete(directory)

    def can_resume(self, directory: Path) -> bool:
        """Never: interrupted measurements are not drawn a second time."""
        return False

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        read_tables(directory, plan.digest)
        write_durably(directory / PLAN_FILE, plan.to_json())

    def drawn(self, request: DrawRequest) -> Drawing:
        """The table of answers. Raises `ContractError` for a number of rows, constraints or given values."""
        if request.rows is not None or request.constraints or request.given:
            raise ContractError(
                "the table of answers has a row for each answer; accepted: no number of rows, constraints or given "
                "values"
            )
        return answered(request.directory)


def answered(directory: Path, known: pa.Table | None = None) -> Drawing:
    """The table of answers of a model's directory; raises as `noisy_tables`.

    Args:
        known: records that the mechanism read and that are no data, such as canaries, with their owners: what they add
            is subtracted. None: there are none.
    """
    plan = SealedPlan.from_json((directory / PLAN_FILE).read_text(encoding="utf-8"))
    noisy, schema = noisy_tables(plan, directory), ReleaseSchema.from_json(plan.release).schema
    if known is not None:
        weighting = Guarantee.from_json(plan.guarantee).weighting
        noisy = [item.less(values, weighting) for item, values in zip(noisy, _exact(plan, known), strict=True)]
    batches = [_rows(found, schema) for found in answers(combined(noisy))]
    return Drawing(schema, sum(batch.num_rows for batch in batches), iter(batches))


def exact_answers(plan: SealedPlan, records: pa.Table) -> pa.Table:
    """The answers without noise, as `answered` gives them. Sensitive: never stored or shown one by one.

    Args:
        records: with their owners.
    """
    weighting, schema = Guarantee.from_json(plan.guarantee).weighting, ReleaseSchema.from_json(plan.release).schema
    exact = [
        Noisy(table, values / table.scale(weighting), NO_NOISE)
        for table, values in zip(_tables(plan), _exact(plan, records), strict=True)
    ]
    return pa.Table.from_batches([_rows(found, schema) for found in answers(combined(exact))], schema)


def _exact(plan: SealedPlan, records: pa.Table) -> list[Counts]:
    """The exact numbers of all tables for records in memory. Sensitive, if these are."""
    weighting = Guarantee.from_json(plan.guarantee).weighting
    return exact_tables(Records(records, Domain.from_json(plan.columns), weighting), _tables(plan))


def noisy_tables(plan: SealedPlan, directory: Path) -> list[Noisy]:
    """The noisy tables in a model's directory. Raises `MechanismFailed` if they are incomplete or of another plan."""
    parameters, weighting = _sealed(plan), Guarantee.from_json(plan.guarantee).weighting
    stored, tables = read_tables(directory, plan.digest), _tables(plan)
    sigmas = [parameters.noise(table.share) for table in tables]
    # Which tables queries share is computed again: a version that does it otherwise would misread what is stored.
    found = [sigma for _, sigma in stored]
    alike = len(found) == len(sigmas) and all(map(math.isclose, found, sigmas))
    if parameters.units != UNITS or not alike:
        raise MechanismFailed("these answers were measured by another version of the platform; use that version")
    return [
        Noisy.of(table, values, sigma, weighting)
        for table, (values, _), sigma in zip(tables, stored, sigmas, strict=True)
    ]


def answer_schema(contract: DataContract) -> pa.Schema:
    """The columns of the table of answers; groups are named by texts."""
    numbers, always = ("at_share", "answer", "low", "high", "standard_error"), ("query", "measure")
    return pa.schema(
        [
            pa.field(name, pa.float64() if name in numbers else pa.string(), nullable=name not in always)
            for name in contract.answer_columns
        ]
    )


def _rows(found: Answers, schema: pa.Schema) -> pa.RecordBatch:
    """A row for each group; a group's column is null where the query does not group by it."""
    number = found.groups.number
    columns: dict[str, pa.Array] = {
        "query": pa.array([found.groups.name] * number, pa.string()),
        "measure": pa.array([found.measure] * number, pa.string()),
        "of_column": pa.array([found.column] * number, pa.string()),
        "at_share": pa.array([found.share] * number, pa.float64()),
    }
    for name, codes in found.groups.labels():
        column = found.groups.column(name)
        labels = [*(column.label(code) for code in range(column.missing)), MISSING]
        columns[name] = pa.array(labels, pa.string()).take(pa.array(codes))
    numbers = {"answer": found.answer, "low": found.low, "high": found.high, "standard_error": found.error}
    columns |= {name: pa.array(values, from_pandas=True) for name, values in numbers.items()}
    arrays = [columns.get(item.name, pa.nulls(number, item.type)) for item in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _sealed(plan: SealedPlan) -> AnswerParameters:
    return AnswerParameters(**plan.parameters)


def _tables(plan: SealedPlan) -> tuple[Table, ...]:
    adjacency = Guarantee.from_json(plan.guarantee).adjacency
    alone = tables_of(queries_of(plan.parameters), Domain.from_json(plan.columns), adjacency)
    parameters = _sealed(plan)
    return with_products(shared(alone, adjacency) if parameters.sharing else alone, parameters.products)


def _documented(parameters: AnswerParameters) -> dict[str, Any]:
    """The parameters as a plan has them: those without sharing or products are as they were before there were any."""
    return {name: value for name, value in asdict(parameters).items() if value or name not in ("sharing", "products")}


def _shape(table: Table) -> tuple[int, int]:
    """Of one group's numbers; of all contrasts."""
    return (table.size, 1) if table.what == "residual" else (1, table.width)


def _draw_seconds(deviation: float) -> float:
    """Of one number, by the deviation of its noise in whole units: of wide noise, double precision decides ever less.

    Measured: 53 to 60 microseconds of a core at 2^39.3; in between it is taken to be proportional.
    """
    return 1 / 5_000_000 + min(1.0, deviation / 2**39) * 60e-6


def _check_noise(parameters: AnswerParameters, tables: tuple[Table, ...], guarantee: Guarantee) -> None:
    """Raises `AccountingError` for tables that cannot all be measured, before anything is spent."""
    from dpsynth_platform.privacy.accounting import SIGMA_RANGE

    left = parameters.precision
    for table in tables:
        sigma = parameters.noise(table.share)
        left = left.spend(sigma)
        if np.max(table.noise(sigma, guarantee.weighting)) > SIGMA_RANGE[1] * RECORD_PARTS:
            raise AccountingError(
                f"queries.{table.groups.name}: its noise ({sigma:,.0f} records) is more than can be drawn; accepted: a "
                "larger epsilon, fewer queries, or a larger weight"
            )
