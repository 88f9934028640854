"""What `method: auto` stands for where a text is written: each rule, and what becomes of the contract."""

import dataclasses
import socket
from pathlib import Path

import pytest
from text_cases import letters_contract

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation import storage
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.synth.automatic import method_for
from dpsynth_platform.synth.planning import changes, resolve_method
from dpsynth_platform.synth.text.choice import (
    FEW_TEXTS,
    LONG_TOKENS,
    SHORT_TOKENS,
    TextFacts,
    choose_for_texts,
    lost_training_of,
    text_facts,
)

PLENTY = TextFacts(
    endpoint=False,
    bundled=False,
    epsilon=4.0,
    records=10_000,
    cpu_only=False,
    tokens=LONG_TOKENS + 1,
    rows=FEW_TEXTS,
    longest=SHORT_TOKENS,
    divisible=True,
)
SLOW, BUNDLED = {"cpu_only": True}, {"bundled": True}


@pytest.mark.parametrize(
    ("change", "method", "why"),
    [
        ({}, "dp_finetune", "10,000 records planned are enough"),
        ({"records": 9_999}, "ctcl", "public topics help"),
        ({"records": 5_000}, "ctcl", "5,000 records planned"),
        ({"records": 4_999}, "aug_pe", "4,999 records planned are too few"),
        (BUNDLED | {"records": 4_999}, "ctcl", "hardly writes what could be voted for"),
        (BUNDLED | {"records": 1_000}, "ctcl", "1,000 records planned are few"),
        (BUNDLED | {"records": 999}, "aug_pe", "999 records planned are too few"),
        (BUNDLED | {"records": 5_000}, "ctcl", "public topics help"),
        (BUNDLED, "dp_finetune", "enough"),
        (BUNDLED | {"epsilon": 0.5}, "dp_finetune", "enough"),
        (BUNDLED | {"epsilon": 0.5, "records": 4_999}, "ctcl", "hardly writes what could be voted for"),
        (BUNDLED | {"epsilon": 0.49}, "aug_pe", "at epsilon 0.49"),
        ({"epsilon": 1.0}, "dp_finetune", "enough"),
        ({"epsilon": 0.99}, "aug_pe", "at epsilon 0.99"),
        ({"endpoint": True}, "aug_pe", "an endpoint has the language model"),
        ({"endpoint": True, "records": 10**6, "epsilon": 8.0}, "aug_pe", "an endpoint"),
        (SLOW, "dp_inference", "500 short texts can be paid for token by token"),
        (SLOW | {"records": 7_000}, "dp_inference", "a day or more without an accelerator"),
        (SLOW | {"tokens": LONG_TOKENS}, "dp_finetune", "enough"),
        (SLOW | {"rows": FEW_TEXTS + 1}, "aug_pe", "votes need none"),
        (SLOW | {"rows": None}, "aug_pe", "votes need none"),
        (SLOW | {"longest": SHORT_TOKENS + 1}, "aug_pe", "votes need none"),
        (SLOW | {"epsilon": 3.9}, "aug_pe", "votes need none"),
        (SLOW | {"divisible": False}, "aug_pe", "votes need none"),
        (SLOW | {"records": 4_999}, "aug_pe", "too few"),
    ],
)
def test_each_rule_and_its_reason(change, method, why):
    chosen = choose_for_texts(dataclasses.replace(PLENTY, **change))
    assert chosen.method == method
    assert chosen.why.startswith("auto: ")
    assert why in chosen.why


def contract_for(*, method="auto", privacy=(), generate=(), text=()):
    declared = {"method": method, "rows": 200, "text": {"max_tokens": 64, "given": ["kind"]} | dict(text)}
    plenty = {"guarantee": {"epsilon": 4.0, "delta": "auto"}, "expected_units": 6_000}
    return letters_contract(
        {"kind": {"type": "categorical", "values": ["mail", "note"]}},
        declared | dict(generate),
        privacy=plenty | dict(privacy),
    )


def settings(tmp_path, **variables):
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path), "DPSYNTH_DEPLOY": str(tmp_path)} | variables)


def test_facts_are_those_that_the_contract_and_the_deployment_declare(tmp_path):
    facts = text_facts(contract_for(), settings(tmp_path))
    assert facts == TextFacts(False, True, 4.0, 12_000, False, 100 * 1_500 * 64, 200, 64, True)
    declared = {"expected_records": 7_000, "batch_size": 1_000, "steps": 10}
    facts = text_facts(contract_for(generate={"training": declared}), settings(tmp_path, DPSYNTH_DEVICE="cpu"))
    assert (facts.records, facts.tokens, facts.cpu_only) == (7_000, 10 * 1_000 * 64, True)
    assert not text_facts(contract_for(privacy={"expected_units": 100}), settings(tmp_path)).divisible


def test_no_record_is_read_and_no_request_is_sent(tmp_path, monkeypatch):
    """The source is nowhere; all reading and every connection fail."""

    def refused(*_, **__):
        raise AssertionError("the choice looks at more than the contract")

    for name in ("read_table", "table_schema"):
        monkeypatch.setattr(storage, name, refused)
    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(Path, "open", refused)
    assert resolve_method(contract_for(), settings(tmp_path)).generate.method == "dp_finetune"


