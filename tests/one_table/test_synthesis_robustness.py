"""Tables at the ends of what there is: a result of the source's schema or one clear error, and a ledger that agrees.

Each case goes through the whole of `synthesize`, by every method. A result has the source's columns and types, no value
outside of what is declared, and exactly one entry in the ledger, for what ran. A refusal is one sentence a fault of the
project's own, and costs nothing.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import Options, Synthesis, more_rows, run, synthesize
from dpsynth_platform.one_table.task import Task, task_of
from dpsynth_platform.synth.interface import TABLE_METHODS
from dpsynth_platform.synth.tabular.measurements import read_measurements

SECRET = "Zaphodina Quillmarker"
ROWS = 120
DAYS = (dt.date(1, 1, 1), dt.date(9999, 12, 31))
MOMENTS = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59))
LEAST, LARGEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Case:
    """A table, what is declared of it, and what is asked for."""

    table: dict[str, Any]
    columns: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def integer(low: int, high: int, **others: Any) -> dict[str, Any]:
    return {"type": "integer", "min": low, "max": high, **others}


def real(low: float, high: float, **others: Any) -> dict[str, Any]:
    return {"type": "float", "min": low, "max": high, **others}


def listed(*values: str, **others: Any) -> dict[str, Any]:
    return {"type": "categorical", "values": list(values), **others}


def between(type_: str, ends: tuple[Any, Any], **others: Any) -> dict[str, Any]:
    return {"type": type_, "min": ends[0], "max": ends[1], **others}


def repeated(*values: Any, type_: pa.DataType | None = None, rows: int = ROWS) -> pa.Array:
    return pa.array((list(values) * rows)[:rows], type_)


def plain(rows: int = ROWS, **others: Any) -> dict[str, Any]:
    return {
        "whole": repeated(*range(10), rows=rows),
        "word": repeated("a", "b", "c", rows=rows),
        "real": repeated(0.1, 0.2, 0.9, rows=rows),
        **others,
    }


PLAIN = {"whole": integer(0, 9), "word": listed("a", "b", "c"), "real": real(0, 1)}
LEARNED = {"type": "categorical", "values": "learned"}
MANY = [f"value {number}" for number in range(10_000)]
THIN = repeated(*MANY, rows=3000)

DRAWN: dict[str, Case] = {
    "one row": Case(plain(1), PLAIN),
    "one row of an owner with room for more": Case(
        plain(1, owner=["p"]), PLAIN, {"owners": "owner", "contributions": 10_000}
    ),
    "one column": Case({"word": repeated("a", "b")}, {"word": listed("a", "b")}),
    "the same in all rows": Case(
        {"whole": repeated(5), "word": repeated("b"), "real": repeated(0.5), "yes": repeated(True)}, PLAIN
    ),
    "nothing in any row": Case(
        {
            "whole": pa.nulls(ROWS, pa.int64()),
            "word": pa.nulls(ROWS, pa.string()),
            "real": repeated(float("nan")),
            "day": pa.nulls(ROWS, pa.date32()),
            "yes": pa.nulls(ROWS, pa.bool_()),
            "learned": pa.nulls(ROWS, pa.string()),
        },
        {name: column | {"nullable": True} for name, column in PLAIN.items()}
        | {"day": between("date", DAYS, nullable=True), "learned": LEARNED},
    ),
    "nothing in any row, where nothing may miss": Case(
        {"whole": pa.nulls(ROWS, pa.int64()), "word": pa.nulls(ROWS, pa.string()), "real": repeated(float("nan"))},
        PLAIN,
    ),
    "10,000 categories": Case(
        {"word": THIN, "whole": repeated(1, 2, rows=3000)}, {"word": listed(*MANY)} | {"whole": integer(0, 9)}
    ),
    "10,000 learned categories": Case(
        {"word": THIN, "whole": repeated(1, 2, rows=3000)}, {"word": LEARNED | {"most": 10_000}, "whole": integer(0, 9)}
    ),
    "the ends of real numbers": Case(
        {
            "wide": repeated(1e308, -1e308, float("inf"), float("-inf"), float("nan"), 5e-324, 0.0),
            "narrow": repeated(1.0, 0.0),
            "tiny": repeated(1e-320, float("inf")),
            "quantile": repeated(1e308, 5e-324),
            "one bin": repeated(1e308, -1e308),
            "single": repeated(3e38, -3e38, float("inf"), type_=pa.float32()),
            "half": pa.array(np.resize(np.array([6e4, -6e4, 0], np.float16), ROWS)),
        },
        {
            "wide": real(-8.9e307, 8.9e307),
            "narrow": real(1.0, float(np.nextafter(1, 2))),
            "tiny": real(0, 5e-323, bins=1000),
            "quantile": real(-8.9e307, 8.9e307, bins="quantile"),
            "one bin": real(-8.9e307, 8.9e307, bins=1),
            "single": real(-3.4e38, 3.4e38),
            "half": real(-65504, 65504),
        },
    ),
    "declarations that the data breaks": Case(
        {
            "whole": repeated(-5, 50, 3),
            "word": repeated("x", SECRET, "a"),
            "real": repeated(-1.0, 9e9, 0.5),
            "code": repeated(1, 2, 300),
            "cut": repeated(1.5, float("inf"), float("nan")),
        },
        PLAIN | {"code": listed("1", "2", "3"), "cut": integer(0, 9)},
    ),
    "ranges that all of the data breaks": Case(
        {"whole": repeated(-5, 50), "word": repeated("x", "a"), "real": repeated(-1.0, 9e9)}, PLAIN
    ),
    "next to no budget": Case(plain(), PLAIN, {"epsilon": 0.01}),
    "next to no budget for learned values": Case(
        plain(), {"whole": integer(0, 9), "word": LEARNED, "real": real(0, 1)}, {"epsilon": 0.01}
    ),
    "a large budget": Case(plain(), PLAIN, {"epsilon": 100.0, "accept_weak_guarantee": "fictional people"}),
    "one owner of all rows": Case(plain(owner=repeated("p")), PLAIN, {"owners": "owner", "contributions": 2}),
    "owners may have more rows than there are": Case(
        plain(owner=repeated("p", "q")), PLAIN, {"owners": "owner", "contributions": 10_000}
    ),
    "of owners with more rows than there are, owners are counted": Case(
        plain(owner=repeated("p", "q")), PLAIN, {"owners": "owner", "contributions": 10_000, "weighting": "owners"}
    ),
}

PREPARED: dict[str, Case] = {
    "the ends of whole numbers": Case(
        {
            "signed": repeated(LEAST, LARGEST, 0, 1),
            "unsigned": repeated(2**64 - 1, 0, 5, type_=pa.uint64()),
            "small": repeated(-128, 127, type_=pa.int8()),
            "one bin": repeated(LEAST, LARGEST),
            "cents": repeated(Decimal("-1e30"), Decimal("1e30"), Decimal("0.01"), type_=pa.decimal128(38, 2)),
        },
        {
            "signed": integer(LEAST, LARGEST, points=[LEAST, 0, LARGEST]),
            "unsigned": integer(0, 2**64 - 1),
            "small": integer(-128, 127),
            "one bin": integer(LEAST, LARGEST, bins=1),
            "cents": real(0, 10, decimals=2),
        },
    ),
    "the years 1 and 9999": Case(
        {
            "day": repeated(*DAYS),
            "moment": repeated(*MOMENTS, type_=pa.timestamp("us")),
            "zoned": repeated(*MOMENTS, type_=pa.timestamp("us", "Asia/Kolkata")),
            "clock": repeated(0, 86_399_999_999, type_=pa.time64("us")),
            "time": repeated("24:00", "-1:00", "12:30"),
        },
        {
            "day": between("date", DAYS),
            "moment": between("datetime", MOMENTS),
            "zoned": between("datetime", MOMENTS),
            "clock": {"type": "time"},
            "time": {"type": "time"},
        },
    ),
    "beyond the years 1 and 9999": Case(
        {
            "day": pa.array([-(2**31), 2**31 - 1, 0] * 40, pa.int32()).cast(pa.date32()),
            "moment": repeated(LEAST, LARGEST, 0).cast(pa.timestamp("us")),
            "zoned": repeated(LEAST + 1, LARGEST, 0).cast(pa.timestamp("ms", "America/New_York")),
            "nanos": repeated(LEAST + 1, LARGEST, 0).cast(pa.timestamp("ns")),
        },
        {
            "day": between("date", (dt.date(2000, 1, 1), dt.date(2001, 1, 1))),
            "moment": between("datetime", MOMENTS),
            "zoned": between("datetime", MOMENTS),
            "nanos": between("datetime", (dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))),
        },
    ),
    "letters of all kinds": Case(
        {
            "größe 🎉": repeated("ü🎉", "e\u0301", "é"),
            "שלום": repeated("מ", "\u202ex", ""),
            "a\nb": repeated("q\nr", "s\tt", "u\x00v"),
            "nul\x00": repeated(*range(10)),
        },
        {
            "größe 🎉": listed("ü🎉", "e\u0301", "é"),
            "שלום": listed("מ", "\u202ex", ""),
            "a\nb": listed("q\nr", "s\tt", "u\x00v"),
            "nul\x00": integer(0, 9),
        },
    ),
    "letters of all kinds, learned": Case(
        {"größe 🎉": repeated("ü🎉", "מ"), "a\nb": repeated("q\nr", "u\x00v"), "long": repeated("x" * 1000)},
        None,
        {"learn_values": True, "epsilon": 8.0},
    ),
    "names that mean something else": Case(
        {
            name: repeated(0, 1)
            for name in ("", " ", "A", "a", "_owner", "_record", "row", "select", 'q"q', "%s;--", "x" * 300, "x" * 301)
        },
        {
            name: integer(0, 1)
            for name in ("", " ", "A", "a", "_owner", "_record", "row", "select", 'q"q', "%s;--", "x" * 300, "x" * 301)
        },
    ),
    "ids that no other type holds": Case(
        plain(owner=repeated(2**64 - 1, 0, type_=pa.uint64())), PLAIN, {"owners": "owner", "contributions": 2}
    ),
}
"""What becomes of these is decided before any method sees a number."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models are fastest so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(case: Case, directory: Path, method: str) -> tuple[Path, Options]:
    """The table in a file, and the options with a schema file."""
    table = directory / "table.parquet"
    pq.write_table(pa.table(case.table), table)
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "method": method} | case.options
    if case.columns is not None:
        options["schema"] = directory / "schema.yaml"
        options["schema"].write_text(yaml.safe_dump({"columns": case.columns}), encoding="utf-8")
    return table, Options(**options)


