"""Methods that write texts side by side on public texts: what is measured, attacked, kept and refused.

The runs are made up here, since a language model takes minutes; those of real methods are in `test_written_texts`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_cases import save_model, tiny_llama, tiny_tokenizer
from typer.testing import CliRunner

from dpsynth_platform.audit.texts.pretraining import SHARDS
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import ContractError, MechanismFailed, SourceError
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import held
from dpsynth_platform.one_table import text_comparison, text_figures
from dpsynth_platform.one_table.comparison import Try
from dpsynth_platform.one_table.task import Options
from dpsynth_platform.one_table.text_comparison import TextBench, compare_texts
from dpsynth_platform.one_table.text_figures import ALONE, FIDELITY, UTILITY, Judge
from dpsynth_platform.one_table.text_result import ATTACKED, NAME, REAL, TextComparison
from dpsynth_platform.one_table.text_sources import LABEL, SYNBENCH, TEXT, labelled_texts, named_set, unlearned
from dpsynth_platform.quality.text import trials
from dpsynth_platform.quality.text.fluency import token_log_likelihoods
from dpsynth_platform.synth.text.trained import rows_log_likelihoods

WHY = "made up for tests, and published"
WORDS = {"sport": "striker goal match team", "food": "bread soup butter cheese", "law": "court judge appeal case"}
COMMON = ["the", "of", "a", "and", "in", "on", "it", "was", "said", "today", "again", "there"]
ARGUMENTS = ["--text", "body", "--label", "topic", "--separator", ";", "--public-why", WHY, "--about", "short texts"]


def texts(count: int, seed: int) -> pa.Table:
    """Texts of one or two topics, with a few words of each."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        own = sorted(rng.choice(list(WORDS), rng.integers(1, 3), replace=False).tolist())
        words = [*(rng.choice(WORDS[name].split()) for name in own), *rng.choice(COMMON, 7), f"item{number}"]
        rows.append({"topic": ";".join(own), "body": " ".join(rng.permutation(words)) + ". It is so."})
    return pa.Table.from_pylist(rows)


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = tmp_path / "texts.parquet"
    pq.write_table(texts(300, 0), file)
    return file


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Makes up runs: `dp_finetune` copies what it reads, `aug_pe` writes other texts, `ctcl` refuses. Notes options."""
    asked: list[Options] = []

    def tried(learned: Path, place: Path, options: Options) -> tuple[Try, Path | None]:
        asked.append(options)
        if options.method == "ctcl":
            return Try("ctcl", options.epsilon, refused="no topics"), None
        place.mkdir()
        table = pq.read_table(learned)
        if options.method == "aug_pe":
            others = texts(150, 5)
            table = pa.table({LABEL: pa.array(["food", "law"] * 75), TEXT: others["body"]})
        pq.write_table(table, place / "synthetic.parquet")
        return Try(options.method, options.epsilon, seconds=2.0, megabytes=3.0), place / "synthetic.parquet"

    monkeypatch.setattr(text_comparison, "tried", tried)
    return asked


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes long and has tests of its own."""

    class Report:
        figures = ()

    class Encoder:
        def encode(self, texts: list[str], progress: Any = None) -> npt.NDArray[np.float32]:
            known = {word: at for at, word in enumerate(word for own in WORDS.values() for word in own.split())}
            found = np.zeros((len(texts), len(known) + 1), dtype=np.float32)
            found[:, -1] = 0.1
            for row, text in enumerate(texts):
                for word in text.split():
                    found[row, known.get(word, -1)] += 1
            return found / np.linalg.norm(found, axis=1, keepdims=True)

    monkeypatch.setattr(text_figures, "SentenceEncoder", Encoder)
    monkeypatch.setattr(text_figures, "measure_texts", lambda *_, **__: Report)
    monkeypatch.setattr(Judge, "_alone", lambda self, some: {"zipf": 1.0 * len(some)})


def bench(public: Path, **others: Any) -> TextBench:
    given = {"table": public, "why": WHY, "text": "body", "label": "topic", "separator": ";", "about": "short texts"}
    return TextBench(**(given | others))


