"""Scrubbing a table by itself, without a contract.

What belongs here: which columns are scrubbed, kept, dropped or checked, and the stream of scrubbed rows. What does not:
the treatment of texts (`records`), the check of values (`columns`), files, and keys.

| column | in the scrubbed table |
| --- | --- |
| text; with `columns`, only those | scrubbed as free text; whole if the name has a kind (`clues.column_kind`) |
| `keep` | unchanged |
| `drop` | left out |
| other text, number | unchanged; the run stops if a value or the name looks like personal data |
| date, time, boolean, null | unchanged |
| list, map, binary, any other | refused |

No contract says here what is public, and no budget is spent by a refusal. So one value suffices, where a contract's
check needs those of `owners.LEAST_OWNERS` owners.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import pyarrow as pa

from dpsynth_platform.compute.plain_types import is_text, plain_batch, plain_schema, type_name
from dpsynth_platform.contracts.columns import PiiAction
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.scrub.clues import column_kind
from dpsynth_platform.scrub.columns import ValueScan, number_kinds
from dpsynth_platform.scrub.fingerprints import canonical_texts
from dpsynth_platform.scrub.owners import RowOwners, RowUnits
from dpsynth_platform.scrub.parallel import Findings, ParallelDetector
from dpsynth_platform.scrub.records import RecordTexts, Treatment, record_texts
from dpsynth_platform.scrub.scrub import LIMITS, Progress, chunks_of, in_utf8, shown_counts

NO_GUARANTEE = (
    "This is no guarantee of privacy: what is left may still say who somebody is, also beside other data. A guarantee "
    "needs synthetic data that are made with differential privacy."
)


@dataclass(frozen=True)
class ScrubChoice:
    """What is done with the columns of a table.

    Attributes:
        columns: the columns of texts to scrub; None: all.
        keep: columns that stay as they are.
        drop: columns that are left out; their values are found in the texts.
        action: on each finding, where `rules` have none for its type. `drop` removes it from its text.
        rules: additions to the detection, and actions by entity type.
        owner: the column that names the owner of a row; the same original of one owner gets the same fictional value.
        key: secret of 32 bytes for hashes and for the values of owners; None: a fresh one, and no hashes.
    """

    columns: tuple[str, ...] | None = None
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    action: PiiAction = "replace"
    rules: Scrub = field(default_factory=Scrub)
    owner: str | None = None
    key: bytes | None = field(default=None, repr=False)

    @property
    def hashes(self) -> bool:
        """Whether a key is needed."""
        return "hash" in (self.action, *self.rules.actions.values())


class TableScrub:
    """The scrubbing of one table.

    Attributes:
        schema: of the scrubbed table.
        free: columns of free text.
        kinds: columns whose values are replaced as a whole, and their kinds.
        checked: columns that stay if no value looks like personal data.
    """

    def __init__(self, schema: pa.Schema, choice: ScrubChoice, where: str) -> None:
        """Reads no rows.

        Raises:
            ContractError: an unknown or repeated column, or a rule without the owner or key that it needs.
            SourceError: a column may hold personal data by its name or type, or there is none to scrub.
        """
        plain = plain_schema(schema)
        self._where, self._choice = where, choice
        self._check_choice(plain)
        texts = [item.name for item in plain if is_text(item.type) and item.name not in (*choice.keep, *choice.drop)]
        scrubbed = texts if choice.columns is None else list(choice.columns)
        if not scrubbed:
            raise SourceError(f"{where}: there is no column of texts to scrub; accepted: a table with one")
        self.kinds = {name: kind for name in scrubbed if (kind := column_kind(name))}
        self.free = [name for name in scrubbed if name not in self.kinds]
        others = [item for item in plain if item.name not in (*scrubbed, *choice.keep, *choice.drop)]
        self.checked = [item.name for item in others]
        if faults := [fault for item in others if (fault := self._fault(item))]:
            raise SourceError("\n".join(faults))
        public = pa.array([], pa.large_string())
        self._scan = ValueScan(
            {item.name: public for item in others if is_text(item.type)},
            [item.name for item in others if _is_number(item.type)],
            1,
            passages=True,
        )
        named = {*self.kinds, *choice.drop, *([choice.owner] if choice.owner else [])}
        self._identifying = [item.name for item in plain if item.name in named and _is_id(item.type)]
        # Metadata of a file and of its columns may quote values.
        self.schema = pa.schema(
            [
                pa.field(item.name, item.type, item.nullable or item.name in scrubbed)
                for item in plain
                if item.name not in choice.drop
            ]
        )
        rules = choice.rules if choice.owner is None else choice.rules.model_copy(update={"consistent": "owner"})
        key = choice.key or secrets.token_bytes(32)
        self._treatment = Treatment(rules, dict.fromkeys(self.free, choice.action), key, where)
        self._read = self._rows = 0
        self._damaged: Counter[str] = Counter()

    def _check_choice(self, schema: pa.Schema) -> None:
        choice, names = self._choice, set(schema.names)
        if choice.action not in get_args(PiiAction):
            raise ContractError(f"--action {choice.action!r}; accepted: {', '.join(get_args(PiiAction))}")
        given = {"--columns": choice.columns or (), "--keep": choice.keep, "--drop": choice.drop}
        for option, several in (*given.items(), ("--owner", (choice.owner,) if choice.owner else ())):
            if unknown := [name for name in several if name not in names]:
                raise ContractError(
                    f"{option} {unknown[0]!r}: {self._where} has no such column; accepted: {', '.join(schema.names)}"
                )
        listed = [name for several in given.values() for name in several]
        if twice := [name for name in listed if listed.count(name) > 1]:
            raise ContractError(f"column {twice[0]!r} is named twice; accepted: once in --columns, --keep or --drop")
        for name in choice.columns or ():
            if not is_text(schema.field(name).type):
                shown = type_name(schema.field(name).type)
                raise ContractError(f"--columns {name!r}: its type is {shown}; accepted: columns of texts, or --drop")
        if choice.owner and not _is_id(schema.field(choice.owner).type):
            raise ContractError(f"--owner {choice.owner!r}; accepted: a column of texts or whole numbers")
        if choice.rules.consistent == "owner" and not choice.owner:
            raise ContractError(
                "consistent: owner, in the rules, needs --owner COLUMN; accepted: with it, or consistent: document"
            )
        if choice.hashes and choice.key is None:
            raise ContractError(
                "hash without a key: known values could be looked up; accepted: --key FILE, which is made if it does "
                "not exist"
            )

    def _fault(self, item: pa.Field) -> str:
        """Why a column may not stay without a word, or an empty text."""
        if is_text(item.type):
            kind = column_kind(item.name)
            return self._refusal(item.name, f"the name says {kind}") if kind else ""
        if _is_number(item.type):
            kinds = number_kinds(item.name)
            return self._refusal(item.name, f"the name says {kinds[0]}") if kinds else ""
        passes = pa.types.is_temporal(item.type) or pa.types.is_boolean(item.type) or pa.types.is_null(item.type)
        return "" if passes else self._refusal(item.name, f"its type {type_name(item.type)} is not looked into")

    def _refusal(self, name: str, why: str) -> str:
        return (
            f"{self._where}: column {name!r}: {why}, and it would stay unchanged; accepted: --columns with it (texts "
            f"only), --drop {name}, or --keep {name} if it may stay"
        )

    def batches(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        progress: Progress | None = None,
        processes: int | None = None,
    ) -> Generator[pa.RecordBatch]:
        """The scrubbed rows of a table with the schema, in its order. The report is complete after the last batch.

        Args:
            progress: called with the number of finished rows.
            processes: number of detector processes, if there is enough work; None: one for each core.

        Raises:
            SourceError: while batches are read: a column that would stay has personal data, or the rules' own patterns
                take too long.
        """
        with ParallelDetector(self._choice.rules, processes) as detector:
            chunks = (self._prepared(chunk) for batch in batches for chunk in self._chunks(batch))
            for chunk, findings in detector.each(chunks, lambda chunk: chunk.taken.documents):
                yield self._finished(chunk, findings)
                self._rows += chunk.batch.num_rows
                if progress is not None:
                    progress(self._rows, None)

    def report(self) -> dict[str, Any]:
        """JSON values, without exact counts of findings and damages below `scrub.LEAST_SHOWN`."""
        return {
            "rows": self._rows,
            "action": self._choice.action,
            "free_text": list(self.free),
            "kinds": dict(self.kinds),
            "kept": list(self._choice.keep),
            "dropped": list(self._choice.drop),
            "checked": list(self.checked),
            "texts": dict(self._treatment.texts),
            "findings": {name: shown_counts(counts) for name, counts in self._treatment.findings.items()},
            "damaged": shown_counts(self._damaged),
            "limits": LIMITS,
            "no_guarantee": NO_GUARANTEE,
        }

    def _chunks(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from chunks_of(plain_batch(batch), self.free)

    def _prepared(self, batch: pa.RecordBatch) -> _Chunk:
        batch, damaged = in_utf8(batch)
        self._damaged.update({name: sum(rows) for name, rows in damaged.items()})
        rows = RowUnits(self._read, batch.num_rows)
        self._read += batch.num_rows
        if found := self._scan.look(batch, rows):
            raise SourceError("\n".join(self._refusal(name, f"values look like {kind}") for name, kind in found))
        owners = rows if self._choice.owner is None else _owners(batch.column(self._choice.owner))
        return _Chunk(batch, owners, record_texts(batch, self.free, self._identifying))

    def _finished(self, chunk: _Chunk, found: Findings) -> pa.RecordBatch:
        columns: dict[str, Sequence[str | None]] = self._treatment.free_texts(chunk.taken, found, chunk.owners)
        for name in self.kinds:
            columns[name] = [
                None if value is None else self._whole(name, value, owners[0])
                for value, owners in zip(chunk.batch.column(name).to_pylist(), chunk.owners, strict=True)
            ]
        arrays = [
            pa.array(columns[item.name], item.type) if item.name in columns else chunk.batch.column(item.name)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _whole(self, name: str, value: str, owner: str) -> str | None:
        action = self._choice.rules.actions.get(self.kinds[name], self._choice.action)
        return None if action == "drop" else self._treatment.whole_value(name, action, value, owner)


@dataclass(frozen=True, repr=False)
class _Chunk:
    batch: pa.RecordBatch
    owners: Sequence[RowOwners]
    taken: RecordTexts


def _owners(column: pa.Array) -> list[RowOwners]:
    """Of each row; one without an owner is its own."""
    return [(secrets.token_hex() if text is None else text,) for text in canonical_texts(column)]


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _is_id(type_: pa.DataType) -> bool:
    return is_text(type_) or bool(pa.types.is_integer(type_))
