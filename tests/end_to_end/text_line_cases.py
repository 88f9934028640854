"""A deployment whose table has a text column, and a language model small enough to train while one looks on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from deployment import Deployment
from line_cases import SMALL
from text_cases import WORDS, save_model, tiny_bart, tiny_llama, tiny_tokenizer

from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.store import LineageStore

TEXTS = {
    "east": ["the parcel came late and the box was open", "please send the parcel by monday"],
    "north": ["the team was late again", "the team came back with a report"],
    "south": ["the patient came back with a cough", "the patient was late"],
    "west": ["please send the report to the team", "the report was open"],
}
TRAINING: dict[str, Any] = {
    "steps": 6,
    "batch_size": 100,
    "replay_steps": 4,
    "learning_rate": 0.001,
    "adapter": {"rank": 2, "alpha": 4},
}


def letters_table(rows: int = 900, *, seed: int = 5) -> pa.Table:
    """Fictional people with one or two letters each."""
    random = np.random.default_rng(seed)
    regions = [sorted(TEXTS)[number] for number in random.integers(0, 4, rows)]
    return pa.table(
        {
            "person": pa.array([f"P{number * 2 // 3:05d}" for number in range(rows)]),
            "visit": pa.array(np.arange(rows), pa.int64()),
            "region": pa.array(regions),
            "outcome": pa.array([("no", "yes")[number] for number in random.integers(0, 2, rows)]),
            "letter": pa.array([TEXTS[region][int(random.integers(0, 2))] for region in regions]),
        }
    )


def public_model() -> Any:
    """A tiny model that writes short English sentences, as a public one would: without it, no text keeps the rules."""
    return _writing(tuple(f"region: {region}\nletter:" for region in TEXTS))


def public_note_writer() -> Any:
    """The same, of a model that is told nothing before a text."""
    return _writing(("letter:",) * len(TEXTS))


@cache
def _writing(prompts: tuple[str, ...]) -> Any:
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    texts = [f"{prompt} {text}" for prompt in prompts for text in WORDS[:3]]
    rows = [[tokenizer.bos_token_id, *tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    tokens = torch.tensor([row + [tokenizer.eos_token_id] * (64 - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (64 - len(row)) for row in rows])
    for _ in range(80):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


@cache
def public_decoder() -> Any:
    """A tiny encoder-decoder model that writes short English sentences, as a public one would."""
    model, tokenizer = tiny_bart(), tiny_tokenizer()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = [(f"region: {region}\nletter:", f" {text}") for region in TEXTS for text in WORDS[:3]]
    told = [[tokenizer.bos_token_id, *tokenizer(prompt)["input_ids"]] for prompt, _ in rows]
    written = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for _, text in rows]
    tokens = torch.tensor([row + [0] * (64 - len(row)) for row in told])
    mask = torch.tensor([[1] * len(row) + [0] * (64 - len(row)) for row in told])
    labels = torch.tensor([row + [-100] * (48 - len(row)) for row in written])
    for _ in range(80):
        optimizer.zero_grad()
        model(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def text_deployment(
    root: Path,
    *,
    training: dict[str, Any] | None = None,
    table: pa.Table | None = None,
    generate: dict[str, Any] | None = None,
    writer: Callable[[], Any] = public_model,
    **privacy: Any,
) -> Deployment:
    """A deployment whose `letter` is written by a tiny model, which somebody declared public.

    Args:
        generate: of the contract, in place of what stands here.
        writer: makes the model.
    """
    base = save_model(root / "base", writer())
    columns = {name: SMALL["columns"][name] for name in ("person", "visit", "region", "outcome")}
    contract = copy.deepcopy(SMALL) | {
        "columns": columns | {"letter": {"type": "text", "pii": "replace"}},
        "generate": {
            "method": "dp_finetune",
            "base_model": str(base),
            "rows": 40,
            "text": {"given": ["region"], "max_tokens": 48},
            "training": TRAINING | (training or {}),
        }
        | (generate or {}),
    }
    contract["privacy"] = (
        contract["privacy"]
        | {
            "guarantee": {"epsilon": 2.0, "delta": 1e-6},
            "expected_units": 600,
            "max_contributions": 1,
        }
        | privacy
    )
    deployment = Deployment(root, contract=contract)
    deployment.write().with_source(letters_table() if table is None else table)
    return deployment


def notes_deployment(root: Path, *, table: pa.Table | None = None, **changes: Any) -> Deployment:
    """As `text_deployment`, of a table that has ids and a letter alone: nothing is modelled beside the text.

    Args:
        table: of the source, its other columns left out.
        changes: of `text_deployment`; what `generate` says of the text comes without columns that the model is told.
    """
    table = letters_table() if table is None else table
    kept = [name for name in table.column_names if name not in ("region", "outcome")]
    deployment = text_deployment(root, table=table.select(kept), **{"writer": public_note_writer} | changes)
    for name in ("region", "outcome"):
        del deployment.contract["columns"][name]
    deployment.contract["generate"]["text"].pop("given", None)
    deployment.contract["quality"] = {"holdout": 0.1}
    return deployment.write()


def without_gate(patch: pytest.MonkeyPatch) -> None:
    """Trainings begin without their trials, which take seconds each and have tests of their own."""
    patch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    patch.setattr("dpsynth_platform.synth.text.batch_trial.refuse_batches", lambda *_: None)


def declare_base_public(deployment: Deployment) -> None:
    """Somebody's word, on the record, that the base model was trained on nobody's data."""
    name = deployment.contract["generate"]["base_model"]
    LineageStore(deployment.settings.ledger_url).declare_public(
        DatasetName("file", name), by="Bo", reason="random weights"
    )