@pytest.mark.usefixtures("figures")
def test_cells_are_made_once_measured_and_attacked(
    public: Path, runs: list[Options], capfd: pytest.CaptureFixture[str]
) -> None:
    out = public.parent / "out"
    arguments = ["bench", "text", "--public", str(public), *ARGUMENTS, "--out", str(out), "--epsilon", "1"]
    arguments += ["--method", "dp_finetune,aug_pe,ctcl", "--membership", "40", "--json"]
    app(arguments, standalone_mode=False)
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads((out / f"{NAME}.json").read_text())
    assert (found["texts"], found["held_out"], found["labels"], found["why"]) == (240, 60, 6, WHY)
    tries = {item["method"]: item for item in found["tries"]}
    copied, other = tries["dp_finetune"], tries["aug_pe"]
    assert tries["ctcl"]["refused"] == "no topics" and tries["ctcl"]["measures"] is None
    real = found["baselines"][REAL]
    for name in UTILITY:
        # Copies of the real texts teach as much as they do; texts with other labels teach less.
        assert copied["measures"][name] == pytest.approx(real[name])
        assert other["measures"][name] < real[name]
    assert copied["measures"]["topics"] < 0.2 and copied["measures"]["zipf"] == 60
    assert copied["membership"]["area"]["value"] > 0.9 and copied["membership"]["runs"] == 40
    # Its texts do not depend on what it reads.
    assert other["membership"]["bound"] == 0 and not other["membership"]["refuted"]
    # A run with its target has the same public facts as one without.
    of_attack = [options for options in runs if options.method == "aug_pe" and options.rows != 240]
    assert len(of_attack) == 40 and len({json.dumps(vars(options), default=str) for options in of_attack}) == 1
    assert {file.name for file in out.iterdir()} == {
        "cells",
        "settings.json",
        *(f"{NAME}.{kind}" for kind in ("json", "csv", "md")),
        *(f"membership-{method}-epsilon-1.svg" for method in ("dp_finetune", "aug_pe")),
    }
    done = len(runs)
    app(arguments, standalone_mode=False)
    assert json.loads(capfd.readouterr().out) == found
    assert len(runs) == done + 1 and runs[-1].method == "ctcl"  # what was refused is tried again
    lines = (out / f"{NAME}.csv").read_text().splitlines()
    assert lines[0] == "epsilon,method,figure,value" and any(
        line.startswith("1,aug_pe,membership bound,0") for line in lines
    )


@pytest.mark.usefixtures("figures")
def test_an_interrupted_attack_continues(public: Path, runs: list[Options], monkeypatch: pytest.MonkeyPatch) -> None:
    made = text_comparison.tried

    def stopped(*arguments: Any) -> Any:
        if len(runs) == 11:
            raise KeyboardInterrupt
        return made(*arguments)

    monkeypatch.setattr(text_comparison, "tried", stopped)
    asked = {"methods": ["dp_finetune"], "epsilons": [2]}
    with pytest.raises(KeyboardInterrupt):
        compare_texts(bench(public, membership=20), public.parent / "out", **asked)  # type: ignore[arg-type]
    monkeypatch.setattr(text_comparison, "tried", made)
    found = compare_texts(bench(public, membership=20), public.parent / "out", **asked)  # type: ignore[arg-type]
    assert len(runs) == 21 and found.tries[0].membership is not None
    assert len(found.tables()["SynBench's membership attack"][0]) == 2 + len(ATTACKED)


@pytest.mark.usefixtures("figures")
def test_two_commands_do_not_share_a_directory(public: Path, runs: list[Options]) -> None:
    out = private_directory(public.parent / "out")
    with held(out), pytest.raises(ContractError, match="another command uses it"):
        compare_texts(bench(public), out, methods=["dp_finetune"], epsilons=[2])
    assert not runs
    assert compare_texts(bench(public), out, methods=["dp_finetune"], epsilons=[2]).tries


@pytest.mark.usefixtures("figures")
def test_another_table_or_setting_needs_another_directory(
    public: Path, runs: list[Options], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"methods": ["dp_finetune"], "epsilons": [2]}
    compare_texts(bench(public), public.parent / "out", **asked)  # type: ignore[arg-type]
    monkeypatch.setattr(Judge, "pretraining", lambda self: {"words": "It has not."})
    more = bench(public, why="another reason", pretraining=True)
    assert "It has not." in compare_texts(more, public.parent / "out", methods=["aug_pe"], epsilons=[1]).about
    for changed in (
        {"rows": 100},
        {"settings": {"all": {"text": {"max_tokens": 64}}}},
        {"separator": None},
        {"known": SYNBENCH["hoc"], "about": None},
    ):
        with pytest.raises(ContractError, match="accepted: another directory"):
            compare_texts(bench(public, **changed), public.parent / "out", **asked)  # type: ignore[arg-type]
    assert [options.method for options in runs] == ["dp_finetune", "aug_pe"]


