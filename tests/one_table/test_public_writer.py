"""Writers: trained on public texts by the command, continued after a kill, refused, and used as base models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_cases import letters_contract, save_model, tiny_llama, tiny_tokenizer
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import held
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.synth.text import aspects, writer
from dpsynth_platform.synth.text.base_models import base_model, load
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.topic_building import text_keywords
from dpsynth_platform.synth.text.topics import TopicModel

WHY = "made up for tests, and published"
SETTINGS = ("--steps", "6", "--batch-size", "4", "--max-tokens", "60", "--rank", "2", "--learning-rate", "0.01")
Use = Callable[..., Any]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty public letters and a model of some thousand weights; topics with short keywords."""
    words = ["parcel", "report", "fever", "cough", "team", "monday", "box", "doctor"]
    rng = np.random.default_rng(0)
    letters = [f"the {rng.choice(words)} and the {rng.choice(words)} came late, {number}" for number in range(30)]
    pq.write_table(
        pa.table({"body": letters, "kind": ["mail", None] * 15, "size": range(30)}), tmp_path / "public.parquet"
    )
    save_model(tmp_path / "base", tiny_llama())
    centers = np.eye(2, 384, dtype=np.float32)
    monkeypatch.setattr(
        aspects, "load_topics", lambda name, level: TopicModel(name, "", centers, ("a, b", f"c, {level}"))
    )
    monkeypatch.setattr(writer, "CHECKPOINT_STEPS", 2)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def use(place: Path, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command; options that are given replace the usual ones. All that it prints is the result's `output`."""

    def call(out: str = "out", **changed: str) -> Any:
        usual = {
            "public": "public.parquet",
            "public-why": WHY,
            "text": "body",
            "condition": "kind",
            "base-model": "./base",
        }
        given = [part for name, value in (usual | changed).items() for part in (f"--{name.replace('_', '-')}", value)]
        capfd.readouterr()
        result = CliRunner().invoke(app, ["synth", "writer", *SETTINGS, *given, "--out", out])
        output = " ".join((result.output + "".join(capfd.readouterr())).split())
        return SimpleNamespace(exit_code=result.exit_code, output=output)

    return call


def test_a_writer_is_trained_and_used_as_a_base_model(place: Path, use: Use) -> None:
    result = use()
    assert result.exit_code == 0, result.output
    about = json.loads((place / "out/writer.json").read_text())
    assert sorted(file.name for file in (place / "out").iterdir()) == ["adapter.safetensors", "writer.json"]
    assert about["public"] | {"digest": ""} == {
        "file": "public.parquet", "why": WHY, "digest": "", "texts": 30, "column": "body", "conditions": ["kind"]
    }  # fmt: skip
    assert about["base"]["digest"] == base_model(str(place / "base"), place / "cache").digest
    assert about["held_out"]["texts"] == 2 and "held-out texts" in result.output
    found = base_model(str(place / "out"), place / "cache")
    model, tokenizer = load(found)
    plain, _ = load(base_model(str(place / "base"), place / "cache"))
    changed = [name for name, value in plain.state_dict().items() if not value.equal(model.state_dict()[name])]
    assert changed and all("embed" not in name and "lm_head" not in name for name in changed)
    assert found.digest == base_model(str(place / "out"), place / "other").digest != about["base"]["digest"]
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.synth.interface import PlanInputs

    generate = {"method": "dp_finetune", "base_model": str(place / "out"), "rows": 10, "training": {"steps": 2}}
    generate |= {"text": {"column": "body", "max_tokens": 40}}
    contract = letters_contract({"kind": {"type": "categorical", "values": ["mail", "card"]}}, generate)
    schema = pa.schema([(name, pa.string()) for name in contract.columns])
    sealed = TextParameters.calibrated(PlanInputs(contract, schema, Guarantee.target(contract)), found)
    assert sealed.base_digest == found.digest
    (place / "out/training").mkdir()  # as a kill leaves it, after all is written
    (place / "out/.adapter.safetensors.0123").write_bytes(b"half")
    again = use()
    assert again.exit_code == 0 and "trained on 30 public texts before" in again.output
    assert sorted(file.name for file in (place / "out").iterdir()) == ["adapter.safetensors", "writer.json"]


def test_an_interrupted_training_gives_the_same_writer(place: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    assert use("whole").exit_code == 0
    whole, steps = writer._step, list[int]()

    def stopped(*arguments: Any) -> None:
        if len(steps) == 5:
            raise KeyboardInterrupt
        steps.append(1)
        whole(*arguments)

    monkeypatch.setattr(writer, "_step", stopped)
    assert use().exit_code != 0 and not (place / "out/writer.json").exists()
    assert "incomplete" in _refusal(place / "out") or "no config.json" in _refusal(place / "out")
    monkeypatch.setattr(writer, "_step", lambda *arguments: steps.append(1) or whole(*arguments))  # type: ignore[func-returns-value]
    assert use().exit_code == 0
    assert len(steps) == 5 + 2  # from the state after four of six
    assert (place / "out/adapter.safetensors").read_bytes() == (place / "whole/adapter.safetensors").read_bytes()


def _refusal(directory: Path) -> str:
    with pytest.raises(ConfigurationError) as found:
        base_model(str(directory), directory.parent / "cache")
    return str(found.value)


def test_other_texts_settings_and_directories_in_use_are_refused(place: Path, use: Use) -> None:
    assert use().exit_code == 0
    assert "of other settings; accepted: the command that began it" in use(steps="7").output
    shutil.copytree(place / "out", place / "broken")
    (place / "broken/adapter.safetensors").write_bytes(b"damaged")
    assert "do not belong together" in _refusal(place / "broken") and "do not belong together" in use("broken").output
    pq.write_table(pq.read_table(place / "public.parquet").slice(1), place / "public.parquet")
    assert "of other public texts" in use().output
    (place / "mine").mkdir()
    (place / "mine/notes.txt").write_text("mine")
    assert "not empty, and no writer" in use("mine").output and (place / "mine/notes.txt").exists()
    assert "is a writer; accepted: another base model" in use("second", base_model="./out").output
    save_model(place / "base", tiny_llama(seed=1))
    assert "another model here than the one that was trained" in _refusal(place / "out")
    (place / "busy").mkdir()
    with held(place / "busy"):
        assert "another training writes there" in use("busy").output


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"text": "letter"}, "--text: no column 'letter'"),
        ({"text": "size"}, "has the type int64; accepted: a column of texts"),
        ({"condition": "colour"}, "--condition: no column 'colour'"),
        ({"condition": "kind,body"}, "each once, not --text"),
        ({"public": "missing.parquet"}, "there is no such file"),
        ({"public-why": "short"}, "why"),
        ({"base-model": "./nothing"}, "neither a directory nor a GGUF file"),
        ({"max-tokens": "20"}, "the longest prompt takes"),
        ({"max-tokens": "600"}, "--max-tokens: 600"),
        ({"learning-rate": "-1"}, "--learning-rate: -1"),
        ({"steps": "0"}, "--steps: 0"),
    ],
)
def test_bad_input_is_refused(place: Path, use: Use, changed: dict[str, str], words: str) -> None:
    result = use(**changed)
    assert result.exit_code != 0 and words in result.output
    assert not (place / "out/writer.json").exists()