@pytest.mark.parametrize(
    ("declared", "method"),
    [
        ({}, "dp_finetune"),
        ({"privacy": {"expected_units": 4_000}}, "ctcl"),
        ({"privacy": {"expected_units": 2_000}}, "ctcl"),
        ({"privacy": {"expected_units": 2_000}, "generate": {"base_model": "m"}}, "aug_pe"),
        ({"privacy": {"expected_units": 400}}, "aug_pe"),
        ({"privacy": {"guarantee": {"epsilon": 0.5, "delta": "auto"}}}, "dp_finetune"),
        ({"privacy": {"guarantee": {"epsilon": 0.4, "delta": "auto"}}}, "aug_pe"),
        ({"privacy": {"guarantee": {"epsilon": 0.5, "delta": "auto"}}, "generate": {"base_model": "m"}}, "aug_pe"),
    ],
)
def test_a_settled_contract_is_as_if_the_method_had_been_named(tmp_path, declared, method):
    found = resolve_method(contract_for(**declared), settings(tmp_path))
    named = contract_for(method=method, **declared)
    assert found.snapshot() == named.snapshot()
    assert changes(found, named) == []
    chosen = method_for(found)
    assert (chosen.method, chosen.why[:6]) == (method, "auto: ")
    assert resolve_method(found, settings(tmp_path, DPSYNTH_DEVICE="cpu")) is found
    sealed = DataContract.model_validate(found.snapshot())
    assert resolve_method(sealed, settings(tmp_path)).generate.method == method


@pytest.mark.parametrize(
    ("method", "privacy", "said"),
    [
        ("dp_finetune", {"expected_units": 400}, "with 800 records planned, fewer than 1,000, gradients hardly"),
        ("ctcl", {"guarantee": {"epsilon": 0.4, "delta": "auto"}}, "with epsilon 0.4, below 0.5, gradients hardly"),
        ("dp_finetune", {}, None),
        ("dp_finetune", {"guarantee": {"epsilon": 0.5, "delta": "auto"}}, None),
        ("aug_pe", {"expected_units": 400}, None),
        ("auto", {"expected_units": 400}, None),
    ],
)
def test_a_training_that_auto_would_not_choose_is_reported(tmp_path, method, privacy, said):
    found = lost_training_of(contract_for(method=method, privacy=privacy), settings(tmp_path))
    assert found is None if said is None else found.startswith(said)


def test_what_is_declared_for_other_methods_falls_away(tmp_path):
    declared = {"training": {"steps": 10}}
    text = {"evolution": {"rounds": 3}, "topics": {"count": 32}, "resample": {}}
    trained = resolve_method(contract_for(generate=declared, text=text), settings(tmp_path)).generate
    assert (trained.training.steps, trained.text.resample.clusters) == (10, 100)
    assert trained.text.evolution is trained.text.topics is None
    few = contract_for(generate=declared, text=text, privacy={"expected_units": 100})
    evolved = resolve_method(few, settings(tmp_path)).generate
    assert evolved.training is evolved.text.topics is None
    assert (evolved.text.evolution.rounds, evolved.text.resample.clusters) == (3, 100)


def test_an_endpoint_is_asked_whatever_else_holds(tmp_path):
    evolution = {"endpoint": {"url": "https://models.example.org/v1"}}
    with pytest.raises(ContractError, match="base_model"):
        contract_for(text={"evolution": evolution})
    found = resolve_method(
        contract_for(generate={"base_model": "m"}, text={"evolution": evolution}), settings(tmp_path)
    )
    assert (found.generate.method, found.generate.base_model) == ("aug_pe", "m")


def test_another_choice_is_another_run(tmp_path):
    units = {"privacy": {"expected_units": 499}}, {"privacy": {"expected_units": 500}}
    one, other = (resolve_method(contract_for(**declared), settings(tmp_path)) for declared in units)
    assert "method" in changes(one, other)
    long = contract_for(generate={"training": {"steps": 1_000}})
    fast, slow = (
        resolve_method(long, settings(tmp_path)),
        resolve_method(long, settings(tmp_path, DPSYNTH_DEVICE="cpu")),
    )
    assert (fast.generate.method, slow.generate.method) == ("dp_finetune", "dp_inference")
    assert "method" in changes(fast, slow)


def test_a_method_that_cannot_do_it_is_refused_with_its_reason(tmp_path):
    contract = contract_for(text={"chunks": 2}, privacy={"expected_units": 100})
    with pytest.raises(ContractError) as refused:
        resolve_method(contract, settings(tmp_path))
    said = str(refused.value)
    assert "letters: generate.method: auto selects aug_pe here (auto: 200 records planned are too few" in said
    assert "generate.text.chunks: 2 with method 'aug_pe'; accepted: 1" in said


def test_without_a_text_auto_is_for_tables(tmp_path):
    with pytest.raises(ContractError, match="training: is for method dp_finetune, ctcl"):
        contract_for(generate={"text": None, "training": {}})
    contract = contract_for(generate={"text": None})
    assert resolve_method(contract, settings(tmp_path)) is contract
    assert method_for(contract).method in ("aim", "independent")


def test_a_contract_that_is_not_settled_is_not_planned():
    with pytest.raises(ContractError, match="must be resolved before planning"):
        method_for(contract_for())


def test_tokens_are_counted_by_the_batch_that_the_plan_would_have(tmp_path):
    """By default an eighth of all, and 2,048 at most."""
    contract = contract_for(privacy={"expected_units": 80_000, "max_contributions": 1})
    tokens = 100 * 2048 * contract.generate.text.max_tokens
    assert text_facts(contract, settings(tmp_path)).tokens == tokens
