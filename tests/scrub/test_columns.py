"""Columns that stay in the table are looked at, and a run stops for those that hold personal data."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.columns import ColumnScan, named_faults
from dpsynth_platform.scrub.owners import LEAST_OWNERS

CONTRACT: dict[str, Any] = {
    "dataset": "orders",
    "description": "Orders of fictional customers.",
    "owners": ["orders@example.org"],
    "source": {"uri": "unused", "key": ["customer"]},
    "family": "orders",
    "privacy": {
        "unit": "user",
        "owner_columns": ["customer"],
        "namespace": "customer",
        "max_contributions": 1,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    },
    "columns": {
        "customer": {"type": "identifier"},
        "channel": {"type": "categorical", "values": ["shop", "post", "someone@example.org"]},
        "amount": {"type": "integer", "min": 0, "max": 10},
        "rate": {"type": "float", "min": 0, "max": 1},
    },
    "generate": {"rows": 10},
    "release": {"uri": "unused"},
}


def contract(**columns: dict[str, Any]) -> DataContract:
    document = copy.deepcopy(CONTRACT)
    for name, changes in columns.items():
        document["columns"].setdefault(name, {}).update(changes)
    return parse_contract(document, where="orders.yaml", variables={})


def look(declared: DataContract, owners: list[tuple[str, ...]] | None = None, **values: list[Any]) -> None:
    """Looks at rows; unless told otherwise, each has an owner of its own."""
    rows = max(len(items) for items in values.values())
    columns = {
        "customer": pa.array([f"someone{row}@example.org" for row in range(rows)]),
        "channel": pa.array(values.get("channel", ["shop"] * rows), pa.string()),
        "amount": pa.array(values.get("amount", [1] * rows), pa.int64()),
        "rate": pa.array(values.get("rate", [0.5] * rows), pa.float64()),
    }
    batch = pa.record_batch(columns)
    scan = ColumnScan(declared)
    for start in range(0, rows, 7):
        part = batch.slice(start, 7)
        scan.look(part, [owners[row] if owners else (f"owner {row}",) for row in range(start, start + part.num_rows)])


CARD = 4485527627509597


@pytest.mark.parametrize(
    ("column", "values", "entity"),
    [
        ("channel", ["ann.lee@corp.com"] * LEAST_OWNERS, "EMAIL_ADDRESS"),
        ("channel", [f"(212) 736-5{number:03d}" for number in range(LEAST_OWNERS)], "PHONE_NUMBER"),
        ("channel", ["078-05-1120"] * LEAST_OWNERS, "US_SSN"),
        ("channel", ["Maria Alvarez"] * LEAST_OWNERS, "PERSON"),
        ("amount", [CARD] * LEAST_OWNERS, "CREDIT_CARD"),
        ("rate", [float(CARD)] * LEAST_OWNERS, "CREDIT_CARD"),
    ],
)
def test_personal_data_stops_the_run_and_is_not_shown(column: str, values: list[Any], entity: str) -> None:
    with pytest.raises(SourceError) as raised:
        look(contract(), **{column: values})
    message = str(raised.value)
    assert message.startswith(f"orders: columns.{column}: values look like {entity}, which would stay unchanged")
    assert f"columns.{column}.accept_pii: <reason>" in message
    assert str(values[0]) not in message
    assert str(LEAST_OWNERS) not in message


def test_one_owner_does_not_stop_it_however_many_the_rows() -> None:
    columns: dict[str, list[Any]] = {"channel": ["ann.lee@corp.com"] * 200, "amount": [CARD] * 200}
    look(contract(), [("one",)] * 200, **columns)
    # Nor does one with many others, each of whom stands on no more than that person's rows.
    look(contract(), [(f"another {row}", "one") for row in range(200)], **columns)
    with pytest.raises(SourceError):
        look(
            contract(),
            [(f"a {row // 2}", f"b {row // 2}") for row in range(2 * LEAST_OWNERS)],
            **columns | {"channel": columns["channel"][: 2 * LEAST_OWNERS], "amount": [1] * 2 * LEAST_OWNERS},
        )


def test_few_rows_do_not_stop_it() -> None:
    look(contract(), channel=["ann.lee@corp.com"] * (LEAST_OWNERS - 1), amount=[CARD] * (LEAST_OWNERS - 1))


def test_a_reason_lets_it_pass() -> None:
    accepted = contract(
        channel={"accept_pii": "a shared mailbox of the shop"}, amount={"accept_pii": "internal numbers"}
    )
    look(accepted, channel=["ann.lee@corp.com"] * 50, amount=[CARD] * 50)


def test_public_places_that_look_like_people_have_the_ways_out_that_the_documents_name() -> None:
    """Listed, or with a reason where values are learned (contracts.md, one-table.md, scrubbing.md in docs/guides)."""
    zones = ["Murray Hill"] * LEAST_OWNERS
    learned = {"type": "categorical", "values": "learned"}
    with pytest.raises(SourceError) as raised:
        look(contract(channel=learned), channel=zones)
    message = str(raised.value)
    assert "values look like PERSON" in message
    assert message.endswith("columns.channel.accept_pii: <reason>; if they are public, list all of them in values")
    look(contract(channel=learned | {"accept_pii": "public taxi zones"}), channel=zones)
    look(contract(channel={"values": ["Murray Hill", "Astoria"]}), channel=zones)


def test_ordinary_values_pass() -> None:
    look(
        contract(),
        channel=["shop", None, "someone@example.org", "1999-2003", "unknown", "x" * 5000, ""] * 40,
        amount=[1, None, 10**15, -5, 123456789012345, 4485527627509598, 20260101123456] * 40,
        rate=[0.5, None, 1e300, float("nan"), float("inf"), 1e13, 4485527627509598.0] * 40,
    )


@pytest.mark.parametrize("value", ["1980-01-31", "2026-11-05 07:30:00", "31.01.1980", "01/31/1980"])
def test_a_date_is_no_telephone_number(value: str) -> None:
    look(contract(), channel=[value] * (2 * LEAST_OWNERS))


def test_a_numbers_name_tells_without_a_look() -> None:
    assert named_faults(contract()) == []
    (fault,) = named_faults(contract(home_phone={"type": "integer", "min": 0, "max": 10**10}))
    assert fault.startswith("columns.home_phone: the name says PHONE_NUMBER")
    assert (
        named_faults(contract(ssn={"type": "float", "min": 0, "max": 1, "accept_pii": "a ratio, in spite of it"})) == []
    )


def test_the_reason_is_no_new_mechanism() -> None:
    reasoned = contract(amount={"accept_pii": "internal numbers"})
    assert reasoned.mechanism_snapshot() == contract().mechanism_snapshot()
    assert reasoned.digest() != contract().digest()
