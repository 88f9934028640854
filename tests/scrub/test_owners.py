"""Whose a row is: one owner column, several, or a list; whatever stands in it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.fingerprints import FingerprintKeys, owner_fingerprint
from dpsynth_platform.scrub.owners import OwnerReader, listed_values
from dpsynth_platform.scrub.scrub import ScrubKeys, ScrubReport, check_source_schema, scrub_batches

KEYS = FingerprintKeys(b"1" * 32, (b"2" * 32,))


def reader(*columns: str, normalization: tuple[str, ...] = ()) -> OwnerReader:
    privacy = Privacy.model_validate(
        {
            "unit": "user",
            "owner_columns": list(columns),
            "owner_normalization": list(normalization),
            "namespace": "person",
            "adjacency": "fixed-graph",
            "max_contributions": 1,
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        }
    )
    return OwnerReader(privacy, KEYS)


def prints(*ids: str) -> tuple[str, ...]:
    return tuple(sorted(owner_fingerprint(text, KEYS) for text in ids))


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string())])
def test_a_list_is_a_set_of_owners(kind: pa.DataType) -> None:
    values: list[Any] = [["a", "b"], ["b", "a", "b"], ["a", None, ""], [], None, [None]]
    found = reader("authors")
    batch = pa.record_batch({"authors": pa.array(values, kind)})
    assert list(found.read(batch)) == [prints("a", "b"), prints("a", "b"), prints("a"), (), (), ()]
    assert (found.missing, found.repeated) == (2, 1)


def test_columns_together_own_a_row() -> None:
    batch = pa.record_batch({"patient": ["a", "a", None, None], "clerk": pa.array([7, None, 8, None], pa.int64())})
    found = reader("patient", "clerk")
    assert list(found.read(batch)) == [prints("a", "7"), prints("a"), prints("8"), ()]
    assert (found.missing, found.repeated) == (2, 0)


def test_a_list_beside_a_column() -> None:
    batch = pa.record_batch({"sender": ["a"], "recipients": pa.array([["b", "a"]], pa.list_(pa.string()))})
    found = reader("sender", "recipients")
    assert list(found.read(batch)) == [prints("a", "b")]
    assert found.repeated == 1


def test_normalization_makes_one_person_of_two_spellings() -> None:
    batch = pa.record_batch({"authors": pa.array([[" Ada", "ADA"]], pa.list_(pa.string()))})
    assert list(reader("authors", normalization=("trim", "casefold")).read(batch)) == [prints("ada")]
    assert len(reader("authors").read(batch)[0]) == 2


def test_a_slice_reads_its_own_rows() -> None:
    batch = pa.record_batch({"authors": pa.array([["a"], ["b", "c"], ["d"]], pa.list_(pa.string()))})
    assert list(reader("authors").read(batch.slice(1, 1))) == [prints("b", "c")]


def test_elements_have_names_of_their_own() -> None:
    assert list(listed_values("authors", ["x", None])) == [("authors\n0", "x"), ("authors\n1", None)]
    assert list(listed_values("name", "x")) == [("name", "x")]


def papers(**columns: Any) -> DataContract:
    document = {
        "dataset": "papers",
        "description": "Papers of fictional authors.",
        "owners": ["papers@example.org"],
        "source": {"uri": "unused", "key": ["paper"]},
        "family": "papers",
        "privacy": {
            "unit": "user",
            "owner_columns": ["authors"],
            "namespace": "person",
            "adjacency": "fixed-graph",
            "max_contributions": 1,
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        },
        "columns": {
            "paper": {"type": "identifier"},
            "authors": {"type": "identifier", "nullable": True},
            "pages": {"type": "integer", "min": 0, "max": 99},
            "peer_reviewed": {"type": "boolean"},
            "abstract": {"type": "text", "pii": "mask"},
        }
        | columns,
        "generate": {"rows": 10},
        "release": {"uri": "unused"},
    }
    return parse_contract(document, where="papers.yaml", variables={})


SCHEMA = pa.schema(
    {
        "paper": pa.string(),
        "authors": pa.list_(pa.string()),
        "pages": pa.int64(),
        "peer_reviewed": pa.bool_(),
        "abstract": pa.string(),
    }
)


def scrubbed(*authors: Any) -> tuple[list[dict[str, Any]], ScrubReport]:
    lists = authors[0] if isinstance(authors[0], pa.Array) else pa.array(authors, pa.list_(pa.string()))
    rows = pa.table(
        {
            "paper": [f"p{number}" for number in range(len(lists))],
            "authors": lists,
            "pages": [1] * len(lists),
            "peer_reviewed": [True] * len(lists),
            "abstract": ["We thank Zaphodia for it, and Zaphodia only."] * len(lists),
        },
        schema=SCHEMA,
    )
    keys = ScrubKeys(owner=KEYS, record=b"3" * 32, column=b"4" * 32)
    schema, batches, report = scrub_batches(rows.to_batches(), papers(), SCHEMA, keys)
    return pa.Table.from_batches(list(batches), schema).to_pylist(), report


def test_the_scrubbed_table_has_a_list_of_owners() -> None:
    rows, report = scrubbed(["Zaphodia", "b"], [], ["c", None])
    assert [row["_owners"] for row in rows] == [list(prints("Zaphodia", "b")), list(prints("c"))]
    assert (report.rows_without_owner, report.owners_without_id) == (1, 1)
    assert "Zaphodia" not in rows[0]["abstract"]  # each listed owner is a clue for the record's texts


def test_a_record_s_id_follows_from_who_owns_it_and_its_key_whatever_their_order() -> None:
    (one,), _ = scrubbed(["a", "b"])
    (other,), _ = scrubbed(["b", "a", "b"])
    (third,), _ = scrubbed(["a", "b", "c"])
    assert one["_record"] == other["_record"] != third["_record"]


def broken(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Bytes that are passed off as text."""
    binary = pa.list_(pa.binary()) if pa.types.is_list(kind) else pa.binary()
    return pa.array(values, binary).view(kind)