def test_empty_and_few_texts_are_refused(place: Path, use: Use) -> None:
    pq.write_table(pa.table({"body": [" ", None], "kind": ["mail", "mail"]}), place / "empty.parquet")
    assert "has no text" in use(public="empty.parquet").output
    pq.write_table(pa.table({"body": ["a letter"] * 40, "kind": ["mail"] * 40}), place / "few.parquet")
    assert "1 distinct texts; accepted: 20 at least" in use(public="few.parquet").output


def test_a_guarded_source_is_refused(place: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(place / "deploy"))
    (place / "deploy/contracts").mkdir(parents=True)
    shutil.copy(place / "public.parquet", place / "private.parquet")
    source = f"source: {{uri: {place / 'private.parquet'}, format: parquet, key: [size]}}\n"
    (place / "deploy/contracts/letters.yaml").write_text(source)
    result = use()
    assert result.exit_code != 0 and "the source of dataset letters, or a copy of one" in " ".join(
        result.output.split()
    )
    assert not (place / "out").exists()


def test_lineage_knows_what_a_writer_was_made_of(place: Path, use: Use) -> None:
    url = f"sqlite:///{place / 'home/ledger/ledger.db'}"
    (place / "home/ledger").mkdir(parents=True)
    Ledger(url)
    store = LineageStore(url)
    store.has_own()
    assert use().exit_code == 0 and use().exit_code == 0
    found = store.ancestry([model_name(str(place / "out"))])
    assert {Path(item.node.name.name).name for item in found.relatives} == {"out", "public.parquet", "base"}
    assert [Path(name.name).name for name in found.unknown] == ["base"]  # its own origin remains to be declared
    assert len(list(store.events())) == 1


def test_keywords_of_a_text_are_words_that_others_lack() -> None:
    found = text_keywords(["the car is a red car", "the boat is red", "and the"])
    assert found[0].split(", ")[0] == "car" and found[1].split(", ")[0] == "boat" and found[2] == ""
    assert text_keywords(["a", "the"]) == ["", ""]
