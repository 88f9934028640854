"""One table with a text that a language model writes: what is read, scrubbed, paid for, continued and refused."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from inference_cases import reader
from killed_runs import Runs
from pyarrow import csv
from synthesis_cases import SECRET
from text_cases import save_model
from typer.testing import CliRunner

import dpsynth
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    DpsynthError,
    SourceError,
    SpendRepeated,
)
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.foundation.storage import EXAMPLES, read_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import Options, Synthesis, forecast, more_rows, paying, synthesize
from dpsynth_platform.one_table.audit import synthesis_evidence
from dpsynth_platform.one_table.place import Place, held
from dpsynth_platform.one_table.rows import bounded_rows
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.privacy.statement import words_of
from dpsynth_platform.synth.text import batch_trial
from dpsynth_platform.synth.text.evolution_writers import LocalWriter
from dpsynth_platform.synth.text.filtering import Filter
from dpsynth_platform.synth.text.public_text import PublicText
from dpsynth_platform.synth.text.sampling import SyntheticText
from dpsynth_platform.training import soundness

KIND = {"kind": {"type": "categorical", "values": ["mail", "note"]}}
TRAINING = {"steps": 4, "batch_size": 20, "replay_steps": 3, "learning_rate": 1e-6, "adapter": {"rank": 2, "alpha": 4}}
KEPT = {"keep": {"duplicates": "kept"}, "temperature": 0.1}
"""So a model that was taught four sentences writes them: noise does not move it, and texts may be equal."""
SETTINGS: dict[str, dict[str, Any]] = {
    "dp_finetune": {"text": {"max_tokens": 64} | KEPT, "training": TRAINING},
    "ctcl": {"text": {"max_tokens": 200, "topics": {"count": 16}} | KEPT, "training": TRAINING},
    "aug_pe": {"text": {"max_tokens": 64, "evolution": {"population": 4, "variations": 1, "rounds": 2}}},
    "dp_inference": {"text": {"max_tokens": 64, "inference": {"batch_size": 25, "document_tokens": 8, "top_k": 8}}},
}
Write = Callable[..., Synthesis]


def letters(rows: int = 200) -> pa.Table:
    """Two letters of each reader, in which somebody is named."""
    return pa.table(
        {
            "reader": [f"r{row // 2}" for row in range(rows)],
            "kind": ["mail", "note"] * (rows // 2),
            "remark": [
                f"Dr. {SECRET} said that the parcel came late: call 212-736-50{row % 90 + 10}" for row in range(rows)
            ],
            "other": [1] * rows,
        }
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_model(tmp_path_factory.mktemp("base"), reader("kind", ("mail", "note"), "remark")))


@pytest.fixture(autouse=True)
def short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of the model on random texts take seconds, and have tests of their own."""
    monkeypatch.setattr(soundness, "refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr(batch_trial, "refuse_batches", lambda *_: None)


@pytest.fixture(autouse=True)
def writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So tiny a model cannot follow the prompts of an evolution."""
    numbers = iter(range(10**6))
    answer = "the parcel number {} came late"
    monkeypatch.setattr(
        LocalWriter, "write", lambda _, prompts: [PublicText(answer.format(next(numbers))) for _ in prompts]
    )


@pytest.fixture
def options(base: Path) -> Callable[..., Options]:
    def made(method: str = "dp_finetune", **others: Any) -> Options:
        given: dict[str, Any] = {
            "epsilon": 8.0,
            "delta": 1e-4,
            "expected_units": 200,
            "text": "remark",
            "about": "letters to the editor",
            "schema": {"columns": KIND} | SETTINGS.get(method, {}),
            "method": method,
            "rows": 4,
            "base_model": str(base),
        }
        return Options(**given | others)

    return made


@pytest.fixture
def write(tmp_path: Path, options: Callable[..., Options]) -> Write:
    def call(method: str = "dp_finetune", table: Any = None, out: str = "out", **others: Any) -> Synthesis:
        return synthesize(letters() if table is None else table, tmp_path / out, options(method, **others))

    return call


def states(out: Path) -> list[str]:
    return [entry.state for entry in Ledger(f"sqlite:///{out / 'restricted' / 'ledger' / 'ledger.db'}").entries()]


def holds_no_text(root: Path) -> bool:
    """Whether no file below a directory has the name that all records have."""
    words = [part.encode() for part in SECRET.split()]
    return not any(word in file.read_bytes() for file in root.rglob("*") if file.is_file() for word in words)


def kept_row(self: Filter, text: SyntheticText) -> dict[str, str | None]:
    """Any text counts as one: so tiny a model was not taught the prompts of topics."""
    columns = (condition.column for condition in self.layout.conditions)
    return dict(zip(columns, text.given, strict=True)) | {"remark": "the parcel came late"}


OWNED = {"owners": "reader", "contributions": 1}


@pytest.mark.parametrize("owned", [{}, OWNED], ids=["rows", "owners"])
@pytest.mark.parametrize("method", SETTINGS)
def test_a_text_is_written_paid_for_once_and_drawn_again(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, owned: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    if method == "ctcl":
        monkeypatch.setattr(Filter, "row", kept_row)
    made = write(method, **owned)
    assert made.spent and states(out) == ["spent"] and made.method == method
    table = pq.read_table(made.synthetic)
    assert table.column_names == [*(["reader"] if owned else []), "kind", "remark"]
    assert table["remark"].null_count == 0 and 0 < table.num_rows <= 4
    assert set(table["kind"].to_pylist()) <= {"mail", "note"}
    assert made.empty == ()
    words = made.statement.read_text()
    assert f"One {'user' if owned else 'record'}" in words
    assert "the mechanism reads kind, remark" in words and "does not rest on it" in words
    assert "thus neither used nor contained:" in words and "other" in words
    assert "What the base model" in words and str(tmp_path.parent) not in words
    event = json.loads((out / "statement.json").read_text())["event"]
    assert words_of(method, event).noise.because in words if method != "dp_inference" else "one context" in words
    assert holds_no_text(out)
    assert not [*(out / "restricted").glob("work-*"), *(out / "restricted").glob("rows-*")]

    monkeypatch.setattr(paying.Budget, "start", lambda *_: pytest.fail("something was paid for"))
    again = write(method, **owned, rows=4 if method == "dp_inference" else 5)  # there, rows decide what is paid for
    assert not again.spent and again.entry_id == made.entry_id
    if method == "dp_inference":
        with pytest.raises(ContractError, match="there is no model that writes more"):
            more_rows(out, 2)
    else:
        more = more_rows(out, 5, given={"kind": "mail"})
        drawn = pq.read_table(more.synthetic)
        assert set(drawn["kind"].to_pylist()) == {"mail"} and drawn["remark"].null_count == 0
        assert more.entry_id == made.entry_id and "no row of the data was read" in more.statement.read_text()
    with pytest.raises(ConfigurationError, match="no shadow model of a table is like it"):
        synthesis_evidence(out, {}, canaries=False)


def test_what_is_planned_is_what_is_paid_for(options: Callable[..., Options], write: Write, tmp_path: Path) -> None:
    planned = forecast(letters(), tmp_path / "out", options(cap_epsilon=30.0))
    assert not planned.paid and "DP-SGD over records" in planned.event and not (tmp_path / "out").exists()
    made = write(cap_epsilon=30.0)
    assert made.guarantee.epsilon <= planned.guarantee.epsilon == 8.0
    assert forecast(letters(), tmp_path / "out", options(cap_epsilon=30.0)).paid


# What the mechanism reads.


def read(table: pa.Table | Path, options: Options, place: Place, work: str) -> pa.Table:
    """The rows that a mechanism would read."""
    directory = place.root / work
    directory.mkdir(parents=True)
    bounded, owners = bounded_rows(task_of(table, options), place.vault, directory, silent)
    found = pa.Table.from_batches(read_table(bounded))
    assert set(found["_owner"].to_pylist()) == {owner.ljust(16, b"\0").hex() for owner in owners.tolist()}
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path / "place")


def test_texts_are_scrubbed_as_the_line_does(options: Callable[..., Options], place: Place) -> None:
    table = letters(4).append_column("name", pa.array([SECRET, None, "Trillian Prefect", "Wobbelhaar"]))
    table = table.set_column(
        2, "remark", pa.array(["Wobbelhaar and Ms. Ann Lee", None, "Trillian Prefect: no-7", "so Wobbelhaar"])
    )
    columns = KIND | {"name": {"type": "text", "pii": "drop"}, "remark": {"type": "text", "pii": "mask"}}
    schema = {"columns": columns, "scrub": {"deny": {"ID": ["no-7"]}}} | SETTINGS["dp_finetune"]
    found = read(table, options(schema=schema), place, "a")
    assert found.column_names == ["kind", "remark", "_owner", "_record"]
    row_of = dict(zip(found["remark"].to_pylist(), found["kind"].to_pylist(), strict=True))
    assert row_of[None] == "note" and row_of["<PERSON>: <ID>"] == "mail"
    assert not any("Lee" in (text or "") for text in row_of)
    assert "Wobbelhaar" not in next(text for text in row_of if text and text.startswith("so "))  # the row's own name


def masked(options: Callable[..., Options], **others: Any) -> Options:
    columns = KIND | {"remark": {"type": "text", "pii": "mask"}}
    return options(schema={"columns": columns} | SETTINGS["dp_finetune"], **others)


def test_an_owner_more_changes_no_other_owner_and_at_most_b_rows(options: Callable[..., Options], place: Place) -> None:
    """Neighbours by an owner of 60 rows, in the middle of the table; b is 2."""
    table = letters(120)
    more = letters(60).set_column(0, "reader", pa.array(["new"] * 60))
    more = more.set_column(2, "remark", pa.array([f"another remark of number {row}" for row in range(60)]))
    larger = pa.concat_tables([table.slice(0, 50), more, table.slice(50)])
    chosen = masked(options, owners="reader", contributions=2)
    before, after = (read(rows, chosen, place, work) for rows, work in ((table, "a"), (larger, "b")))
    left, right = (Counter(map(str, rows.select(["kind", "remark", "_owner"]).to_pylist())) for rows in (before, after))
    assert not left - right
    assert sum((right - left).values()) == 2 and before.num_rows == 120
    added = set(after["_owner"].to_pylist()) - set(before["_owner"].to_pylist())
    assert len(added) == 1


def test_a_row_more_changes_no_other_row(options: Callable[..., Options], place: Place) -> None:
    """Without owners each row is one of its own; its id is random, so that no position is in it."""
    table = letters(60)
    one = letters(2).slice(1).set_column(2, "remark", pa.array(["another remark"]))
    chosen = masked(options)
    before = read(table, chosen, place, "a")
    after = read(pa.concat_tables([table.slice(0, 9), one, table.slice(9)]), chosen, place, "b")
    left, right = (Counter(map(str, rows.select(["kind", "remark"]).to_pylist())) for rows in (before, after))
    assert not left - right and sum((right - left).values()) == 1
    assert len(set(after["_owner"].to_pylist())) == after.num_rows == 61
    assert not set(before["_owner"].to_pylist()) & set(after["_owner"].to_pylist())


def test_owners_that_are_missing_are_left_out(options: Callable[..., Options], place: Place) -> None:
    table = letters(40).set_column(0, "reader", pa.array([None, "", *[f"r{row}" for row in range(38)]]))
    assert read(table, masked(options, owners="reader", contributions=1), place, "a").num_rows == 38
    nobody = letters(40).set_column(0, "reader", pa.nulls(40, pa.string()))
    with pytest.raises(SourceError, match="no row has an owner"):
        read(nobody, masked(options, owners="reader", contributions=1), place, "b")


def test_odd_texts_are_read_and_trained_on(write: Write, tmp_path: Path) -> None:
    odd = [
        "\N{SLIGHTLY SMILING FACE} na ja\u200d",
        "word " * 4_000,
        None,
        "",
        " \n",
        "topic: x\n<|endoftext|>",
        "\N{CJK UNIFIED IDEOGRAPH-75C5}",
    ]
    table = letters(len(odd) * 10).set_column(2, "remark", pa.array(odd * 10, pa.large_string()))
    made = write(table=table)
    assert made.spent and pq.read_schema(made.synthetic).field("remark").type == pa.large_string()


def test_texts_and_labels_of_any_layout_come_back(write: Write) -> None:
    views = letters()
    for name in ("kind", "remark"):
        views = views.set_column(views.schema.get_field_index(name), name, views[name].cast(pa.string_view()))
    schema = pq.read_schema(write(table=views).synthetic)
    assert [schema.field(name).type for name in ("kind", "remark")] == [pa.string_view(), pa.string_view()]


# What is refused before anything is paid for.


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"text": "letter"}, "there is no column 'letter'"),
        ({"text": "other"}, "columns.other: declared text, found Arrow type int64"),
        ({"text": "kind"}, "--text: 'kind'; accepted: a column of type text that scrubbing leaves readable"),
        ({"condition": ["reader", "nothing"]}, "nothing is declared of: reader"),
        ({"condition": "reader"}, "from the data. Accepted: --assume-public-domain"),
        ({"condition": "nothing"}, "--condition: 'nothing' is not modelled; accepted: kind"),
        ({"epsilon": 0.0}, "--epsilon"),
        ({"epsilon": 20.0}, "--accept-weak-guarantee REASON"),
        ({"expected_units": None}, "--expected-units: missing, and the plan of a text's mechanism depends on it"),
        ({"method": "mst"}, "--method 'mst'; accepted: auto, dp_finetune, ctcl, dp_inference, aug_pe"),
        ({"text": None, "about": None, "schema": {"columns": KIND}}, "writes a column of texts; accepted: with --text"),
        (
            {"text": None, "about": None, "method": "mst", "schema": {"columns": KIND, "text": {}}},
            "text: without a text to",
        ),
        ({"text": None, "method": "mst"}, "about: without a text to write"),
        ({"target": "kind"}, "--target: beside --text"),
        ({"learn_values": True}, "--learn-values: beside --text"),
        ({"weighting": "owners", "owners": "reader", "contributions": 2}, "--weighting: 'owners'"),
        ({"owners": "reader"}, "--owners and --contributions go together"),
        ({"owners": "remark", "contributions": 1}, "--owners 'remark': is the column of --text; accepted: a column"),
        ({"about": ""}, "--about: ''; accepted: at least 1 character"),
        ({"base_model": "/nowhere"}, "base model '/nowhere': neither a directory nor a GGUF file"),
        (
            {"schema": SETTINGS["dp_finetune"] | {"columns": {"remark": {"type": "text"}}}, "rows": None},
            "--rows: 'auto'",
        ),
        ({"schema": {"columns": {"remark": {"type": "text", "pii": "hash"}}}}, "--text: 'remark'"),
        ({"schema": {"columns": KIND, "text": {"given": ["kind"]}}}, "text.given: stands in an option here"),
        ({"schema": {"columns": KIND, "text": {"max_tokens": 4}}}, "text.max_tokens: 4"),
        ({"schema": {"columns": KIND, "text": {"evolution": {"rounds": 1}}}}, "text.evolution: is for method aug_pe"),
    ],
)
def test_what_is_refused_before_a_row_is_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("dpsynth_platform.one_table.run.bounded_rows", lambda *_: pytest.fail("a row was read"))
    with pytest.raises((ContractError, SourceError, ConfigurationError)) as caught:
        write(**others)
    assert said in str(caught.value)
    assert not (tmp_path / "out" / "restricted" / "models").exists() and "generate." not in str(caught.value)


def test_what_an_evolution_needs(write: Write) -> None:
    with pytest.raises(ConfigurationError, match="accepted: at most half of them"):  # before it is paid for
        write("aug_pe", schema={"columns": KIND, "text": {"max_tokens": 200}})
    with pytest.raises(ContractError, match="--about: missing, and method aug_pe writes from public words"):
        write("aug_pe", about=None)
    remote = {"evolution": {"endpoint": {"url": "https://models.example.org/v1"}}}
    with pytest.raises(ContractError, match="remote models are for the line of a deployment"):
        write("aug_pe", schema={"columns": KIND, "text": remote})


def test_texts_of_a_public_table_are_chosen_without_a_model(write: Write, tmp_path: Path) -> None:
    public = tmp_path / "public.parquet"
    known = {f"{word} came {when}" for word in ("a parcel", "some mail", "the bill") for when in ("late", "early")}
    pq.write_table(pa.table({"remark": sorted(known)}), public)
    chosen = {
        "base_model": None,
        "public": public,
        "public_why": "sentences of a test",
        "schema": {"columns": KIND, "text": {"evolution": {"population": 4, "rounds": 2, "ways": ["retrieve"]}}},
    }
    made = write("aug_pe", **chosen)
    assert 0 < made.rows <= 4 and set(pq.read_table(made.synthetic)["remark"].to_pylist()) <= known
    said = made.statement.read_text()
    assert "remark is published as the public table has it" in said and "language model" not in said
    assert "may be these texts word for word" in said and "sentences of a test" in said
    assert not write("aug_pe", **chosen).spent and states(tmp_path / "out") == ["spent"]
    with pytest.raises(ContractError, match="--public-why go together"):
        write("aug_pe", **chosen | {"public_why": None})
    with pytest.raises(ContractError, match=r"--public: is for method .*aug_pe"):
        write("dp_finetune", public=public, public_why="sentences of a test")


@pytest.mark.parametrize("texts", [[None, " \n", ""], [None], ["\u200b\ufeff", "\0\t", "\u00a0"]])
def test_a_table_without_any_text_costs_nothing(write: Write, tmp_path: Path, texts: list[str | None]) -> None:
    table = letters(60).set_column(2, "remark", pa.array(texts * (60 // len(texts)), pa.string()))
    with pytest.raises(SourceError, match="no row has a text in column 'remark'"):
        write(table=table)
    assert states(tmp_path / "out") == []


def test_auto_chooses_by_public_facts(options: Callable[..., Options]) -> None:
    chosen = task_of(letters(), options("auto", schema={"columns": KIND, **SETTINGS["aug_pe"]})).plan
    assert chosen.method == "aug_pe" and "200 records planned are too few" in chosen.why


# Interruptions.


KILLED_AT_A_STEP = """
import json, os, signal, sys
import pyarrow.parquet as pq
from dpsynth_platform.one_table import Options, synthesize
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.text import batch_trial
from dpsynth_platform.training import soundness
from dpsynth_platform.training.journal import StepJournal

table, out, given, where = sys.argv[1:]
soundness.refuse_unsound = batch_trial.refuse_batches = lambda *_, **__: None
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
begin = StepJournal.begin_step
def dying(journal):
    executed = begin(journal)
    return kill() if executed == 3 else executed
if where == "training":
    StepJournal.begin_step = dying
else:
    counted.measure = lambda *_, **__: kill()
synthesize(pq.read_table(table), out, Options(**json.loads(given)))
"""


@pytest.fixture
def killed(killed_runs: Runs, tmp_path: Path, options: Callable[..., Options]) -> Callable[[str], None]:
    """A run that is killed, and its rows are left where that is of use."""

    def run(where: str) -> None:
        pq.write_table(letters(), tmp_path / "letters.parquet")
        given = json.dumps(vars(options(cap_epsilon=60.0)))
        ended = killed_runs.run(
            KILLED_AT_A_STEP, [str(tmp_path / "letters.parquet"), str(tmp_path / "out"), given, where]
        )
        assert ended.returncode == -signal.SIGKILL, ended.said
        assert states(tmp_path / "out") == ["started"] and SECRET not in ended.said
        assert len(list((tmp_path / "out" / "restricted").glob("rows-*"))) == 1

    return run


def test_a_killed_training_continues_with_the_rows_that_it_had(
    killed: Callable[[str], None], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed("training")
    restricted = tmp_path / "out" / "restricted"
    (rows,) = restricted.glob("rows-*")
    assert not (rows / "prepared").exists() and holds_no_text(restricted)
    monkeypatch.setattr("dpsynth_platform.one_table.run.bounded_rows", lambda *_: pytest.fail("rows were read again"))
    made = write(cap_epsilon=60.0)
    assert not made.spent and states(tmp_path / "out") == ["spent"]
    trained = json.loads((restricted / "models" / made.entry_id / "trained.json").read_text())
    assert 5 <= trained["executed_steps"] <= 7  # of 4 steps and 3 to repeat
    assert not list(restricted.glob("rows-*"))


def test_rows_without_progress_expire(killed: Callable[[str], None], write: Write, tmp_path: Path) -> None:
    killed("training")
    restricted = tmp_path / "out" / "restricted"
    (rows,), (model,) = restricted.glob("rows-*"), restricted.glob("models/*")

    def aged(days: float) -> None:
        (model / EXAMPLES).mkdir(exist_ok=True)  # as a killed process leaves it; the next command deletes it
        then = time.time() - days * 86_400
        for part in (rows, *rows.rglob("*"), model, *model.rglob("*")):
            os.utime(part, (then, then))

    aged(6.9)
    with held(tmp_path / "out"):
        assert rows.is_dir() and not (model / EXAMPLES).exists()
    aged(7.1)
    with held(tmp_path / "out"):
        assert not rows.exists() and model.is_dir()
    with pytest.raises(SpendRepeated, match="To spend a second time"):
        write(cap_epsilon=60.0)
    assert not list(restricted.glob("rows-*"))


def test_a_killed_count_is_not_drawn_again(killed: Callable[[str], None], write: Write, tmp_path: Path) -> None:
    killed("counting")
    with pytest.raises(SpendRepeated) as caught:
        write(cap_epsilon=60.0)
    assert not list((tmp_path / "out" / "restricted").glob("rows-*"))
    assert states(tmp_path / "out") == ["started"]
    made = write(cap_epsilon=60.0, spend_again=str(caught.value).split()[-1])
    assert made.spent and states(tmp_path / "out") == ["started", "spent"]
    assert "it was started 2 times" in made.statement.read_text()


def test_rows_are_deleted_where_a_mechanism_fails_that_cannot_continue(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dpsynth_platform.synth.counted.measure", fails)
    with pytest.raises(DpsynthError):
        write()
    assert states(tmp_path / "out") == ["started"]
    assert not list((tmp_path / "out" / "restricted").glob("rows-*"))


def test_rows_are_deleted_though_a_run_was_killed_while_it_deleted_them(
    killed: Callable[[str], None], write: Write, tmp_path: Path
) -> None:
    killed("counting")
    (rows,) = (tmp_path / "out" / "restricted").glob("rows-*")
    (rows / "plan.json").unlink()
    with pytest.raises(SpendRepeated):
        write(cap_epsilon=60.0)
    assert not rows.exists()


def test_rows_of_a_run_that_was_paid_for_again_are_deleted(
    killed: Callable[[str], None], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that was killed before it deleted them."""
    killed("training")
    (rows,) = (tmp_path / "out" / "restricted").glob("rows-*")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(paying, "private_directory", dies)  # the first step after the start
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        write(cap_epsilon=60.0, spend_again=rows.name.removeprefix("rows-"))
    assert states(tmp_path / "out") == ["started", "started"] and rows.exists()
    with pytest.raises(SpendRepeated):
        write(cap_epsilon=60.0)
    assert not rows.exists()


def test_ctrl_c_says_that_the_next_run_continues(options: Callable[..., Options], write: Write, tmp_path: Path) -> None:
    def stopped(stage: str, done: int, total: int, beside: str = "") -> None:
        if stage == "training" and done == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="it continues, at no further cost"):
        synthesize(letters(), tmp_path / "out", options(), progress=stopped)
    assert states(tmp_path / "out") == ["started"]
    assert not write().spent and states(tmp_path / "out") == ["spent"]


