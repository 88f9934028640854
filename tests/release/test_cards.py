"""The cards of a release, read by those whom they are for: mlcroissant, and a reader of dataset cards."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from table_cases import one_table

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.release import cards
from dpsynth_platform.release.dossier import Evidence
from dpsynth_platform.release.publish import Published, publish


@pytest.fixture
def licensed(
    evidence: Evidence, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> Published:
    terms = evidence.contract.release.model_copy(update={"license": "CC-BY-4.0"})
    contract = evidence.contract.model_copy(update={"release": terms})
    changed = replace(evidence, contract=contract)
    return publish(changed, one_table(rows), tmp_path / "licensed", signing_key, announce=lambda: None)


def dossier(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "dossier.json").read_text())
    return found


def front_matter(path: Path) -> tuple[dict[str, Any], str]:
    _, head, body = (path / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_mlcroissant_validates_and_reads_every_record(licensed: Published, caplog: pytest.LogCaptureFixture) -> None:
    import mlcroissant

    with caplog.at_level(logging.WARNING):
        dataset = mlcroissant.Dataset(str(licensed.path / "croissant.json"))
    assert caplog.text == ""
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    (record_set,) = dataset.metadata.record_sets
    read = list(dataset.records(record_set.id))
    table = pq.read_table(next((licensed.path / "data").glob("*.parquet")))
    assert len(read) == table.num_rows == 400
    expected = {row["patient_id"]: row for row in table.to_pylist()}
    for record in read:
        plain = {name.removeprefix("records/"): value for name, value in record.items()}
        row = expected[plain["patient_id"].decode()]
        assert plain.keys() == row.keys()
        assert plain["minutes"] == row["minutes"]
        assert plain["department"].decode() == row["department"]
        assert dt.date.fromisoformat(str(plain["visit_date"])[:10]) == row["visit_date"]


def test_the_distribution_names_the_file_with_its_hash(licensed: Published) -> None:
    card = json.loads((licensed.path / "croissant.json").read_text())
    (declared,) = card["distribution"]
    assert declared["sha256"] == digest_file(licensed.path / declared["contentUrl"])
    assert declared["contentUrl"].startswith("data/part-")
    assert card["license"] == "https://spdx.org/licenses/CC-BY-4.0"


@pytest.mark.parametrize(
    ("owner", "name", "email"),
    [
        ("clinic@example.org", None, "clinic@example.org"),
        ("Ada Lovelace <ada@example.org>", "Ada Lovelace", "ada@example.org"),
        ("the clinic's data office", "the clinic's data office", None),
    ],
)
def test_who_made_it_is_a_person_to_ask(licensed: Published, owner: str, name: str | None, email: str | None) -> None:
    import mlcroissant

    described = dossier(licensed.path)
    described["release"]["owners"] = [owner]
    (licensed.path / "croissant.json").write_text(json.dumps(cards.croissant(described)))
    dataset = mlcroissant.Dataset(str(licensed.path / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    (creator,) = dataset.metadata.creators
    assert isinstance(creator, mlcroissant.Person)
    assert (creator.name, creator.email) == (name, email)


def test_a_license_of_the_publishers_own_has_no_page_of_spdx(licensed: Published) -> None:
    import mlcroissant

    described = dossier(licensed.path)
    described["release"]["license"] = "LicenseRef-Clinic-1.0"
    (licensed.path / "croissant.json").write_text(json.dumps(cards.croissant(described)))
    dataset = mlcroissant.Dataset(str(licensed.path / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert dataset.metadata.license == ["LicenseRef-Clinic-1.0"]
    head = yaml.safe_load(cards.dataset_card(described, "f1" * 32).split("---\n")[1])
    assert (head["license"], head["license_name"]) == ("other", "licenseref-clinic-1.0")


def test_several_files_are_one_set(licensed: Published) -> None:
    import mlcroissant

    (first,) = (licensed.path / "data").glob("*.parquet")
    second = first.with_name("part-1.parquet")
    pq.write_table(pq.read_table(first), second)
    described = dossier(licensed.path)
    (file,) = (item for item in described["synthetic"]["files"] if item["path"].endswith(".parquet"))
    described["synthetic"]["files"].append(file | {"path": f"data/{second.name}"})
    (licensed.path / "croissant.json").write_text(json.dumps(cards.croissant(described)))
    dataset = mlcroissant.Dataset(str(licensed.path / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert len(list(dataset.records("records"))) == 800


@pytest.mark.parametrize(
    ("arrow", "croissant"),
    [
        ("int64", "cr:Int64"), ("float", "cr:Float32"), ("bool", "sc:Boolean"), ("date32[day]", "sc:Date"),
        ("timestamp[us, tz=UTC]", "sc:DateTime"), ("string", "sc:Text"), ("list<string>", "sc:Text"),
        ("list<int64>", "cr:Int64"), ("decimal128(10, 2)", "sc:Text"),
    ],
)  # fmt: skip
def test_every_type_has_a_name(released: Published, arrow: str, croissant: str) -> None:
    described = dossier(released.path)
    described["synthetic"]["columns"][0]["type"] = arrow
    (record_set,) = cards.croissant(described)["recordSet"]
    field = record_set["field"][0]
    assert field["dataType"] == croissant
    assert field.get("isArray", False) == arrow.startswith("list")


def test_the_dataset_card_is_found_and_loads_the_rows(licensed: Published) -> None:
    head, body = front_matter(licensed.path)
    assert head["license"] == "cc-by-4.0"
    assert head["pretty_name"] == licensed.release_id
    assert head["size_categories"] == ["n<1K"]
    assert {"synthetic", "differential-privacy", "tabular"} <= set(head["tags"])
    (config,) = head["configs"]
    (files,) = config["data_files"]
    assert files["split"] == "train"
    assert ds.dataset([str(licensed.path / name) for name in files["path"]]).count_rows() == 400
    for words in ("Epsilon 1, delta", "Not covered by the guarantee", "dpsynth release verify", "Audit by attack"):
        assert words in body


def test_without_a_declared_license_none_is_told(released: Published) -> None:
    assert "license" not in front_matter(released.path)[0]
    assert "license" not in json.loads((released.path / "croissant.json").read_text())


def test_text_of_the_contract_stays_text(released: Published) -> None:
    """Neither a tag nor a line of its own, in the card of a platform that renders markdown."""
    evil = "<script>1</script>\n---\n# ![p](https://x/p.png) [l](https://x) heading | cell"
    described = dossier(released.path)
    described["release"]["description"] = described["guarantee"]["plain_words"][0] = evil
    described["synthetic"]["columns"][0]["name"] = evil
    card = cards.dataset_card(described, "f1" * 32)
    assert "<script" not in card
    assert card.count("---\n") == 2
    assert not [line for line in card.splitlines() if line.startswith("# ") and "heading" in line]
    assert not re.search(r"(?<!\\)[!\[]+[pl](?<!\\)\]\(https://x", card), "no picture and no link"
    assert "heading \\| cell | string" in card, "one cell"


def test_of_a_written_column_the_limits_say_what_a_language_model_does(released: Published) -> None:
    described = dossier(released.path)
    assert "language model" not in cards.dataset_card(described, "f1" * 32)
    described["synthetic"]["columns"][0] |= {"name": "le|tter", "treatment": "written"}
    card = cards.dataset_card(described, "f1" * 32)
    assert "\n- le|tter is written by a language model: it may be untrue, make no sense or break off.\n" in card


@pytest.mark.parametrize(
    ("count", "category"),
    [(999, "n<1K"), (1000, "1K<n<10K"), (48_000, "10K<n<100K"), (99_999_999, "10M<n<100M"), (10**8, "100M<n<1B")],
)
def test_size_categories(released: Published, count: int, category: str) -> None:
    described = dossier(released.path)
    described["synthetic"]["rows"] = count
    assert f"- {category}" in cards.dataset_card(described, "f1")


def test_a_weak_guarantee_says_why(released: Published) -> None:
    described = dossier(released.path)
    described["guarantee"]["why_weak"] = "a reason that was given"
    assert "a reason that was given" in cards.dataset_card(described, "f1")


def test_purpose_and_recipients_are_said_where_they_are_known(released: Published) -> None:
    described = dossier(released.path)
    card = cards.dataset_card(described, "f1")
    assert "Made for: Planning of staff." in card
    assert "For: The clinic's planners" in card
    assert cards.croissant(described)["rai:dataUseCases"] == ["Planning of staff."]
    described["release"] |= {"purpose": None, "recipients": []}
    assert "For:" not in cards.dataset_card(described, "f1")
    assert "rai:dataUseCases" not in cards.croissant(described)
