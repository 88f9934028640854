"""Column lineage of the asset line: which column of a step comes from which earlier columns, and how.

What belongs here: the descent of every column of every step that has a table, from the contract and the schemas alone,
in fixed sentences; and reading a descent back from a stored facet. What does not: OpenLineage's classes
(`facets.column_lineage` makes the facet), names of places, or reading rows.

    source -> scrubbed -> bounded -> (model: no columns) -> synthetic -> released
                 canaries -^

`raw` pins a version of the source and copies nothing: the raw columns are those of the source. The model has no
columns, so a synthetic column names the bounded one that the model was made from. A column without an origin in the
data has a reason (`ColumnDescent.without`): fresh ids, text that is left empty, records of canaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.lineage.naming import DatasetName

if TYPE_CHECKING:
    import pyarrow as pa

HASHED = "The whole value is replaced by a keyed hash."
MASKED = "What identifies people is replaced by the name of its kind (best effort)."
REPLACED = "What identifies people is replaced by fictional values (best effort)."
CLUE = "What this column says of a person is looked for in the text."
FINGERPRINT = "Owners' ids are replaced by keyed fingerprints."
RECORD_ID = "A keyed id of the record, from its owners and its key."
OWNED = "Records without an owner are left out."
OF_PERIOD = "Records of other periods are left out."
CLEARED = "Owners that are held out or not cleared are left out; of everybody else as many records as the bound allows."
ORDERED = "Says which of an owner's records are kept first."
MODELLED = "Drawn from a differentially private model of noisy counts of this column, alone and with others."
JOINTLY = "Rows are drawn from one model of all modelled columns together."
WRITTEN = "Written by a language model that was trained on this column, differentially privately."
DECODED = "Decoded to pixels of the declared form, without metadata; what the pixels show is not scrubbed."
PICTURED = "Made by a model of this column's pictures, differentially privately."
ILLUSTRATED = "Drawn by a public model from the synthetic texts that descend from this column; no real picture is read."
CLASSIFIED = "Decides of which class the picture is."
CONDITIONING = "Told to the language model before it writes."
ANSWERED = "Computed from noisy counts and sums of this column, differentially privately."
WEIGHED = "Each of an owner's records counts as a part of one."
PUBLISHED = "Published as it was drawn."
AS_IT_IS = "A column of a public table, which is released as it is."

FROM_CONTRACT = "Made from the contract alone: no record of anybody is looked at."
COIN = "A fair coin: whether the canary joins the data."
FRESH_IDS = "Fresh ids that are linked to nobody."
LEFT_EMPTY = "Present for the schema's sake and empty: the model does not know this column."

SENTENCES = frozenset(
    {
        HASHED, MASKED, REPLACED, CLUE, FINGERPRINT, RECORD_ID, OWNED, OF_PERIOD, CLEARED, ORDERED, MODELLED,
        JOINTLY, WRITTEN, DECODED, PICTURED, ILLUSTRATED, CLASSIFIED, CONDITIONING, WEIGHED, PUBLISHED,
        ANSWERED, AS_IT_IS,
        FROM_CONTRACT, COIN, FRESH_IDS, LEFT_EMPTY,
    }
)  # fmt: skip
"""Every sentence of a column's lineage. All are fixed, so that none can depend on the data."""

SUBTYPES = frozenset({"IDENTITY", "TRANSFORMATION", "AGGREGATION", "FILTER", "SORT", "GROUP_BY", "CONDITIONAL"})
"""OpenLineage's subtypes of transformations that the line uses."""
_DIRECT = frozenset({"IDENTITY", "TRANSFORMATION", "AGGREGATION"})
_TREATED = {"hash": HASHED, "mask": MASKED, "replace": REPLACED}


@dataclass(frozen=True)
class ColumnOrigin:
    """One column that another one, or every row, comes from.

    Attributes:
        subtype: one of `SUBTYPES`.
        masking: whether the transformation hides the original value.
        description: one of `SENTENCES`, or empty.
    """

    source: DatasetName
    column: str
    subtype: str = "IDENTITY"
    masking: bool = False
    description: str = ""

    @property
    def direct(self) -> bool:
        """Whether values are made from its values; otherwise they only depend on it."""
        return self.subtype in _DIRECT


@dataclass(frozen=True)
class ColumnDescent:
    """Where the columns of one table come from.

    Attributes:
        without: why a column has no origins.
        rows: columns that affect which rows there are, or all of their values.
    """

    origins: Mapping[str, tuple[ColumnOrigin, ...]] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[ColumnOrigin, ...] = ()


