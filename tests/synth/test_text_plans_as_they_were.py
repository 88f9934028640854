"""Plans of texts beside modelled columns are what they have been: their digests name runs that are paid for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from text_cases import letters_contract, sealed_plan

from dpsynth_platform.privacy import accounting
from dpsynth_platform.privacy.renyi import RenyiCurve
from dpsynth_platform.synth.text.base_models import BaseModel

SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("kind", pa.string()), ("body", pa.string())])
KIND = {"kind": {"type": "categorical", "values": ["mail", "note"]}}
TRAINING = {"steps": 6, "batch_size": 40, "replay_steps": 4, "adapter": {"rank": 2, "alpha": 4}}
SEALED = {
    "dp_finetune": "4e7462a7bba7f978ba8ccaf0b64b42daac7664e7f6d077898d4e5ee9f5028757",
    "dp_finetune, chosen by votes": "5354d1c20cee96577b53f5df232b49301b53d13a9d363aa6df37843ba4de0979",
    "ctcl": "b51681525bd815d7fe3f5e04693b99ec5730785a1abe3a974b7c0818969bbb1e",
    "dp_inference": "3628744d729c4d11a6a952557e79c538d3495816fc464bb5254c052aa4b374fc",
    "aug_pe": "5183c7cecba6c77c1f49270c0f34578399fa6a7edf58dac64aade961dd74ac41",
}
"""Digests of before there were plans that count no column; of `ctcl`, since they are the same on every processor."""


def declared(method, **text):
    part = {"method": method, "base_model": "some-model", "rows": 12, "text": {"given": ["kind"], **text}}
    return part | ({"training": TRAINING} if method in ("dp_finetune", "ctcl") else {})


def sealed(method, base, **text):
    contract = letters_contract(KIND, declared(method, **text), privacy={"guarantee": {"epsilon": 8.0, "delta": 1e-4}})
    return sealed_plan(contract, SOURCE, base)


def moved(function):
    """A number as another processor, which rounds otherwise, may find it."""

    def found(*arguments):
        number = function(*arguments)
        return None if number is None else number * (1 + 1e-12)

    return found


CASES = {
    "dp_finetune": ("dp_finetune", {}),
    "dp_finetune, chosen by votes": ("dp_finetune", {"resample": {"clusters": 3}}),
    "ctcl": ("ctcl", {"topics": {"count": 16}}),
    "dp_inference": ("dp_inference", {"inference": {"batch_size": 20, "document_tokens": 8, "temperature": 4.0}}),
    "aug_pe": ("aug_pe", {"evolution": {"population": 6, "variations": 1, "rounds": 3}}),
}


@pytest.mark.parametrize("case", CASES)
def test_plan(tmp_path, monkeypatch, case):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    method, text = CASES[case]
    base = BaseModel("some-model", tmp_path, "0" * 64, "some-model", "0" * 64)
    assert sealed(method, base, **text).digest == SEALED[case]


@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_the_same_on_a_processor_that_rounds_otherwise(tmp_path, monkeypatch, case):
    """It names the run: another one on another machine would be paid for a second time."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(accounting, "pld_epsilon", moved(accounting.pld_epsilon))
    monkeypatch.setattr(RenyiCurve, "epsilon", moved(RenyiCurve.epsilon))
    method, text = CASES[case]
    base = BaseModel("some-model", tmp_path, "0" * 64, "some-model", "0" * 64)
    assert sealed(method, base, **text).digest == SEALED[case]
