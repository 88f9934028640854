"""Reconstruction of texts by a language model from their beginning, and attacks on any model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from text_cases import save_model, tiny_llama, tiny_tokenizer
from typer.testing import CliRunner

from dpsynth_platform.audit.adhoc.language_model import score_model
from dpsynth_platform.audit.texts import reconstruction
from dpsynth_platform.audit.texts.reconstruction import continuations, count_reconstructed, reconstruct
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import AccountingError, ConfigurationError

EACH = 24
RANDOM = random.Random(8)  # training goes the same way every time


def made_up() -> str:
    """Twelve tokens: the tokenizer has no longer ones of these letters."""
    return "".join(RANDOM.choices("ABCDEFGHIJKLMNOP", k=12))


@pytest.fixture(scope="module")
def members() -> list[str]:
    return [made_up() for _ in range(EACH)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, members: list[str]) -> dict[str, str]:
    """A model before and after it learned its members by heart."""
    root, tokenizer = tmp_path_factory.mktemp("models"), tiny_tokenizer()
    model = tiny_llama(tokenizer)
    base = save_model(root / "base", model, tokenizer)
    start = tokenizer.bos_token_id
    rows = torch.tensor([[start, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in members])
    optimizer = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    return {"base": str(base), "trained": str(save_model(root / "trained", model.eval(), tokenizer))}


def test_no_row_goes_on_beyond_what_the_model_sees() -> None:
    """Each fits; the longest prompt and the longest continuation together would not."""
    model = tiny_llama(positions=64)
    prompts, lengths = [[1, *range(3, 62)], [1, 5, 9], [1, *range(3, 40)], [2]], [4, 50, 20, 50]
    found = continuations(model, prompts, lengths)
    assert [len(tokens) for tokens in found] == lengths
    assert found == [
        continuations(model, [prompt], [length])[0] for prompt, length in zip(prompts, lengths, strict=True)
    ]


def test_continuations_are_the_likeliest_tokens_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_AT_ONCE", 2)
    model = tiny_llama()
    prompts, lengths = [[1, 5, 9], [1], [1, 30, 31, 32, 33]], [4, 7, 0]

    def plain(prompt: list[int], length: int) -> list[int]:
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(length):
                tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    expected = [plain(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    assert continuations(model, prompts, lengths) == expected


def test_a_text_without_a_second_half_does_not_come_back() -> None:
    model = tiny_llama()
    own = continuations(model, [[1, 7, 8]], [2])[0]
    assert reconstruct(model, [[], [5], [7, 8, *own]], [[1]] * 3).tolist() == [0, 0, 1]


def test_a_prompt_is_told_beside_the_first_half() -> None:
    model = tiny_llama()
    own = continuations(model, [[1, 40, 41, 7, 8]], [2])[0]
    assert own != continuations(model, [[1, 7, 8]], [2])[0]
    assert reconstruct(model, [[7, 8, *own]], [[1, 40, 41]]).tolist() == [1]


def test_what_came_back_is_counted_beside_what_can_be_guessed() -> None:
    likeness, included = np.array([1.0, 0.8, 0.2, 0.9, 0.0]), np.array([True, True, True, False, False])
    exact, near = count_reconstructed(likeness, included)
    assert (exact.members, exact.held_out, exact.of_members, exact.of_held_out) == (1, 0, 3, 2)
    assert (near.members, near.held_out) == (2, 1)
    assert "word for word for 1 of 3" in exact.words and "a similarity of at least 75%" in near.words
    with pytest.raises(AccountingError, match="5 of 5 texts are members; accepted: members and held-out texts"):
        count_reconstructed(likeness, np.ones(5, bool))


def test_a_model_that_learned_by_heart_gives_its_members_back(
    models: dict[str, str], members: list[str], tmp_path: Path
) -> None:
    targets, included = [*members, *(made_up() for _ in range(EACH))], np.arange(2 * EACH) < EACH
    for base in (None, models["base"]):
        scored, (exact, near) = score_model(models["trained"], base, targets, included, cache=tmp_path, hub=False)
        assert [item.attack.name for item in scored] == ["text likelihood" if base else "likelihood", "reconstruction"]
        for item in scored:
            assert item.scores[included].min() > item.scores[~included].max(), item.attack.name
        assert exact.members == near.members == EACH and exact.held_out == near.held_out == 0
    _, (exact, _) = score_model(models["base"], None, targets, included, cache=tmp_path, hub=False)
    assert exact.members == 0


def test_a_base_model_of_other_tokens_is_refused(models: dict[str, str], members: list[str], tmp_path: Path) -> None:
    other = tiny_tokenizer(size=290)
    save_model(tmp_path / "other", tiny_llama(other), other)
    with pytest.raises(ConfigurationError, match="its tokens are not those"):
        score_model(models["trained"], str(tmp_path / "other"), members, np.arange(EACH) < 3, cache=tmp_path, hub=False)


def test_the_command_tells_what_came_back(
    models: dict[str, str],
    members: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    pq.write_table(pa.table({"text": members}), tmp_path / "members.parquet")
    pq.write_table(pa.table({"text": [made_up() for _ in range(EACH)]}), tmp_path / "others.parquet")
    tables = ["--members", str(tmp_path / "members.parquet"), "--non-members", str(tmp_path / "others.parquet")]
    own = ["--model", models["trained"], "--base-model", models["base"], "--text", "text"]
    arguments = ["audit", "run", *own, *tables]
    kept = str(tmp_path / "kept")
    assert CliRunner().invoke(app, [*arguments, "--output", kept, "--json"]).exit_code == 0
    output = capfd.readouterr()
    document = json.loads(output.out)
    assert [item["name"] for item in document["attacks"]] == ["text likelihood", "reconstruction"]
    assert document["reconstructed"][0]["members"] == EACH and document["publishable"] is False
    assert CliRunner().invoke(app, ["audit", "show", kept]).exit_code == 0
    shown = capfd.readouterr().out
    assert f"word for word for {EACH} of {EACH} members" in " ".join(shown.split())
    assert not any(text in output.out + output.err + shown for text in members)
