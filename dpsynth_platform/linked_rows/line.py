"""Linked tables of a contract, for the asset line: the plan, the rows that scrubbing reads, and bounding with canaries.

What belongs here: what the line's steps do with several tables. What does not: the steps' records and their order
(`assets`, `operations`), and each part itself (`sources`, `bounding`, `synth.relational`).

| directory | holds |
| --- | --- |
| TABLE/NAME | the rows of a private table: modelled columns, and keys as keyed hashes, which join |
| OWNERS | the ids of the root's owners, hashed alike, and their fingerprints |
| PUBLIC/NAME | a public table as it is |
"""

from __future__ import annotations

import base64
import hmac
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.linked import ID_COLUMN, LinkedReport, write_linked
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.drafting.templates import in_words
from dpsynth_platform.foundation.errors import AccountingError, ContractError, SourceError, StaleInput
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import count_rows, read_table, table_schema, write_table
from dpsynth_platform.lifecycle.erasure import without
from dpsynth_platform.linked_rows.drawn import DrawnTables, Rows, public_rows
from dpsynth_platform.linked_rows.rows import check_joined, read_rows, stored_schema
from dpsynth_platform.linked_rows.views import table_contracts, views_of
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    FingerprintKeys,
    Fingerprints,
    distinct_owners,
    hex_column,
    keyed,
    owner_fingerprints,
)
from dpsynth_platform.sources.delta_types import in_delta
from dpsynth_platform.sources.linked_source import LinkedSource, in_table, source_of_contract
from dpsynth_platform.sources.plain_files import in_contract
from dpsynth_platform.synth.automatic import method_for
from dpsynth_platform.synth.guarded_sources import check_linked_tables
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.planning import can_be_read, check_plan
from dpsynth_platform.synth.relational.drawing import LinkedDrawing
from dpsynth_platform.synth.relational.sealing import View, linked_plan

TABLE, OWNERS, PUBLIC = "table", "owners", "public"


def plan_of(contract: DataContract) -> SealedPlan:
    """The plan of a contract's tables, calibrated and sealed; reads no row of a private one.

    Raises:
        ContractError: a declaration is invalid, or a method cannot do what it asks for.
        SourceError: a table is missing, or has other columns or types than declared.
        AccountingError: no noise meets the guarantee.
    """
    with _of_dataset(contract):
        found = source_of_contract(contract, rows=False)
        views = _views(contract, found)
        plan = linked_plan(found.tables, views, found.lookups, Guarantee.target(contract), contract)
    check_plan(contract, plan, method_for(contract).method)
    return plan


def write_public(contract: DataContract, content: str | None, directory: Path) -> dict[str, Any]:
    """Writes each public table as it is, below `raw`'s output; returns facts of its record about all tables.

    These are `names`, the source's names of columns by table and plain name, and `schemas` (`stored_schemas`).

    Args:
        content: the digest of the pinned content.

    Raises:
        ContractError: a public table is a guarded one.
        SourceError: a table cannot be read.
        StaleInput: the tables are no longer the pinned ones.
    """
    found = source_of_contract(contract, rows=False)
    check_linked_tables(Settings.from_environment(), contract, found)
    for name in found.declared.lookups:
        with in_table(name):
            write_table(directory / PUBLIC / name, *in_delta(*public_rows(found.sources[name]), codes=True))
    _check_unchanged(source_of_contract(contract, rows=False), content)
    contracts = table_contracts(found, contract.privacy.model_dump(mode="json"))
    stored = {name: stored_schema(contracts[name], found.sources[name]) for name in contracts}
    return {
        "names": {name: found.given(name) for name in found.declared.tables},
        "schemas": {
            name: base64.b64encode(schema.serialize().to_pybytes()).decode() for name, schema in stored.items()
        },
    }


def stored_schemas(facts: Mapping[str, Any]) -> dict[str, pa.Schema]:
    """The columns of each scrubbed table, from the facts of raw's record."""
    return {
        name: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored))) for name, stored in facts["schemas"].items()
    }


