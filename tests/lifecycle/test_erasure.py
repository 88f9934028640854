"""Erasure: what must go after a request, what later runs leave out, and a list that cannot be lost unseen."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from letters_cases import LETTERS, PLACE, with_ledger

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import ConfigurationError, NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import EXAMPLES, HANDED, Place, Storage, held
from dpsynth_platform.ledger.records import Account
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle import owner_keys
from dpsynth_platform.lifecycle.erasure import (
    HONOURED,
    account_of,
    carry_over,
    erase,
    erased_owners,
    erasure_of,
    erasures,
    parse_owners,
    readmit,
    without,
)
from dpsynth_platform.lifecycle.holds import lift_hold, place_hold
from dpsynth_platform.lifecycle.purging import purge_due
from dpsynth_platform.lifecycle.retention import due
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    OWNERS_COLUMN,
    Fingerprints,
    fingerprint_hex,
    fingerprints_from_hex,
    rotated,
)
from dpsynth_platform.secrets.vault import Vault

ANNA, BERT, CARL = (f"{number:02d}" * 16 for number in (11, 22, 33))
STRANGERS: dict[str, Any] = LETTERS | {
    "dataset": "parcels",
    "family": "parcels",
    "privacy": LETTERS["privacy"] | {"namespace": "company"},
}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return with_ledger(tmp_path / "home")


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    made = Ledger(settings.ledger_url)
    for name in ("person", "company"):
        family = FamilyBudget.model_validate(
            {
                "family": "letters" if name == "person" else "parcels",
                "unit": "user",
                "adjacency": "add-or-remove",
                "namespace": name,
                "mode": "per-owner",
                "cap": {"epsilon": 4.0, "delta": 1e-5},
            }
        )
        owner_keys.open_account(Vault(settings.vault), made, family)
    return made


@pytest.fixture
def account(ledger: Ledger) -> Account:
    return account_of(ledger, "person")


def ask(settings: Settings, ledger: Ledger, *owners: str) -> None:
    """A request for these fingerprints."""
    found = parse_owners(list(owners))
    erase(settings.restricted, ledger, account_of(ledger, "person"), found, by="keeper", reason="a letter of May")


def back(settings: Settings, ledger: Ledger, *owners: str) -> None:
    """These come back."""
    found = parse_owners(list(owners))
    readmit(settings.restricted, ledger, account_of(ledger, "person"), found, by="keeper", reason="a mistake")


def listed(settings: Settings, ledger: Ledger) -> list[str]:
    account = account_of(ledger, "person")
    return fingerprint_hex(erased_owners(settings.restricted, erasure_of(ledger, "person"), account))


# The list


def test_requests_add_up_and_are_counted_in_the_chain(settings: Settings, ledger: Ledger) -> None:
    assert listed(settings, ledger) == [] and erasures(ledger) == {}
    ask(settings, ledger, BERT)
    ask(settings, ledger, ANNA, BERT)
    assert listed(settings, ledger) == [ANNA, BERT]
    events = ledger.history(kinds=["erased"])
    assert [(event.subject, event.payload) for event in events] == [
        ("person", {"owners": number, "by": "keeper", "reason": "a letter of May"}) for number in (1, 2)
    ]
    assert ledger.verify().ok
    written = b"".join(path.read_bytes() for path in settings.home.rglob("*") if path.is_file())
    assert written.count(bytes.fromhex(ANNA)) == 1, "the list is the only place that names anybody"
    assert ANNA.encode() not in written
    (path,) = settings.restricted.glob("erased-owners/person/*")
    assert path.stat().st_mode & 0o077 == 0


def test_a_list_that_was_lost_or_is_older_than_the_ledger_stops_every_scrub(settings: Settings, ledger: Ledger) -> None:
    ask(settings, ledger, ANNA)
    (path,) = settings.restricted.glob("erased-owners/person/*")
    earlier = path.read_bytes()
    ask(settings, ledger, BERT)
    for lost in (lambda: path.write_bytes(earlier), path.unlink):
        lost()
        with pytest.raises(ConfigurationError, match="erased owners, but the ledger has recorded 2") as refused:
            listed(settings, ledger)
        assert ANNA not in str(refused.value)
        with pytest.raises(ConfigurationError, match="the ledger has recorded 2"):
            ask(settings, ledger, CARL)


def test_the_list_goes_along_when_keys_are_rotated(settings: Settings, ledger: Ledger) -> None:
    ask(settings, ledger, ANNA, BERT)
    storage, vault = Storage(settings.restricted), Vault(settings.vault)
    done = owner_keys.rotate(vault, ledger, storage, "person", by="keeper", reason="once a year")
    key = vault.read(f"owner-rotated-person-{done.key_id}")
    assert listed(settings, ledger) == sorted(fingerprint_hex(rotated(fingerprints_from_hex([ANNA, BERT]), key)))
    (path,) = settings.restricted.glob("erased-owners/person/*")
    assert done.key_id in path.name, "fingerprints under earlier keys are gone"


def test_a_rotation_that_is_cut_short_leaves_the_list_as_it_was(
    settings: Settings, ledger: Ledger, account: Account
) -> None:
    ask(settings, ledger, ANNA)
    carry_over(settings.restricted, account, bytes(32), erasure_of(ledger, "person"))
    assert listed(settings, ledger) == [ANNA]


def test_one_request_at_a_time(settings: Settings, ledger: Ledger) -> None:
    ask(settings, ledger, ANNA)
    with (
        held(settings.restricted / "erased-owners" / "person"),
        pytest.raises(ConfigurationError, match="another request for erasure"),
    ):
        ask(settings, ledger, BERT)
    assert listed(settings, ledger) == [ANNA]


def test_whoever_comes_back_is_off_the_list_and_nothing_is_made_anew_for_it(settings: Settings, ledger: Ledger) -> None:
    ask(settings, ledger, ANNA, BERT)
    (event,) = ledger.history(kinds=["erased"])
    made = line(settings, LETTERS, honoured=event.sequence)
    back(settings, ledger, BERT)
    assert listed(settings, ledger) == [ANNA]
    assert ledger.history(kinds=["readmitted"])[0].payload == {"owners": 1, "by": "keeper", "reason": "a mistake"}
    assert made["scrubbed"] not in {item.path for item in purge_due(settings, [])}
    for strange in ([CARL], [ANNA, CARL]):
        with pytest.raises(ConfigurationError, match="not all of them are on the list") as refused:
            back(settings, ledger, *strange)
        assert CARL not in str(refused.value)
    assert listed(settings, ledger) == [ANNA]
    ask(settings, ledger, BERT)
    assert listed(settings, ledger) == [ANNA, BERT]
    assert made["scrubbed"] in {item.path for item in purge_due(settings, [])}
    assert ledger.verify().ok


def test_whoever_comes_back_stays_out_where_that_is_cut_short(
    settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(settings, ledger, ANNA)
    with monkeypatch.context() as patch:
        patch.setattr(
            "dpsynth_platform.lifecycle.erasure.write_fingerprints", lambda *_: (_ for _ in ()).throw(OSError("full"))
        )
        with pytest.raises(OSError, match="full"):
            back(settings, ledger, ANNA)
    assert listed(settings, ledger) == [ANNA]
    back(settings, ledger, ANNA)
    assert listed(settings, ledger) == []


@pytest.mark.parametrize("given", [["Anna Example"], [ANNA[:-2]], [ANNA, "x" * 32], []])
def test_what_is_no_fingerprint_is_not_shown(given: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="a fingerprint of 32 hexadecimal digits") as refused:
        parse_owners(given)
    assert "Anna" not in str(refused.value) and ANNA[:20] not in str(refused.value)
    assert refused.value.__context__ is None


def test_the_namespace_must_be_said_where_there_are_several(ledger: Ledger) -> None:
    for name in (None, "patient"):
        with pytest.raises(NotFound, match="accepted: company, person"):
            account_of(ledger, name)


# Leaving out


def batches(rows: list[Any], name: str, kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(len(rows))), pa.array(rows, kind)], ["row", name])


def stays(batch: pa.RecordBatch, *erased: str) -> list[int]:
    gone: Fingerprints = fingerprints_from_hex(erased)
    return [row for part in without(iter([batch]), gone) for row in part.column("row").to_pylist()]


def test_records_of_erased_owners_are_left_out() -> None:
    batch = batches([ANNA, BERT, ANNA, CARL], OWNER_COLUMN, pa.string())
    assert stays(batch) == [0, 1, 2, 3]
    assert stays(batch, ANNA) == [1, 3]
    assert stays(batch.slice(1), ANNA) == [1, 3]
    assert stays(batch, ANNA, BERT, CARL) == []


def test_a_record_with_several_owners_leaves_for_any_of_them() -> None:
    batch = batches([[ANNA, BERT], [BERT], [CARL, ANNA], [BERT, CARL]], OWNERS_COLUMN, pa.list_(pa.string()))
    assert stays(batch) == [0, 1, 2, 3]
    assert stays(batch, ANNA) == [1, 3]
    assert stays(batch.slice(1, 2), ANNA) == [1]
    assert stays(batch, BERT) == [2]


# What must go


def line(settings: Settings, contract: dict[str, Any], honoured: int = 0) -> dict[str, Path]:
    """The outputs of a line as they lie after a training that was cut short, by what they are."""
    storage, place = Storage(settings.restricted), Place(contract["dataset"])
    made: dict[str, Path] = {}
    records = []
    for step in ("raw", "scrubbed", "bounded", "synthetic"):
        facts = {"raw": {"contract": contract}, "scrubbed": {HONOURED: honoured}}.get(step, {})
        with storage.new_output(place, step) as directory:
            (directory / "file").write_text(f"{step}{honoured}")
        records.append(storage.record(place, step, run_key="k", directory=directory, facts=facts, inputs=records[-1:]))
        made[step] = directory
    with storage.new_output(place, "scrubbed") as directory:
        (directory / "file").write_text("cut short")
    made["unfinished"] = directory
    for name in ("model", "handed"):
        made[name] = storage.named_output(place, "model", "e" if name == "model" else f"e{HANDED}")
        (made[name] / "file").write_text(name)
    made["examples"] = made["model"] / EXAMPLES
    made["examples"].mkdir(parents=True)
    (made["examples"] / "tokens.i4").write_text("a letter")
    log = storage.root / "logs" / f"{place.dataset}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("a value")
    made["log"] = log
    for item in made.values():
        for path in (item, *item.rglob("*")):
            moment = path.stat().st_mtime - 60
            os.utime(path, (moment, moment))
    return made


def test_everything_with_rows_of_the_namespace_goes_at_once(settings: Settings, ledger: Ledger) -> None:
    made, strange = line(settings, LETTERS), line(settings, STRANGERS)
    assert purge_due(settings, []) == []
    ask(settings, ledger, ANNA)
    found = purge_due(settings, [])
    gone = {"scrubbed", "unfinished", "bounded", "handed", "examples", "log"}
    assert {item.path for item in found} == {made[name] for name in gone} | {strange["log"]}
    assert {item.reason for item in found} == {"erasure"}
    assert {name for name, path in made.items() if path.exists()} == set(made) - gone
    assert all(path.exists() for name, path in strange.items() if name != "log")
    assert purge_due(settings, []) == []


def test_what_goes_does_not_depend_on_who_is_erased(settings: Settings, ledger: Ledger) -> None:
    """So that nobody learns from chain or lineage where somebody was."""
    made = line(settings, LETTERS)
    for step in ("scrubbed", "bounded"):
        (made[step] / "file").write_text(BERT)  # nobody else is in it
    found = []
    for owner in (ANNA, BERT):
        ask(settings, ledger, owner)
        now = dt.datetime.now(dt.UTC)
        found.append([item.path for item in due(Storage(settings.restricted), [], now, erasures(ledger))])
    assert found[0] == found[1]
    assert {made["scrubbed"], made["bounded"]} <= set(found[0])


def test_what_was_made_after_the_request_stays(settings: Settings, ledger: Ledger) -> None:
    ask(settings, ledger, ANNA)
    (event,) = ledger.history(kinds=["erased"])
    made = line(settings, LETTERS, honoured=event.sequence)
    now = dt.datetime.now(dt.UTC).timestamp()  # the kernel's own is up to a tick old, and the request's was not
    for name in ("unfinished", "handed", "examples", "log"):
        for path in (made[name], *made[name].rglob("*")):
            os.utime(path, (now, now))
    assert purge_due(settings, []) == []


def test_bounded_rows_of_earlier_scrubbed_ones_go(settings: Settings, ledger: Ledger) -> None:
    """The scrubbed step ran again after the request, the bounded one not yet."""
    made = line(settings, LETTERS)
    ask(settings, ledger, ANNA)
    (event,) = ledger.history(kinds=["erased"])
    storage = Storage(settings.restricted)
    with storage.new_output(PLACE, "scrubbed") as directory:
        (directory / "file").write_text("without her")
    storage.record(PLACE, "scrubbed", run_key="k", directory=directory, facts={HONOURED: event.sequence})
    gone = {item.path for item in purge_due(settings, [])}
    assert made["bounded"] in gone and made["scrubbed"] in gone and directory not in gone


def test_a_running_mechanism_is_waited_for(settings: Settings, ledger: Ledger) -> None:
    made = line(settings, LETTERS)
    ask(settings, ledger, ANNA)
    with held(made["model"]):
        purge_due(settings, [])
        assert made["bounded"].exists() and made["handed"].exists() and not made["scrubbed"].exists()
    assert {item.path for item in purge_due(settings, [])} == {made["bounded"], made["handed"], made["examples"]}


def test_a_legal_hold_outweighs_a_request_until_it_ends(settings: Settings, ledger: Ledger) -> None:
    made = line(settings, LETTERS)
    place_hold(ledger, PLACE, by="counsel", reason="a lawsuit")
    ask(settings, ledger, ANNA)
    assert [item.path for item in purge_due(settings, [])] == [made["log"]]
    assert made["scrubbed"].exists()
    lift_hold(ledger, PLACE, by="counsel", reason="settled")
    assert made["scrubbed"] in {item.path for item in purge_due(settings, [])}


def test_outputs_of_nobody_knows_whom_go_too(settings: Settings, ledger: Ledger) -> None:
    """Where neither a contract nor a sealed one says of which namespace the owners are."""
    made = line(settings, LETTERS)
    Storage(settings.restricted).record_path(PLACE, "raw").unlink()
    ask(settings, ledger, ANNA)
    assert made["scrubbed"] in {item.path for item in purge_due(settings, [])}


def test_fingerprints_that_end_in_zeros_are_kept_whole(settings: Settings, ledger: Ledger) -> None:
    """Arrays of bytes drop zeros at the end of what is taken out of them."""
    zeros = "ab" * 4 + "00" * 12
    ask(settings, ledger, zeros)
    assert listed(settings, ledger) == [zeros]
    batch = batches([zeros, ANNA], OWNER_COLUMN, pa.string())
    assert stays(batch, *listed(settings, ledger)) == [1]
    assert np.array_equal(parse_owners([zeros]), fingerprints_from_hex([zeros]))
