"""Contracts of which a column is written by a language model."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from dpsynth_platform.audit.policy import attacks_on, check_gates
from dpsynth_platform.contracts.columns import conditioning_values as conditioning_values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import DEFAULT_BASE_MODEL
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.methods import TableMethodName
from dpsynth_platform.contracts.text_generation import training_units
from dpsynth_platform.foundation.errors import ContractError

MAIL: dict[str, Any] = {
    "dataset": "mail",
    "description": "Letters to the editor.",
    "owners": ["letters@example.org"],
    "source": {"uri": "/nowhere", "key": ["letter"]},
    "family": "readers",
    "privacy": {
        "unit": "user",
        "owner_columns": ["reader"],
        "namespace": "reader",
        "max_contributions": 2,
        "guarantee": {"epsilon": 2.0},
        "expected_units": 4000,
    },
    "columns": {
        "letter": {"type": "identifier"},
        "reader": {"type": "identifier"},
        "topic": {"type": "categorical", "values": ["sport", "trade"]},
        "year": {"type": "integer", "min": 2000, "max": 2003},
        "body": {"type": "text", "pii": "replace"},
    },
    "generate": {"method": "dp_finetune"},
    "release": {"uri": "/nowhere/public"},
}


def mail(**changes: Any) -> DataContract:
    document = MAIL | {key: value for key, value in changes.items() if key not in ("privacy", "columns")}
    for part in ("privacy", "columns"):
        document[part] = {
            key: value for key, value in (MAIL[part] | changes.get(part, {})).items() if value is not None
        }
    return parse_contract(document, where="mail.yaml", variables={})


def test_the_only_text_column_is_written_and_the_model_is_told_all_others() -> None:
    contract = mail()
    assert contract.text_column == "body"
    assert contract.conditioning_columns == contract.modelled == ["topic", "year"]
    assert contract.read_by_mechanism == ["topic", "year", "body"]
    assert contract.generate.base_model == DEFAULT_BASE_MODEL


def test_columns_without_a_list_of_values_are_not_told() -> None:
    contract = mail(
        columns={
            "price": {"type": "float", "min": 0, "max": 1},
            "count": {"type": "integer", "min": 0, "max": 5000},
            "paid": {"type": "boolean", "nullable": True},
        }
    )
    assert contract.conditioning_columns == ["topic", "year", "paid"]
    assert conditioning_values(contract.columns["paid"]) == ("false", "true", None)
    assert conditioning_values(contract.columns["year"]) == ("2000", "2001", "2002", "2003")


def test_defaults_are_part_of_the_sealed_contract() -> None:
    sealed = DataContract.model_validate(mail().snapshot())
    assert sealed == mail()
    assert sealed.generate.training is not None
    assert sealed.generate.training.allowance == 10


def test_other_methods_write_no_column() -> None:
    contract = mail(generate={"method": "aim"})
    assert (contract.text_column, contract.conditioning_columns) == (None, [])
    assert contract.read_by_mechanism == contract.modelled


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"text": {"temperature": 0.7, "top_k": 50, "top_p": 0.9}}, True),
        ({"text": {"min_tokens": 3, "most_tokens": 30, "keep": {"whole": True, "duplicates": "kept"}}}, True),
        ({"text": {"counts": {"year": {2001: 30}}}}, True),
        ({"text": {"max_tokens": 64}}, False),
        ({"text": {"columns_share": 0.2}}, False),
        ({"text": {"chunks": 2}}, False),
        ({"text": {"given": ["topic"]}}, False),
        ({"training": {"steps": 99}}, False),
        ({"training": {"learning_rate": 0.01}}, False),
        ({"base_model": "another"}, False),
    ],
)
def test_what_decides_the_training_makes_another_run_and_how_texts_are_drawn_does_not(
    changes: dict[str, Any], same: bool
) -> None:
    other = mail(generate={"method": "dp_finetune"} | changes)
    assert (other.mechanism_snapshot() == mail().mechanism_snapshot()) is same


def test_canaries_with_other_texts_make_another_run() -> None:
    """They were trained on: a model has the canaries that it has, whatever the contract says later."""
    strange = mail(audit={"canary_texts": ["unlikely-ending"]})
    assert strange.mechanism_snapshot() != mail().mechanism_snapshot()
    assert "canary_texts" not in mail().mechanism_snapshot(), "runs without a choice keep their keys"


def test_a_language_model_may_be_audited_apart_which_makes_another_run() -> None:
    apart = mail(audit={"model": "separate"})
    assert apart.separate_audit_model
    assert apart.mechanism_snapshot() != mail().mechanism_snapshot()


def test_records_are_sampled_by_their_public_number() -> None:
    contract = mail()
    assert contract.generate.training is not None
    assert training_units(contract.privacy, contract.generate.training) == 8000
    told = mail(generate={"method": "dp_finetune", "training": {"expected_records": 5000}})
    assert told.generate.training is not None
    assert training_units(told.privacy, told.generate.training) == 5000
    owners = mail(generate={"method": "dp_finetune", "training": {"sampled": "owners"}})
    assert owners.generate.training is not None
    assert training_units(owners.privacy, owners.generate.training) == 4000


def test_contradictions_are_found_at_once() -> None:
    several = {"method": "dp_inference", "time_limit": "5m", "training": {}, "text": {"min_tokens": 3, "evolution": {}}}
    with pytest.raises(ContractError) as refusal:
        mail(generate=several)
    lines = str(refusal.value).split("\n")
    assert [line.split(": ")[1] for line in lines] == [
        "generate.training",
        "generate.text.evolution",
        "generate.text.min_tokens",
        "generate.time_limit",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"generate": {"method": "aim", "text": {}}},
            "generate.text: is for method dp_finetune, ctcl, ",
        ),
        (
            {"generate": {"method": "mst", "training": {}}},
            "generate.training: is for method dp_finetune, ctcl, and the",
        ),
        ({"generate": {"method": "dp_finetune", "time_limit": "5m"}}, "'dp_finetune' plans by steps"),
        ({"generate": {"method": "dp_finetune", "text": {"column": "topic"}}}, "generate.text.column: 'topic'"),
        ({"generate": {"method": "dp_finetune", "text": {"given": ["body"]}}}, "generate.text.given: 'body'"),
        ({"generate": {"method": "dp_finetune", "text": {"given": ["x"]}}}, "'x' is not modelled"),
        (
            {
                "columns": {"price": {"type": "float", "min": 0, "max": 1}},
                "generate": {"method": "dp_finetune", "text": {"given": ["price"]}},
            },
            "generate.text.given: 'price' has no list of values",
        ),
        ({"columns": {"body": {"type": "text", "pii": "drop"}}}, "generate.text.column: missing"),
        ({"columns": {"body": {"type": "text", "pii": "hash"}}}, "scrubbing leaves readable"),
        ({"columns": {"head": {"type": "text"}}}, "missing; accepted: one of body, head"),
        ({"privacy": {"weighting": "owners"}}, "privacy.weighting: 'owners' with method 'dp_finetune'"),
        (
            {
                "privacy": {"adjacency": "fixed-graph"},
                "generate": {"method": "dp_finetune", "training": {"sampled": "owners"}},
            },
            "generate.training.sampled: 'owners'",
        ),
        (
            {"generate": {"method": "dp_finetune", "training": {"batch_size": 9000}}},
            "generate.training.batch_size: 9000 of 8000",
        ),
        (
            {"generate": {"method": "dp_finetune", "training": {"sampled": "owners", "expected_records": 5}}},
            "generate.training.expected_records: with sampled 'owners'",
        ),
        ({"generate": {"method": "dp_finetune", "text": {"top_p": 0}}}, "generate.text.top_p"),
        (
            {"generate": {"method": "dp_finetune", "text": {"min_tokens": 9, "most_tokens": 8}}},
            "min_tokens: 9 with texts of up to 8 tokens",
        ),
        (
            {"generate": {"method": "dp_finetune", "text": {"keep": {"most_repeated": 2}}}},
            "generate.text.keep.most_repeated",
        ),
        (
            {"generate": {"method": "dp_finetune", "text": {"given": ["topic"], "counts": {"year": {2001: 3}}}}},
            "generate.text.counts: 'year' is no conditioning column; accepted: topic",
        ),
        (
            {"generate": {"method": "dp_finetune", "text": {"counts": {"year": {1999: 3}}}}},
            "generate.text.counts.year: '1999'; accepted: 2000, 2001",
        ),
        (
            {"generate": {"method": "dp_finetune", "rows": 4, "text": {"counts": {"year": {2000: 3}}}}},
            "rows: 4, but text.counts adds up to 3; accepted: rows: auto",
        ),
        ({"generate": {"method": "dp_finetune", "text": {"counts": {"year": {2000: 0}}}}}, "text.counts adds up to 0"),
        (
            {"generate": {"method": "aug_pe", "text": {"keep": {"whole": True}}}},
            "text.keep: with method 'aug_pe', whose mechanism draws the texts",
        ),
        ({"generate": {"method": "dp_inference", "text": {"most_tokens": 9}}}, "text.most_tokens: with method 'dp_inf"),
        ({"generate": {"method": "dp_finetune", "training": {"adapter": "half"}}}, "generate.training.adapter"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError) as refused:
        mail(**changes)
    assert said in str(refused.value)


# Tables of ids and a text alone.

ALONE: dict[str, Any] = {"topic": None, "year": None}


def notes(generate: dict[str, Any], **changes: Any) -> DataContract:
    return mail(columns=ALONE | changes.pop("columns", {}), generate={"rows": 50} | generate, **changes)


@pytest.mark.parametrize("method", ["auto", "dp_finetune", "ctcl", "dp_inference", "aug_pe"])
def test_a_text_alone_can_be_written(method: str) -> None:
    contract = notes({"method": method, "base_model": "some-model", "text": {}})
    assert (contract.modelled, contract.conditioning_columns, contract.text_column) == ([], [], "body")
    assert contract.read_by_mechanism == ["body"]
    assert DataContract.model_validate(contract.snapshot()) == contract  # also as it was sealed


def test_auto_for_a_text_alone_is_settled_as_with_columns() -> None:
    contract = notes({"method": "auto", "base_model": "some-model", "text": {}})
    for method in ("dp_finetune", "ctcl", "dp_inference", "aug_pe"):
        named = notes({"method": method, "base_model": "some-model", "text": {}})
        assert contract.with_method(method, "a test").snapshot() == named.snapshot()


@pytest.mark.parametrize("method", ["dp_finetune", "ctcl", "aug_pe", "auto"])
def test_how_many_rows_must_be_said_where_nothing_is_counted(method: str) -> None:
    with pytest.raises(
        ContractError,
        match=r"generate\.rows: 'auto', but no column .*: declare such a column, or give generate\.rows a number",
    ):
        notes({"method": method, "base_model": "some-model", "rows": "auto", "text": {}})


def test_documents_that_are_paid_for_say_how_many_rows_there_are() -> None:
    assert notes({"method": "dp_inference", "rows": "auto"}).generate.rows == "auto"


@pytest.mark.parametrize(
    ("generate", "changes", "said"),
    [
        (
            {"text": {"columns_share": 0.2}},
            {},
            r"columns_share: 0\.2, but no column is modelled, and the text has the whole budget",
        ),
        ({"text": {"given": ["letter"]}}, {}, r"generate\.text\.given: 'letter' is not modelled; accepted: none"),
        (
            {"text": {"counts": {"letter": {"a": 50}}}},
            {},
            r"counts: 'letter' is no conditioning column; accepted: none",
        ),
        (
            {"constraints": [{"forbid": {"letter": ["a"], "reader": ["b"]}}]},
            {},
            r"generate\.constraints: no column is modelled",
        ),
        ({"workload": {"target": "letter"}}, {}, r"generate\.workload: no column is modelled"),
        ({}, {"audit": {"canary_rows": ["random"]}}, r"audit\.canary_rows: random, but no column is modelled"),
        ({}, {"audit": {"gates": ["measurements"]}}, r"audit\.gates: 'measurements' does not apply, since no column"),
        (
            {},
            {"quality": {"target": "letter"}},
            r"quality\.target: column 'letter' is not modelled; accepted: none",
        ),
        ({}, {"quality": {"protected": ["reader"]}}, r"quality\.protected: column 'reader' is not modelled; accepted"),
        (
            {},
            {"columns": {"more": {"type": "text"}}},
            r"generate\.text\.column: missing; accepted: one of body, more",
        ),
        ({}, {"columns": {"body": {"type": "text", "pii": "hash"}}}, r"generate\.text\.column: 'body'; accepted"),
    ],
)
def test_what_asks_for_columns_is_refused_where_none_is_modelled(
    generate: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ContractError, match=said):
        notes({"method": "dp_finetune"} | generate, **changes)


def test_gates_on_texts_are_accepted() -> None:
    contract = notes({"method": "dp_finetune"}, audit={"gates": ["text likelihood"]})
    check_gates(contract, attacks_on(contract))
    with pytest.raises(
        ContractError, match="no attack on it is called 'a guess'; accepted: text likelihood, text overlap"
    ):
        check_gates(other := notes({"method": "dp_finetune"}, audit={"gates": ["a guess"]}), attacks_on(other))


@pytest.mark.parametrize("method", sorted({*get_args(TableMethodName)} - {"jam"}))  # it needs a public table
def test_tables_need_a_column(method: str) -> None:
    with pytest.raises(ContractError, match=r"columns: at least one of integer, .* is needed to model anything"):
        notes({"method": method})
    with pytest.raises(ContractError, match=r"is needed to model anything$"):
        notes({"method": method}, columns={"body": {"type": "text", "pii": "drop"}})


def test_a_weight_between_several_owners_is_no_modelled_column() -> None:
    contract = notes(
        {"method": "dp_finetune"},
        columns={"priority": {"type": "integer", "min": 0, "max": 9}},
        privacy={"adjacency": "fixed-graph", "record_order": "weight:priority"},
    )
    assert contract.modelled == [] and contract.privacy.weight == "priority"
