"""Evaluating bounds on a table: the numbers are right, bad tables are refused by name, nothing is left behind."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounding_cases import greedy_kept, hashed
from typer.testing import CliRunner

from dpsynth_platform.bounding.evaluation import KEY, evaluate
from dpsynth_platform.bounding.order import Order
from dpsynth_platform.bounding.ownership import write_ownership
from dpsynth_platform.cli.main import app
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import BoundingError, SourceError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.sources.tables import open_table

SECRET = "zaphodina.quillmarker@leak.example"


def papers(count: int = 400) -> pa.Table:
    random = np.random.default_rng(5)
    authors = [
        [f"author {int(60 * share**2)}" for share in random.random(size)] for size in random.integers(1, 5, count)
    ]
    return pa.table({"authors": authors, "stars": pa.array(random.integers(0, 9, count), pa.int32())})


def evaluated(engine: Engine, table: Path, workspace: Path, **more: Any) -> Any:
    options: dict[str, Any] = {"contributions": [1, 3], "order": Order()} | more
    columns = options.pop("owners", ["authors"])
    return evaluate(open_table(table), columns, engine=engine, workspace=workspace, **options)


def test_the_numbers_are_the_greedys_on_both_engines(engine: Engine, tmp_path: Path) -> None:
    table = papers()
    pq.write_table(table, tmp_path / "papers.parquet")
    found = evaluated(engine, tmp_path / "papers.parquet", tmp_path, contributions=[2])
    graph = {str(place): authors for place, authors in enumerate(table["authors"].to_pylist())}
    order = sorted(graph, key=lambda record: hashed(record, KEY))
    for bound in found.bounds:
        assert bound.kept == len(greedy_kept(graph, order, bound.max_contributions))
        assert bound.kept_share == bound.kept / 400
        assert bound.kept <= bound.upper_bound < 400
        assert bound.owners_above == 0
    distinct = {(record, author) for record, authors in graph.items() for author in authors}
    assert (found.records, found.edges) == (400, len(distinct))
    assert found.owners == len({author for _, author in distinct})
    assert found.repeated_owners == sum(map(len, graph.values())) - len(distinct)
    assert found.peak_memory_bytes > 1e7
    assert not list(tmp_path.glob("ownership*"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Every kind of owner, good and bad, in two files."""
    for number in range(2):
        pq.write_table(
            pa.table(
                {
                    "sender": pa.array(["a", None, "", "b", "c"]).dictionary_encode(),
                    "readers": pa.array(
                        [["b", None, "b"], [], None, ["b", ""], ["d", "e"]], pa.large_list(pa.large_string())
                    ),
                    "day": pa.array([dt.date(2026, 1, day + 5 * number) for day in range(1, 6)]),
                    "score": [0.5, float("nan"), -0.0, 0.0, None],
                    "code": pa.array([1, 2, 3, 4, 5], pa.int16()),
                }
            ),
            tmp_path / f"{number}.parquet",
        )  # fmt: skip
    (tmp_path / "README.txt").write_text("no table")
    return tmp_path


def test_owners_of_all_columns_are_a_records_owners(small: Path) -> None:
    listed = write_ownership(open_table(small), ["sender", "readers"], None, small.parent / "out")
    assert (listed.records, listed.without_owner, listed.null_owners, listed.pairs) == (10, 4, 8, 16)
    pairs = pq.read_table(small.parent / "out").to_pylist()
    assert {(item["_record"], item["_owner"]) for item in pairs} == {
        (record + start, who)
        for start in (0, 5)
        for record, who in [(0, "a"), (0, "b"), (3, "b"), (4, "c"), (4, "d"), (4, "e")]
    }
    write_ownership(open_table(small), ["sender", "readers"], None, small.parent / "out", separate=True)
    apart = {item["_owner"] for item in pq.read_table(small.parent / "out").to_pylist() if item["_record"] == 3}
    assert apart == {"sender:b", "readers:b"}
    numbers = write_ownership(open_table(small), ["code", "day"], "score", small.parent / "out")
    assert (numbers.pairs, numbers.without_owner) == (20, 0)
    assert pq.read_table(small.parent / "out")["_owner"].to_pylist()[:6] == ["1", "2", "3", "4", "5", "2026-01-01"]