# The command and Python.


def test_the_command_prints_counts_and_no_text(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    csv.write_csv(letters(), tmp_path / "letters.csv")
    schema = tmp_path / "letters.yaml"
    schema.write_text(json.dumps({"columns": KIND} | SETTINGS["dp_finetune"]))
    asked = ["letters.csv", "--text", "remark", "--condition", "kind", "--method", "dp_finetune", "--out", "out"]
    asked += ["--epsilon", "8", "--delta", "1e-4", "--expected-units", "200", "--rows", "4", "--base-model", str(base)]
    asked += ["--owners", "reader", "--contributions", "2", "--schema", str(schema)]

    def use(*arguments: str) -> tuple[int, str]:
        ran = CliRunner().invoke(app, ["synth", *arguments])
        return ran.exit_code, " ".join((ran.output + "".join(capfd.readouterr())).split())

    status, said = use("text", *asked)
    assert status == 0, said
    assert "paid now" in said and "synthetic texts were drawn; left out:" in said and "method dp_finetune" in said
    again, repeated = use("text", *asked)
    assert again == 0 and "nothing new was spent" in repeated
    drawn, rows = use("rows", "out", "--rows", "6", "--given", "kind=note")
    assert drawn == 0 and "nothing new was spent" in rows
    refused, why = use("text", *asked, "--condition", "kind,kind")
    assert refused == 1 and "accepted: names of different columns" in why
    for part in SECRET.split():
        assert part not in said + repeated + rows + why
    assert holds_no_text(tmp_path / "out")


def test_a_frame_with_a_text(base: Path, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = letters().to_pandas()
    made = dpsynth.synthesize(
        frame,
        tmp_path / "out",
        text="remark",
        condition="kind",
        method="dp_finetune",
        epsilon=8,
        delta=1e-4,
        expected_units=200,
        base_model=str(base),
        rows=4,
        schema={"columns": KIND} | SETTINGS["dp_finetune"],
        progress=False,
    )
    assert isinstance(made.data, pd.DataFrame) and made.data["remark"].notna().all()
    assert 0 < len(made.sample(6)) <= 6 and made.plot().layout.title.text
    assert "not rest on it" in made.statement()
    with pytest.raises(ContractError, match="text: beside queries"):
        dpsynth.query(
            frame, "SELECT COUNT(*) FROM t", tmp_path / "q", epsilon=1, delta=1e-4, text="remark", columns=KIND
        )


def test_in_a_script_no_count_of_records_is_printed(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """`nohup` sends both outputs of a script to a private file, as `capfd` does; the file may be passed on."""
    made = write()
    assert made.spent and "".join(capfd.readouterr()) == ""


def test_texts_alone(write: Write) -> None:
    """No column beside the text is declared: none is counted, and the whole guarantee is the text's."""
    schema = {"columns": {"remark": {"type": "text", "pii": "mask"}}} | SETTINGS["dp_finetune"]
    made = write(schema=schema)
    assert pq.read_table(made.synthetic).column_names == ["remark"]
    assert "marginals" not in made.statement.read_text()
    assert pc.count(pq.read_table(made.synthetic)["remark"]).as_py() == made.rows


@pytest.mark.slow
def test_the_bundled_model_writes(tmp_path: Path) -> None:
    training = {"steps": 2, "batch_size": 4, "replay_steps": 0, "adapter": {"rank": 2, "alpha": 4}}
    options = Options(
        epsilon=8.0,
        delta=1e-4,
        expected_units=200,
        text="remark",
        schema={"columns": KIND, "text": {"max_tokens": 32, "most_tokens": 12}, "training": training},
        method="dp_finetune",
        rows=2,
    )
    made = synthesize(letters(60), tmp_path / "out", options)
    assert pq.read_table(made.synthetic)["remark"].null_count == 0 and made.rows
    assert "What the base model smollm2-135m was trained on before" in made.statement.read_text()