def check_linked_source(contract: DataContract) -> str | None:
    """Compares the declared tables with those of the source, and constraints with the keys of public tables.

    Reads metadata and public tables, and no row of a private one.

    Returns:
        Why they could not be compared, such as that there is no source yet; None if they were, and fit.

    Raises:
        SourceError: tables or columns are not as the contract declares them; a line for each.
        ContractError: a constraint has a value that its column has not, or a type cannot hold a column's values.
    """
    if not can_be_read(contract.source):
        try:
            source_of_contract(contract, rows=False)
        except SourceError as error:
            return in_contract(str(error))
    with _of_dataset(contract):
        _views(contract, source_of_contract(contract, rows=False))
    return None


def check_declared(contract: DataContract, found: LinkedSource) -> None:
    """Refuses columns that the tables have and the contract does not declare, and vice versa.

    Raises `SourceError` with a line for each table and column.
    """
    faults = []
    for name, difference in found.differences.items():
        source = found.sources[name]
        faults += [f"tables.{name}: column {each!r} is declared, but not in the source" for each in difference.absent]
        if missing := difference.undeclared:
            # A contract declares what counts as a header, also of a file that its editor cannot read.
            places = ", ".join(str(source.found.index(each) + 1) for each in missing)
            shown = (
                f"the fields no. {places} of its first line, which are not shown"
                if source.format == "csv"
                else in_words(source, missing)
            )
            faults.append(
                f"tables.{name}: not declared in the contract: {shown}; declare each in tables.{name}.columns, with "
                "ignore: true to leave it out"
            )
    if faults:
        raise SourceError("\n".join(faults))


@contextmanager
def _of_dataset(contract: DataContract) -> Iterator[None]:
    """Puts the dataset in front of faults, in the words of contracts."""
    try:
        yield
        return
    except (ContractError, SourceError, AccountingError) as error:
        kind, lines = type(error), in_contract(str(error)).split("\n")
    start = f"{contract.dataset}: "
    raise kind("\n".join(f"{start}{line.removeprefix(start)}" for line in lines))


def _views(contract: DataContract, found: LinkedSource) -> dict[str, View]:
    """The views of a contract's tables. Raises as `plan_of` does."""
    check_declared(contract, found)
    check_linked_tables(Settings.from_environment(), contract, found)
    privacy = contract.privacy.model_dump(mode="json")
    contracts = table_contracts(found, privacy)
    network = None if contract.generate.network is None else contract.generate.network.model_dump(mode="json")
    return views_of(found, contracts, privacy, method_for(contract).method, network=network, stored=True)


@dataclass(frozen=True)
class ReadTables:
    """The rows that were read, by table, and the distinct owners of the root."""

    rows: Mapping[str, int]
    owners: Fingerprints


def read_tables(
    contract: DataContract,
    content: str | None,
    directory: Path,
    *,
    owner_keys: FingerprintKeys,
    column_key: bytes,
    left_out: Fingerprints,
) -> ReadTables:
    """Writes the private tables below a step's output, without erased owners and all that belongs to them.

    Keys become keyed hashes, by the key that they refer to, so that they join. Texts are not read.

    Args:
        content: the digest of the pinned content.
        left_out: erased owners.

    Raises:
        SourceError: the tables are not the pinned ones, were changed meanwhile, cannot be read as declared, a column
            looks like personal data, or no row of the root has an owner.
    """
    found = source_of_contract(contract, rows=True)
    _check_unchanged(found, content)
    tables, contracts = found.tables, table_contracts(found, contract.privacy.model_dump(mode="json"))
    owners = _Owners(owner_keys)
    target = directory / TABLE
    for name in tables.private:
        keys = {
            column: hmac.digest(column_key, _domain(tables, name, column), "sha256") for column in _ids(tables, name)
        }
        watched = {_owner_column(tables): owners} if name == tables.root else {}

        def hashed(
            column: str, texts: pa.Array, keys: Mapping[str, bytes] = keys, watched: Mapping[str, _Owners] = watched
        ) -> pa.Array:
            hashes = keyed_hashes(texts, keys[column])
            if column in watched:
                watched[column].add(texts, hashes)
            return hashes

        with in_table(name):
            read_rows(contracts[name], found.sources[name], target / name, hashed)
    _check_unchanged(source_of_contract(contract, rows=False), content)
    whole = owners.table()
    if not len(whole):
        raise SourceError(f"tables.{tables.root}: no row has an owner; accepted: a table with keys")
    left = pa.Table.from_batches(without(iter(whole.to_batches()), left_out), whole.schema)
    write_table(directory / OWNERS, left.schema, left.to_batches())
    if len(left) < len(whole):
        _leave_out(tables, target, left.column(ID_COLUMN).combine_chunks())
    rows = {name: count_rows(target / name) for name in tables.private}
    return ReadTables(rows, distinct_owners(left.select([OWNER_COLUMN]).to_batches()))


