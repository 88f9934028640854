"""Canaries: bait records of fictional owners, by which the audit measures what the mechanism remembers.

What belongs here: making the canaries from the contract alone, their coins, and keeping them. What does not: anything
that looks at the data (canaries must not depend on it, or results on them would be an access to it), and the attacks.

How they are made. Every canary owner holds b records with the same modelled values and different record ids, so that
the largest contribution which the guarantee covers is what gets tested. Values are independent from column to column
and balanced over the declared cells of each: rare values and combinations that real people seldom have come up as
often as common ones, so the canaries sit in many different, mostly empty cells of whichever marginals the mechanism
measures. Where values are learned they are missing: whatever canaries said there, enough of them would plant it. A text
that a language model learns to write is one of made-up words, which no other text holds. A contract may ask for texts
that the base model writes, too (`audit.canary_texts`), and for rows that could be somebody's: combinations that keep
all declared constraints (`audit.canary_rows`). Each kind is a set of its own, drawn and tossed for alike, and the
report tells what was found of each.

Each owner is included by a fair coin of its own from the operating system (Steinke et al. 2023); included and held-out
canaries are kept together, and stay restricted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    RECORD_COLUMN,
    owner_column,
)
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain, Domain, domain_of

OWNER = OWNER_COLUMN
RECORD = RECORD_COLUMN
INCLUDED = "included"
KIND = "_kind"
"""Of what kind a canary is, where there are several."""

# The first half of every canary's fingerprint. A real fingerprint (16 bytes of an HMAC) starts like this with
# probability 2^-64, so no person is taken for a canary and no account ever counts one.
RESERVED_PREFIX = hashlib.sha256(b"dpsynth_platform canary owner").hexdigest()[:16]

RANDOM, PLAUSIBLE = "random", "plausible"
MADE_UP, UNLIKELY_ENDING = "made-up", "unlikely-ending"

_random = secrets.SystemRandom()

LEAST_DIFFERENT = 0.5
"""How many different rows there must be among plausible ones, as a part of those among as many random ones."""
WORDS = 4
"""Made-up words in a canary's text. A record's gradient is clipped to one norm, however long its text is, so that a
short one is remembered better. These are some twenty tokens, and still as good as never the same in two canaries."""
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class CanarySet:
    """All canaries of one run, restricted: whoever knows the coins can no longer be surprised by the audit.

    Attributes:
        table: one row a record, sorted by owner: modelled columns, `_owner`, `_record`, `included`, and `_kind` where
            there are several kinds.
    """

    table: pa.Table

    @property
    def owners(self) -> list[str]:
        """Fingerprints of all canary owners, sorted; the order of everything below."""
        return sorted(set(self.table[OWNER].to_pylist()))

    @property
    def included(self) -> npt.NDArray[np.bool_]:
        """The coin of each owner, shape (number of owners,)."""
        return np.asarray(self._one_each()[INCLUDED].to_numpy(zero_copy_only=False), dtype=bool)

    @property
    def values(self) -> pa.Table:
        """The modelled values of each owner, one row an owner."""
        return self._without_kind(self._one_each().drop_columns([OWNER, RECORD, INCLUDED]))

    @property
    def kinds(self) -> list[str]:
        """The kind of each owner, in the owners' order; empty where there is only one kind."""
        return self._one_each()[KIND].to_pylist() if KIND in self.table.column_names else []

    @property
    def records_per_owner(self) -> int:
        """b, the records that every canary owner holds."""
        return int(self.table.num_rows // len(self.owners))

    @property
    def joining(self) -> pa.Table:
        """The records that go in with the data: those of included owners, without the coin."""
        return self._without_kind(self.table.filter(self.table[INCLUDED]).drop_columns([INCLUDED]))

    @staticmethod
    def _without_kind(table: pa.Table) -> pa.Table:
        return table.drop_columns([KIND]) if KIND in table.column_names else table

    def _one_each(self) -> pa.Table:
        owners = self.table[OWNER].to_pylist()
        return self.table.take([row for row in range(len(owners)) if row == 0 or owners[row] != owners[row - 1]])


def is_canary(owner: str) -> bool:
    """Whether a fingerprint is a canary's."""
    return owner.startswith(RESERVED_PREFIX)


def without_canaries(table: pa.Table) -> pa.Table:
    """The records of real owners: what the quality report may compare with."""
    # A canary's record has no other owner, so each record's first one tells.
    column = table[owner_column(table.schema)]
    first = pc.list_element(column, 0) if pa.types.is_list(column.type) else column
    return table.filter(pc.invert(pc.starts_with(first, RESERVED_PREFIX)))


def make_canaries(contract: DataContract, schema: pa.Schema, count: int, b: int, period: str | None) -> CanarySet:
    """Draws canaries from the contract, never from data.

    Args:
        contract: declares the domains of the modelled columns.
        schema: Arrow schema of the scrubbed table, for types.
        count: canary owners, included and held-out together.
        b: records an owner, the contribution bound.
        period: month (`YYYY-MM`) that a period column is confined to, or None.

    Raises:
        SourceError: the schema lacks a modelled column, or its type cannot hold the declared domain.
        ContractError: the period lies outside the period column's declared range, next to no row keeps the declared
            constraints, or too few different ones do.
        ConfigurationError: the contract wants texts of a base model that is not there, or cannot be sampled from.
    """
    owners = sorted(RESERVED_PREFIX + secrets.token_hex(8) for _ in range(count))
    coins = [bool(secrets.randbits(1)) for _ in range(count)]
    generator = np.random.default_rng(secrets.randbits(256))
    rows, texts = _kinds(contract, count)
    one_each = _rows(contract, schema, period, rows, generator)
    columns = {
        name: one_each[name].combine_chunks().take(np.repeat(np.arange(count), b)) for name in one_each.schema.names
    }
    if contract.text_column is not None:
        written = _texts(contract, one_each, texts)
        columns[contract.text_column] = _repeat(written, b, schema.field(contract.text_column).type)
    columns[OWNER] = _repeat(owners, b, pa.string())
    columns[RECORD] = pa.array([secrets.token_hex(16) for _ in range(count * b)], pa.string())
    columns[INCLUDED] = _repeat(coins, b, pa.bool_())
    if len(kinds_of(contract)) > 1:
        columns[KIND] = _repeat(_named(contract, rows, texts), b, pa.string())
    return CanarySet(pa.table(columns))


def trial_rows(contract: DataContract, schema: pa.Schema, count: int) -> Codes:
    """Cells of so many rows as canaries may have them, one row a canary, of all periods; only to see which are alike.

    Args:
        contract: as in `make_canaries`, which says what is raised.
        schema: types of the modelled columns.
        count: canaries.
    """
    kinds, _ = _kinds(contract, count)
    rows = _rows(contract, schema, None, kinds, np.random.default_rng(secrets.randbits(256)))
    return domain_of(contract, None).encode(rows)


def write_canaries(canaries: CanarySet, uri: Path) -> int:
    """Writes all canaries with their coins as a new Delta table. Returns its number of rows."""
    return write_table(uri, canaries.table.schema, canaries.table.to_batches())


def read_canaries(uri: Path) -> CanarySet:
    """Reads what `write_canaries` wrote."""
    return CanarySet(pa.Table.from_batches(read_table(uri)).sort_by(OWNER))


def kinds_of(contract: DataContract) -> tuple[str, ...]:
    """The kinds of canaries that a contract's run has, by name: of their rows and, if any is written, their texts."""
    return tuple(dict.fromkeys(_named(contract, *_kinds(contract, contract.canary_count))))


def _named(contract: DataContract, rows: Sequence[str], texts: Sequence[str]) -> list[str]:
    if not contract.modelled:
        return list(texts)
    return [", ".join(part) for part in zip(rows, texts, strict=True)] if contract.text_column else list(rows)


def _kinds(contract: DataContract, count: int) -> tuple[list[str], list[str]]:
    """The kinds of each canary's row and text; they take turns, so that each pair has as many as the others."""
    rows: Sequence[str] = contract.audit.canary_rows or [RANDOM]
    texts: Sequence[str] = contract.audit.canary_texts or [MADE_UP]
    return (
        [rows[place // len(texts) % len(rows)] for place in range(count)],
        [texts[place % len(texts)] for place in range(count)],
    )


def _rows(
    contract: DataContract, schema: pa.Schema, period: str | None, kinds: Sequence[str], generator: np.random.Generator
) -> pa.Table:
    """The modelled values of one record each, of these kinds; a table of nothing where no column is modelled."""
    domain = domain_of(contract, period)
    if not domain.names:
        return pa.table({})
    for name in domain.names:
        if name not in schema.names:
            raise SourceError(f"{contract.dataset}: modelled column {name!r} is not in the scrubbed table")
    makers = {RANDOM: _random_rows, PLAUSIBLE: _plausible_rows}
    places = {kind: [place for place, mine in enumerate(kinds) if mine == kind] for kind in makers}
    made = [
        make(contract, domain, schema, len(places[kind]), generator) for kind, make in makers.items() if places[kind]
    ]
    order = np.argsort([place for kind in makers for place in places[kind]])
    return pa.concat_tables(made).combine_chunks().take(order)


def _random_rows(
    contract: DataContract, domain: Domain, schema: pa.Schema, count: int, generator: np.random.Generator
) -> pa.Table:
    """Rows whose columns are independent of each other and balanced over their cells."""
    columns = {}
    for column in domain:
        kind = schema.field(column.name).type
        try:
            columns[column.name] = column.decode(_balanced_cells(column, count), kind, generator)
        except (pa.ArrowException, TypeError):
            raise SourceError(
                f"{contract.dataset}: column {column.name!r} has the Arrow type {kind}, which cannot hold its domain"
            ) from None
    return pa.table(columns)


def _plausible_rows(
    contract: DataContract, domain: Domain, schema: pa.Schema, count: int, generator: np.random.Generator
) -> pa.Table:
    """Rows that keep all constraints whose values are declared, drawn from nothing else."""
    from dpsynth_platform.synth.tabular.column_states import ColumnStates
    from dpsynth_platform.synth.tabular.conditioning import conditioned
    from dpsynth_platform.synth.tabular.constraints import Conditions
    from dpsynth_platform.synth.tabular.restore import ReleaseSchema
    from dpsynth_platform.synth.tabular.sampling import Sampler

    conditions = Conditions.of(domain, contract.generate.constraints).known
    states = [ColumnStates(np.arange(column.size, dtype=np.int32), np.ones(column.size)) for column in domain]
    under = conditioned(domain, states, conditions, [])
    kept = pa.schema([schema.field(name) for name in domain.names])
    sampler = Sampler(under, under.beliefs({}, releasable=True), ReleaseSchema(kept, {}))
    try:
        rows = pa.Table.from_batches([sampler.values(count, generator)])
    except (pa.ArrowException, TypeError):
        raise SourceError(f"{contract.dataset}: the scrubbed table's types cannot hold the declared domains") from None
    # Nobody can tell which of several equal rows were in: many of them would pass an audit whatever the mechanism does.
    different, usual = (
        len(np.unique(domain.encode(table), axis=0))
        for table in (rows, _random_rows(contract, domain, schema, count, generator))
    )
    if different < LEAST_DIFFERENT * usual:
        raise ContractError(
            f"{contract.dataset}: audit.canary_rows: 'plausible': of {count} rows that keep generate.constraints only "
            f"{different} differ, of random ones {usual}; accepted: random, or constraints that leave more"
        )
    return rows


def _balanced_cells(column: ColumnDomain, count: int) -> npt.NDArray[np.int32]:
    """One cell a canary: every cell that may be published equally often (up to one), in random order."""
    cells = np.flatnonzero(column.allowed).astype(np.int32)
    order = np.array(_random.sample(range(count), count))
    shuffled: npt.NDArray[np.int32] = cells[(order + _random.randrange(cells.size)) % cells.size]
    return shuffled


def _texts(contract: DataContract, values: pa.Table, chosen: Sequence[str]) -> list[str]:
    """A text of the chosen kind for each row of values."""
    texts = [_made_up_text() for _ in chosen]
    written = [place for place, kind in enumerate(chosen) if kind != MADE_UP]
    if written:
        from dpsynth_platform.audit.texts.canary_texts import base_texts

        # A table without modelled columns has no rows that could be taken: nothing is told then.
        records = values.take(written).to_pylist() if values.column_names else [{} for _ in written]
        by_model = base_texts(contract, records, [chosen[place] == UNLIKELY_ENDING for place in written])
        for place, text in zip(written, by_model, strict=True):
            texts[place] = text
    return texts


def _made_up_text() -> str:
    """Words of two to four syllables, each syllable drawn from seventy: some 70 bits in all."""
    return " ".join("".join(_syllable() for _ in range(_random.randint(2, 4))) for _ in range(WORDS))


def _syllable() -> str:
    return _random.choice(_CONSONANTS) + _random.choice(_VOWELS)


def _repeat(values: Sequence[Any], b: int, kind: pa.DataType) -> pa.Array:
    return pa.array([value for value in values for _ in range(b)], kind)
