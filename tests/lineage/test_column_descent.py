from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.lineage import columns, facets, naming
from dpsynth_platform.lineage.columns import ColumnDescent, ColumnOrigin
from dpsynth_platform.scrub.scrub import scrubbed_schema

SOURCE = naming.dataset_name("/data/visits")
SCRUBBED, CANARIES, BOUNDED = (naming.dataset_name(f"/r/visits/{step}") for step in ("scrubbed", "canaries", "bounded"))
COLUMNS: dict[str, dict[str, Any]] = {
    "person": {"type": "identifier"},
    "clerk": {"type": "identifier"},
    "visit": {"type": "identifier"},
    "day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
    "rank": {"type": "integer", "min": 0, "max": 9},
    "score": {"type": "float", "min": 0, "max": 1},
    "full_name": {"type": "text", "pii": "drop"},
    "email": {"type": "text", "pii": "mask"},
    "badge": {"type": "text", "pii": "hash"},
    "remark": {"type": "text", "pii": "replace"},
    "note": {"type": "text", "pii": "mask"},
}
ARROW = pa.schema(
    [
        (name, {"date": pa.date32(), "integer": pa.int64(), "float": pa.float64()}.get(column["type"], pa.string()))
        for name, column in COLUMNS.items()
    ]
)


def contract(*, cadence: bool = False, multi_owner: bool = False, **privacy: Any) -> DataContract:
    period = {"period_column": "day"} if cadence else {}
    several = {"owner_columns": ["person", "clerk"], "adjacency": "fixed-graph"} if multi_owner else {}
    return parse_contract(
        {
            "dataset": "visits",
            "description": "Visits.",
            "owners": ["clinic@example.org"],
            "source": {"uri": "/data/visits", "key": ["visit"], **period},
            "family": "clinic",
            "privacy": {
                "unit": "user",
                "owner_columns": ["person"],
                "namespace": "patient",
                "max_contributions": 2,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 1000,
                **several,
                **privacy,
            },
            "columns": COLUMNS,
            "generate": {"rows": 100},
            "release": {"uri": "/public/visits", **({"cadence": "monthly", "start": "2026-01"} if cadence else {})},
        },
        where="test",
        variables={},
    )


def named(origins: tuple[ColumnOrigin, ...]) -> list[tuple[str, str, bool]]:
    return [(origin.column, origin.subtype, origin.masking) for origin in origins]


def scrubbed_of(declared: DataContract) -> ColumnDescent:
    return columns.scrubbed(declared, SOURCE, scrubbed_schema(declared, ARROW).names)


def test_columns_without_identities_pass_scrubbing_as_they_are() -> None:
    descent = scrubbed_of(contract())
    assert "full_name" not in descent.origins
    for name in ("day", "rank", "score"):
        assert descent.origins[name] == (ColumnOrigin(SOURCE, name),)
    assert descent.without == {}


def test_text_is_masked_and_free_text_also_by_what_other_columns_say() -> None:
    origins = scrubbed_of(contract()).origins
    for name, sentence in (("email", columns.MASKED), ("badge", columns.HASHED)):
        assert origins[name] == (ColumnOrigin(SOURCE, name, "TRANSFORMATION", True, sentence),)
    clues = ["person", "clerk", "visit", "full_name", "email", "badge"]
    for name, sentence in (("remark", columns.REPLACED), ("note", columns.MASKED)):
        own, *others = origins[name]
        assert own == ColumnOrigin(SOURCE, name, "TRANSFORMATION", True, sentence)
        assert others == [ColumnOrigin(SOURCE, clue, "CONDITIONAL", True, columns.CLUE) for clue in clues]


def test_clues_are_those_that_scrubbing_looks_for() -> None:
    from dpsynth_platform.scrub.fingerprints import FingerprintKeys
    from dpsynth_platform.scrub.scrub import ScrubKeys, _Scrubber

    declared = contract()
    keys = ScrubKeys(FingerprintKeys(b"1" * 32, b"2" * 32), b"3" * 32, b"4" * 32)
    scrubber = _Scrubber(declared, scrubbed_schema(declared, ARROW), keys)
    origins = scrubbed_of(declared).origins
    looked_for = {name: [origin.column for origin in origins[name][1:]] for name in scrubber.free}
    assert looked_for == dict.fromkeys(["remark", "note"], scrubber._identifying)