def rows_schema(contract: DataContract, directory: Path, below: str = TABLE) -> pa.Schema:
    """The columns of the rows in a directory of a step's output, or of a release; of several as `table.column`."""
    place = directory / below
    if not contract.tables:
        return table_schema(place)
    found = {each.name: table_schema(each) for each in sorted(place.iterdir())}
    return pa.schema([item.with_name(dotted(name, item.name)) for name, schema in found.items() for item in schema])


def keyed_hashes(texts: pa.Array, key: bytes) -> pa.Array:
    """HMAC-SHA-256 of each text in 32 hex characters; null stays null."""
    found = texts.to_pylist()
    hashes = keyed(key)((text or "").encode("utf-8", "surrogatepass") for text in found)
    return pa.array(
        [None if text is None else each.hex()[:32] for text, each in zip(found, hashes, strict=True)], pa.string()
    )


def bound_tables(
    tables: LinkedTables,
    scrubbed: Path,
    target: Path,
    *,
    engine: Engine,
    participants: Fingerprints,
    key: bytes,
    joining: tuple[Mapping[str, pa.Table], pa.Table] | None,
) -> LinkedReport:
    """Bounds scrubbed tables and the canaries that join them, and writes the views below `target`.

    Args:
        tables: by plain names.
        scrubbed: the directory of `read_tables`.
        participants: the owners that take part.
        joining: rows of included canaries, by table, and their owners, as `scrubbed` has them; None: none join.

    Raises:
        BoundingError: as `write_linked` and `check_joined`.
    """
    owners = pa.Table.from_batches(read_table(scrubbed / OWNERS), table_schema(scrubbed / OWNERS))
    owners = owners.filter(pc.is_in(owners.column(OWNER_COLUMN), hex_column(participants)))
    read: dict[str, Path | pa.Table] = {name: scrubbed / TABLE / name for name in tables.private}
    beside = target.with_name(f"{target.name}-read")
    if joining is not None:
        planted, canaries = joining
        owners = pa.concat_tables([owners, canaries.select(owners.column_names)])
        private_directory(beside)
        for name in tables.private:
            schema = table_schema(scrubbed / TABLE / name)
            more = planted[name].select(schema.names).cast(schema).to_batches()
            write_table(beside / name, schema, _both(read_table(scrubbed / TABLE / name), more))
            read[name] = beside / name
    try:
        report = write_linked(tables, read, target, engine=engine, owners=owners, key=key)
        check_joined(tables, report, {name: len(rows) for name, rows in (joining[0] if joining else {}).items()})
        return report
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def draw_tables(
    plan: SealedPlan,
    model: Path,
    public: Path,
    names: Mapping[str, Mapping[str, str]],
    rows: int | None,
    directory: Path,
    progress: Progress,
) -> dict[str, Rows]:
    """Draws the private tables and adds the public ones, below a step's output; returns the rows of the private ones.

    Args:
        model: a complete one.
        public: the directory of `write_public`.
        names: as `write_public` returns them.
        rows: of the root; None: as many as the noisy counts show.

    Raises:
        ContractError: too few drawn rows keep the constraints.
    """
    drawing = LinkedDrawing.of(plan, model)
    spill = directory / "drawn"
    drawn = DrawnTables.of(drawing, rows or drawing.roots, names, spill, progress=progress)
    for name, schema in drawn.schemas.items():
        write_table(directory / TABLE / name, schema, drawn.read(name))
    shutil.rmtree(spill)
    for name in drawing.tables.lookups:
        stored = public / PUBLIC / name
        write_table(directory / TABLE / name, table_schema(stored), read_table(stored))
    return dict(drawn.rows)


