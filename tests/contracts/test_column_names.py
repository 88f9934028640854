"""A contract takes any name of a column as it is, wherever it names one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from column_names import HOSTILE_NAMES, NAMES, any_name
from deltalake import write_deltalake
from deployment import Deployment
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.contracts.columns import RESERVED_COLUMNS
from dpsynth_platform.contracts.loading import load_contract, parse_contract
from dpsynth_platform.drafting.draft import drafted, write
from dpsynth_platform.drafting.questions import ask_gaps
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.yaml_files import dump, dump_inline, parse_value
from dpsynth_platform.sources.dialect import Dialect

VARIABLES = {"DPSYNTH_HOME": "/home"}
any_column = any_name.filter(lambda name: caseless(name) not in RESERVED_COLUMNS)
several = st.lists(any_column, min_size=7, max_size=7, unique_by=caseless)


def naming(names: list[str]) -> dict[str, Any]:
    """A contract that names its columns wherever it can."""
    owner, number, day, later, colour, flag, note = names
    return {
        "dataset": "letters",
        "description": "Letters of fictional customers.",
        "owners": ["letters@example.org"],
        "source": {"uri": "${DPSYNTH_HOME}/sources/letters", "key": [owner, number], "period_column": day},
        "family": "letters",
        "privacy": {
            "unit": "user",
            "owner_columns": [owner],
            "namespace": "customer",
            "max_contributions": 3,
            "record_order": f"weight:{day}",
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        },
        "columns": {
            owner: {"type": "identifier"},
            number: {"type": "identifier"},
            day: {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
            later: {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
            colour: {"type": "categorical", "values": ["red", "blue"]},
            flag: {"type": "boolean"},
            note: {"type": "text", "pii": "replace"},
        },
        "generate": {
            "method": "dp_finetune",
            "constraints": [
                {"ascending": [day, later]},
                {"forbid": {colour: ["red"], flag: [True]}},
                {"column": colour, "determines": flag, "mapping": {"red": False}},
            ],
            "workload": {
                "target": colour,
                "weights": {flag: 2},
                "queries": [{"columns": [colour, flag]}],
            },
            "text": {"column": note, "given": [colour, flag], "counts": {colour: {"red": 5, "blue": 5}}},
        },
        "quality": {"target": colour, "protected": [flag]},
        "release": {
            "uri": "${DPSYNTH_HOME}/public/letters",
            "cadence": "monthly",
            "start": "2026-01",
            "max_missing": {colour: 0.5},
        },
    }


@given(names=several)
def test_any_names_load_from_a_file(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "letters.yaml"
    file.write_text(dump(naming(names)), encoding="utf-8")
    contract = load_contract(file, VARIABLES)
    owner, number, day, later, colour, flag, note = names
    assert set(contract.columns) == set(names)
    assert contract.source.key == [owner, number]
    assert contract.source.period_column == contract.privacy.weight == day
    assert (contract.text_column, set(contract.conditioning_columns)) == (note, {colour, flag})
    assert contract.gaps == {later: {"after": [day], "strict": False}}
    assert contract.release.limited == [contract.quality.target] == [colour]


@given(name=any_name)
def test_any_name_is_one_line_of_yaml(name: str) -> None:
    line = f"{{{dump_inline(name)}: 1}}"
    assert "\n" not in line and parse_value(line) == {name: 1}


def test_each_of_the_named_names_loads() -> None:
    for start in range(0, len(NAMES) - 7, 7):
        names = list(NAMES[start : start + 7])
        contract = parse_contract(naming(names), where="letters", variables=VARIABLES)
        assert list(contract.columns) == names


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\u2029"])
def test_control_characters_are_refused_on_one_line(sign: str) -> None:
    names = ["a", "b", f"c{sign}: nothing is wrong", "d", "e", "f", "g"]
    with pytest.raises(ContractError) as refused:
        parse_contract(naming(names), where="letters", variables=VARIABLES)
    lines = str(refused.value).split("\n")
    assert all(line.startswith("letters: ") and not line.startswith("letters: nothing") for line in lines)
    assert not any(sign in line for line in lines)


@pytest.mark.parametrize("name", RESERVED_COLUMNS)
def test_the_platforms_own_names_are_refused(name: str) -> None:
    for spelled in (name, name.upper()):
        with pytest.raises(ContractError, match=f"columns: '{spelled}' is reserved by the platform, as are included, "):
            parse_contract(naming([spelled, *"bcdefg"]), where="letters", variables=VARIABLES)


@pytest.mark.parametrize("pair", [("a.b", "A.B"), ("größe", "GRÖSSE"), ("größe", "Größe"), ("\u0130d", "id")])
def test_names_that_differ_in_case_only_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ContractError) as refused:
        parse_contract(naming([*pair, *"cdefg"]), where="letters", variables=VARIABLES)
    first = str(refused.value).split("\n")[0]
    assert first == (
        f"letters: columns: {pair[0]!r} and {pair[1]!r} differ in case only, which Delta tables and SQL do not "
        "distinguish; accepted: distinct names, so rename one of the two in the source"
    )


def test_a_column_without_a_name_is_ignored_or_refused() -> None:
    document = naming([*"abcdefg"])
    ignored = document | {"columns": {"": {"ignore": True}} | document["columns"]}
    assert parse_contract(ignored, where="letters", variables=VARIABLES).ignored == [""]
    with pytest.raises(
        ContractError, match=r"columns: a column has an empty name, .* accepted: '': {ignore: true}, or"
    ):
        parse_contract(
            document | {"columns": {"": {"type": "boolean"}} | document["columns"]},
            where="letters",
            variables=VARIABLES,
        )


@pytest.mark.parametrize("format_", ["csv", "delta"])
def test_a_drafted_contract_has_the_tables_names(tmp_path: Path, format_: str) -> None:
    """The first line of a CSV file is refused where blanks surround its names."""
    names = [name for name in NAMES if format_ == "delta" or name == name.strip()]
    table = pa.table({name: ["x"] for name in names})
    place = tmp_path / ("people.csv" if format_ == "csv" else "people")
    if format_ == "csv":
        header = ",".join('"' + name.replace('"', '""') + '"' for name in names)
        place.write_text(f"{header}\n{',' * (len(names) - 1)}\n", encoding="utf-8")
    else:
        write_deltalake(place, table)
    deployment = Deployment(tmp_path / "home").write()
    draft = drafted(deployment.settings, place, "people", "tests", dialect=Dialect(header=format_ == "csv"))
    assert list(draft.contract["columns"]) == names

    def answer(question: str) -> str:
        path = question.split("\n")[-1].rpartition(" (")[0]
        if path in answers:
            return answers[path]
        return {"type": "text", "pii": "drop"}.get(path.rpartition(".")[2], "")

    answers = {
        "description": "People.",
        "owners": "tests@example.org",
        "source.key": dump_inline(["x=1,y", "#"]),
        "privacy.owner_columns": "Full name",
        "privacy.max_contributions": "2",
        "privacy.guarantee.epsilon": "1",
        "privacy.expected_units": "3000",
        "columns.a.b.type": "boolean",
    }
    filled = ask_gaps(deployment.settings, draft, answer, pytest.fail)
    file = tmp_path / "people.yaml"
    write(deployment.settings, filled, file)
    contract = load_contract(file, deployment.settings.variables)
    assert list(contract.columns) == names
    assert (contract.source.key, contract.privacy.owner_columns) == (["x=1,y", "#"], ["Full name"])
    assert contract.columns["a.b"].type == "boolean" and contract.columns[HOSTILE_NAMES[0]].type == "text"
