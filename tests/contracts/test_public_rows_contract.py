"""A public table in a contract: for methods that use it, never the source, and said wherever it matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.bases import PublicBase
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import load_family, parse_contract
from dpsynth_platform.contracts.methods import PUBLIC_METHODS
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.privacy.events import histogram_event
from dpsynth_platform.privacy.statement import privacy_statement, words_of
from dpsynth_platform.release.dossier import contract_summary
from dpsynth_platform.reviewing.contract_words import contract_words

DEPLOY = Path(__file__).parents[2] / "deploy"
FAMILY = load_family(DEPLOY / "families" / "household-surveys.yaml")
WHY = "published by the statistical office in 2019"


def contract(public: dict[str, Any] | None, method: str = "jam", uri: str = "/private/census") -> DataContract:
    document: dict[str, Any] = dict(read_yaml(DEPLOY / "contracts" / "census.yaml"))
    document["source"] = document["source"] | {"uri": uri}
    document["generate"] = {"method": method, "rows": 100, **({} if public is None else {"public": public})}
    return parse_contract(document, where="census.yaml", variables={"DPSYNTH_HOME": "/home"})


def table(uri: str = "/public/census-2019", **more: Any) -> dict[str, Any]:
    return {"uri": uri, "why": WHY} | more


@pytest.mark.parametrize("method", PUBLIC_METHODS)
def test_methods_that_a_public_table_helps(method: str) -> None:
    found = contract(table(), method)
    assert found.bases == (PublicBase("table", "/public/census-2019", WHY),)
    assert found.mechanism_snapshot()["public"] == {"uri": "/public/census-2019", "format": "delta"}
    other = contract(table() | {"why": "the office publishes every wave"}, method)
    assert other.mechanism_snapshot() == found.mechanism_snapshot(), "a reworded reason is no new spend"


def test_contracts_without_one_are_as_they_were() -> None:
    found = contract(None, "aim")
    assert found.bases == () and "public" not in found.mechanism_snapshot()
    assert "public" not in found.snapshot()["generate"]


@pytest.mark.parametrize(
    ("uri", "expected"), [("/p/a.csv", "csv"), ("/p/a.parquet", "parquet"), ("/p/a", "delta"), ("s3://lake/a", "delta")]
)
def test_the_format_follows_from_the_name(uri: str, expected: str) -> None:
    found = contract(table(uri)).generate.public
    assert found is not None and found.format == expected


@pytest.mark.parametrize(
    ("public", "method", "words"),
    [
        (
            table(),
            "mst",
            "generate.public: is for method aim, jam, mwem, rap, gem, dp_2stage, aug_pe, and the method is 'mst'; "
            "accepted: such a method, or leave it out",
        ),
        (table(), "auto", "generate.public: is for method aim"),
        (None, "jam", "generate.public: missing, and 'jam' takes counts from it; accepted: a public table"),
        ({"uri": "/public/census"}, "jam", "generate.public.why"),
        (table(why="short"), "jam", "generate.public.why: 'short'; accepted: at least 10 characters"),
        (table("a.csv"), "jam", "'a.csv'; accepted: an absolute path, such as ${DPSYNTH_HOME}/a.csv, or a URI"),
        (table("s3://lake/a.csv"), "jam", "is not on this machine; accepted: a path, or a Delta table"),
        (table("/p", format="sql"), "jam", "generate.public.format: 'sql'; accepted: 'delta', 'parquet' or 'csv'"),
    ],
)
def test_what_is_refused(public: dict[str, Any] | None, method: str, words: str) -> None:
    with pytest.raises(ContractError) as refused:
        contract(public, method)
    assert words in str(refused.value)


@pytest.mark.parametrize("source", ["/private/census", "file:///private/%63ensus", "/private"])
@pytest.mark.parametrize("public", ["/private/census", "/private/census/2024.parquet", "/private/../private/census"])
def test_the_source_is_no_public_table(source: str, public: str) -> None:
    with pytest.raises(ContractError, match=r"generate.public.uri: '.*' and the source overlap; accepted: a table"):
        contract(table(public), uri=source)


def test_nor_is_it_in_a_store() -> None:
    with pytest.raises(ContractError, match="and the source overlap"):
        contract(table("s3://lake/census"), uri="s3://lake/census")
    assert contract(table("s3://lake/census-2019"), uri="s3://lake/census").generate.public is not None


def test_why_it_is_public_is_said_and_its_place_is_not() -> None:
    found = contract(table())
    assert WHY in repr(list(contract_words(found)))
    event = histogram_event(60.0, max_contributions=2, discrete=False)
    statement = privacy_statement(found, FAMILY, event, words_of("jam", event))
    (said,) = [line for line in statement.not_covered if "public table" in line]
    assert WHY in said and "census-2019" in said and "/public" not in said
    assert "/public" not in repr(contract_summary(found)["generate"])
