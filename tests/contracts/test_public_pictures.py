"""Public pictures and models of an evolution or a warm-up: never the source's, of declared classes, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_image_contracts import DRAWINGS

from dpsynth_platform.contracts.loading import load_family, parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.events import histogram_event
from dpsynth_platform.privacy.statement import privacy_statement, words_of
from dpsynth_platform.release.dossier import contract_summary
from dpsynth_platform.reviewing.contract_words import contract_words
from dpsynth_platform.synth.images.declared_foundations import DeclaredFoundation
from dpsynth_platform.synth.images.layout import ImageLayout

FAMILY = load_family(Path(__file__).parents[2] / "deploy" / "families" / "household-surveys.yaml")
REASON = "drawn by ourselves and published under a free licence"


def document(directory: str, method: str = "image_pe", **diffusion: Any) -> dict[str, Any]:
    table = {"directory": directory, "public": REASON}
    image: dict[str, Any] = {"evolution": {"foundation": "table", "table": table}}
    if method == "image_diffusion":
        image = {"diffusion": {"warm_up": "table", "table": table} | diffusion}
    return DRAWINGS | {
        "source": {"uri": "/private/drawings", "format": "images", "key": ["drawing"]},
        "generate": {"method": method, "rows": 100, "image": image},
    }


@pytest.mark.parametrize("method", ["image_pe", "image_diffusion"])
@pytest.mark.parametrize("directory", ["/private/drawings", "/private/drawings/2024", "/private"])
def test_the_source_is_no_public_table(directory: str, method: str) -> None:
    with pytest.raises(ContractError, match=r"table.directory: '/private.*' and the source overlap; accepted: a"):
        parse_contract(document(directory, method), where="drawings.yaml", variables={})


@pytest.mark.parametrize("uri", ["file:///private/%64rawings", "file://localhost/private/drawings"])
def test_nor_is_it_by_another_spelling(uri: str) -> None:
    source = {"uri": uri, "format": "images", "key": ["drawing"]}
    with pytest.raises(ContractError, match="and the source overlap"):
        parse_contract(document("/private/drawings") | {"source": source}, where="drawings.yaml", variables={})


@pytest.mark.parametrize(
    ("evolution", "key"),
    [
        ({"foundation": "shapes", "encoder": "/private/drawings/1/encoder.bin"}, "evolution.encoder"),
        ({"foundation": "fonts", "fonts": {"directory": "/private"}}, "evolution.fonts.directory"),
    ],
)
def test_nor_is_it_what_candidates_or_features_are_made_of(evolution: dict[str, Any], key: str) -> None:
    declared = document("/public/drawings")
    declared["generate"]["image"] = {"evolution": evolution}
    with pytest.raises(ContractError, match=f"generate.image.{key}: '/private.*' and the source overlap; accepted:"):
        parse_contract(declared, where="drawings.yaml", variables={})


def test_a_public_summary_has_no_places() -> None:
    evolution = {"foundation": "fonts", "fonts": {"directory": "/srv/fonts/free"}, "encoder": "/srv/models/encoder.bin"}
    finetune = {"checkpoint": "/srv/models/strokes", "public": REASON}
    local = {"endpoint": {"url": "http://127.0.0.1:8000/v1", "model": "/srv/models/painter"}, "foundation": "endpoint"}
    for method, image in (
        ("image_pe", {"evolution": evolution}),
        ("image_pe", {"evolution": local}),
        ("image_finetune", {"finetune": finetune}),
    ):
        declared = DRAWINGS | {"generate": {"method": method, "rows": 100, "image": image}}
        contract = parse_contract(declared, where="drawings.yaml", variables={})
        assert "/srv" not in repr(contract_summary(contract)["generate"])


@pytest.mark.parametrize("method", ["image_pe", "image_diffusion"])
def test_reviewers_read_why_pictures_are_public(method: str) -> None:
    """So do all who read the statement; the public summary has the directory's name only."""
    contract = parse_contract(document("/public/drawings", method), where="drawings.yaml", variables={})
    assert REASON in repr(list(contract_words(contract)))
    event = histogram_event(60.0, max_contributions=2, discrete=False)
    statement = privacy_statement(contract, FAMILY, event, words_of(method, event))
    (said,) = [line for line in statement.not_covered if "public pictures" in line]
    assert REASON in said and "/public" not in said and "drawings" in said
    assert ("learned first" in said) == (method == "image_diffusion")
    assert "/public" not in repr(contract_summary(contract)["generate"])


TABLE = {"directory": "/public/drawings", "public": REASON}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"table": None}, "table: missing with warm_up 'table'; accepted: a directory of public pictures, with the reason"),
    ({"warm_up": "moments"}, "table: with warm_up 'moments'; accepted: none, or warm_up: table or table-and-moments"),
    ({"warm_up": "tables"}, "warm_up: 'tables'; accepted: 'none', 'moments', 'table' or 'table-and-moments'"),
    (
        {"table": TABLE | {"nearest_classes": 2, "labels": {"bar": ["line"]}}},
        "labels: with nearest_classes, which selects labels; accepted: one of both",
    ),
    ({"table": TABLE | {"nearest_classes": 0}}, "table.nearest_classes: 0; accepted: at least 1"),
    ({"table": TABLE | {"nearest_share": 1.0}}, "table.nearest_share: 1.0; accepted: below 1"),
    (
        {
            "warm_up": "table-and-moments",
            "warm_up_share": 0.8,
            "table": TABLE | {"nearest_classes": 2, "nearest_share": 0.2},
        },
        "warm_up_share and table.nearest_share: 0.8 and 0.2; accepted: together below 1",
    ),
]


