"""The attributes by which a plan counts each column: the column itself, or day, weekday, hour and gap of moments.

What belongs here: the attributes of a contract's columns, from public facts alone, and their impossible combinations.
What does not: an attribute's value in a record (`derivation`), and other cells (`domain`).

In one fine grid of a long range, a moment loses the time of day: a year in 256 cells has cells of 34 hours. So a
`datetime` column is counted by *day*, *weekday* and *hour*, which are attributes like columns:

- only by the column itself, if the cells of the whole range last an hour or less, the range lies within a day, or the
  resolution does not divide a day;
- else by cells of whole days (as many as the whole range has cells otherwise), and by hours;
- and by weekdays, if a cell has several days, or cells are merged in pairs.

In a declared order of days, moments or times of day (`ascending`), the later column is counted by its *gap* to the
nearest earlier one that a record has. Only the first order of a column counts. Short gaps have fine cells, the order
holds by construction, and distances within a cell of both columns are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from dpsynth_platform.contracts.columns import Column, DatetimeColumn
from dpsynth_platform.contracts.constraints import gap_orders
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.tabular.binning import gap_edges, whole_edges
from dpsynth_platform.synth.tabular.constraints import Boxes, Conditions, Order, ValueSet
from dpsynth_platform.synth.tabular.derivation import DAY, HOUR, Derivation, Derived, Span
from dpsynth_platform.synth.tabular.domain import FEW_CELLS, ColumnDomain, Cutting, Domain, domain_of


def planned_domain(contract: DataContract, period: str | None = None) -> Domain:
    """The attributes of a contract's columns; see the module. Raises as `domain_of`."""
    plain = domain_of(contract, period)
    places = {name: index for index, name in enumerate(plain.names)}
    columns = list(plain)
    parts: list[ColumnDomain] = []
    for index, name in enumerate(plain.names):
        declared = contract.columns[name]
        if isinstance(declared, DatetimeColumn):
            columns[index], found = _split_moments(plain.columns[index], declared)
            parts += [_renamed(part, {column.name for column in (*plain, *parts)}) for part in found]
    kinds = {column.name: column.kind for column in plain}
    for later, (chain, strict) in gap_orders(contract.generate.constraints, kinds).items():
        earlier = [plain.columns[places[name]] for name in chain]
        columns[places[later]] = _gap(plain.columns[places[later]], earlier, contract.columns[later], strict)
    return Domain((*columns, *parts))


def possible_combinations(domain: Domain) -> Conditions:
    """Rules that the attributes of every record keep: parts are missing together, and a gap has an earlier value."""
    rules = []
    for part, index in domain.parts.items():
        column, other = domain.columns[index], domain.columns[part]
        if column.nullable:
            boxes = ((_present(column), _present(other)), (ValueSet(missing=True), ValueSet(missing=True)))
            rules.append(Boxes((index, part), boxes, wanted=True))
    for index, column in enumerate(domain):
        gap = column.derived
        if gap is None or gap.alone is None or len(gap.after) > 1:
            continue  # with several earlier columns, drawing finds a present one
        earlier = domain.names.index(gap.after[0].column)
        timed = ValueSet(column.nullable, spans=((0, gap.alone),))
        alone = ValueSet(column.nullable, spans=((gap.alone, gap.alone + 1),))
        pairs = ((_present(domain.columns[earlier]), timed), (ValueSet(missing=True), alone))
        in_order = pairs if earlier < index else tuple((second, first) for first, second in pairs)
        rules.append(Boxes((min(earlier, index), max(earlier, index)), in_order, wanted=True))
    return Conditions(boxes=tuple(rules))


def modelled_conditions(domain: Domain, conditions: Conditions) -> Conditions:
    """The conditions on rows that a model keeps, over its attributes.

    Conditions on moments with gaps are left to the check of drawn rows, except for the gap's order and missing values.
    """
    gaps = {index for index, column in enumerate(domain) if column.kind == "gap"}
    if not gaps:
        return conditions.joined(possible_combinations(domain))

    def plain(rule: Boxes | Order) -> bool:
        return gaps.isdisjoint(rule.clique)

    complete = {
        index
        for order in conditions.orders
        if not plain(order) and not order.allow_missing
        for index in order.clique
        if domain.columns[index].nullable
    }
    found = Conditions(
        boxes=(
            *filter(plain, conditions.boxes),
            *(Boxes((index,), ((_present(domain.columns[index]),),), wanted=True) for index in sorted(complete)),
        ),
        dependencies=conditions.dependencies,
        orders=tuple(filter(plain, conditions.orders)),
    )
    return found.joined(possible_combinations(domain))


def _split_moments(column: ColumnDomain, declared: DatetimeColumn) -> tuple[ColumnDomain, list[ColumnDomain]]:
    """A column of moments in cells of days, with its hours and weekdays; or unchanged, without them."""
    low, high, step = int(column.edges[0]), int(column.edges[-1]) - 1, column.step
    first, last = low * step // DAY, high * step // DAY
    if DAY % step or first == last or float(column.widths.max()) * step <= HOUR:
        return column, []
    days = whole_edges(first, last, declared.bins if isinstance(declared.bins, int) else None)
    edges = (low, *(day * (DAY // step) for day in days[1:-1]), high + 1)
    whole = replace(column, edges=edges)
    span = Span(column.name, column.kind, low, high, step)
    width = HOUR if HOUR % step == 0 else step
    found: list[ColumnDomain] = []
    merged = column.cutting != "declared" and whole.missing > FEW_CELLS
    if merged or len(days) - 1 < last - first + 1:
        found.append(_part("weekday", span, 7, column.nullable))
    if width < DAY:
        found.append(_part("hour", span, -(-DAY // width), column.nullable, width))
    return whole, found


def _part(what: Derived, span: Span, cells: int, nullable: bool, width: int = HOUR) -> ColumnDomain:
    return ColumnDomain(
        f"{span.column} ({what})", what, nullable, edges=tuple(range(cells + 1)), derived=Derivation(what, span, width)
    )


def _renamed(part: ColumnDomain, taken: Collection[str]) -> ColumnDomain:
    """A part by a name that no column has."""
    name = part.name
    while name in taken:
        name += "'"
    return replace(part, name=name)


def _gap(column: ColumnDomain, earlier: Sequence[ColumnDomain], declared: Column, strict: bool) -> ColumnDomain:
    """The gap of a column of moments to earlier ones, the nearest first."""
    needed = next((place for place, other in enumerate(earlier) if not other.nullable), len(earlier) - 1)
    after = tuple(_span(other) for other in earlier[: needed + 1])
    gap = Derivation("gap", _span(column), after=after, strict=strict)
    longest = gap.longest
    edges = gap_edges(longest)
    if all(other.nullable for other in earlier[: needed + 1]):
        # A separate value, beyond all gaps: a cell for records without an earlier value.
        gap, edges = replace(gap, alone=longest + 1), (*edges, longest + 2)
    bins: Any = getattr(declared, "bins", None)
    cutting: Cutting = bins if isinstance(bins, str) else "adaptive"  # type: ignore[assignment]
    return ColumnDomain(column.name, "gap", column.nullable, edges=edges, cutting=cutting, derived=gap)


def _span(column: ColumnDomain) -> Span:
    return Span(column.name, column.kind, int(column.edges[0]), int(column.edges[-1]) - 1, column.step)


def _present(column: ColumnDomain) -> ValueSet:
    return ValueSet(spans=((column.edges[0], column.edges[-1]),))
