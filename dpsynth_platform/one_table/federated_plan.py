"""The sealed plan of a federated run, from public declarations alone, and what it says to people.

What belongs here: a schema file and the participants' public keys as a plan, and the plan in words and numbers. What
does not: calibration and rounds (`federation.mechanisms`), and running it (`federated_run`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from dpsynth_platform.contracts.base import FamilyName, Name, Part
from dpsynth_platform.contracts.columns import CategoricalColumn, IdentifierColumn, IgnoredColumn
from dpsynth_platform.contracts.federation import AUDITOR, FEDERATED_COLUMN, FEDERATED_METHODS
from dpsynth_platform.contracts.methods import IMAGE_METHODS, TEXT_METHODS
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.federation.gradients import GradientsPlan
from dpsynth_platform.federation.mechanisms import plan_for, plan_of
from dpsynth_platform.federation.picture_evolution import PictureEvolutionPlan
from dpsynth_platform.federation.plans import MOST_MESSAGE_BYTES, FederatedPlan
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan
from dpsynth_platform.federation.trust import protections
from dpsynth_platform.foundation.errors import (
    AccountingError,
    ConfigurationError,
    ContractError,
    GrantRefused,
    file_problem,
)
from dpsynth_platform.foundation.figures import number_of, rounded
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.one_table.declaration import read_declared
from dpsynth_platform.one_table.task import Options, declared_run
from dpsynth_platform.privacy import federated_words
from dpsynth_platform.privacy.federated_words import FederatedTerms, ProtectionInWords
from dpsynth_platform.sources.declared_rows import with_row
from dpsynth_platform.synth.guarded_sources import check_public_table, public_faults
from dpsynth_platform.synth.mock import schema_of

_PURPOSES = {
    "one-way": "each column alone",
    "pairs": "all pairs of columns, of which the coordinator measures some",
    "reports": "private reports of units, each on one column",
    "selection": "pairs of columns, among which some are chosen",
    "joint": "the chosen pairs again",
    "class-counts": "pictures of each class",
    "brightness": "a histogram of the pictures' norms",
    "class-means": "sums of the pictures of each class",
    "spread": "a histogram of their distances from these means",
    "scatter": "the covariance of the pictures",
    "centres": "sums of the principal components of each class",
    "covariances": "covariances of the principal components of each class",
    "cluster-counts": "pictures of each cluster",
    "cluster-sums": "sums of the pictures of each cluster",
    "within-clusters": "covariances within clusters",
    "correct": "pictures that a classifier is right for",
    "gradient": "a gradient of a classifier",
    "votes": "votes for candidates",
    "training": "gradients of a network",
}
"""In words, of rounds whose names begin so."""
_OPTIONS = re.compile(r"\b(minimum|colluders|silos|most_records) (?=\S+ of a sum)")


class ParticipantKeys(Part):
    """A file of all who take part."""

    participants: dict[FamilyName, str] = Field(
        min_length=2, description="The public key of each participant, by its name; 64 hexadecimal digits."
    )


@dataclass(frozen=True)
class FederatedOptions:
    """Public facts of which a plan is made.

    Attributes:
        schema: a file with `columns:` as in a contract. All participants declare the same.
        dataset: by which a participant's policy names what it gives.
        epsilon, delta: of the whole run, for one unit in all participants' rows; delta None: 1/n^1.1.
        expected_units: n, of all participants together.
        owners: the column that names the owner of each row; None: each row is its own unit.
        contributions: b, the most rows of one owner in one participant's rows; with `owners`.
        minimum: the fewest participants that finish a round.
        colluders: so many participants may be curious together, also with the coordinator.
        most_records: the most records of a participant that are counted in one cell.
        silos: k, the most participants that one person is in.
        trust: who adds the noise (`federation.trust`). `local` is for units that are replaced, not added or removed.
        text: the column of texts, for `aug_pe`; what is voted for stands below `text:` in the schema file.
        about, base_model, public, public_why: what the candidates are and are made of, as in `task.Options`.
    """

    schema: Path
    dataset: str
    epsilon: float
    delta: float | None
    expected_units: int
    minimum: int
    most_records: int
    owners: str | None = None
    contributions: int | None = None
    method: str = "mst"
    colluders: int = 1
    silos: int = 1
    trust: str = "distributed"
    text: str | None = None
    about: str | None = None
    base_model: str | None = None
    public: Path | None = None
    public_why: str | None = None


def read_roster(path: Path) -> Roster:
    """The participants' public keys of a file. Raises `ContractError` or `ConfigurationError`."""
    return Roster.from_texts(validated(ParticipantKeys, read_yaml(path), str(path)).participants)


