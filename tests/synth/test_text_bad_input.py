"""Texts, labels, models and disks that are not as they should be: a clear word, or a training that does not mind."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from test_dp_finetune import GENERATOR, SOURCE, TEXTS, contract_for, fitted
from text_cases import save_model, tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, MechanismFailed, TrainingRefused
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.text import examples
from dpsynth_platform.training import checkpoints, journal, weights


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def plan(base):
    contract = contract_for(base)
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """The gate has tests of its own."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr("dpsynth_platform.synth.text.batch_trial.refuse_batches", lambda *_: None)


def table_of(place, bodies, topics=None):
    """A bounded table of these texts, two an owner."""
    count = len(bodies)
    table = pa.table(
        {
            "topic": pa.array(topics or ["sport"] * count, pa.string()),
            "year": pa.array([2000] * count, pa.int32()),
            "body": pa.array(bodies, pa.string()),
            OWNER_COLUMN: pa.array([f"{number // 2:032x}" for number in range(count)], pa.string()),
            RECORD_COLUMN: pa.array([f"{number:032x}" for number in range(count)], pa.string()),
        }
    )
    write_table(place, table.schema, table.to_batches())
    return place


ODD = {
    "no record at all": ([], None),
    "nothing written": ([None, "", "  \n\t", None], None),
    "labels that nobody declared": (["the team was late"] * 4, ["chess", None, "", "Sport"]),
    "texts longer than any context": (["late " * 40_000, "x" * 300_000, "\u00e9\U0001f600" * 9_000], None),
    "texts that imitate the layout": (["topic: sport\nbody: x", "\nbody:", "<|endoftext|><s>", "\x00\ufffd"], None),
    "one declared label alone": ([TEXTS["trade"]] * 6, ["trade"] * 6),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_records_are_trained_on_or_left_out_one_by_one(plan, tmp_path, what):
    """A training that stopped for them would say something of the data; each is an example of its own, or none."""
    fitted(plan, table_of(tmp_path / "bounded", *ODD[what]), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "trained.json").read_text())["executed_steps"] == 6


def test_many_more_records_than_were_expected(plan, tmp_path):
    """The public number decides how often each record is drawn: batches are larger than planned, nothing else."""
    fitted(plan, table_of(tmp_path / "bounded", [TEXTS["sport"]] * 1_000), tmp_path / "model")
    assert GENERATOR.is_complete(tmp_path / "model")


def test_a_batch_that_the_expected_number_cannot_fill_is_refused_by_the_contract(base):
    with pytest.raises(ContractError, match="batch_size"):
        contract_for(base, batch_size=5_000)


def planned_on(place, model=None, tokenizer=None, max_tokens=48):
    contract = contract_for(save_model(place, model, tokenizer))
    text = contract.generate.text.model_copy(update={"max_tokens": max_tokens})
    contract = contract.model_copy(update={"generate": contract.generate.model_copy(update={"text": text})})
    return GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))


def test_examples_beyond_the_model_s_context_are_refused_when_planned(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    with pytest.raises(TrainingRefused, match="knows 64 positions, the examples have up to 65 tokens"):
        planned_on(tmp_path / "base", max_tokens=65)


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_refused_when_planned(tmp_path):
    tokenizer = tiny_tokenizer()
    with pytest.raises(ConfigurationError, match="token"):
        planned_on(tmp_path / "base", tiny_llama(vocabulary=len(tokenizer) - 20), tokenizer)


@pytest.fixture
def bounded(tmp_path):
    return table_of(tmp_path / "bounded", [TEXTS["sport"], TEXTS["trade"]] * 50, ["sport", "trade"] * 50)


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def executed(model):
    return json.loads((model / "trained.json").read_text())["executed_steps"]


def test_a_disk_too_full_for_checkpoints_does_not_stop_a_training(plan, bounded, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_write", full)
    fitted(plan, bounded, tmp_path / "model")
    assert executed(tmp_path / "model") == 6


def test_a_step_that_cannot_be_counted_is_not_begun(plan, bounded, tmp_path, monkeypatch):
    append, model = journal._append, tmp_path / "model"
    drawn = []

    def second_fails(descriptor, record):
        if drawn:
            full()
        drawn.append(record)
        append(descriptor, record)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_append", second_fails)
        with pytest.raises(MechanismFailed, match="it was not begun; resolve that, then resume the training"):
            fitted(plan, bounded, model)
    assert GENERATOR.can_resume(model)
    fitted(plan, bounded, model, resume=True)
    assert executed(model) == 6


@pytest.mark.parametrize("where", [(examples, "write_durably"), (weights, "write_durably")])
def test_a_full_disk_before_or_after_the_steps_costs_none(plan, bounded, tmp_path, monkeypatch, where):
    model = tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr(*where, full)
        with pytest.raises(OSError, match="No space left"):
            fitted(plan, bounded, model)
    assert not GENERATOR.is_complete(model)
    assert GENERATOR.can_resume(model)
    fitted(plan, bounded, model, resume=True)
    assert executed(model) == 6


def test_what_a_model_learned_of_nothing_is_noise(plan, tmp_path):
    """Without records the trained weights differ from the base model's all the same: every step added its noise."""
    from safetensors.numpy import load_file

    fitted(plan, table_of(tmp_path / "bounded", []), tmp_path / "model")
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    moved = [name for name, value in weights.items() if "lora_B" in name and np.abs(value).max() > 0]
    assert moved
    assert len(moved) == len([name for name in weights if "lora_B" in name])
