"""What an evolution's pictures are made from: never the source's, of declared classes, and said where it must be."""

from __future__ import annotations

from typing import Any

import pytest
from test_image_contracts import DRAWINGS

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.reviewing.contract_words import contract_words
from dpsynth_platform.synth.images.declared_foundations import DeclaredFoundation
from dpsynth_platform.synth.images.layout import ImageLayout

REASON = "drawn by ourselves and published under a free licence"


def document(directory: str) -> dict[str, Any]:
    table = {"directory": directory, "public": REASON}
    return DRAWINGS | {
        "source": {"uri": "/private/drawings", "format": "images", "key": ["drawing"]},
        "generate": {
            "method": "image_pe",
            "rows": 100,
            "image": {"evolution": {"foundation": "table", "table": table}},
        },
    }


@pytest.mark.parametrize("directory", ["/private/drawings", "/private/drawings/2024", "/private"])
def test_the_source_is_no_public_table(directory: str) -> None:
    with pytest.raises(ContractError):
        parse_contract(document(directory), where="drawings.yaml", variables={})


def test_reviewers_read_why_pictures_are_public() -> None:
    contract = parse_contract(document("/public/drawings"), where="drawings.yaml", variables={})
    assert REASON in repr(list(contract_words(contract)))


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


def test_how_requests_are_sent_decides_no_mechanism() -> None:
    def of(**endpoint: Any) -> dict[str, Any]:
        declared = evolving(foundation="endpoint", endpoint=ENDPOINT | endpoint)
        return parse_contract(declared, where="drawings.yaml", variables={}).mechanism_snapshot()

    assert of() == of(timeout=5, attempts=9, at_once=1)
    assert of() != of(model="other") and of() != of(words={"bar": "one bar"})