def test_a_record_with_an_owner_that_is_not_utf8_leaves_as_a_whole() -> None:
    """Otherwise that owner would take part in it and nobody would be charged."""
    authors = broken([[b"a", b"\xff\xfe"], [b"a", None, b""], [b"\xff", b"\xfe"], None], pa.list_(pa.string()))
    rows, report = scrubbed(authors)
    assert [row["_owners"] for row in rows] == [list(prints("a"))]
    assert (report.damaged, report.owners_without_id) == ({"authors": 3}, 2)
    assert (report.rows_read, report.rows_without_owner) == (4, 3)


def test_a_record_with_one_damaged_owner_column_leaves_as_a_whole() -> None:
    document = papers(clerk={"type": "identifier", "nullable": True}).model_dump(mode="json", exclude_none=True)
    document["privacy"]["owner_columns"] = ["authors", "clerk"]
    contract = parse_contract(document, where="papers.yaml", variables={})
    schema = SCHEMA.set(1, pa.field("authors", pa.string())).append(pa.field("clerk", pa.string()))
    rows = pa.record_batch(
        [["p", "q", "r"], ["a", "b", "c"], [1] * 3, [True] * 3, ["x"] * 3, broken([b"d", b"\xf6", None], pa.string())],
        schema=schema,
    )
    keys = ScrubKeys(owner=KEYS, record=b"3" * 32, column=b"4" * 32)
    _, batches, report = scrub_batches([rows], contract, schema, keys)
    assert [found for batch in batches for found in batch["_owners"].to_pylist()] == [
        list(prints("a", "d")),
        list(prints("c")),
    ]
    assert (report.rows_without_owner, report.owners_without_id) == (1, 1)


def test_only_an_owner_column_may_hold_lists() -> None:
    with pytest.raises(SourceError, match=r"columns\.paper: declared identifier, found Arrow type list"):
        check_source_schema(papers(), SCHEMA.set(0, pa.field("paper", pa.list_(pa.string()))))
    with pytest.raises(SourceError, match=r"columns\.authors: .* or bytes, or a list of strings or integers"):
        check_source_schema(papers(), SCHEMA.set(1, pa.field("authors", pa.list_(pa.float64()))))
