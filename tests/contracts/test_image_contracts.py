"""Contracts with a column of pictures: what is refused and in which words, what follows, and what is a new spend."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.images.choice import image_method_for

WHY = "the drawings show single handwritten digits"
IMAGE: dict[str, Any] = {"type": "image", "size": [12, 10], "channels": 1, "accept_unscrubbed": WHY}
LABELS = {"type": "categorical", "values": ["bar", "cross", "disc"]}
DRAWINGS: dict[str, Any] = {
    "dataset": "drawings",
    "description": "Drawings of three kinds.",
    "owners": ["drawings@example.org"],
    "source": {"uri": "/nowhere", "key": ["drawing"]},
    "family": "pupils",
    "privacy": {
        "unit": "user",
        "owner_columns": ["pupil"],
        "namespace": "pupil",
        "max_contributions": 2,
        "guarantee": {"epsilon": 2.0},
        "expected_units": 4000,
    },
    "columns": {
        "drawing": {"type": "identifier"},
        "pupil": {"type": "identifier"},
        "kind": LABELS,
        "picture": IMAGE,
    },
    "generate": {"method": "image_moments", "rows": 100},
    "release": {"uri": "/nowhere/public"},
}


def drawings(changes: dict[str, Any] | None = None) -> DataContract:
    """The contract with other values at dotted keys; None leaves a key out."""
    document = copy.deepcopy(DRAWINGS)
    for path, value in (changes or {}).items():
        part: dict[str, Any] = document
        *above, last = path.split(".")
        for key in above:
            part = part.setdefault(key, {})
        if value is None:
            del part[last]
        else:
            part[last] = value
    return parse_contract(document, where="drawings.yaml", variables={})


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(ContractError) as refused:
        drawings(changes)
    return str(refused.value)


def test_the_only_picture_is_made_by_the_only_column_with_a_list_of_values() -> None:
    contract = drawings()
    assert contract.image_column == "picture"
    assert contract.conditioning_columns == contract.modelled == ["kind"]
    assert contract.read_by_mechanism == ["kind", "picture"]
    assert contract.image.form.shape == (12, 10, 1)
    assert drawings({"generate.image": {"given": []}}).conditioning_columns == []


def test_a_sealed_contract_is_the_same_again() -> None:
    contract = drawings()
    assert contract.generate.image is not None
    assert DataContract.model_validate(contract.snapshot()) == contract


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "unscrubbed",
        {"columns.picture.accept_unscrubbed": None},
        "columns.picture.accept_unscrubbed: missing; faces, plates and writing inside of pictures are not scrubbed; "
        "accepted: a sentence why that is acceptable, such as: the pictures show single handwritten digits",
    ),
    (
        "no-method",
        {"generate": {"method": "aim"}},
        "columns.picture: type image, but generate.method 'aim' makes no pictures; accepted: generate.image with "
        "method auto or image_",
    ),
    (
        "method-of-tables",
        {"generate": {"method": "aim", "image": {}}},
        "image: is for method image_",
    ),
    (
        "two-pictures",
        {"columns.other": IMAGE, "generate.image": {"column": "picture"}},
        "columns: other: a second image column; accepted: one, so declare the others with ignore: true",
    ),
    (
        "unnamed",
        {"columns.other": IMAGE},
        "generate.image.column: missing; accepted: one of picture, other",
    ),
    (
        "another-column",
        {"generate.image": {"column": "kind"}},
        "generate.image.column: 'kind'; accepted: one of picture",
    ),
    (
        "no-picture",
        {"columns.picture": None},
        "generate.image.column: missing; accepted: one of no declared column",
    ),
    (
        "given-unlisted",
        {"columns.size": {"type": "float", "min": 0, "max": 1}, "generate.image": {"given": ["size"]}},
        "generate.image.given: 'size' has no list of values; accepted: categories with listed values, booleans, "
        "integers with at most 1000 values",
    ),
    (
        "given-learned",
        {"columns.kind": {"type": "categorical", "values": "learned"}, "generate.image": {"given": ["kind"]}},
        "generate.image.given: 'kind' has no list of values; accepted: ",
    ),
    (
        "given-unmodelled",
        {"generate.image": {"given": ["pupil"]}},
        "generate.image.given: 'pupil' is not modelled; accepted: kind",
    ),
    (
        "given-missing",
        {"columns.large": {"type": "boolean"}},
        "generate.image.given: missing, and kind, large have lists of values; accepted: the columns by which pictures "
        "are made, or [] for none",
    ),
    (
        "classes",
        {"columns.age": {"type": "integer", "min": 1, "max": 400}, "generate.image": {"given": ["kind", "age"]}},
        "generate.image.given: kind, age make 1200 classes; accepted: at most 1000, so fewer columns",
    ),
    (
        "weighting",
        {"privacy.weighting": "owners"},
        "privacy.weighting: 'owners' with method 'image_moments'; accepted: rows",
    ),
    (
        "text-beside",
        {"columns.note": {"type": "text"}, "generate": {"method": "auto", "rows": 9, "image": {}, "text": {}}},
        "image: beside text; accepted: one of both, so declare the other column with ignore: true",
    ),
    (
        "time-limit",
        {"generate.time_limit": "2m"},
        "generate.time_limit: 'image_moments' plans by its own parameters; accepted: none",
    ),
    (
        "canaries",
        {"audit": {"canary_rows": ["plausible"]}},
        "audit.canary_rows: 'plausible' with pictures; accepted: random",
    ),
    (
        "rows",
        {"columns.kind": None, "generate.rows": "auto"},
        "generate.rows: 'auto', but no column is modelled whose counts would say how many rows there are",
    ),
    (
        "share",
        {"columns.kind": None, "generate.image": {"columns_share": 0.2}},
        "generate.image.columns_share: 0.2, but no column is modelled, and the pictures have the whole budget; "
        "accepted: none",
    ),
    (
        "raw-in-a-directory",
        {"source.format": "images", "columns.picture.stored": "raw"},
        "columns.picture.stored: 'raw' with source.format images, which are files; accepted: files",
    ),
    (
        "key",
        {"source.key": ["picture"]},
        "source.key: column 'picture' holds pictures; accepted: columns whose values identify a record",
    ),
    (
        "relative-checkpoint",
        {"generate.method": "image_finetune", "generate.image": {"finetune": {"checkpoint": "a/b", "public": WHY}}},
        "generate.image.finetune.checkpoint: 'a/b'; accepted: an absolute path, such as /srv/models/digits",
    ),
    (
        "comma",  # {accept_unscrubbed: landscapes, and no people}
        {"columns.picture": IMAGE | {"and no people": None}},
        "columns.picture.and no people: unknown key; accepted: accept_unscrubbed, channels, damaged, resize, size, "
        "stored, type; a text with a comma inside of { } needs quotes",
    ),
    ("target", {"quality.target": "picture"}, "quality.target: column 'picture' is not modelled; accepted: kind"),
]


@pytest.mark.parametrize(("changes", "words"), [part[1:] for part in REFUSED], ids=[part[0] for part in REFUSED])
def test_what_does_not_fit_is_refused_with_what_does(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(changes)


@pytest.mark.parametrize("size", [[12], [12, 10, 1], [0, 10], [12, 1025], [12.5, 10], [True, 10], 28, "28x28"])
def test_a_size_is_a_height_and_a_width(size: Any) -> None:
    assert re.search(
        r"columns\.picture\.size: .+; accepted: height and width in pixels, such as \[28, 28\], from 1 to 1024",
        refusal({"columns.picture.size": size}),
    )


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("channels", 4, "1 or 3"),
        ("channels", 0, "1 or 3"),
        ("resize", "stretch", "'refuse', 'fit' or 'crop'"),
        ("stored", "png", "'files' or 'raw'"),
        ("damaged", "keep", "'leave-out' or 'refuse'"),
        ("accept_unscrubbed", "yes", "at least 10 characters"),
        ("nullable", True, "accepted: "),
    ],
)
def test_other_keys_of_a_picture_are_refused_with_what_is_accepted(key: str, value: Any, accepted: str) -> None:
    refused = refusal({f"columns.picture.{key}": value})
    assert re.search(rf"columns\.picture\.{key}: .*{accepted}", refused), refused


def test_only_tables_with_pictures_are_published_as_a_folder_of_them() -> None:
    folder = [{"uri": "/elsewhere", "format": "images"}]
    assert drawings({"release.publish": folder}).release.publish
    words = "release.publish: format images, but generate makes no pictures; accepted: another format"
    assert words in refusal({"release.publish": folder, "columns.picture": None, "generate": {"method": "aim"}})


def test_auto_chooses_a_method_for_pictures_and_says_why() -> None:
    contract = drawings({"generate": {"method": "auto", "rows": 100, "image": {}}})
    assert contract.generate.method_unresolved
    choice = image_method_for(contract)
    chosen = contract.with_method(choice.method, choice.why)
    assert (chosen.generate.method, chosen.generate.why) == ("image_moments", choice.why)
    assert "no public pictures or simulator" in choice.why
    assert chosen.mechanism_snapshot() == drawings().mechanism_snapshot()


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("columns.picture.accept_unscrubbed", "somebody looked, and they show digits", True),
        ("columns.picture.damaged", "refuse", True),
        ("columns.picture.resize", "fit", False),
        ("columns.picture.stored", "raw", False),
        ("columns.picture.size", [10, 12], False),
        ("columns.picture.channels", 3, False),
        ("generate.image", {"given": []}, False),
        ("generate.image", {"columns_share": 0.2}, False),
        ("generate.image", {"given": ["kind"], "column": "picture"}, True),
        ("generate.rows", 200, True),
    ],
)
def test_what_changes_no_picture_that_is_read_is_no_new_spend(key: str, value: Any, same: bool) -> None:
    """`damaged` decides whether a run stops before anything is spent: who goes on has read the same rows."""
    changed = drawings({key: value})
    assert (changed.mechanism_snapshot() == drawings().mechanism_snapshot()) == same
    if same and "column" in key:
        assert changed.digest() != drawings().digest()