@pytest.mark.usefixtures("figures")
def test_settings_of_a_method_are_beside_those_of_all(public: Path, runs: list[Options]) -> None:
    settings = {"all": {"text": {"max_tokens": 64}}, "dp_finetune": {"training": {"steps": 3}}}
    given = bench(public, settings=settings, about="short made-up texts", delta=1e-3, rows=90, base_model="/models/own")
    compare_texts(given, public.parent / "out", methods=["dp_finetune", "aug_pe"], epsilons=[4])
    first, second = runs
    assert isinstance(first.schema, dict) and isinstance(second.schema, dict)
    assert first.schema["training"] == {"steps": 3} and "training" not in second.schema
    assert first.schema["text"] == second.schema["text"] == {"max_tokens": 64}
    assert (
        first.schema["columns"][LABEL]["values"][0] == "food"
        and "food | law" in first.schema["columns"][LABEL]["values"]
    )
    assert (first.epsilon, first.delta, first.rows, first.expected_units) == (4.0, 1e-3, 90, 240)
    assert (first.about, first.base_model, first.condition) == ("short made-up texts", "/models/own", [LABEL])


def test_what_cannot_be_compared_is_refused(public: Path, runs: list[Options], monkeypatch: pytest.MonkeyPatch) -> None:
    out = public.parent / "out"
    with pytest.raises(ContractError, match="methods: mst; accepted: dp_finetune"):
        compare_texts(bench(public), out, methods=["mst"])
    with pytest.raises(ContractError, match="methods: steps; accepted"):
        compare_texts(bench(public, settings={"steps": {}}), out)
    with pytest.raises(SourceError, match="label: no column 'kind'"):
        compare_texts(bench(public, label="kind"), out)
    pq.write_table(texts(100, 0), public)
    with pytest.raises(SourceError, match="80 texts to learn and 20 held out"):
        compare_texts(bench(public), out)
    pq.write_table(texts(300, 0).set_column(0, "topic", [["food"] * 300]), public)
    with pytest.raises(SourceError, match="have one label"):
        compare_texts(bench(public), out)
    assert not runs


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"about": None}, "aug_pe, epsilon 1: --about: missing"),
        ({"settings": {"all": []}}, "--settings, all: accepted: a mapping of scrub, text, training"),
        ({"settings": {"all": {"columns": {}}}}, "--settings, all: accepted: a mapping of scrub, text, training"),
        ({"settings": {"aug_pe": {"text": {"steps": 3}}}}, "aug_pe, epsilon 1: schema: text.steps: unknown key"),
        ({"delta": 0.5}, "dp_finetune, epsilon 1: "),
    ],
)
def test_what_a_run_would_refuse_is_refused_before_the_first(
    public: Path, runs: list[Options], others: dict[str, Any], said: str
) -> None:
    with pytest.raises(ContractError, match=said):
        compare_texts(bench(public, **others), public.parent / "out", epsilons=[1])
    assert not runs and not (public.parent / "out/settings.json").exists()


@pytest.mark.parametrize("role", ["table", "held_out"])
def test_texts_that_a_deployment_guards_are_refused(
    public: Path, runs: list[Options], monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    place = public.parent
    guarded = place / "guarded.parquet"
    pq.write_table(texts(300, 8), guarded)
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(place / "deploy"))
    (place / "deploy/contracts").mkdir(parents=True)
    source = f"source: {{uri: {guarded}, format: parquet, key: [topic]}}\n"
    (place / "deploy/contracts/posts.yaml").write_text(source)
    with pytest.raises(ContractError, match="accepted: a table that is public"):
        compare_texts(bench(public, **{role: guarded}), place / "out")
    assert not runs


@pytest.mark.usefixtures("figures")
def test_a_comparison_without_any_texts_says_why(public: Path, runs: list[Options]) -> None:
    with pytest.raises(MechanismFailed, match="ctcl, epsilon 1: no topics"):
        compare_texts(bench(public), public.parent / "out", methods=["ctcl"], epsilons=[1])