@pytest.mark.parametrize(("several", "owner"), [(False, "_owner"), (True, "_owners")])
def test_owners_become_fingerprints(several: bool, owner: str) -> None:
    declared = contract(multi_owner=several)
    descent = scrubbed_of(declared)
    owners = declared.privacy.owner_columns
    assert named(descent.origins[owner]) == [(name, "TRANSFORMATION", True) for name in owners]
    assert named(descent.origins["_record"]) == [(name, "TRANSFORMATION", True) for name in (*owners, "visit")]
    assert named(descent.rows) == [(name, "FILTER", False) for name in owners]


def test_a_period_decides_over_rows() -> None:
    assert scrubbed_of(contract(cadence=True)).rows[-1].column == "day"


@pytest.mark.parametrize("several", [False, True])
def test_bounded_rows_are_scrubbed_ones_and_canaries(several: bool) -> None:
    declared = contract(multi_owner=several, record_order="weight:rank")
    owner = "_owners" if several else "_owner"
    names = [*declared.modelled, owner, "_record"]
    descent = columns.bounded(declared, SCRUBBED, CANARIES, names)
    assert list(descent.origins) == names
    for name in names:
        bait = "_owner" if name == owner else name
        assert descent.origins[name] == (ColumnOrigin(SCRUBBED, name), ColumnOrigin(CANARIES, bait))
    assert named(descent.rows) == [(owner, "FILTER", False), ("_record", "SORT", False), ("rank", "SORT", False)]


def test_canaries_come_from_nobody() -> None:
    descent = columns.canaries(["rank", "_owner", "_record", "included"])
    assert descent.origins == {} and descent.rows == ()
    assert descent.without["included"] == columns.COIN
    assert {descent.without[name] for name in ("rank", "_owner", "_record")} == {columns.FROM_CONTRACT}


def test_synthetic_columns_come_through_the_model_masked_or_from_nowhere_with_why() -> None:
    declared = contract()
    descent = columns.synthetic(declared, BOUNDED, ARROW)
    assert set(descent.origins) == set(declared.modelled)
    for name, origins in descent.origins.items():
        assert origins == (ColumnOrigin(BOUNDED, name, "AGGREGATION", True, columns.MODELLED),)
    assert descent.without == dict.fromkeys(["person", "clerk", "visit"], columns.FRESH_IDS) | dict.fromkeys(
        ["email", "badge", "remark", "note"], columns.LEFT_EMPTY
    )
    assert named(descent.rows) == [(name, "CONDITIONAL", True) for name in declared.modelled]


def test_a_weight_of_shared_records_is_not_modelled_and_comes_from_nowhere() -> None:
    descent = columns.synthetic(contract(multi_owner=True, record_order="weight:rank"), BOUNDED, ARROW)
    assert descent.without["rank"] == columns.LEFT_EMPTY
    assert "rank" not in {origin.column for origin in descent.rows}


def test_owners_that_are_counted_decide_over_rows() -> None:
    descent = columns.synthetic(contract(weighting="owners"), BOUNDED, ARROW)
    assert descent.rows[-1] == ColumnOrigin(BOUNDED, "_owner", "GROUP_BY", True, columns.WEIGHED)


def test_released_columns_are_the_synthetic_ones() -> None:
    descent = columns.released(BOUNDED, ["rank"])
    assert descent.origins == {"rank": (ColumnOrigin(BOUNDED, "rank", description=columns.PUBLISHED),)}


def test_only_fixed_words_are_used() -> None:
    for several in (False, True):
        declared = contract(multi_owner=several, cadence=True, record_order="weight:rank")
        for descent in (
            scrubbed_of(declared),
            columns.canaries(["rank", "included"]),
            columns.bounded(declared, SCRUBBED, CANARIES, declared.modelled),
            columns.synthetic(declared, BOUNDED, ARROW),
            columns.released(BOUNDED, ["rank"]),
        ):
            origins = [*descent.rows, *(origin for found in descent.origins.values() for origin in found)]
            assert {origin.subtype for origin in origins} <= columns.SUBTYPES
            words = {origin.description for origin in origins} | set(descent.without.values())
            assert words - {""} <= columns.SENTENCES


def test_the_facet_says_all_of_it() -> None:
    facet: Any = facets.column_lineage(columns.synthetic(contract(), BOUNDED, ARROW))["columnLineage"]
    (origin,) = facet.fields["rank"].inputFields
    (step,) = origin.transformations
    assert (origin.namespace, origin.name, origin.field) == (BOUNDED.namespace, BOUNDED.name, "rank")
    assert (step.type, step.subtype, step.masking, step.description) == (
        "DIRECT",
        "AGGREGATION",
        True,
        columns.MODELLED,
    )
    assert facet.fields["person"].inputFields == []
    assert facet.fields["person"].transformationDescription == columns.FRESH_IDS
    assert {item.transformations[0].type for item in facet.dataset} == {"INDIRECT"}