@pytest.mark.parametrize(("diffusion", "words"), REFUSED)
def test_what_a_warm_up_refuses(diffusion: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError) as refused:
        parse_contract(document("/x", "image_diffusion", **diffusion), where="drawings.yaml", variables={})
    assert words in str(refused.value)


ENDPOINT = {"url": "https://models.example.org/v1", "model": "painter"}


def evolving(**evolution: Any) -> dict[str, Any]:
    return DRAWINGS | {"generate": {"method": "image_pe", "rows": 100, "image": {"evolution": evolution}}}


@pytest.mark.parametrize(
    ("evolution", "message"),
    [
        ({"foundation": "endpoint"}, "endpoint: missing; accepted: its url, and the model's name there"),
        ({"endpoint": ENDPOINT}, "endpoint: with foundation 'shapes'; accepted: none, or foundation: endpoint"),
        ({"foundation": "endpoint", "endpoint": {"url": ENDPOINT["url"]}}, "endpoint.model"),
        ({"foundation": "endpoint", "endpoint": ENDPOINT | {"url": "http://models.example.org"}}, "accepted: https://"),
        ({"foundation": "endpoint", "endpoint": ENDPOINT | {"words": {"bar": ""}}}, "endpoint.words.bar"),
    ],
)
def test_an_endpoint_is_declared_in_full(evolution: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        parse_contract(evolving(**evolution), where="drawings.yaml", variables={})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "evolution",
    [
        {"foundation": "endpoint", "endpoint": ENDPOINT | {"words": {"square": "a square"}}},
        {"foundation": "fonts", "fonts": {"characters": {"bar": "|", "cross": "+", "disc": "o", "square": "#"}}},
        {"foundation": "table", "table": {"directory": "/p", "public": REASON, "labels": {"square": ["box"]}}},
    ],
)
def test_what_is_declared_for_no_class_is_a_fault(evolution: dict[str, Any]) -> None:
    contract = parse_contract(evolving(**evolution), where="drawings.yaml", variables={})
    with pytest.raises(ContractError, match="'square' is no class; accepted: bar, cross, disc"):
        DeclaredFoundation.of(contract, ImageLayout.of(contract))


@pytest.mark.parametrize("part", ["evolution", "diffusion", "finetune"])
def test_other_words_for_why_it_is_public_are_no_new_spend(part: str) -> None:
    def of(directory: str, reason: str) -> dict[str, Any]:
        declared = document(directory, "image_pe" if part == "evolution" else "image_diffusion")
        image = declared["generate"]["image"]
        if part == "finetune":
            declared["generate"] = {"method": "image_finetune", "rows": 100, "image": image}
            image.clear()
            image["finetune"] = {"checkpoint": directory, "public": reason}
        else:
            image[part]["table"] = image[part]["table"] | {"public": reason}
        return parse_contract(declared, where="drawings.yaml", variables={}).mechanism_snapshot()

    assert of("/public/drawings", REASON) == of("/public/drawings", "published by the museum itself")
    assert of("/public/drawings", REASON) != of("/public/paintings", REASON)


def test_how_requests_are_sent_decides_no_mechanism() -> None:
    def of(**endpoint: Any) -> dict[str, Any]:
        declared = evolving(foundation="endpoint", endpoint=ENDPOINT | endpoint)
        return parse_contract(declared, where="drawings.yaml", variables={}).mechanism_snapshot()

    assert of() == of(timeout=5, attempts=9, at_once=1)
    assert of() != of(model="other") and of() != of(words={"bar": "one bar"})


UNITS: dict[str, dict[str, Any]] = {
    "user": {},
    "group": {"unit": "group"},
    "example": {"unit": "example", "owner_columns": ["drawing"], "max_contributions": 1},
}


@pytest.mark.parametrize(
    ("unit", "said", "shown", "whose"),
    [
        ("user", "One user: ", "no user and have no", "One person has one id, the same wherever it stands in pupil."),
        ("group", "One group: ", "no group and have no", "One group has one id, the same wherever it stands in pupil."),
        (
            "example",
            "One record, identified by its key. ",
            "no record and have no",
            "Each record has an id of its own in drawing.",
        ),
    ],
)
def test_whom_a_guarantee_of_pictures_protects(unit: str, said: str, shown: str, whose: str) -> None:
    """A picture's people are no owners, and ids are those of the unit."""
    declared = document("/public/drawings")
    declared = declared | {"privacy": declared["privacy"] | UNITS[unit]}
    contract = parse_contract(declared, where="drawings.yaml", variables={})
    event = histogram_event(60.0, max_contributions=contract.privacy.max_contributions, discrete=False)
    family = FAMILY.model_copy(update={"unit": unit})
    statement = privacy_statement(contract, family, event, words_of("image_pe", event))
    assert statement.unit.startswith(said)
    assert statement.unit.endswith("A picture counts with its record, whomever it shows.")
    assert shown in " ".join(statement.not_covered)
    assert whose in [item.assumption for item in statement.assumptions]