def run_of(table: Path, out: Path, options: Options, patch: pytest.MonkeyPatch) -> tuple[Synthesis, Task]:
    """A run, and what it was planned to be."""
    tasks: list[Task] = []

    def planned(*asked: Any) -> Task:
        tasks.append(task_of(*asked))
        return tasks[-1]

    patch.setattr(run, "task_of", planned)
    made = synthesize(table, out, options)
    return made, tasks[0]


def ledger_below(out: Path) -> Ledger | None:
    path = out / "restricted" / "ledger" / "ledger.db"
    return Ledger(f"sqlite:///{path}") if path.exists() else None


def check_spent(made: Synthesis, task: Task, out: Path) -> None:
    """One entry has paid for what ran, which is the sealed plan and is complete; nothing else ran."""
    ledger = ledger_below(out)
    assert ledger is not None
    (entry,) = ledger.entries()
    assert (entry.entry_id, entry.state, made.spent) == (made.entry_id, "spent", True)
    assert (entry.request.event, entry.request.plan_digest) == (task.plan.event, task.plan.digest)
    assert ledger.verify(()).ok
    (model,) = (out / "restricted" / "models").iterdir()
    assert model.name == entry.entry_id
    assert read_measurements(model, task.plan.digest).one_way  # raises if they are incomplete or of another plan
    said = json.loads(made.statement.with_suffix(".json").read_text())
    assert (said["ledger_entry"], said["event"]) == (entry.entry_id, entry.request.event)
    assert 0.9 * task.options.epsilon < said["guarantee"]["epsilon"] <= task.options.epsilon


