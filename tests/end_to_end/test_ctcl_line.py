"""Texts by public topics, from the table to a verified release."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import worker_inside
from line_cases import ledger_of, released, run_here
from text_line_cases import TEXTS, declare_base_public, public_decoder, public_model, text_deployment

from dpsynth_platform.reviewing import verification
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.topics import write_topics

pytestmark = pytest.mark.end_to_end
WORDS = ["late", "please", *(f"topic{number}" for number in range(14))]


@pytest.mark.parametrize("writer", [public_model, public_decoder], ids=["causal", "encoder-decoder"])
def test_a_release_by_public_topics(tmp_path: Path, writer: Callable[[], Any], no_gate: None) -> None:
    """The causal model in a worker of its own, the other one in this process."""
    about = SentenceEncoder("cpu").encode([TEXTS["north"][0], TEXTS["west"][0]])
    others = np.linalg.svd(about, full_matrices=True)[2][2:16]
    write_topics(tmp_path / "topics", {16: (np.concatenate([about, others]), WORDS)}, "two sentences")
    topics = {"model": str(tmp_path / "topics"), "public": "made of two sentences", "count": 16}
    text = {"given": ["region"], "max_tokens": 64, "topics": topics}
    deployment = text_deployment(tmp_path, generate={"method": "ctcl", "text": text}, writer=writer)
    deployment.contract["audit"]["shared_secrets"] = {"owners": [1, 3], "each": 8}
    deployment.write()
    declare_base_public(deployment)
    with nullcontext() if writer is public_model else worker_inside():
        ran = run_here(deployment)
    assert ran.success, ran.failures
    assert any("topics" in words for words in ran.said["model"])
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert public["mechanism"]["method"] == "ctcl"
    report = public["audit"]["report"]
    assert "text likelihood" in [attack["name"] for attack in report["attacks"]] and report["reconstructed"]
    assert [(part["owners"], part["members"] + part["held_out"]) for part in report["shared"]] == [(1, 8), (3, 8)]
    topics = public["contract"]["generate"]["text"]["topics"]
    assert (topics["model"], topics["public"]) == ("topics", "made of two sentences")  # without its place
    assert not [file for file in folder.glob("*.*") if str(tmp_path / "topics") in file.read_text(errors="replace")]
    assert {column["name"] for column in public["synthetic"]["columns"]} >= {"region", "letter"}
    assert "keywords" not in {column["name"] for column in public["synthetic"]["columns"]}
    assert verification.verify(deployment.settings, str(folder), None).ok
    assert not list(Path(deployment.settings.restricted).rglob("*-topics*"))
