"""Contracts whose pictures an endpoint draws from synthetic captions: what is refused, and what is a new spend."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import load_family, parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.events import histogram_event
from dpsynth_platform.privacy.statement import privacy_statement, words_of
from dpsynth_platform.release.dossier import contract_summary

FAMILY = load_family(Path(__file__).parents[2] / "deploy" / "families" / "household-surveys.yaml")
ENDPOINT: dict[str, Any] = {"url": "https://models.example.org/v1", "model": "painter"}
CAPTIONED: dict[str, Any] = {
    "dataset": "photographs",
    "description": "Photographs with captions.",
    "owners": ["photographs@example.org"],
    "source": {"uri": "/nowhere", "key": ["photograph"]},
    "family": "people",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person"],
        "namespace": "person",
        "max_contributions": 2,
        "guarantee": {"epsilon": 2.0},
        "expected_units": 4000,
    },
    "columns": {
        "photograph": {"type": "identifier"},
        "person": {"type": "identifier"},
        "place": {"type": "categorical", "values": ["indoors", "outdoors"]},
        "caption": {"type": "text"},
        "photo": {"type": "image", "size": [12, 10], "accept_unscrubbed": "the photographs show no people"},
    },
    "generate": {"method": "aug_pe", "rows": 100, "text": {"pictures": {"endpoint": ENDPOINT}}},
    "release": {"uri": "/nowhere/public"},
}


def captioned(changes: dict[str, Any] | None = None) -> DataContract:
    """The contract with other values at dotted keys; None leaves a key out."""
    document = copy.deepcopy(CAPTIONED)
    for path, value in (changes or {}).items():
        part: dict[str, Any] = document
        *above, last = path.split(".")
        for key in above:
            part = part.setdefault(key, {})
        if value is None:
            del part[last]
        else:
            part[last] = value
    return parse_contract(document, where="photographs.yaml", variables={})


@pytest.mark.parametrize("method", ["auto", "dp_finetune", "ctcl", "dp_inference", "aug_pe"])
def test_any_text_method_writes_captions_and_no_mechanism_reads_a_picture(method: str) -> None:
    contract = captioned({"generate.method": method})
    assert (contract.text_column, contract.image_column) == ("caption", "photo")
    assert contract.read_by_mechanism == ["place", "caption"]
    assert contract.conditioning_columns == ["place"]
    assert DataContract.model_validate(contract.snapshot()) == contract


def test_auto_keeps_how_pictures_are_drawn() -> None:
    chosen = captioned({"generate.method": "auto"}).with_method("dp_finetune", "a reason")
    assert chosen.generate.drawn == captioned().generate.drawn


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns.caption": None}, "generate.text.column: missing; accepted: one of no declared column"),
        ({"columns.caption.pii": "drop"}, "generate.text.column: missing; accepted: one of no declared column"),
        ({"generate.text.pictures": {}}, "generate.text.pictures.endpoint: missing"),
        ({"generate.text.pictures.endpoint": {"url": ENDPOINT["url"]}}, "endpoint.model: missing"),
        ({"generate.text.pictures.endpoint.url": "http://models.example.org"}, "accepted: https://HOST[:PORT]/PATH"),
        ({"generate.text.pictures.most_missing": 1}, "generate.text.pictures.most_missing"),
        (
            {"generate.method": "aim"},
            "text: is for method dp_finetune, ctcl, dp_inference, aug_pe, and the method is 'aim'",
        ),
        ({"generate.method": "image_moments"}, "text: is for method dp_finetune"),
        ({"generate.image": {}}, "or text.pictures, by which an endpoint draws pictures from the texts"),
        ({"generate.text": {}}, "generate.text.pictures with method auto or dp_finetune"),
        ({"columns.photo": None}, "generate.text.pictures.column: missing; accepted: one of no declared column"),
        ({"generate.text.pictures.column": "place"}, "generate.text.pictures.column: 'place'; accepted: one of photo"),
        (
            {"columns.thumb": CAPTIONED["columns"]["photo"], "generate.text.pictures.column": "photo"},
            "columns: thumb: a second image column",
        ),
        (
            {"columns.age": {"type": "integer", "min": 1, "max": 800}},
            "generate.text.given: place, age make 1600 classes; accepted: at most 1000",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError) as refused:
        captioned(changes)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("generate.text.pictures.endpoint.model", "another", True),
        ("generate.text.pictures.endpoint.url", "https://others.example.org/v1", True),
        ("generate.text.pictures.style", "A drawing:", True),
        ("generate.text.pictures.most_missing", 0.5, True),
        ("generate.text.pictures.column", "photo", True),
        ("generate.text.evolution", {"rounds": 2}, False),
        ("columns.photo.size", [10, 12], False),
    ],
)
def test_how_captions_are_drawn_is_no_new_spend(key: str, value: Any, same: bool) -> None:
    assert (captioned({key: value}).mechanism_snapshot() == captioned().mechanism_snapshot()) == same


def test_a_folder_of_pictures_may_be_published() -> None:
    assert captioned({"release.publish": [{"uri": "/elsewhere", "format": "images"}]}).release.publish


@pytest.mark.parametrize(
    ("model", "shown"), [("/srv/models/painter", "painter"), ("some-lab/painter", "some-lab/painter")]
)
def test_no_public_file_has_the_place_of_the_drawing_model(model: str, shown: str) -> None:
    contract = captioned({"generate.text.pictures.endpoint.model": model})
    event = histogram_event(60.0, max_contributions=2, discrete=False)
    said = privacy_statement(contract, FAMILY, event, words_of("aug_pe", event)).not_covered
    assert any(f"drawn by the model {shown} at models.example.org" in line for line in said)
    summary = contract_summary(contract)["generate"]
    assert summary["text"]["pictures"]["endpoint"]["model"] == shown
    assert "/srv" not in repr((said, summary))


@pytest.mark.parametrize("why", ["The photographs show no people", "The photographs show no people."])
def test_a_reason_ends_with_one_full_stop_in_the_statement(why: str) -> None:
    contract = captioned({"columns.photo.accept_unscrubbed": why})
    event = histogram_event(60.0, max_contributions=2, discrete=False)
    said = " ".join(privacy_statement(contract, FAMILY, event, words_of("aug_pe", event)).not_covered)
    assert "accepted because: The photographs show no people." in said and ".." not in said