def descent_of(facet: Any) -> ColumnDescent | None:
    """The descent that a `columnLineage` facet reports, whoever sent it; None if there is no such facet.

    What has another form than the specification's is skipped. An origin without transformations counts as direct and
    not masked.
    """
    fields = facet.get("fields") if isinstance(facet, Mapping) else None
    if not isinstance(fields, Mapping):
        return None
    found = {name: value for name, value in fields.items() if isinstance(value, Mapping)}
    read = {name: tuple(_origins(value.get("inputFields"))) for name, value in found.items()}
    reasons = {name: value.get("transformationDescription") for name, value in found.items()}
    return ColumnDescent(
        {name: listed for name, listed in read.items() if listed},
        {name: str(reasons[name] or "") for name, listed in read.items() if not listed},
        tuple(_origins(facet.get("dataset"))),
    )


def _origins(listed: Any) -> Iterable[ColumnOrigin]:
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, Mapping):
            continue
        namespace, name, column = (item.get(key) for key in ("namespace", "name", "field"))
        if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(column, str)):
            continue
        steps = item.get("transformations")
        steps = [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []
        first = steps[0] if steps else {}
        usual = "CONDITIONAL" if first.get("type") == "INDIRECT" else "TRANSFORMATION" if steps else "IDENTITY"
        subtype, description = first.get("subtype"), first.get("description")
        yield ColumnOrigin(
            DatasetName(namespace, name),
            column,
            subtype if subtype in SUBTYPES else usual,
            any(step.get("masking") is True for step in steps),
            description if isinstance(description, str) else "",
        )


def scrubbed(contract: DataContract, source: DatasetName, columns: Iterable[str]) -> ColumnDescent:
    """Of the scrubbed table, from the source's: declared columns, owners and the record's id."""
    from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, OWNERS_COLUMN, RECORD_COLUMN

    owners, keys = contract.privacy.owner_columns, contract.source.key
    own = {
        OWNER_COLUMN: _from(source, owners, "TRANSFORMATION", FINGERPRINT),
        OWNERS_COLUMN: _from(source, owners, "TRANSFORMATION", FINGERPRINT),
        RECORD_COLUMN: _from(source, dict.fromkeys((*owners, *keys)), "TRANSFORMATION", RECORD_ID),
    }
    origins = {name: own[name] if name in own else _scrubbed_column(contract, source, name) for name in columns}
    rows = list(_from(source, owners, "FILTER", OWNED))
    if contract.source.period_column:
        rows.append(ColumnOrigin(source, contract.source.period_column, "FILTER", description=OF_PERIOD))
    return ColumnDescent(origins, rows=tuple(rows))


def canaries(columns: Iterable[str]) -> ColumnDescent:
    """Canaries have no origin in the data."""
    from dpsynth_platform.bounding.output import INCLUDED_COLUMN

    return ColumnDescent(without={name: COIN if name == INCLUDED_COLUMN else FROM_CONTRACT for name in columns})


def bounded(
    contract: DataContract, before: DatasetName, canaries: DatasetName, columns: Iterable[str]
) -> ColumnDescent:
    """Rows of the scrubbed table that are kept, and the canaries that joined them."""
    from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, OWNERS_COLUMN, RECORD_COLUMN

    # A canary has one owner, even if records have several.
    origins = {
        name: (ColumnOrigin(before, name), ColumnOrigin(canaries, OWNER_COLUMN if name == OWNERS_COLUMN else name))
        for name in columns
    }
    owner = OWNERS_COLUMN if contract.privacy.multi_owner else OWNER_COLUMN
    rows = [
        ColumnOrigin(before, owner, "FILTER", description=CLEARED),
        ColumnOrigin(before, RECORD_COLUMN, "SORT", description=ORDERED),
    ]
    if contract.privacy.weight:
        rows.append(ColumnOrigin(before, contract.privacy.weight, "SORT", description=ORDERED))
    return ColumnDescent(origins, rows=tuple(rows))


def synthetic(contract: DataContract, before: DatasetName, source: pa.Schema) -> ColumnDescent:
    """Columns of the synthetic table: through the model, from those of the bounded table `before`.

    A written column comes from a language model that was trained on its texts and the conditioning columns. A modelled
    column comes from its own counts. Pictures that are drawn from texts come from the written column. Rows are drawn
    from one joint model, so every modelled column (and the owner, if an owner's records share one weight) affects all
    rows.

    Args:
        source: the source's schema.
    """
    from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN

    weighed = (
        [ColumnOrigin(before, OWNER_COLUMN, "GROUP_BY", masking=True, description=WEIGHED)]
        if contract.privacy.weighting == "owners"
        else []
    )
    if contract.generate.answers:
        return _answers(contract, before, weighed)
    treatments = treatments_of(contract, source)
    modelled = [name for name, treatment in treatments.items() if treatment == "modelled"]
    written = [name for name, treatment in treatments.items() if treatment == "written"]
    pictured = [name for name, treatment in treatments.items() if treatment == "pictured"]
    captioned = contract.generate.drawn is not None
    purpose = CLASSIFIED if pictured and not captioned else CONDITIONING
    conditioning = _from(before, contract.conditioning_columns, "CONDITIONAL", purpose)
    reasons = {"regenerated": FRESH_IDS, "empty": LEFT_EMPTY}
    rows = [*_from(before, modelled, "CONDITIONAL", JOINTLY), *weighed]
    return ColumnDescent(
        {name: _from(before, [name], "AGGREGATION", MODELLED) for name in modelled}
        | {name: (*_from(before, [name], "AGGREGATION", WRITTEN), *conditioning) for name in written}
        | {
            name: (
                *_from(before, written if captioned else [name], "AGGREGATION", ILLUSTRATED if captioned else PICTURED),
                *conditioning,
            )
            for name in pictured
        },
        {name: reasons[treatment] for name, treatment in treatments.items() if treatment in reasons},
        tuple(rows),
    )


def _answers(contract: DataContract, before: DatasetName, weighed: Sequence[ColumnOrigin]) -> ColumnDescent:
    """Columns of the table of answers: every answer comes of all columns that its query names."""
    from dpsynth_platform.scrub.fingerprints import RECORD_COLUMN

    read = list(dict.fromkeys(name for query in contract.queries.values() for name in query.columns))
    origin = _from(before, read or [RECORD_COLUMN], "AGGREGATION", ANSWERED)
    numbers = ("answer", "low", "high", "standard_error")
    others = [name for name in contract.answer_columns if name not in numbers]
    return ColumnDescent(dict.fromkeys(numbers, origin), dict.fromkeys(others, FROM_CONTRACT), tuple(weighed))


def released(before: DatasetName, columns: Iterable[str]) -> ColumnDescent:
    """The same columns as those of the synthetic table."""
    return ColumnDescent({name: (ColumnOrigin(before, name, description=PUBLISHED),) for name in columns})


def treatments_of(contract: DataContract, source: pa.Schema) -> dict[str, str]:
    """How each column of the source is released: modelled, written, regenerated, empty or absent; or `answered`."""
    if contract.generate.answers:
        return dict.fromkeys(contract.answer_columns, "answered")
    from dpsynth_platform.synth.tabular.restore import release_schema

    return dict(release_schema(contract, source).treatments)


def _scrubbed_column(contract: DataContract, source: DatasetName, name: str) -> tuple[ColumnOrigin, ...]:
    from dpsynth_platform.scrub.clues import column_kind

    declared = contract.columns[name]
    if declared.type == "image":
        return _from(source, [name], "TRANSFORMATION", DECODED)
    if declared.type != "text":
        return (ColumnOrigin(source, name),)
    own = _from(source, [name], "TRANSFORMATION", _TREATED[declared.pii])
    if declared.pii == "hash" or column_kind(name) is not None:
        return own
    identifying = [other for other, column in contract.columns.items() if _is_clue(other, column)]
    return (*own, *_from(source, identifying, "CONDITIONAL", CLUE))


def _is_clue(name: str, column: Column) -> bool:
    """Whether the scrubber searches free texts for the column's values (`scrub.clues`)."""
    from dpsynth_platform.scrub.clues import column_kind

    if column.type == "text":
        return column.pii in ("drop", "hash") or column_kind(name) is not None
    return column.type == "identifier"


def _from(source: DatasetName, columns: Iterable[str], subtype: str, description: str) -> tuple[ColumnOrigin, ...]:
    masking = subtype in ("TRANSFORMATION", "AGGREGATION", "CONDITIONAL")
    return tuple(ColumnOrigin(source, name, subtype, masking, description) for name in columns)
