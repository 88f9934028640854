"""Public pictures of an evolution: never the source's, and their reason is where the contract says it is."""

from __future__ import annotations

from typing import Any

import pytest
from test_image_contracts import DRAWINGS

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.reviewing.contract_words import contract_words

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