def check_rows(path: Path, source: Path, task: Task) -> None:
    """The source's columns and types, and no value that is not declared."""
    made, wanted = pq.read_table(path), pq.read_schema(source)
    made.validate(full=True)
    assert (made.schema.names, made.schema.types) == (wanted.names, wanted.types)
    for given, name in task.source.names.items():
        declared, values = task.contract.columns[name], made[given]
        if name not in task.contract.modelled:
            assert values.null_count in (0, len(values))
            continue
        if declared.type in ("integer", "float"):
            ends = pc.min_max(values.cast(pa.float64()) if pa.types.is_floating(values.type) else values).as_py()
            known = [end for end in ends.values() if end is not None]
            assert all(declared.min <= end <= declared.max for end in known)
        elif declared.type == "categorical" and declared.values != "learned":
            assert set(values.cast(pa.string()).unique().to_pylist()) - {None} <= set(declared.values)
        may_miss = declared.nullable or getattr(declared, "values", None) == "learned"
        assert may_miss or values.null_count == 0


METHODS = [method for method in TABLE_METHODS if method not in ("jam", *NETWORK_METHODS[1:])]
"""Those of an output of its own: a public table is declared in contracts alone. Other networks count as `arn`."""
MANY_CELLS = ("nothing in any row", "the ends of real numbers")
"""Of all columns together: more than `histogram` counts."""
UNTRAINED = (
    "one column",
    "10,000 categories",
    "10,000 learned categories",
    "of owners with more rows than there are, owners are counted",
)
"""What networks refuse before anything is spent (`test_table_networks`)."""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(
            case
            for case in itertools.product(DRAWN, METHODS)
            if case[0] not in {"histogram": MANY_CELLS, "arn": UNTRAINED}.get(case[1], ())
        ),
        *itertools.product(PREPARED, ("aim", "mst")),
        *itertools.product(["the same in all rows"], NETWORK_METHODS[1:]),
    ],
)
def test_what_is_odd_makes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, method: str) -> None:
    table, options = written((DRAWN | PREPARED)[name], tmp_path, method)
    made, task = run_of(table, tmp_path / "out", options, monkeypatch)
    assert made.rows == pq.read_table(made.synthetic).num_rows >= 1
    check_rows(made.synthetic, table, task)
    check_spent(made, task, tmp_path / "out")
    assert more_rows(tmp_path / "out", 3).rows == 3
    check_spent(made, task, tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


REFUSED: dict[str, tuple[Case, str]] = {
    "no row has an owner": (
        Case(plain(owner=pa.nulls(ROWS, pa.string())), PLAIN, {"owners": "owner", "contributions": 2}),
        "no row has an owner in 'owner'; accepted: owners that are not null",
    ),
    "nothing is modelled": (
        Case({"note": repeated(SECRET)}, {"note": {"type": "text"}}),
        "at least one of integer, float, date, datetime, time, categorical, boolean is needed",
    ),
    "the same in all rows, read off the data": (
        Case({"whole": repeated(5), "word": repeated(SECRET)}, None, {"assume_public_domain": True}),
        "at least one of integer, float, date, datetime, time, categorical, boolean is needed",
    ),
    "values of another type": (
        Case(plain(real=repeated(SECRET)), PLAIN),
        "columns.real: declared float, found Arrow type string; accepted: float or decimal",
    ),
    "a column of no type": (
        Case(plain(word=pa.nulls(ROWS)), PLAIN),
        "columns.word: declared categorical, found Arrow type null; accepted: ignore: true, which leaves",
    ),
    "no value that is listed": (
        Case(plain(word=repeated("x", SECRET)), PLAIN),
        "columns.word.values: none, or hardly any, of the column's values is listed, so it would come out as noise",
    ),
    "a range that the type cannot hold": (
        Case(
            {"moment": repeated(0, 1, type_=pa.timestamp("ns"))},
            {"moment": between("datetime", MOMENTS)},
        ),
        "the declared range 0001-01-01 00:00:00 to 9999-12-31 23:59:59 does not fit the source's type timestamp[ns]",
    ),
    "a range that nothing can hold": (
        Case({"real": repeated(0.5)}, {"real": real(-1.7e308, 1.7e308)}),
        "columns.real: min -1.7e+308 and max 1.7e+308: the range exceeds double precision; accepted",
    ),
    "codes that the type cannot hold": (
        Case({"code": repeated(1, type_=pa.int8())}, {"code": listed("1", "300")}),
        "columns.code.values: '300', but the source holds int8; accepted",
    ),
    "more than is learned": (
        Case(plain(), PLAIN | {"word": LEARNED | {"most": 1_000_000}}),
        "columns.word.most: 1000000; accepted: at most 10000",
    ),
    "no budget": (Case(plain(), PLAIN, {"epsilon": 1e-6}), "accepted: a larger epsilon"),
    "a large budget without the word": (Case(plain(), PLAIN, {"epsilon": 100.0}), "--epsilon: 100 is a weak guarantee"),
    "infinite budget": (Case(plain(), PLAIN, {"epsilon": float("inf")}), "--epsilon: inf"),
    "more rows of each owner than anybody counts": (
        Case(plain(owner=repeated("p")), PLAIN, {"owners": "owner", "contributions": 10**9}),
        "--contributions: 1000000000; accepted: at most 10000",
    ),
    "owners in a column that is not there": (
        Case(plain(), PLAIN, {"owners": "", "contributions": 2}),
        "there is no column ''; accepted: whole, word, real",
    ),
    "more rows than anybody draws": (Case(plain(), PLAIN, {"rows": 10**18}), "--rows: 1000000000000000000; accepted"),
    "a format that cannot hold a column": (
        Case(
            {"mask": repeated([1], type_=pa.list_(pa.duration("s"))), "whole": repeated(1, 2)},
            {"mask": {"type": "text"}, "whole": integer(1, 2)},
            {"format": "delta"},
        ),
        "--format delta: cannot hold mask (list<element: duration[s]>); accepted: parquet",
    ),
    "a time limit that is none": (Case(plain(), PLAIN, {"time_limit": "0s"}), "--time-limit: '0s'"),
}


@pytest.mark.parametrize("method", ["auto", "mst"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said_and_costs_nothing(tmp_path: Path, name: str, method: str) -> None:
    case, words = REFUSED[name]
    table, options = written(case, tmp_path, method)
    with pytest.raises(DpsynthError) as caught:
        synthesize(table, tmp_path / "out", options)
    said = str(caught.value)
    assert words in said
    assert "unexpected" not in said
    assert SECRET not in said
    assert caught.value.__cause__ is None
    assert not list((tmp_path / "out").glob("synthetic*"))
    assert not (tmp_path / "out" / "restricted" / "models").exists()
    ledger = ledger_below(tmp_path / "out")
    assert ledger is None or (ledger.entries(), ledger.verify(()).ok) == ([], True)


def test_what_is_read_off_the_data_is_within_what_can_be_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns whose values no declaration allows are left empty."""
    left = {
        "too far apart": repeated(1e308, -1e308, 5.0),
        "too many digits": repeated(Decimal("-1e30"), Decimal("0.01"), type_=pa.decimal128(38, 2)),
        "constant": repeated(SECRET),
        "nothing": pa.nulls(ROWS, pa.string()),
    }
    made_of = {
        "day": pa.array([-(2**31), 2**31 - 1, 0] * 40, pa.int32()).cast(pa.date32()),
        "moment": repeated(LEAST, LARGEST, 0).cast(pa.timestamp("us")),
        "nanos": repeated(LEAST + 1, LARGEST, 0).cast(pa.timestamp("ns")),
        "single": repeated(3e38, -3e38, float("inf"), type_=pa.float32()),
        "half": pa.array(np.resize(np.array([6e4, -6e4, 0], np.float16), ROWS)),
        "whole": repeated(LEAST, LARGEST, 0),
    }
    table, options = written(Case(left | made_of, None, {"assume_public_domain": True}), tmp_path, "auto")
    made, task = run_of(table, tmp_path / "out", options, monkeypatch)
    assert {given for given, name in task.source.names.items() if name in task.contract.modelled} == set(made_of)
    check_rows(made.synthetic, table, task)
    check_spent(made, task, tmp_path / "out")


def test_two_hundred_columns_in_next_to_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no time for pairs: the columns alone are a result, too, and the statement says why."""
    rng = np.random.default_rng(5)
    case = Case({f"c{index}": rng.integers(0, 2, ROWS) == 1 for index in range(200)}, None, {"time_limit": "1s"})
    table, options = written(case, tmp_path, "auto")
    made, task = run_of(table, tmp_path / "out", options, monkeypatch)
    assert made.method == "independent"
    assert made.why_method.startswith("within 1 seconds there is no time for the pairs of 200 columns")
    assert made.why_method in made.statement.read_text()
    check_rows(made.synthetic, table, task)
    check_spent(made, task, tmp_path / "out")


@pytest.mark.parametrize("method", ["auto", "mst"])
def test_more_cells_than_memory_holds(tmp_path: Path, method: str) -> None:
    """Pairs of so many categories are not counted by what can do without, and refused by what cannot."""
    names = [f"c{index}" for index in range(4)]
    case = Case(dict.fromkeys(names, THIN), {name: listed(*MANY) for name in names}, {"rows": 5})
    table, options = written(case, tmp_path, method)
    try:
        made = synthesize(table, tmp_path / "out", options)
    except DpsynthError as error:
        assert method == "mst"
        assert "all pairs together have 600120006 cells" in str(error)
        assert "declare fewer bins or shorter lists of values" in str(error)
        assert ledger_below(tmp_path / "out") is None
    else:
        assert made.method in ("privbayes", "independent")
        assert method == "auto"
        assert pq.read_table(made.synthetic).num_rows == 5


def test_the_command_shows_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    table, options = written(REFUSED["values of another type"][0], tmp_path, "aim")
    asked = ["--epsilon", "1", "--delta", "1e-5", "--schema", str(options.schema), "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, ["synth", "table", str(table), *asked])
    assert ended.exit_code == 1
    assert "columns.real: declared float, found Arrow type string" in ended.output.replace("\n", " ")
    assert "Traceback" not in ended.output
    assert SECRET not in ended.output
