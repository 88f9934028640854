"""A contract in words, for people who do not read YAML.

What belongs here: what a contract declares, one line each. What does not: the cost of a run (`reviewing.forecasts`),
and what a release promises (`privacy.statement`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsynth_platform.contracts import columns
from dpsynth_platform.contracts.answers import Query
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.methods import INFERENCE_METHODS
from dpsynth_platform.contracts.periods import CADENCES
from dpsynth_platform.contracts.release import Release
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.privacy.guarantee import tier
from dpsynth_platform.privacy.statement import HIDDEN
from dpsynth_platform.release.page import TREATMENTS
from dpsynth_platform.release.profile import treatment

_OVERLAPS = {
    "compose": "all owners take part again, and the guarantee of all releases together is stated",
    "exclude": "owners who took part before are excluded silently",
    "block": "the run is refused if an owner took part before, which is an access to the data",
}
_MOST_VALUES = 6
"""Values of a column that are listed."""


def contract_words(contract: DataContract) -> Iterator[tuple[str, str]]:
    """The declarations of a contract without its columns: (what, words), the most important first."""
    privacy, release = contract.privacy, contract.release
    epsilon, unit = privacy.guarantee.epsilon, privacy.unit
    yield "what it is", contract.description
    if contract.purpose is not None:
        yield "what it is for", contract.purpose
    if contract.recipients:
        yield "who receives it", "; ".join(contract.recipients)
    yield (
        "whom it protects",
        f"each {unit}, known by {', '.join(privacy.owner_columns)}, with at most "
        f"{number_of(contract.unit_records, 'record')} used; hidden is {HIDDEN[privacy.adjacency]}",
    )
    cost = f"epsilon {upper_bound(epsilon)}, delta {upper_bound(privacy.delta)}"
    yield (
        "how well",
        f"each of two mechanisms: {cost}; a release promises both together, at a larger epsilon"
        if contract.separate_audit_model
        else f"{tier(epsilon)}: {cost} for one release",
    )
    if privacy.accept_weak_guarantee:
        yield "why so weak", privacy.accept_weak_guarantee
    yield "how many there are", f"about {privacy.expected_units:,}, by public knowledge"
    yield "budget", f"shared by all datasets of the family {contract.family}"
    yield "people of earlier releases", _OVERLAPS[privacy.on_overlap]
    source = contract.source
    known = "" if contract.tables else f"; a record is known by {', '.join(source.key)}"
    yield "source", f"{source.place} ({source.format}){known}"
    if source.query is not None:
        yield "query of the source", source.query
    if contract.tables:
        yield from _tables_words(contract.linked)
    yield "method", contract.generate.method if contract.generate.tune is None else _tuned(contract.generate)
    if contract.generate.checkpoint:
        yield "base model", contract.generate.checkpoint
    if (model := contract.public_model) is not None:
        yield "why it is public", model.public
    if (table := contract.public_pictures) is not None:
        yield "public pictures", f"{table.directory}, declared public: {table.public}"
    if (rows := contract.generate.public) is not None:
        yield "public table", f"{rows.uri}, declared public: {rows.why}"
    if contract.generate.answers:
        yield from (("query " + name, query_words(query)) for name, query in contract.queries.items())
    else:
        yield "rows", _rows(contract)
    yield "audit", _audit(contract)
    if (limit := release.max_missing) is not None:
        limits = {"any column": limit} if isinstance(limit, float) else limit
        yield (
            "missing values",
            "refused where the noisy counts show surely more missing or unlisted values than "
            + ", ".join(f"{share:g} of {name}" for name, share in limits.items()),
        )
    yield "approvals", _approvals(contract)
    yield "when", _when(release)
    yield "where", release.uri + (f"; license {release.license}" if release.license else "")
    if release.publish:
        yield "copied to", "; ".join(f"{target.place} ({target.format})" for target in release.publish)
    kept = contract.retention
    yield "kept for", ", ".join(f"{step} {getattr(kept, step)}" for step in type(kept).model_fields)


def _tables_words(tables: LinkedTables) -> Iterator[tuple[str, str]]:
    """The tree of linked tables, and the reasons why others are released as they are."""
    for name in tables.private:
        table, most = tables.tables[name], number_of(tables.most(name), "row")
        order = f", the first by {', '.join(table.order_by)}" if table.order_by else ", chosen at random"
        words = (
            f"the root: {most} of one owner at most; all that belongs to it is protected with it"
            if table.parent is None
            else f"at most {most} of one row of {table.parent.table}{order}: {tables.bound(name):,} of one owner"
        )
        yield f"table {name}", "; ".join((words, *(f"{key} is a key of {of}" for key, of in table.lookups.items())))
    for name in tables.lookups:
        yield f"table {name}", f"released as it is, declared public: {tables.tables[name].public}"


def _tuned(generate: Generate) -> str:
    """The settings among which the mechanism chooses, in words."""
    tune = generate.tune
    assert tune is not None  # noqa: S101  (asked with one)
    settings = f"{len(tune.candidates)} settings ({', '.join(str(each.method) for _, each in generate.settings)})"
    runs = "each runs once" if tune.runs == "each" else f"{tune.runs:g} runs in expectation, each of a random one"
    return f"the best of {settings} by a noisy score ({tune.score.measure}), which the mechanism chooses: {runs}"


def query_words(query: Query) -> str:
    """What a query asks, in words."""
    asked = [
        *(["the number of rows"] if query.count else []),
        *(f"the sum of {name}" for name in query.sum),
        *(f"the mean of {name}" for name in query.mean),
        *(
            f"{', '.join(f'{share:g}' for share in shares)} quantile of {name}"
            for name, shares in query.quantiles.items()
        ),
    ]
    where = " and ".join(
        f"{name} from {values.get('min', 'its least')} to {values.get('max', 'its largest')}"
        if isinstance(values, dict)
        else f"{name} is {' or '.join('missing' if value is None else str(value) for value in values)}"
        for name, values in query.where.items()
    )
    return "; ".join(
        [", ".join(asked), *([f"where {where}"] if where else []), *([f"by {', '.join(query.by)}"] if query.by else [])]
    )


def column_words(contract: DataContract, name: str) -> str:
    """The declaration of one column, and how the platform treats it."""
    column = contract.columns[name]
    unread = bool(contract.tables) and column.type == "text"
    values = () if unread else _values(column)
    parts = [column.type, *values, *(["may be missing"] if column.nullable else [])]
    return f"{', '.join(parts)}; {TREATMENTS[treatment(contract, name)]}"


def _values(column: columns.Column) -> Iterator[str]:
    if isinstance(column, columns.TextColumn):
        yield f"found identifiers: {column.pii}"
    elif isinstance(column, columns.CategoricalColumn):
        yield _list(column.values)
    elif isinstance(column, columns.ImageColumn):
        form = column.form
        yield f"{form.height} x {form.width} pixels, {'grey' if form.channels == 1 else 'colour'}"
        yield f"what pictures show is not scrubbed: {column.accept_unscrubbed}"
    elif not isinstance(column, columns.BooleanColumn | columns.IdentifierColumn | columns.IgnoredColumn):
        yield f"from {column.min} to {column.max}"


def _list(values: list[str] | str) -> str:
    if isinstance(values, str):
        return "values learned with a part of the budget"
    listed = ", ".join(values[:_MOST_VALUES])
    return listed if len(values) <= _MOST_VALUES else f"{listed} and {len(values) - _MOST_VALUES} more"


def _rows(contract: DataContract) -> str:
    rows: Any = contract.generate.rows
    if rows == "auto" and contract.generate.method in INFERENCE_METHODS:
        chosen = contract.generate.text.resample if contract.generate.text else None
        if chosen is not None:
            return f"one for every {chosen.pool:g} documents that are paid for and written"
        return "one for every document that is paid for and written"
    of_root = f" of {contract.linked.root}, and what belongs to them" if contract.tables else ""
    return f"as many{of_root} as the mechanism read, by the noisy counts" if rows == "auto" else f"{rows:,}{of_root}"


def _when(release: Release) -> str:
    if release.cadence:
        noun = CADENCES[release.cadence].noun
        when = f", and is run by {release.schedule!r}" if release.schedule else ""
        return f"each {noun}, from {release.start}; a {noun} ends at midnight in {release.time_zone}{when}"
    if release.on_new_version:
        return f"for a new version of the source, at most once in {release.on_new_version}; and when a person runs it"
    return "when a person runs it"


def _audit(contract: DataContract) -> str:
    terms, audit = contract.audit_terms, contract.audit
    words = f"fails where attacks prove epsilon above {terms['threshold']:g} at {100 * audit.confidence:g}% confidence"
    return f"{words}; too little power is accepted: {audit.accept_inconclusive}" if audit.accept_inconclusive else words


def _approvals(contract: DataContract) -> str:
    needed = contract.release.approvals
    return f"{number_of(needed, 'person')}, none of whom ran it" if needed else "none is required"
