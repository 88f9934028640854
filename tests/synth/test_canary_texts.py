"""Texts of canaries that the base model writes: from the contract and that model alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy import stats
from test_dp_finetune import SOURCE, contract_for
from text_cases import save_model

from dpsynth_platform.audit.canaries import CanarySet, make_canaries
from dpsynth_platform.audit.texts import canary_texts
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.base_models import base_model, load
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.sealing import layout_of

COUNT = 60


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


def contract_of(base: Path, kinds: Sequence[str] | None) -> DataContract:
    contract = contract_for(base)
    return contract.model_copy(update={"audit": contract.audit.model_copy(update={"canary_texts": kinds})})


def made(base: Path, kinds: Sequence[str] | None, b: int = 1) -> tuple[DataContract, CanarySet]:
    contract = contract_of(base, kinds)
    return contract, make_canaries(contract, SOURCE, COUNT, b, None)


def test_beginnings_are_as_likely_as_the_model_s_own_and_hot_endings_less(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(contract_of(base, None))
    model, tokenizer = load(base_model(str(base), base.parent))
    encoder = Encoder(layout, tokenizer)
    # This model knows no language: what it writes would not be the same tokens again.
    monkeypatch.setattr(encoder, "text", lambda tokens: " ".join(map(str, tokens)))
    heats = [1.0, canary_texts.HEAT] * 100
    texts = [
        [int(token) for token in text.split()]
        for text in canary_texts.write_texts(model, encoder, [("sport",)] * 200, heats)
    ]
    assert {len(text) for text in texts} == {min(canary_texts.LENGTH, 48 - len(encoder.prompt(("sport",))) - 1)}
    assert not any(encoder.eos in text for text in texts)
    prompt, cut = encoder.prompt(("sport",)), canary_texts.BEGINNING
    begun = trained.rows_log_likelihoods(model, [(prompt, text[:cut]) for text in texts], encoder.eos)
    ended = trained.rows_log_likelihoods(model, [(prompt + text[:cut], text[cut:]) for text in texts], encoder.eos)
    own, hot = slice(0, None, 2), slice(1, None, 2)
    assert stats.ttest_ind(begun[own], begun[hot]).pvalue > 1e-7
    # In twelve runs t was 13.7 to 17.2 (deviation about 1); 3.8 suffices.
    assert stats.ttest_ind(ended[own], ended[hot], alternative="greater").pvalue < 1e-4


def test_kinds_share_the_canaries_and_b_records_are_alike(base: Path) -> None:
    _, canaries = made(base, ["made-up", "in-distribution"], b=3)
    texts = canaries.values["body"].to_pylist()
    words = [text.isascii() and text.replace(" ", "").isalpha() and text.islower() for text in texts]
    assert sum(words[::2]) == COUNT // 2 and sum(words[1::2]) == 0
    assert len(set(texts)) == COUNT
    assert canaries.table["body"].to_pylist() == [text for text in texts for _ in range(3)]


def test_a_text_that_the_model_began_ends_where_the_layout_has_room(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_texts, "LENGTH", 1000)
    contract, canaries = made(base, ["unlikely-ending"])
    layout = layout_of(contract)
    encoder = Encoder(layout, load(base_model(str(base), base.parent))[1])
    for record in canaries.values.to_pylist():
        assert 0 < len(record["body"]) <= encoder.longest_token * layout.max_tokens


def test_without_a_base_model_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a directory nor a GGUF file"):
        made(tmp_path / "nowhere", ["in-distribution"])
    assert made(tmp_path / "nowhere", None)[1].values.num_rows == COUNT


def test_a_model_that_writes_blanks_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_texts, "write_texts", lambda model, encoder, prompts, heats: [" "] * len(prompts))
    with pytest.raises(ConfigurationError, match="writes blanks only"):
        made(base, ["in-distribution"])


@pytest.mark.parametrize(
    ("kinds", "method", "words"),
    [
        (["made-up", "made-up"], "dp_finetune", "accepted: distinct kinds"),
        (["made-up"], "mst", "no text is written"),
        (["poetry"], "dp_finetune", "canary_texts"),
        ([], "dp_finetune", "canary_texts"),
    ],
)
def test_kinds_that_cannot_be_are_named(base: Path, kinds: list[str], method: str, words: str) -> None:
    document = contract_of(base, None).snapshot()
    document["audit"] = document["audit"] | {"canary_texts": kinds}
    if method != "dp_finetune":
        document["generate"] = {"method": method}
    with pytest.raises(ContractError, match=words):
        parse_contract(document, where="test", variables={})
