"""A contract in words says what it declares."""

import copy

import pytest
from line_cases import SMALL

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.reviewing.contract_words import column_words, contract_words


def contract(**changes):
    document = copy.deepcopy(SMALL)
    for key, value in changes.items():
        document[key] = document[key] | value if isinstance(value, dict) else value
    return DataContract.model_validate(document)


def test_the_words_of_a_contract():
    words = dict(contract_words(contract()))
    assert words["what it is"] == "A small table for tests."
    assert words["whom it protects"] == (
        "each user, known by person, with at most 2 records used; hidden is what their records say, and whether they "
        "are in the data at all"
    )
    assert words["how well"] == "strong: epsilon 1, delta 1e-06 for one release"
    assert words["audit"] == (
        "fails where attacks prove epsilon above 1 at 99.9999% confidence; too little power is accepted: a test of "
        "other things"
    )
    assert words["approvals"] == "1 person, none of whom ran it"
    assert words["rows"] == "200"
    assert not {"why so weak", "base model"} & words.keys()


@pytest.mark.parametrize(
    ("changes", "what", "said"),
    [
        ({"release": {"approvals": 0}}, "approvals", "none is required"),
        (
            {"audit": {"model": "separate"}},
            "how well",
            "each of two mechanisms: epsilon 1, delta 1e-06; a release promises both together",
        ),
        ({"generate": {"method": "mst", "rows": "auto"}}, "rows", "noisy counts"),
        ({"privacy": {"on_overlap": "exclude"}}, "people of earlier releases", "excluded silently"),
        ({"purpose": "Method courses."}, "what it is for", "Method courses."),
        ({"recipients": ["University", "Press"]}, "who receives it", "University; Press"),
        ({"release": {"license": "CC-BY-4.0"}}, "where", "license CC-BY-4.0"),
        (
            {"privacy": {"guarantee": {"epsilon": 12.0}, "accept_weak_guarantee": "asked for by nobody else"}},
            "why so weak",
            "asked for by nobody else",
        ),
    ],
)
def test_what_differs_is_said(changes, what, said):
    assert said in dict(contract_words(contract(**changes)))[what]


def test_the_words_of_columns():
    columns = {
        "region": {"type": "categorical", "values": [f"r{number}" for number in range(9)], "nullable": True},
        "employer": {"type": "categorical", "values": "learned", "nullable": True},
        "note": {"type": "text", "pii": "drop"},
    }
    found = contract(columns=columns)
    words = {name: column_words(found, name) for name in found.columns}
    assert words["person"] == "identifier; fresh surrogate ids, unrelated to the source's"
    assert words["score"] == "integer, from 0 to 9; modelled with differential privacy"
    assert words["region"].startswith("categorical, r0, r1, r2, r3, r4, r5 and 3 more, may be missing; modelled")
    assert words["employer"].startswith("categorical, values learned with a part of the budget")
    assert words["note"] == "text, found identifiers: drop; not part of the release"
