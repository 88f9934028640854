"""Scrubbing a table: nothing directly identifying survives, the rest stays as it is, ids depend on the owner alone."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from residue import residues

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub import scrub
from dpsynth_platform.scrub.fingerprints import FingerprintKeys, canonical_text, owner_fingerprint
from dpsynth_platform.scrub.owners import LEAST_OWNERS
from dpsynth_platform.scrub.scrub import ScrubKeys, ScrubReport, check_source_schema, scrub_batches, scrubbed_schema

Row = dict[str, Any]
DOCUMENT: dict[str, Any] = {
    "dataset": "letters",
    "description": "Letters of fictional customers.",
    "owners": ["letters@example.org"],
    "source": {"uri": "unused", "key": ["customer", "number"]},
    "family": "letters",
    "privacy": {
        "unit": "user",
        "owner_columns": ["customer"],
        "owner_normalization": ["trim", "casefold"],
        "namespace": "customer",
        "max_contributions": 1,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    },
    "columns": {
        "customer": {"type": "identifier"},
        "number": {"type": "identifier"},
        "age": {"type": "integer", "min": 0, "max": 120},
        "score": {"type": "float", "min": 0, "max": 1},
        "colour": {"type": "categorical", "values": ["red", "blue"], "nullable": True},
        "full_name": {"type": "text", "pii": "drop"},
        "email": {"type": "text", "pii": "hash"},
        "phone": {"type": "text", "pii": "mask"},
        "second_name": {"type": "text", "pii": "replace"},
        "letter": {"type": "text", "pii": "replace"},
        "note": {"type": "text", "pii": "mask"},
    },
    "generate": {"rows": 10},
    "release": {"uri": "unused"},
}
SCHEMA = pa.schema(
    {
        "customer": pa.string(),
        "number": pa.int64(),
        "age": pa.int16(),
        "score": pa.float32(),
        "colour": pa.string(),
        "full_name": pa.string(),
        "email": pa.string(),
        "phone": pa.string(),
        "second_name": pa.string(),
        "letter": pa.string(),
        "note": pa.large_string(),
    }
)


@pytest.fixture
def contract() -> DataContract:
    return parse_contract(DOCUMENT, where="letters.yaml", variables={})


@pytest.fixture
def keys() -> ScrubKeys:
    return ScrubKeys(owner=FingerprintKeys(b"1" * 32, (b"2" * 32,)), record=b"3" * 32, column=b"4" * 32)


@pytest.fixture
def schema() -> pa.Schema:
    return SCHEMA


def make_row(customer: str | None, number: int = 1, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    return row | {"customer": customer, "number": number, "age": 40, "score": 0.5} | values


def run(
    rows: Iterable[Row], contract: DataContract, keys: ScrubKeys, size: int = 100, **options: Any
) -> tuple[list[Row], ScrubReport]:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    schema, batches, report = scrub_batches(table.to_batches(max_chunksize=size), contract, SCHEMA, keys, **options)
    return pa.Table.from_batches(list(batches), schema).to_pylist(), report


def test_columns_and_types(contract: DataContract, schema: pa.Schema) -> None:
    assert scrubbed_schema(contract, schema) == pa.schema(
        {
            "age": pa.int16(),
            "score": pa.float32(),
            "colour": pa.string(),
            "email": pa.string(),
            "phone": pa.string(),
            "second_name": pa.string(),
            "letter": pa.string(),
            "note": pa.string(),
            "_owner": pa.string(),
            "_record": pa.string(),
        }
    )


def test_nothing_identifying_survives(contract: DataContract, keys: ScrubKeys) -> None:
    # No chance makes a mark: fictional telephone numbers end in 555-01.., and no id or number is the original.
    marks = ["Xqzmark", "Ploverdale", "Zweitmark", "912-31-4567", "555-0247", "xq.plover", "C-88123"]
    row = make_row(
        "C-88123",
        4711,
        colour="red",
        full_name="Xqzmark Ploverdale",
        email="xq.plover@example.org",
        phone="(212) 555-0247",
        second_name="Zweitmark",
        letter="Xqzmark here, call Ploverdale on 2125550247 or 212-555-0247; SSN 912-31-4567, my number is C-88123.",
        note="zweitmark wrote from xq.plover@example.org",
    )
    (scrubbed,), report = run([row], contract, keys)
    text = repr(scrubbed).casefold()
    assert [mark for mark in marks if mark.casefold() in text] == []
    assert (scrubbed["age"], scrubbed["colour"]) == (40, "red")
    assert scrubbed["phone"] == "<PHONE_NUMBER>"
    assert scrubbed["note"].startswith("<PERSON> wrote from <EMAIL_ADDRESS>")
    assert scrubbed["second_name"]
    assert len(scrubbed["email"]) == 32
    assert report.texts == {"letter": 1, "note": 1}
    assert report.findings["note"] == {"PERSON": 1, "EMAIL_ADDRESS": 1}
    assert "xqzmark" not in repr(report.as_dict()).casefold()


def test_hash_is_stable_and_replacement_is_fresh(contract: DataContract, keys: ScrubKeys) -> None:
    rows = [make_row(str(number), email="a@example.org", second_name="Ann Smith") for number in range(20)]
    scrubbed, _ = run(rows, contract, keys)
    again, _ = run(rows, contract, keys)
    assert len({row["email"] for row in scrubbed + again}) == 1
    assert len({row["second_name"] for row in scrubbed}) > 10
    assert [row["second_name"] for row in scrubbed] != [row["second_name"] for row in again]


def test_null_stays_null(contract: DataContract, keys: ScrubKeys) -> None:
    (row,), report = run([make_row("C-1")], contract, keys)
    assert all(row[name] is None for name in ("colour", "email", "phone", "second_name", "letter", "note"))
    assert report.texts == {"letter": 0, "note": 0}


def test_rows_without_an_owner_are_left_out_and_counted(contract: DataContract, keys: ScrubKeys) -> None:
    rows = [make_row(None), make_row("C-1"), make_row("  "), make_row("C-2")]
    scrubbed, report = run(rows, contract, keys)
    assert len(scrubbed) == 2
    assert (report.rows_read, report.rows_without_owner) == (4, 2)


def test_one_person_is_one_owner(contract: DataContract, keys: ScrubKeys) -> None:
    scrubbed, _ = run([make_row("C-1 "), make_row("c-1"), make_row("C-2")], contract, keys)
    owners = [row["_owner"] for row in scrubbed]
    assert owners[0] == owners[1] != owners[2]
    assert owners[0] == owner_fingerprint(canonical_text("c-1") or "", keys.owner)
    assert scrubbed[0]["_record"] == scrubbed[1]["_record"]


def test_ids_do_not_depend_on_order_batches_or_other_owners(contract: DataContract, keys: ScrubKeys) -> None:
    rows = [make_row(f"C-{number % 7}", number, age=number) for number in range(40)]
    scrubbed, _ = run(rows, contract, keys)
    expected = {row["age"]: (row["_owner"], row["_record"]) for row in scrubbed}
    assert len({record for _, record in expected.values()}) == 40
    shuffled = random.Random(1).sample(rows, len(rows))
    again, _ = run(shuffled, contract, keys, size=3)
    assert {row["age"]: (row["_owner"], row["_record"]) for row in again} == expected
    fewer, _ = run([row for row in shuffled if row["customer"] != "C-3"], contract, keys)
    assert {row["age"]: (row["_owner"], row["_record"]) for row in fewer}.items() <= expected.items()


def test_progress(contract: DataContract, keys: ScrubKeys) -> None:
    seen: list[tuple[int, int | None]] = []
    run(
        [make_row(str(number)) for number in range(5)],
        contract,
        keys,
        size=2,
        progress=lambda *at: seen.append(at),
        total=5,
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_a_source_that_does_not_fit_is_refused_before_a_row_is_read(contract: DataContract, keys: ScrubKeys) -> None:
    schema = SCHEMA.remove(SCHEMA.get_field_index("email")).append(pa.field("salary", pa.int64()))
    schema = schema.set(schema.get_field_index("age"), pa.field("age", pa.string()))

    def unread() -> Iterable[pa.RecordBatch]:
        raise AssertionError("a row was read")
        yield

    with pytest.raises(SourceError) as raised:
        scrub_batches(unread(), contract, schema, keys)
    assert str(raised.value).splitlines() == [
        "letters: source: not declared in the contract: salary; declare each, with ignore: true to leave it out",
        "letters: source: columns.age: declared integer, found Arrow type string; accepted: integer, float, "
        "duration or decimal of scale 0 (of others: type float)",
        "letters: source: column 'email' (text) is declared, but not in the source",
    ]


@pytest.mark.parametrize(
    ("name", "type_", "fits"),
    [
        ("age", pa.uint8(), True),
        ("age", pa.float64(), True),
        ("age", pa.bool_(), False),
        ("score", pa.int64(), False),
        ("score", pa.string(), False),
        ("colour", pa.large_string(), True),
        ("colour", pa.int64(), True),
        ("colour", pa.float64(), False),
        ("colour", pa.string_view(), True),
        ("customer", pa.int32(), True),
        ("customer", pa.binary(), False),
        ("letter", pa.list_(pa.string()), False),
    ],
)
def test_types_that_fit(contract: DataContract, name: str, type_: pa.DataType, fits: bool) -> None:
    schema = SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, type_))
    if fits:
        check_source_schema(contract, schema)
    else:
        with pytest.raises(SourceError, match=f"columns.{name}: declared"):
            check_source_schema(contract, schema)


def test_the_heavy_libraries_come_late() -> None:
    code = (
        "import sys, dpsynth_platform.scrub.scrub, dpsynth_platform.bounding.single_owner;"
        "print([name for name in ('spacy', 'presidio_analyzer', 'faker', 'duckdb', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def changed(**parts: Any) -> DataContract:
    return parse_contract(DOCUMENT | parts, where="letters.yaml", variables={})


def test_actions_by_entity_type(keys: ScrubKeys) -> None:
    contract = changed(scrub={"actions": {"EMAIL_ADDRESS": "drop", "PHONE_NUMBER": "mask", "US_SSN": "hash"}})
    text = "Write to [xq@corp.com], call 212-736-5000, number 078-05-1120, or see Maria Alvarez."
    (first, second), _ = run([make_row("C-1", letter=text), make_row("C-2", letter=text)], contract, keys)
    found = re.fullmatch(
        r"Write to \[\], call <PHONE_NUMBER>, number <US_SSN:([0-9a-f]{32})>, or see (\w+ [\w']+)\.", first["letter"]
    )
    assert found is not None, first["letter"]
    assert found.group(1) in second["letter"]
    assert found.group(2) != "Maria Alvarez"


def test_a_name_that_is_also_in_an_address_is_not_dropped_with_addresses(keys: ScrubKeys) -> None:
    contract = changed(scrub={"actions": {"EMAIL_ADDRESS": "drop"}})
    text = "Miriam Penhale and Nora Ostrander share [nora@x.example]."
    ((scrubbed,), _) = run([make_row("C-1", letter=text, email="nora@x.example")], contract, keys)
    assert re.fullmatch(r"[\w']+ [\w']+ and [\w']+ [\w']+ share \[\]\.", scrubbed["letter"]), scrubbed["letter"]
    assert not re.search("miriam|penhale|nora|ostrander", scrubbed["letter"], re.IGNORECASE)


def test_values_are_consistent_within_an_owner_where_asked(keys: ScrubKeys) -> None:
    contract = changed(scrub={"consistent": "owner"})
    rows = [make_row("C-1", number, letter="We met Maria Alvarez.", second_name="Ann Smith") for number in range(3)]
    rows += [make_row(f"D-{number}", letter="We met Maria Alvarez.") for number in range(5)]
    scrubbed, _ = run(rows, contract, keys, size=2)
    mine = {(row["letter"], row["second_name"]) for row in scrubbed if row["second_name"]}
    assert len(mine) == 1
    assert len({row["letter"] for row in scrubbed}) > 3
    again, _ = run(list(reversed(rows)), contract, keys)
    assert {row["letter"] for row in again} == {row["letter"] for row in scrubbed}
    assert "Alvarez" not in repr(scrubbed)


def test_a_text_that_a_pattern_takes_too_long_for_is_masked_as_a_whole_and_counted(
    keys: ScrubKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the process's own time: enough for the short text, also where memory is tidied up meanwhile.
    monkeypatch.setattr("dpsynth_platform.scrub.detection.PATTERN_SECONDS", 0.5)
    own = {"patterns": [{"entity": "LOOP", "pattern": "(x+x+)+y"}], "actions": {"UNREAD": "replace"}}
    rows = [make_row("C-1", letter="Maria Alvarez: " + "x" * 5000), make_row("C-2", letter="It is well.")]
    scrubbed, report = run(rows, changed(scrub=own), keys)
    assert [row["letter"] for row in scrubbed] == ["<UNREAD>", "It is well."]
    assert report.findings["letter"] == {"UNREAD": 1}
    assert report.as_dict()["findings"]["letter"] == {"UNREAD": "fewer than 10"}


@pytest.mark.parametrize("owners", [LEAST_OWNERS - 1, LEAST_OWNERS])
def test_patterns_that_take_too_long_for_many_owners_stop_the_run(
    owners: int, keys: ScrubKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsynth_platform.scrub.detection.PATTERN_SECONDS", 0.01)
    monkeypatch.setattr("dpsynth_platform.scrub.detection.PATTERN_SECONDS_PER_CHARACTER", 0.0)
    contract = changed(scrub={"patterns": [{"entity": "LOOP", "pattern": "(x+x+)+y"}]})
    rows = [make_row(f"C-{number % owners}", number, letter="Alvarez " + "x" * 5000) for number in range(owners + 5)]
    if owners < LEAST_OWNERS:
        assert {row["letter"] for row in run(rows, contract, keys)[0]} == {"<UNREAD>"}
    else:
        with pytest.raises(SourceError, match=r"scrub\.patterns: the contract's own patterns take too long") as raised:
            run(rows, contract, keys)
        assert "Alvarez" not in str(raised.value)


def test_text_that_is_not_utf8_is_read_as_far_as_it_goes_and_counted(contract: DataContract, keys: ScrubKeys) -> None:
    rows = [make_row("C-1", 1, letter="good"), make_row("C-2", 2, letter="??? Maria Alvarez"), make_row("C-3", 3)]
    batch = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()[0]

    def damaged(name: str, values: list[bytes | None]) -> pa.RecordBatch:
        position = SCHEMA.get_field_index(name)
        raw = pa.array(values, pa.binary())
        column = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
        return batch.set_column(position, SCHEMA.field(position), column)

    batch = damaged("letter", [b"good", b"\xff\xed\xa0\x80 Maria Alvarez", None])
    batch = damaged("customer", [b"C-1", b"C-2", b"C-\xfe"])
    schema, batches, report = scrub_batches([batch], contract, SCHEMA, keys)
    scrubbed = pa.Table.from_batches(list(batches), schema).to_pylist()
    assert len(scrubbed) == 2
    assert "\ufffd" in scrubbed[1]["letter"]
    assert "Alvarez" not in scrubbed[1]["letter"]
    assert (report.rows_without_owner, report.damaged) == (1, {"letter": 1, "customer": 1})
    assert report.as_dict()["damaged"] == {"customer": "fewer than 10", "letter": "fewer than 10"}


def test_a_batch_of_other_columns_stops_the_run(contract: DataContract, keys: ScrubKeys) -> None:
    batch = pa.Table.from_pylist([make_row("C-1", full_name="Xqzmark")], schema=SCHEMA).to_batches()[0]
    position = SCHEMA.get_field_index("age")
    other = batch.set_column(position, pa.field("age", pa.string()), pa.array(["secret"]))
    _, batches, _ = scrub_batches([batch, other], contract, SCHEMA, keys)
    with pytest.raises(SourceError) as raised:
        list(batches)
    assert str(raised.value) == (
        "letters: source: a part of it has other columns than the rest: 'age' is string instead of int16"
    )


def test_small_counts_are_not_shown(contract: DataContract, keys: ScrubKeys) -> None:
    rows = [make_row(f"C-{number}", letter=f"call 212-736-5{number:03d}") for number in range(12)]
    rows.append(make_row("C-99", letter="write to xq@corp.com"))
    _, report = run(rows, contract, keys)
    shown = report.as_dict()
    assert shown["findings"]["letter"] == {"EMAIL_ADDRESS": "fewer than 10", "PHONE_NUMBER": 12}
    assert "does not rest on it" in shown["limits"]


def test_large_texts_are_taken_in_small_chunks(
    contract: DataContract, keys: ScrubKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "CHUNK_BYTES", 1000)
    rows = [make_row(f"C-{number}", letter="word " * size) for number, size in enumerate((10, 10, 900, 10, 500, 10))]
    seen: list[int] = []
    scrubbed, report = run(rows, contract, keys, progress=lambda done, _: seen.append(done))
    assert [row["letter"] for row in scrubbed] == [row["letter"] for row in rows]
    assert seen == [2, 3, 4, 5, 6]
    assert report.rows_read == 6


def test_a_column_that_looks_like_personal_data_stops_the_run(contract: DataContract, keys: ScrubKeys) -> None:
    rows = [make_row(f"C-{number}", colour="ann.lee@corp.com") for number in range(30)]
    with pytest.raises(SourceError, match=r"letters: columns\.colour: values look like EMAIL_ADDRESS"):
        run(rows, contract, keys)


def test_numbers_and_addresses_leave_no_trace(contract: DataContract, keys: ScrubKeys) -> None:
    """The independent look of the benchmark, on texts of our own."""
    texts = [
        "tel (415) 781-0701 or 415.781.0701, fax:415-781-0702is off; +44 20 7183 8750; 1-800-781-0701x12",
        "zip 94117 415-781-0701, 415-781-0701/0702, Voice:  (415) 781-0701\n0120 Oak",
        "ann@corp.com,bob%x@relay.corp.co.uk <c.d+e@sub.corp.com>mailto:f@corp.com",
        "card 4485527627509597 and 4485-5276-2750-9597 and 3782 822463 10005, ssn 078-05-1120",
    ]
    assert {kind for text in texts for kind in residues(text)} == {"e-mail", "phone", "card", "SSN"}
    for number in range(10):
        scrubbed, _ = run([make_row(f"C-{number}", letter=text) for text in texts], contract, keys)
        assert [residues(row["letter"]) for row in scrubbed] == [[]] * len(texts)