def test_the_sets_of_synbench_are_those_of_its_table(tmp_path: Path) -> None:
    assert len(SYNBENCH) == 9 and sum(item.texts for item in SYNBENCH.values()) == 53_369
    with pytest.raises(SourceError, match="accepted: hoc, n2c2-08"):
        named_set("imdb")
    result = CliRunner().invoke(
        app, ["bench", "text", "--public", "x", "--public-why", WHY, "--out", str(tmp_path), "--set", "mimic"]
    )
    assert result.exit_code == 1 and "those of the set mimic are not known" in " ".join(result.output.split())


def test_labels_in_lists_and_rows_without_any_are_read(tmp_path: Path) -> None:
    rows = [("a b", [1, 2]), (" ", [1]), (None, [1]), ("c", None), ("d", [])]
    table = pa.table({"words": [row[0] for row in rows], "tags": [row[1] for row in rows]})
    pq.write_table(table, tmp_path / "t.parquet")
    found, missing = labelled_texts(tmp_path / "t.parquet", "words", "tags", None)
    assert found.to_pylist() == [{LABEL: "1 | 2", TEXT: "a b"}, {LABEL: "(none)", TEXT: "d"}] and missing == 3


def test_labels_are_compared_by_what_they_say(tmp_path: Path) -> None:
    """Numbers are the same label in every type; missing numbers and blanks are none; bytes and structs are refused."""
    file = tmp_path / "t.parquet"
    body = pa.array(["a", "b", "c"], pa.string_view())
    for values in (pa.array([1.0, 2.5, float("nan")]), pa.array(["1", "2.5", " "])):
        pq.write_table(pa.table({"words": body, "tag": values}), file)
        found, missing = labelled_texts(file, "words", "tag", None)
        assert found[LABEL].to_pylist() == ["1", "2.5"] and missing == 1
    for values in (pa.array([b"1", b"2", b"3"]), pa.array([["1"], ["2"], []], pa.list_(pa.binary()))):
        pq.write_table(pa.table({"words": body, "tag": values}), file)
        with pytest.raises(
            SourceError, match=r"label: column 'tag' of .* holds no labels; accepted: a column of texts"
        ):
            labelled_texts(file, "words", "tag", None)


def test_labels_that_no_text_to_learn_has_are_counted() -> None:
    learned, held_out = (pa.table({LABEL: labels}) for labels in (["01", "02 | x", "(none)"], ["1", "x", "02 | y"]))
    assert unlearned(learned, held_out) == ["2 of 3 held-out texts have labels that no text to learn has."]
    assert unlearned(learned, learned) == []


def test_real_figures_are_beside_those_of_synthetic_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All figures are there, by real measures but for entities, which take long to find."""
    monkeypatch.setattr(trials, "entity_counts", lambda texts, progress: np.array([[len(text) % 5] for text in texts]))
    real, held_out = (pa.table({LABEL: table["topic"], TEXT: table["body"]}) for table in (texts(80, 1), texts(80, 2)))
    judge = Judge(real, held_out, str(save_model(tmp_path)), trials=2, most=80)
    found, of_real = judge.figures(real)
    assert set(found) == {*FIDELITY, *UTILITY, *ALONE}
    assert set(of_real) == {*FIDELITY, *ALONE}
    assert judge.pretraining()["shards"] == SHARDS
    assert found["perplexity"] == pytest.approx(of_real["perplexity"], rel=0.2) and found["perplexity"] > 50
    comparison = TextComparison("t", WHY, 80, 80, 0, 3, 1e-3, judge.baselines(), of_real, ())
    assert comparison.tables()["utility"][-1][1] == REAL and "majority" in comparison.csv()


def test_likelihoods_of_tokens_are_those_of_the_model() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_llama(tokenizer).eval()
    words = ["the parcel came late", "", "it is so. " * 60, "the book"]
    found = token_log_likelihoods(model, tokenizer, words)
    assert [len(own) > 0 for own in found] == [True, False, True, True] and len(found[2]) == 63
    start = int(tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    for own, text in zip(found, words, strict=True):
        if len(own):
            body = tokenizer(text, add_special_tokens=False)["input_ids"][: len(own)]
            (expected,) = rows_log_likelihoods(model, [([start], body)], start)
            assert own.mean() == pytest.approx(expected, abs=1e-5)