def _both(first: Iterator[pa.RecordBatch], second: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from first
    yield from second


def _check_unchanged(found: LinkedSource, content: str | None) -> None:
    if found.content != content:
        raise StaleInput(
            "the tables were changed since raw pinned them; accepted: the same content again, or a run of the present "
            "version, which is a new spend: materialize raw again"
        )


def _ids(tables: LinkedTables, name: str) -> list[str]:
    owner = [tables.owner] if tables.owner is not None and name == tables.root else []
    return [*tables.tables[name].keys, *owner]


def _owner_column(tables: LinkedTables) -> str:
    return tables.owner or tables.tables[tables.root].key[0]


def _domain(tables: LinkedTables, name: str, column: str) -> bytes:
    """The key that a column's values are of: foreign keys have the parent's, so that equal ids have equal hashes."""
    parent = tables.tables[name].parent
    while parent is not None and column in parent.columns:
        name, column = parent.table, tables.tables[parent.table].key[parent.columns.index(column)]
        parent = tables.tables[name].parent
    return f"{name}.{column}".encode()


class _Owners:
    """The distinct owners of the root, by hash."""

    def __init__(self, keys: FingerprintKeys) -> None:
        self._keys = keys
        self._found: dict[str, str] = {}

    def add(self, texts: pa.Array, hashes: pa.Array) -> None:
        new = {
            each: text
            for each, text in zip(hashes.to_pylist(), texts.to_pylist(), strict=True)
            if each is not None and each not in self._found
        }
        if new:
            prints = owner_fingerprints(list(new.values()), self._keys)
            self._found |= dict(zip(new, prints, strict=True))

    def table(self) -> pa.Table:
        return pa.table(
            {
                ID_COLUMN: pa.array(list(self._found), pa.string()),
                OWNER_COLUMN: pa.array(list(self._found.values()), pa.string()),
            }
        )


def _leave_out(tables: LinkedTables, directory: Path, kept: pa.Array) -> None:
    """Removes the rows of owners that are not kept, and all rows below them, from the tables of a directory."""
    allowed: dict[str, Sequence[pa.Array]] = {tables.root: (kept,)}
    link = {tables.root: [_owner_column(tables)]}
    for name in tables.private:
        table = tables.tables[name]
        if table.parent is not None:
            link[name], allowed[name] = table.parent.columns, allowed[table.parent.table]
        stored, schema = directory / name, table_schema(directory / name)
        beside = directory / f"{name}-left"
        wanted = _joined(allowed[name])
        rows = (
            # Null joins nothing, not even a row whose key holds a null.
            batch.filter(pc.is_in(_joined([batch.column(each) for each in link[name]]), wanted, skip_nulls=True))
            for batch in read_table(stored)
        )
        write_table(beside, schema, rows)
        shutil.rmtree(stored)
        beside.rename(stored)
        if tables.children(name):
            key = pa.schema([schema.field(each) for each in table.key])
            whole = pa.Table.from_batches(read_table(stored, columns=table.key), key)
            allowed[name] = tuple(whole.column(each).combine_chunks() for each in table.key)


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Hashes of several columns as one text; null where one is null."""
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "|")
