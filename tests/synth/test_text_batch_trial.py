"""The trial of batches on made-up records: valid layouts pass, and every way of mixing records is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_dp_finetune import GENERATOR, SOURCE, contract_for, fitted
from text_cases import save_model, tiny_tokenizer

from dpsynth_platform.foundation.errors import TrainingRefused
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text import examples
from dpsynth_platform.synth.text.batch_trial import refuse_batches
from dpsynth_platform.synth.text.examples import Examples
from dpsynth_platform.synth.text.layout import Encoder, TextLayout

LAYOUTS = {
    "one field": TextLayout(("text",), max_tokens=32),
    "several fields and values that are missing": TextLayout(
        ("title", "text"), (Condition("topic", ("mail", None)), Condition("paid", ("true", "false", None))), 64
    ),
    "pieces": TextLayout(("text",), (Condition("topic", ("mail", "visit")),), 40, chunks_per_record=2),
    "many pieces": TextLayout(("text",), (Condition("topic", ("mail",)),), 48, chunks_per_record=9),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_made_of_records_is_what_should_be(name: str) -> None:
    refuse_batches(Encoder(LAYOUTS[name], tiny_tokenizer()))


def packed(self: Examples, indices: Any) -> dict[str, torch.Tensor]:
    """Two examples side by side in one row."""
    rows = ALONE(self, indices)
    if len(indices) != 2:
        return rows
    return {name: torch.cat([values[:1], values[1:]], dim=1) for name, values in rows.items()}


def cut(self: Examples, indices: Any) -> dict[str, torch.Tensor]:
    """Rows as long as the shortest."""
    rows = ALONE(self, indices)
    shortest = int(rows["attention_mask"].sum(1).min())
    return {name: values[:, :shortest] for name, values in rows.items()}


ALONE = Examples.batch
MISTAKES = {
    "packed": (Examples, "batch", packed, "turn packing"),
    "cut to fit": (Examples, "batch", cut, "a row's tokens are not exactly those of its example"),
    "pieces by themselves": (
        Examples,
        "units",
        lambda self, sampled: self.by_owner() if sampled == "user" else None,
        "is not one record; keep all pieces",
    ),
    "records by themselves": (
        Examples,
        "by_owner",
        lambda self: [[number] for number in range(len(self))],
        "is not one owner; keep all records",
    ),
    "joined": (examples, "_chunks", lambda given, tokens, encoder: ([], True), "became 0 examples"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_mixes_records_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, part, mistake, said = MISTAKES[name]
    monkeypatch.setattr(place, part, mistake)
    with pytest.raises(TrainingRefused, match=said):
        refuse_batches(Encoder(LAYOUTS["pieces"], tiny_tokenizer()))


def test_a_worker_that_packs_is_refused_before_it_reads_a_record(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan was made where batches are valid."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    contract = contract_for(save_model(tmp_path / "base"))
    plan = GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))
    monkeypatch.setattr(Examples, "batch", packed)
    monkeypatch.setattr(counted, "measure", lambda *_: pytest.fail("the records were counted"))
    with pytest.raises(TrainingRefused, match="turn packing"):
        fitted(plan, tmp_path / "no-table", tmp_path / "model")