def test_a_delta_table_and_a_weight(tmp_path: Path) -> None:
    table = pa.table({"who": ["a"] * 4, "score": [0.0, -0.0, float("nan"), None], "authors": [["a"]] * 4})
    write_table(tmp_path / "delta", table.schema, table.to_batches())
    with DuckDBChoice().open(tmp_path / "spill") as engine:
        found = evaluated(
            engine, tmp_path / "delta", tmp_path, owners=["who"], contributions=[1, 4], order=Order("weight", "score")
        )
    assert [bound.kept for bound in found.bounds] == [1, 4]
    assert [bound.upper_bound for bound in found.bounds] == [1, 4]
    assert found.order == "weight:score" and found.most_records == 4


def test_no_record_at_all(tmp_path: Path) -> None:
    pq.write_table(
        papers(0).cast(pa.schema([("authors", pa.list_(pa.string())), ("stars", pa.int32())])), tmp_path / "t"
    )
    with DuckDBChoice().open(tmp_path / "spill") as engine:
        found = evaluated(engine, tmp_path / "t", tmp_path)
    assert [(bound.kept, bound.kept_share, bound.upper_bound) for bound in found.bounds] == [(0, 1.0, 0)] * 2


def not_utf8() -> pa.Array:
    offsets = pa.array([0, 2, 2 + len(SECRET)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe" + SECRET.encode())])


def refused(path: Path, owners: list[str]) -> str:
    with pytest.raises(SourceError) as caught:
        write_ownership(open_table(path), owners, None, path.parent / "out")
    chain, error = str(caught.value), caught.value
    while (error := error.__context__) is not None:  # type: ignore[assignment]
        chain += str(error)
    assert SECRET not in chain
    return str(caught.value)


def test_what_cannot_be_read_is_refused_and_never_quoted(tmp_path: Path) -> None:
    assert "no table" in refused(tmp_path / "nowhere", ["who"])
    table = tmp_path / "table"
    table.mkdir()
    assert "no table" in refused(table, ["who"])
    pq.write_table(pa.table({"who": not_utf8()}), table / "1.parquet")
    assert "UTF-8" in refused(table, ["who"])
    assert "not in the table; it has who" in refused(table, ["whom"])
    pq.write_table(pa.table({"who": [1, 2]}), table / "2.parquet")
    assert "1.parquet and 2.parquet have column 'who' as string and int64" in refused(table, ["who"])
    pq.write_table(pa.table({"when": [1, 2]}), table / "2.parquet")
    assert "do not have the same columns: 'when', 'who' in one of them only" in refused(table, ["who"])
    (table / "2.parquet").write_bytes(b"PAR1" + SECRET.encode())
    assert "2.parquet: a data file is missing or damaged" in refused(table, ["who"])
    (table / "1.parquet").write_bytes(SECRET.encode())
    assert "1.parquet: a data file is missing or damaged" in refused(table, ["who"])
    assert "cannot be read" in refused(table / "1.parquet", ["who"])
    pq.write_table(pa.table({"who": [0.5], "lists": [[True]]}), tmp_path / "types.parquet")
    assert "owners of type double; accepted: texts" in refused(tmp_path / "types.parquet", ["who"])
    assert "owners of type list" in refused(tmp_path / "types.parquet", ["lists"])


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["bound", "evaluate", *arguments, "--spill", str(tmp_path)])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


def test_the_command_shows_a_table_or_json_and_leaves_nothing(use: Any, tmp_path: Path) -> None:
    pq.write_table(papers(), tmp_path / "papers.parquet")
    before = sorted(tmp_path.iterdir())
    status, text = use("papers.parquet", "--owners", "authors", "--contributions", "1,3", "--json")
    assert status == 0, text
    found = json.loads(text)
    assert [bound["max_contributions"] for bound in found["bounds"]] == [1, 3]
    repeated = ("--contributions", "1", "--contributions", "3")
    assert (
        json.loads(use("papers.parquet", "--owners", "authors", *repeated, "--json")[1])["bounds"][1][
            "max_contributions"
        ]
        == 3
    )
    assert found["engine"] == "duckdb" and "operator" in found["note"]
    status, text = use("papers.parquet", "--owners", "authors", "--order", "fewest-owners-first")
    assert status == 0 and "share of owned records" in text and "operator" in text
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--contributions", "0,1"), "accepted: whole numbers from 1"),
        (("--contributions", "one"), "accepted: whole numbers from 1"),
        (("--owners", "authors,authors"), "different columns"),
        (("--owners", "authors", "--owners", "authors"), "different columns"),
        (("--owners", "whom"), "not in the table"),
        (("--order", "largest"), "accepted: random"),
        (("--order", "weight:authors"), "accepted: numbers"),
        (("--memory", "3"), "a size such as"),
        (("--master", "local[2]"), "with --engine spark"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    use: Any, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    pq.write_table(papers(20), tmp_path / "papers.parquet")
    status, text = use("papers.parquet", *(() if "--owners" in arguments else ("--owners", "authors")), *arguments)
    assert status == 1 and words in text, text
    assert "Traceback" not in text


def test_bounds_are_checked_by_the_library_too(tmp_path: Path) -> None:
    pq.write_table(papers(20), tmp_path / "t")
    with DuckDBChoice().open(tmp_path / "spill") as engine, pytest.raises(BoundingError, match="1 or more"):
        evaluated(engine, tmp_path / "t", tmp_path, contributions=[0])


def test_the_command_takes_its_files_along_when_it_is_ended(tmp_path: Path) -> None:
    pq.write_table(papers(20), tmp_path / "papers.parquet")
    (tmp_path / "spill").mkdir()
    code = (
        "import sys, time\n"
        "from dpsynth_platform.bounding import evaluation\n"
        "def evaluate(*_, workspace, **__):\n"
        "    (workspace / 'ids').write_text('somebody')\n"
        "    for _ in range(6000):\n"  # a signal that comes just before a sleep is handled after it only
        "        time.sleep(0.1)\n"
        "evaluation.evaluate = evaluate\n"
        "sys.argv = ['dpsynth', 'bound', 'evaluate', *sys.argv[1:]]\n"
        "from dpsynth_platform.cli.main import app\n"
        "app()\n"
    )
    arguments = ["papers.parquet", "--owners", "authors", "--spill", "spill"]
    environment = os.environ | {"DPSYNTH_HOME": str(tmp_path / "home")}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=tmp_path, env=environment)
    deadline = time.monotonic() + 120
    while not (files := list(tmp_path.glob("spill/*/ids"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path.stat().st_mode & 0o077 for path in files] == [0]
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM
    assert not list((tmp_path / "spill").iterdir())


class PanicException(BaseException):
    """As of a library in Rust."""


def test_a_panic_and_what_is_printed_show_no_value(use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(papers(20), tmp_path / "papers.parquet")

    def panic(*_: Any, **__: Any) -> None:
        os.write(1, b"Xqzmark")
        os.write(2, b"Xqzmark")
        raise PanicException("cannot parse Xqzmark")

    monkeypatch.setattr("dpsynth_platform.bounding.evaluation.evaluate", panic)
    status, text = use("papers.parquet", "--owners", "authors")
    assert status == 1
    assert "unexpected error: PanicException (details: restricted log" in text
    assert "Xqzmark" not in text and "Traceback" not in text