def read_plan(path: Path) -> FederatedPlan:
    """The plan of a file, checked. Raises `ConfigurationError`, or as `plan_of`."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_MESSAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {file_problem(error)}; accepted: a plan of dpsynth federate plan") from None
    if len(text) > MOST_MESSAGE_BYTES:
        raise ConfigurationError(f"{path} is longer than {MOST_MESSAGE_BYTES} bytes; accepted: fewer declared values")
    try:
        return plan_of(text)
    except GrantRefused as error:
        problem = str(error).partition("; materialize")[0]
    raise GrantRefused(f"{path}: {problem}; accepted: a plan as dpsynth federate plan has made it")


def federated_plan(options: FederatedOptions, roster: Roster) -> FederatedPlan:
    """Calibrates and seals a plan. Reads no table: the types of columns follow from their declarations.

    Raises:
        ContractError: options or declarations are invalid, or need what a federated run does not have.
        AccountingError: numbers of participants are impossible, or no noise meets the guarantee.
    """
    _check(options)
    if AUDITOR in roster.names:
        raise ContractError(
            f"participants: {AUDITOR} is what a deployment calls the participant that it adds; accepted: another name"
        )
    most = options.most_records * len(roster.names)
    if most < options.expected_units:
        raise ContractError(
            f"--most-records {options.most_records}: {most} records in a cell of all participants, fewer than "
            f"--expected-units, so that counts would be clipped; accepted: for example {options.expected_units}"
        )
    known, of_pictures = read_declared(options.schema, None, pictures=True), options.method in IMAGE_METHODS
    if known.pictures != of_pictures:
        has, without = ("without a", ", or another method") if of_pictures else ("with a", ", or ignore: true for it")
        methods = [name for name in FEDERATED_METHODS if name in IMAGE_METHODS]
        raise ContractError(
            f"--method {options.method!r} {has} column of type image in {options.schema}; accepted: "
            f"{', '.join(methods)} with one{without}"
        )
    if (options.text is None) == (options.method in TEXT_METHODS):
        has = "without" if options.text is None else "with"
        raise ContractError(f"--method {options.method!r} {has} --text; accepted: aug_pe with the column of texts")
    columns = {
        name: IdentifierColumn(type="identifier") if isinstance(item, IgnoredColumn) else item
        for name, item in known.columns.items()
    }
    if options.owners is not None:
        columns.setdefault(options.owners, IdentifierColumn(type="identifier"))
    for name, item in columns.items():
        # Before other faults, which may suggest the name that it gets in a contract.
        if not re.fullmatch(FEDERATED_COLUMN, name):
            raise _refused_name(options, name)
        if isinstance(item, CategoricalColumn) and item.most_learned is not None:
            raise ContractError(
                f"{options.schema}: columns.{name}.values: learned; accepted in a federated run: a list, the same at "
                "all participants"
            )
    of_table = Options(
        epsilon=options.epsilon,
        delta=options.delta,
        expected_units=options.expected_units,
        method=options.method,  # type: ignore[arg-type]  # checked
        schema=options.schema,
        owners=options.owners,
        contributions=options.contributions,
        **{name: getattr(options, name) for name in _OF_TEXTS},
        rows=1,  # a plan has no number of rows: it is an option of the run
    )
    read, _ = declared_run(schema_of(columns).empty_table(), of_table, pictures=True)
    source, contract = read.source, read.contract
    if contract.generate.constraints:
        raise ContractError(f"{options.schema}: constraints: given; accepted in a federated run: none")
    if other := [name for name, plain in source.names.items() if name != plain]:
        raise _refused_name(options, other[0])
    named, schema = contract.model_copy(update={"dataset": options.dataset}), with_row(source.own_schema, read.row)
    if options.trust == "local":
        replaced = named.privacy.model_copy(update={"adjacency": "replace-one"})
        named = named.model_copy(update={"privacy": replaced})
    terms: dict[str, Any] = {name: getattr(options, name) for name in _TERMS} | {"participants": roster.names}
    try:
        check_public_table(Settings.from_environment(), named)
        return plan_for(named, schema, **terms)
    except AccountingError as error:
        problem = str(error)
    raise AccountingError(_OPTIONS.sub(lambda found: f"--{found[1].replace('_', '-')} ", problem))


_TERMS = ("minimum", "colluders", "most_records", "silos", "trust")
_OF_TEXTS = ("text", "about", "base_model", "public", "public_why")


def _refused_name(options: FederatedOptions, name: str) -> ContractError:
    return ContractError(
        f"{options.schema}: columns.{name}: the name of a column; accepted in a federated run: letters, digits, _ and "
        "-, a letter first, different without regard to case"
    )


def _check(options: FederatedOptions) -> None:
    try:
        TypeAdapter(Name).validate_python(options.dataset)
    except ValidationError:
        raise ContractError(
            f"--dataset {options.dataset!r}; accepted: a lower-case letter, then at most 62 lower-case letters, digits "
            "and _, as the participants' policies name it"
        ) from None
    if not 0 < options.epsilon <= WEAK_EPSILON:
        raise ContractError(f"--epsilon {options.epsilon:g}; accepted: above 0, up to {WEAK_EPSILON:g}")


@dataclass(frozen=True)
class RoundShown:
    """What one round sums.

    Attributes:
        tables: of counts, or vectors.
        most_cells: numbers of all of them together; of later rounds an upper bound, as noisy sums decide on them.
        noise: standard deviation of a number's noise, with the fewest and with all participants: in records, and of
            sums of pictures in the most that one record adds.
    """

    purpose: str
    tables: int
    most_cells: int
    noise: tuple[float, float]


def rounds_shown(plan: FederatedPlan) -> list[RoundShown]:
    """What each round sums."""
    found = []
    for index, ((name, tables), each) in enumerate(zip(plan.rounds, plan.sums, strict=True)):
        purpose = next(words for prefix, words in _PURPOSES.items() if name.startswith(prefix))
        found.append(RoundShown(purpose, tables, each.length, plan.noise_of(index)))
    return found


def check_public_texts(plan: FederatedPlan, settings: Settings) -> None:
    """Refuses a plan whose public texts are guarded here by now. Raises `ContractError`."""
    public = public_texts(plan)
    for fault in () if public is None else public_faults(settings, public):
        raise ContractError(f"the plan's public texts: {fault}")


def public_texts(plan: FederatedPlan) -> PublicRows | None:
    """The public table whose texts are candidates of a plan; None without one."""
    rows = plan.parameters.public if isinstance(plan, TextEvolutionPlan) else None
    if rows is None:
        return None
    return PublicRows(uri=rows.uri, format=rows.format, why=str(getattr(plan.terms, "why_public", None)))


def terms_in_words(plan: FederatedPlan) -> FederatedTerms:
    """The terms of a plan for sentences about it; what makes candidates among them."""
    terms, foundation = plan.terms, None
    if isinstance(plan, PictureEvolutionPlan):
        foundation = plan.parameters.foundation.kind
    elif isinstance(plan, TextEvolutionPlan):
        made = plan.parameters
        foundation = federated_words.writer_in_words(
            made.base_model, asks_model=made.asks_model, public=made.public is not None
        )
    return FederatedTerms(
        names=terms.participants,
        unit=plan.guarantee.unit,
        minimum=terms.minimum,
        colluders=terms.colluders,
        silos=terms.silos,
        most_records=terms.most_records,
        max_contributions=terms.max_contributions,
        pictures=plan.pictures is not None,
        texts=isinstance(plan, TextEvolutionPlan),
        trains=isinstance(plan, GradientsPlan),
        foundation=foundation,
        trust=plan.trust,
    )


def protections_in_words(plan: FederatedPlan) -> list[ProtectionInWords]:
    """The guarantee against each party (`federation.trust`)."""
    cost: Any = plan.sums if plan.trust == "distributed" else plan.event
    if plan.trust == "local":
        cost = plan.guarantee.epsilon
    found = protections(plan.trust, cost, plan.guarantee.delta, plan.event)
    numbers = next(item for item in found if item.party == "recipient")
    assert numbers.epsilon is not None and numbers.delta is not None  # noqa: S101  (recipients always have a guarantee)
    return federated_words.protections(terms_in_words(plan), numbers.epsilon, numbers.delta)


def plan_shown(plan: FederatedPlan) -> dict[str, Any]:
    """The plan for people and programs, as JSON values."""
    return {
        "digest": plan.digest,
        "dataset": plan.sealed.dataset,
        "method": plan.sealed.method,
        "columns": list(plan.reads),
        "pictures": None if plan.pictures is None else asdict(plan.pictures),
        "text": plan.text_column if isinstance(plan, TextEvolutionPlan) else None,
        "participants": plan.terms.participants,
        **{name: getattr(plan.terms, name) for name in _SHOWN},
        "trust": plan.trust,
        "rounds": [asdict(item) for item in rounds_shown(plan)],
        "guarantee": plan.guarantee.to_json(),
        "unit": federated_words.units(terms_in_words(plan)),
        "protections": [asdict(item) for item in protections_in_words(plan)],
    }


_SHOWN = ("minimum", "colluders", "most_records", "max_contributions", "silos")


def read_in_words(plan: FederatedPlan) -> list[str]:
    """Which pictures or texts a run reads; nothing where it reads none."""
    layout = plan.pictures
    if isinstance(plan, TextEvolutionPlan):
        by = ", ".join(condition.column for condition in plan.conditions)
        read = f"Texts in {plan.text_column}{f', by {by}' if by else ''}, which vote for candidates."
        public = public_texts(plan)
        if public is None:
            return [read]
        named = PurePath(public.uri).name
        return [read, f"Candidates are texts of the public table {named}: they may be released word for word."]
    if layout is None:
        return []
    height, width, channels = layout.form.shape
    by = ", ".join(condition.column for condition in layout.conditions)
    classes = f"; {layout.number} classes by {by}" if by else ""
    return [f"Pictures in {layout.column}: {height} x {width} pixels, {number_of(channels, 'channel')}{classes}."]


def table_of_rounds(plan: FederatedPlan) -> Iterator[tuple[str, str, str, str, str]]:
    """A row for each round, or several that are alike: number, what is summed, tables, most cells, noise."""
    terms, first = plan.terms, 1
    for item, alike in itertools.groupby(rounds_shown(plan)):
        last = first + len(list(alike)) - 1
        low, high = map(rounded, item.noise)
        noise = low if low == high or terms.minimum == len(terms.participants) else f"{low} to {high}"
        number = str(first) if first == last else f"{first} to {last}"
        yield number, item.purpose, str(item.tables), f"{item.most_cells:,}", noise
        first = last + 1
