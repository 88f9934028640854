"""Canaries: records of fictional owners, by which the audit measures what the mechanism remembers.

What belongs here: drawing canaries from the contract, tossing their coins, and storage. What does not: attacks, and
anything that reads data; canaries that depended on data would make each result on them another access.

Every canary owner holds b records with equal modelled values and different record ids, so the audit tests the largest
contribution that the guarantee covers. Values are independent across columns and balanced over the declared cells of
each: rare values and combinations occur as often as common ones, so canaries occupy many different, mostly empty cells
of any marginal that the mechanism measures. Where values are learned they are missing: enough canaries would plant any
value that they held. A text that a language model learns to write consists of made-up words that no other text holds. A
picture is a coarse random pattern of black and white (in each colour), such as no camera takes. A contract may also
request texts from the base model (`audit.canary_texts`), and plausible rows that keep all declared constraints
(`audit.canary_rows`). Each kind is a separate set with its own coins; the report shows the result of each.

A fair coin from the operating system includes each owner (Steinke et al. 2023). Included and held-out canaries are
stored together, and stay restricted.

A contract may also request secrets that several fictional owners share (`audit.shared_secrets`). One coin decides for
all owners of a secret, so these are no canaries: a bound for one owner does not apply to them.
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
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN, owner_column
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain, Domain, domain_of

OWNER = OWNER_COLUMN
RECORD = RECORD_COLUMN
INCLUDED = "included"
KIND = "_kind"
"""Column of the canaries' kinds, where there are several."""
SHARED = "_shared"
"""Column of the numbers of shared secrets, where there are some; null for canaries."""

# The first half of every canary's fingerprint. A real fingerprint (16 bytes of an HMAC) has it with probability 2^-64,
# so no person is taken for a canary and no account counts one.
RESERVED_PREFIX = hashlib.sha256(b"dpsynth_platform canary owner").hexdigest()[:16]

RANDOM, PLAUSIBLE = "random", "plausible"
MADE_UP, UNLIKELY_ENDING = "made-up", "unlikely-ending"

_random = secrets.SystemRandom()

LEAST_DIFFERENT = 0.5
"""Least number of different plausible rows, as a share of the different ones among as many random rows."""
BLOCKS = 14
"""Along each side of a canary's picture: 196 coins a channel, so that hundreds of canaries differ in many ways."""
WORDS = 4
"""Made-up words in a canary's text. A record's gradient is clipped to one norm for any length of text, so a short text
is remembered better. These are some twenty tokens, and practically never the same in two canaries."""
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True)
class CanarySet:
    """All canaries of one run; restricted, since the audit proves nothing to a reader who knows the coins.

    Attributes:
        table: one row a record, sorted by owner: modelled columns, `_owner`, `_record`, `included`, `_kind` where there
            are several kinds, and `_shared` where there are shared secrets, which all other properties but `joining`
            and `secrets` leave out.
    """

    table: pa.Table

    @property
    def owners(self) -> list[str]:
        """Fingerprints of all canary owners, sorted; the other properties have this order."""
        return sorted(set(self._canaries[OWNER].to_pylist()))

    @property
    def included(self) -> npt.NDArray[np.bool_]:
        """The coin of each owner, shape (owners,)."""
        return np.asarray(self._one_each()[INCLUDED].to_numpy(zero_copy_only=False), dtype=bool)

    @property
    def values(self) -> pa.Table:
        """The modelled values, one row an owner."""
        return self._without_kind(self._one_each().drop_columns([OWNER, RECORD, INCLUDED]))

    @property
    def kinds(self) -> list[str]:
        """The kind of each owner; empty where there is only one kind."""
        return self._one_each()[KIND].to_pylist() if KIND in self.table.column_names else []

    @property
    def secrets(self) -> pa.Table:
        """The records of shared secrets, with `_owner`, `included` and `_shared`; empty where there are none."""
        if SHARED not in self.table.column_names:
            return self.table.slice(0, 0)
        return self.table.filter(pc.is_valid(self.table[SHARED]))

    @property
    def records_per_owner(self) -> int:
        """The contribution bound b."""
        return int(self._canaries.num_rows // len(self.owners))

    @property
    def joining(self) -> pa.Table:
        """The records of included owners, without the coin, that are added to the data."""
        return self._without_kind(self.table.filter(self.table[INCLUDED]).drop_columns([INCLUDED]))

    @property
    def _canaries(self) -> pa.Table:
        if SHARED not in self.table.column_names:
            return self.table
        return self.table.filter(pc.is_null(self.table[SHARED]))

    @staticmethod
    def _without_kind(table: pa.Table) -> pa.Table:
        return table.drop_columns([name for name in (KIND, SHARED) if name in table.column_names])

    def _one_each(self) -> pa.Table:
        table = self._canaries
        owners = table[OWNER].to_pylist()
        return table.take([row for row in range(len(owners)) if row == 0 or owners[row] != owners[row - 1]])


def is_canary(owner: str) -> bool:
    """Whether a fingerprint is a canary's."""
    return owner.startswith(RESERVED_PREFIX)


def without_canaries(table: pa.Table) -> pa.Table:
    """The records of real owners: what the quality report may compare with."""
    # A canary's record has no other owner, so the first owner of each record is enough.
    column = table[owner_column(table.schema)]
    first = pc.list_element(column, 0) if pa.types.is_list(column.type) else column
    return table.filter(pc.invert(pc.starts_with(first, RESERVED_PREFIX)))


def make_canaries(contract: DataContract, schema: pa.Schema, count: int, b: int, period: str | None) -> CanarySet:
    """Draws `count` canary owners with b records each from the contract, never from data.

    `schema` has the types of the scrubbed table; `period` limits a period column, or None.

    Raises:
        SourceError: the schema lacks a modelled column, or its type cannot hold the declared domain.
        ContractError: the period lies outside the period column's declared range, or almost no row, or too few
            different ones, keep the declared constraints.
        ConfigurationError: the base model for texts is missing, or cannot be sampled from.
    """
    rows, texts = _kinds(contract, count)
    owners = sorted(_new_owners(count))
    table = _records(contract, schema, period, (rows, texts), [owners[place : place + 1] for place in range(count)], b)
    if len(kinds_of(contract)) > 1:
        table = table.append_column(KIND, _repeat(_named(contract, rows, texts), b, pa.string()))
    shared = contract.audit.shared_secrets
    if shared is None:
        return CanarySet(table)
    sizes = [size for size in shared.owners for _ in range(shared.each)]
    kinds = [RANDOM] * len(sizes), [MADE_UP] * len(sizes)
    planted = _records(contract, schema, period, kinds, [_new_owners(size) for size in sizes], b)
    planted = planted.append_column(
        SHARED, pa.array(np.repeat(np.arange(len(sizes), dtype=np.int32), np.array(sizes) * b))
    )
    return CanarySet(pa.concat_tables([table, planted], promote_options="default"))


def _new_owners(count: int) -> list[str]:
    return [RESERVED_PREFIX + secrets.token_hex(8) for _ in range(count)]


def _records(
    contract: DataContract,
    schema: pa.Schema,
    period: str | None,
    kinds: tuple[Sequence[str], Sequence[str]],
    owners: Sequence[Sequence[str]],
    b: int,
) -> pa.Table:
    """A new record of each kind (of row and text), b times for each of its owners, all with one coin."""
    generator = np.random.default_rng(secrets.randbits(256))
    rows, texts = kinds
    one_each = _rows(contract, schema, period, rows, generator)
    copies = np.repeat(np.arange(len(rows)), [b * len(own) for own in owners])
    columns = {name: one_each[name].combine_chunks().take(copies) for name in one_each.schema.names}
    if contract.image_column is not None:
        pictures = [picture.tobytes() for picture in random_patterns(contract.image.form, len(rows), generator)]
        columns[contract.image_column] = pa.array(pictures, pa.binary()).take(copies)
    if contract.text_column is not None:
        written = pa.array(_texts(contract, one_each, texts), schema.field(contract.text_column).type)
        columns[contract.text_column] = written.take(copies)
    columns[OWNER] = _repeat([owner for own in owners for owner in own], b, pa.string())
    columns[RECORD] = pa.array([secrets.token_hex(16) for _ in copies], pa.string())
    columns[INCLUDED] = pa.array([bool(secrets.randbits(1)) for _ in rows], pa.bool_()).take(copies)
    return pa.table(columns)


def random_patterns(form: ImageForm, count: int, generator: np.random.Generator) -> Pixels:
    """Pictures of at most `BLOCKS` x `BLOCKS` blocks, each channel of each 0 or 255 at random.

    Shape (count, height, width, channels). Blocks survive the coarse features that some methods learn from.
    """
    rows, columns = (np.arange(side) * min(BLOCKS, side) // side for side in (form.height, form.width))
    coarse = generator.integers(0, 2, (count, rows[-1] + 1, columns[-1] + 1, form.channels), dtype=np.uint8)
    return coarse[:, rows][:, :, columns] * np.uint8(255)


def trial_rows(contract: DataContract, schema: pa.Schema, count: int) -> Codes:
    """Cells of rows such as canaries may have, one a canary, of all periods; raises what `make_canaries` raises."""
    kinds, _ = _kinds(contract, count)
    rows = _rows(contract, schema, None, kinds, np.random.default_rng(secrets.randbits(256)))
    return domain_of(contract, None).encode(rows)


def write_canaries(canaries: CanarySet, uri: Path) -> int:
    """Writes all canaries with their coins as a new Delta table; returns its number of rows."""
    return write_table(uri, canaries.table.schema, canaries.table.to_batches())


def read_canaries(uri: Path) -> CanarySet:
    """Reads what `write_canaries` wrote."""
    return CanarySet(pa.Table.from_batches(read_table(uri)).sort_by(OWNER))


def kinds_of(contract: DataContract) -> tuple[str, ...]:
    """Names of the canary kinds of a contract's run: kinds of rows and, if a text is written, of texts."""
    return tuple(dict.fromkeys(_named(contract, *_kinds(contract, contract.canary_count))))


def _named(contract: DataContract, rows: Sequence[str], texts: Sequence[str]) -> list[str]:
    if not contract.modelled:
        return list(texts)
    return [", ".join(part) for part in zip(rows, texts, strict=True)] if contract.text_column else list(rows)


def _kinds(contract: DataContract, count: int) -> tuple[list[str], list[str]]:
    """The kinds of each canary's row and text; they alternate, so that all pairs have equally many."""
    rows: Sequence[str] = contract.audit.canary_rows or [RANDOM]
    texts: Sequence[str] = contract.audit.canary_texts or [MADE_UP]
    return (
        [rows[place // len(texts) % len(rows)] for place in range(count)],
        [texts[place % len(texts)] for place in range(count)],
    )


def _rows(
    contract: DataContract, schema: pa.Schema, period: str | None, kinds: Sequence[str], generator: np.random.Generator
) -> pa.Table:
    """One row of modelled values for each kind in `kinds`; an empty table where no column is modelled."""
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
    """Rows with independent columns, each balanced over its cells."""
    return values_of(contract.dataset, domain, schema, [balanced_cells(column, count) for column in domain], generator)


def values_of(
    where: str, domain: Domain, schema: pa.Schema, cells: Sequence[Codes], generator: np.random.Generator
) -> pa.Table:
    """Values in the cells of each column, of the schema's types. Raises `SourceError` if a type cannot hold them."""
    columns = {}
    for column, codes in zip(domain, cells, strict=True):
        kind = schema.field(column.name).type
        try:
            columns[column.name] = column.decode(codes, kind, generator)
        except (pa.ArrowException, TypeError):
            raise SourceError(
                f"{where}: column {column.name!r} has the Arrow type {kind}, which cannot hold its domain"
            ) from None
    return pa.table(columns)


def _plausible_rows(
    contract: DataContract, domain: Domain, schema: pa.Schema, count: int, generator: np.random.Generator
) -> pa.Table:
    """Rows from the declared domains that keep all constraints whose values are declared."""
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
    # No attack can distinguish equal rows: with many of them, any mechanism would pass the audit.
    different, usual = (
        len(np.unique(domain.encode(table), axis=0))
        for table in (rows, _random_rows(contract, domain, schema, count, generator))
    )
    if different < LEAST_DIFFERENT * usual:
        raise ContractError(
            f"{contract.dataset}: audit.canary_rows: 'plausible': of {count} rows that keep generate.constraints only "
            f"{different} differ, of random rows {usual}; accepted: random, or constraints that allow more rows"
        )
    return rows


def balanced_cells(column: ColumnDomain, count: int) -> Codes:
    """One cell a canary, in random order: every cell that may be published equally often (up to one)."""
    return balanced(np.flatnonzero(column.allowed).astype(np.int32), count)


def balanced(cells: Codes, count: int) -> Codes:
    """`count` of these numbers in random order, each equally often (up to one)."""
    order = np.array(_random.sample(range(count), count))
    shuffled: npt.NDArray[np.int32] = cells[(order + _random.randrange(cells.size)) % cells.size]
    return shuffled


def _texts(contract: DataContract, values: pa.Table, chosen: Sequence[str]) -> list[str]:
    texts = [_made_up_text() for _ in chosen]
    written = [place for place, kind in enumerate(chosen) if kind != MADE_UP]
    if written:
        from dpsynth_platform.audit.texts.canary_texts import base_texts

        # A table without modelled columns has no rows to take: the model then gets no other values.
        records = values.take(written).to_pylist() if values.column_names else [{} for _ in written]
        by_model = base_texts(contract, records, [chosen[place] == UNLIKELY_ENDING for place in written])
        for place, text in zip(written, by_model, strict=True):
            texts[place] = text
    return texts


def _made_up_text() -> str:
    """Words of two to four syllables, each syllable drawn from seventy: some 70 bits in all."""
    return " ".join("".join(_random.choices(_SYLLABLES, k=_random.randint(2, 4))) for _ in range(WORDS))


def _repeat(values: Sequence[Any], b: int, kind: pa.DataType) -> pa.Array:
    return pa.array([value for value in values for _ in range(b)], kind)
