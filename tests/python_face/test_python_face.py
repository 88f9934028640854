"""`import dpsynth`: frames in, frames of the same kind out, under a ledger."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsynth
from dpsynth import frames
from dpsynth_platform.compute.plain_types import laid_out, plain_type
from dpsynth_platform.one_table.output import write_batches

MARK = "Zaphodina"
COLUMNS = {
    "age in years": {"type": "integer", "min": 18, "max": 90},
    "city": {"type": "categorical", "values": ["Aix", "Ulm"]},
    "Größe": {"type": "integer", "min": 0, "max": 4, "nullable": True},
    "ok?": {"type": "boolean"},
}
TERMS: dict[str, Any] = {
    "epsilon": 2.0,
    "expected_units": 2000,
    "owners": "person id",
    "contributions": 3,
    "columns": COLUMNS,
    "method": "mst",
    "progress": False,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    random, count = np.random.default_rng(1), 1500
    size = pd.array(random.integers(0, 5, count), dtype="Int64")
    size[random.random(count) < 0.2] = pd.NA
    return pd.DataFrame(
        {
            "person id": random.integers(0, 1000, count),
            "age in years": random.integers(18, 91, count),
            "city": pd.Categorical(random.choice(["Aix", "Ulm"], count)),
            "Größe": size,
            "ok?": random.random(count) < 0.5,
        }
    )


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "arrow", "path"])
def test_frames_in_and_frames_out(people: pd.DataFrame, kind: str, tmp_path: Path) -> None:
    arrow = pa.Table.from_pandas(people, preserve_index=False)
    pq.write_table(arrow, tmp_path / "people.parquet")
    given = {
        "pandas": people,
        "polars": pl.from_pandas(people),
        "lazy": pl.from_pandas(people).lazy(),
        "arrow": arrow,
        "path": str(tmp_path / "people.parquet"),
    }[kind]
    result = dpsynth.synthesize(given, **TERMS)
    expected = {"pandas": pd.DataFrame, "path": pd.DataFrame, "arrow": pa.Table}.get(kind, pl.DataFrame)
    for frame in (result.data, result.sample(20, {"city": "Ulm"})):
        assert type(frame) is expected
        assert list(frame.column_names if kind == "arrow" else frame.columns) == list(people.columns)
    if kind in ("pandas", "polars"):
        assert list(result.data.dtypes) == list(given.dtypes)
    assert len(result.data) == result.synthesis.rows
    assert set(pd.Series(result.sample(20, {"city": "Ulm"})["city"]).astype(str)) == {"Ulm"}


def test_the_same_call_spends_nothing_and_another_one_is_refused(people: pd.DataFrame) -> None:
    first = dpsynth.synthesize(people, **TERMS)
    assert first.synthesis.spent and first.directory == Path("dpsynth-output")
    again = dpsynth.synthesize(people.copy(), **TERMS)
    assert (again.synthesis.spent, again.synthesis.entry_id) == (False, first.synthesis.entry_id)
    with pytest.raises(dpsynth.BudgetExceeded, match="Nothing was spent"):
        dpsynth.synthesize(people.head(1400), **TERMS)
    with pytest.raises(dpsynth.BudgetExceeded):
        dpsynth.synthesize(people, **TERMS | {"epsilon": 3.0})
    assert 1.9 < first.guarantee.epsilon <= 2.0
    assert str(first.guarantee).startswith("(1.99") and "for one user" in str(first.guarantee)
    assert "at most 3 records" in first.statement() and first.synthesis.entry_id in first._repr_html_()


def test_a_plan_says_what_it_would_cost_and_writes_nothing(people: pd.DataFrame, tmp_path: Path) -> None:
    before = dpsynth.plan(people, **{name: value for name, value in TERMS.items() if name != "progress"})
    assert (before.paid, before.cap, before.left, before.refusal) == (False, None, None, None)
    assert before.guarantee.epsilon == 2.0 < before.takes < 2.5 and before.errors
    assert "no ledger yet" in str(before) and before.event in before._repr_html_()
    assert [path.name for path in tmp_path.iterdir()] == []
    dpsynth.synthesize(people, **TERMS)
    after = dpsynth.plan(people, **{name: value for name, value in TERMS.items() if name != "progress"})
    assert (after.paid, after.takes, after.refusal) == (True, 0.0, None) and "spends nothing" in str(after)
    assert after.cap == pytest.approx(before.takes) and after.left is not None and after.left < 0.1
    other = dpsynth.plan(people.head(1000), **{name: value for name, value in TERMS.items() if name != "progress"})
    assert not other.paid and other.takes == before.takes and "does not fit" in str(other.refusal)
    with pytest.raises(dpsynth.BudgetExceeded):
        dpsynth.synthesize(people.head(1000), **TERMS)


def test_a_plan_of_a_run_without_its_ledger_or_result_says_so(people: pd.DataFrame, tmp_path: Path) -> None:
    terms = {name: value for name, value in TERMS.items() if name != "progress"}
    made = dpsynth.synthesize(people, **TERMS)
    model = tmp_path / "dpsynth-output" / "restricted" / "models" / made.synthesis.entry_id
    shutil.move(model, tmp_path / "model")
    assert "paid for is missing" in str(dpsynth.plan(people, **terms).refusal)
    with pytest.raises(dpsynth.SpendRepeated):
        dpsynth.synthesize(people, **TERMS)
    shutil.rmtree(tmp_path / "dpsynth-output" / "restricted" / "ledger")
    for call in (dpsynth.plan, dpsynth.synthesize):
        with pytest.raises(dpsynth.LedgerError, match="no ledger is there"):
            call(people, **terms)


def test_the_synthesizer_has_the_same_ledger(people: pd.DataFrame) -> None:
    made = dpsynth.Synthesizer("out", **TERMS)
    with pytest.raises(dpsynth.ConfigurationError, match="call fit"):
        made.sample(3)
    assert len(made.fit(people).sample(7)) == 7
    assert len(dpsynth.sample("out", 5)) == 5
    assert not dpsynth.synthesize(people, "out", **TERMS).synthesis.spent
    with pytest.raises(dpsynth.BudgetExceeded):
        made.set_params(epsilon=2.5).fit(people)
    assert made.get_params()["epsilon"] == 2.5


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"epslon": 1}, r"epslon: unknown option \(did you mean 'epsilon'\?\)"),
        ({"epsilon": None}, "epsilon: missing"),
        ({"expected_units": None}, "delta: missing; accepted: a number such as 1e-5, or expected_units for"),
        ({"contributions": None}, "owners and contributions go together"),
        ({"columns": {**COLUMNS, "city": {"typ": "categorical"}}}, "columns.city.typ: unknown key"),
        ({"columns": {"city": COLUMNS["city"]}}, "nothing is declared of: age in years"),
        ({"schema": {"columns": COLUMNS}}, "schema: beside columns"),
        ({"owners": "nobody"}, "there is no column 'nobody'"),
    ],
)
def test_what_is_wrong_is_named_as_in_python_and_costs_nothing(people: pd.DataFrame, terms: Any, said: str) -> None:
    given = {name: value for name, value in (TERMS | terms).items() if value is not None}
    with pytest.raises(dpsynth.DpsynthError, match=said) as refusal:
        dpsynth.synthesize(people, **given)
    assert "--" not in str(refusal.value)
    assert dpsynth.synthesize(people, **TERMS).synthesis.spent, "the first cost is this one's"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pd.DataFrame({"name": [1, MARK]}), "column 'name' has values of several types"),
        (pd.DataFrame({0: [MARK]}), "column 0: its name is of type int"),
        (pd.DataFrame([[MARK, 1]], columns=["a", "a"]), "column 'a' is in the table more than once"),
        ([MARK], "a list is no table; accepted: a pandas or polars frame"),
        (pd.DataFrame({"a": [2**80, -(2**80)]}, dtype=object), "column 'a' has values"),
        (pl.DataFrame({"a": pl.Series([2**80], dtype=pl.Int128)}), "column 'a' has the type Int128, which Arrow does"),
    ],
)
def test_what_is_no_table_is_refused_without_its_values(data: Any, said: str) -> None:
    with pytest.raises(dpsynth.SourceError, match=said) as refusal:
        dpsynth.synthesize(data, epsilon=1, delta=1e-5, progress=False)
    assert MARK not in texts_of(refusal.value) and str(2**80) not in texts_of(refusal.value)


def texts_of(error: BaseException | None) -> str:
    """All that an error and those before it say."""
    found = ""
    while error is not None:
        found, error = f"{found} {error!r}", error.__cause__ or error.__context__
    return found


def test_an_error_of_a_library_shows_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = pl.LazyFrame({"a": [MARK]}).with_columns(pl.col("a").cast(pl.Int64))
    with pytest.raises(Exception, match=MARK):
        lazy.collect()
    with pytest.raises(dpsynth.DpsynthError, match="unexpected error: InvalidOperationError") as refusal:
        dpsynth.synthesize(lazy, epsilon=1, delta=1e-5, progress=False)
    assert MARK not in texts_of(refusal.value)

    def failed(*_: object, **__: object) -> None:
        raise KeyError(MARK)

    monkeypatch.setattr("dpsynth_platform.quality.report.measure_tables", failed)
    table = pa.table({"a": [MARK] * 3})
    with pytest.raises(dpsynth.DpsynthError, match="unexpected error: KeyError") as refusal:
        dpsynth.evaluate(table, table, "a")
    assert MARK not in texts_of(refusal.value)
    with pytest.raises(TypeError, match="missing a required argument: 'target'"):
        dpsynth.evaluate(table, table)  # type: ignore[call-arg]


def test_a_column_that_looks_like_people_has_its_own_name() -> None:
    names = ["Anna Smith", "John Miller", "Mary Jones", "Peter Brown"] * 50
    columns = {"Full name": {"type": "categorical", "values": "learned"}}
    with pytest.raises(dpsynth.SourceError, match=r"columns\.Full name: values look like PERSON") as refusal:
        dpsynth.synthesize(pd.DataFrame({"Full name": names}), epsilon=1, delta=1e-5, columns=columns, progress=False)
    assert str(refusal.value).startswith("columns.") and "columns.Full name.accept_pii" in str(refusal.value)


def test_a_source_in_memory_shows_no_row() -> None:
    from dpsynth_platform.sources.table_files import open_source

    table = pa.table({"a": [MARK, "x"], "b": [1, 2]})
    source = open_source(table, {})
    assert MARK not in repr(source)
    rows = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert open_source(rows, {}).version == source.version != open_source(table.slice(1), {}).version
    assert open_source(table.rename_columns(["a", "c"]), {}).version != source.version


def test_an_evaluation_is_a_frame(people: pd.DataFrame) -> None:
    result = dpsynth.synthesize(people.head(1000), **TERMS)
    found = dpsynth.evaluate(people.tail(500), result.data, "ok?", train=people.head(1000), drop=["person id"])
    assert isinstance(found.frame, pd.DataFrame) and "one-way distance, mean" in found.frame.index
    assert found.notice in str(found) and "<table" in found._repr_html_() and found.to_json()["fidelity"]
    figure = found.plot()
    shown = {name for trace in figure.data if trace.type == "bar" for name in trace.x}
    assert {"age in years", "ROC AUC"} <= shown and len({trace.yaxis for trace in figure.data}) == 6
    assert figure.layout.title.text.replace("<br>", " ") == found.notice  # in a saved picture, too
    with pytest.raises(dpsynth.SourceError, match="synthetic"):
        dpsynth.evaluate(people, result.data.drop(columns="city"), "ok?")


def test_an_evaluation_repeats_findings_and_predicts_numbers(people: pd.DataFrame) -> None:
    def mean_age(table: pa.Table) -> bool:
        return bool(np.mean(table["age in years"].to_numpy()) > 18)

    asked = [{"correlate": ["age in years", {"ok?": True}]}, mean_age]
    workload = {"queries": [{"columns": ["city", "ok?"], "weight": 3}]}
    given = {"drop": ["person id"], "task": "regression", "workload": workload, "findings": asked}
    found = dpsynth.evaluate(people.tail(500), people.head(700), "age in years", **given)
    assert "workload: distance, weighted mean" in found.frame.index
    measured = found.to_json()
    assert [item["name"] for item in measured["parity"]["findings"]][1] == "mean_age"
    assert measured["parity"]["findings"][1]["synthetic"] and measured["regression"]["synthetic"]["mean"]
    with pytest.raises(dpsynth.DpsynthError, match="findings"):
        dpsynth.evaluate(people, people, "ok?", findings=[{"correlate": ["city"]}])


def test_a_figure_shows_synthetic_rows_and_the_budget(people: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"age": {"type": "integer", "min": 18, "max": 90}, "<b>city": COLUMNS["city"], "ok?": COLUMNS["ok?"]}
    given = people[["age in years", "city", "ok?"]].set_axis(list(columns), axis="columns")
    result = dpsynth.synthesize(given, epsilon=2, expected_units=1500, columns=columns, progress=False, cap_epsilon=5)
    ages, cities, truths, associations, spent, left = result.plot().data
    counts = result.data["<b>city"].value_counts(normalize=True)
    assert dict(zip(cities.x, cities.y, strict=True)) == pytest.approx(dict(counts))
    assert sum(ages.y) == pytest.approx(1) and set(truths.x) == {"False", "True"}
    assert list(associations.x) == ["age", "&lt;b&gt;city", "ok?"] and np.shape(associations.z) == (3, 3)
    assert spent.y[0] + left.y[0] == pytest.approx(5) and 0 < left.y[0] < 5
    assert len(result.plot(["ok?"]).data) == 4
    with pytest.raises(dpsynth.ConfigurationError, match="'town' is no modelled column; accepted: age, "):
        result.plot(["town"])
    monkeypatch.setitem(sys.modules, "plotly.subplots", None)
    with pytest.raises(dpsynth.ConfigurationError, match=r"do: pip install 'dpsynth-platform\[plots\]'"):
        result.plot()


def test_names_are_escaped_in_notebooks(people: pd.DataFrame) -> None:
    columns = {"<b>city": COLUMNS["city"], "ok?": COLUMNS["ok?"]}
    given = people[["city", "ok?"]].set_axis(list(columns), axis="columns")
    terms = {"epsilon": 2, "expected_units": 1500, "assume_public_domain": True}
    planned = dpsynth.plan(given, "<i>out", **terms)
    result = dpsynth.synthesize(given, "<i>out", **terms, progress=False)
    found = dpsynth.evaluate(given, result.data, "ok?")
    for shown in (planned, result, found):
        text = shown._repr_html_()
        assert "<b>" not in text and "<i>" not in text
    assert "&lt;i&gt;out" in result._repr_html_() and "&lt;b&gt;city" in found._repr_html_()


def test_the_kind_of_a_frame_survives() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int8"), "b": pd.array(["x", None], dtype="string")})
    table, kind = frames.read(frame)
    pd.testing.assert_frame_equal(kind.frame(table), frame)


def test_intervals_come_back_empty_as_other_types_do_that_no_declaration_reads() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3] * 50, "b": pd.cut([1, 2, 3] * 50, 2)})
    made = dpsynth.synthesize(frame, epsilon=3, expected_units=150, assume_public_domain=True, progress=False).data
    assert list(made) == ["a", "b"] and set(made["a"]) <= {1, 2, 3} and made["b"].isna().all()


ARROW_VALUES: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), 1),
    (pa.decimal128(5, 2), Decimal("1.25")),
    (pa.timestamp("s"), dt.datetime(1969, 12, 31, 23)),
    (pa.time32("s"), dt.time(7, 30)),
    (pa.date64(), dt.date(1969, 12, 31)),
    (pa.dictionary(pa.int32(), pa.string()), "x"),
    (pa.dictionary(pa.int32(), pa.date32()), dt.date(1969, 12, 31)),
    (pa.dictionary(pa.int8(), pa.string_view()), "x"),
    (pa.run_end_encoded(pa.int32(), pa.string()), "x"),
]


@pytest.mark.parametrize(("type_", "value"), ARROW_VALUES, ids=str)
def test_a_type_of_arrow_survives_a_frame_and_a_file(type_: pa.DataType, value: Any, tmp_path: Path) -> None:
    """Also in pandas, which cannot read all that it notes of its columns."""
    column = laid_out(pa.array([value, None], plain_type(type_)), type_)
    tables: list[Any] = [pa.table({"a": column})]
    if "view" not in str(type_) and "run_end" not in str(type_):  # pandas has none
        tables.append(pd.DataFrame({"a": pd.array(column, dtype=pd.ArrowDtype(type_))}))
    for given in tables:
        table: Any
        table, kind = frames.read(given)
        write_batches(tmp_path / "rows.parquet", table.schema, iter(table.to_batches()), "parquet")
        made = kind.frame(pq.read_table(tmp_path / "rows.parquet"))
        if isinstance(given, pa.Table):
            assert made.schema == given.schema and made["a"].to_pylist() == [value, None]
        else:
            pd.testing.assert_frame_equal(made, given)


def test_categories_may_be_more_than_those_of_the_rows() -> None:
    """Indices of 8 bits reach 128 categories: of ids, of declared values, and of numbers."""
    codes = [f"c{number:03d}" for number in range(400)]
    some = pd.Categorical([*codes[:3]] * 200)
    frame = pd.DataFrame({"id": pd.Categorical([f"p{row % 100}" for row in range(600)]), "code": some, "size": some})
    frame["size"] = frame["size"].cat.rename_categories([1.5, 2.5, 3.5])
    columns = {"code": {"type": "categorical", "values": codes}, "size": {"type": "float", "min": 0, "max": 4}}
    terms: dict[str, Any] = {"epsilon": 0.5, "expected_units": 100, "method": "independent", "rows": 3000}
    for given in (frame, pa.Table.from_pandas(frame, preserve_index=False)):
        made = dpsynth.synthesize(
            given, f"out-{type(given).__name__}", **terms, owners="id", contributions=6, columns=columns, progress=False
        ).data
        found = made if isinstance(made, pd.DataFrame) else made.to_pandas()
        assert len(found) == 3000 and found["id"].nunique() == 3000 and found["size"].nunique() > 127
        _, kind = frames.read(given)
        drawn = kind.frame(pa.table({"code": codes}))["code"]
        assert list(drawn if given is frame else drawn.to_pylist()) == codes


def test_chunks_may_have_other_categories_and_a_missing_one() -> None:
    type_ = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    chunks = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), pa.array(values), ordered=True)
        for values in (["low", None, "mid"], ["mid", "high", None])
    ]
    _, kind = frames.read(pa.table({"a": pa.chunked_array(chunks)}))
    made = kind.frame(pa.table({"a": ["high", "low", "mid"]}))
    assert made["a"].type == type_ and made["a"].chunk(0).dictionary.to_pylist() == ["low", "mid", "high"]


def test_truth_values_of_numpy_are_never_missing() -> None:
    """Without a declaration, and with much noise: with missing values, they would come back as objects."""
    frame = pd.DataFrame({"a": [True, False] * 50, "b": pd.array([True, None] * 50, dtype="boolean")})
    terms: dict[str, Any] = {"epsilon": 0.1, "expected_units": 100, "method": "independent", "rows": 500}
    made = dpsynth.synthesize(frame, **terms, progress=False).data
    assert list(made.dtypes) == list(frame.dtypes) and not made["a"].isna().any()


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_ordered_categories_keep_their_order_and_show_no_other(kind: str) -> None:
    """A category that is not drawn may be one person's; a declared one may be in no row of the frame."""
    order = ["tiny", "low", MARK, "high"]
    sizes = pd.Categorical(["low", "high", MARK], categories=order, ordered=True)
    frame = pd.DataFrame({"size": sizes})
    given: Any = frame
    if kind == "polars":
        given = pl.DataFrame({"size": pl.Series(list(sizes), dtype=pl.Enum(order))})
    elif kind == "arrow":
        given = pa.Table.from_pandas(frame, preserve_index=False)
    _, known = frames.read(given)
    assert MARK not in repr(known)
    made = known.frame(pa.table({"size": ["high", "giant", None, "low", "high"]}))
    if kind == "pandas":
        assert made["size"].cat.ordered
        found = list(made["size"].cat.categories)
    elif kind == "polars":
        found = made["size"].dtype.categories.to_list()
    else:
        assert made.schema.field("size").type == given.schema.field("size").type
        found = made["size"].chunk(0).dictionary.to_pylist()
    assert found == ["low", "high", "giant"]
    values = made["size"].to_pylist() if kind == "arrow" else list(made["size"])
    assert [value if isinstance(value, str) else None for value in values] == ["high", "giant", None, "low", "high"]


def test_categories_in_lists_are_not_named() -> None:
    """polars notes them beside a type's parts, also those that are in no row."""
    kinds = pl.Enum(["a", "b", MARK])
    schema = {"n": pl.Int64, "all": pl.List(kinds), "at": pl.Struct({"kind": kinds})}
    frame = pl.DataFrame([[number % 2, ["a"], {"kind": "a"}] for number in range(100)], schema=schema, orient="row")
    declared = {
        "n": {"type": "integer", "min": 0, "max": 1},
        "all": {"type": "text"},
        "at.kind": {"type": "categorical", "values": ["a", "b"]},
    }
    terms: dict[str, Any] = {"epsilon": 1, "expected_units": 100, "method": "independent", "progress": False}
    made = dpsynth.synthesize(frame, "out", columns=declared, **terms)
    assert MARK not in repr(made.data.schema)
    assert MARK not in pq.read_schema(made.synthesis.synthetic).to_string(show_schema_metadata=False)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_categories_of_numbers_stay_categories(kind: str) -> None:
    frame = pd.DataFrame({"a": pd.Categorical([3, 1, 2, 1] * 50)})
    given = frame if kind == "pandas" else pa.Table.from_pandas(frame, preserve_index=False)
    terms = {"epsilon": 3, "expected_units": 200, "method": "independent", "progress": False}
    made = dpsynth.synthesize(given, **terms, columns={"a": {"type": "categorical", "values": [1, 2, 3]}}).data
    if kind == "pandas":
        assert isinstance(made["a"].dtype, pd.CategoricalDtype) and set(made["a"]) <= {1, 2, 3}
    else:
        assert made.schema.field("a").type == given.schema.field("a").type


def moments(first: int) -> pd.Series:
    zones = [dt.timezone(dt.timedelta(hours=hours)) for hours in (first, 2)]
    return pd.Series([dt.datetime(2026, 1, 31, tzinfo=zone) for zone in zones], dtype=object)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {MARK: 2}]),
        ([[{"a": 1}], None], [[{MARK: [{"b": 2}]}], None]),
        ([Decimal("1.5"), Decimal(2)], [Decimal("12345678901.25"), None]),
        (pd.Categorical(["a", "b"]), pd.Categorical(["a", "b"], [*map(str, range(200)), "a", "b", MARK])),
        (pd.Categorical([Decimal("1.5")] * 2), pd.Categorical([Decimal("1.5"), Decimal("12345678901.25")])),
        (moments(9), moments(-5)),
    ],
    ids=["dicts", "lists of dicts", "decimals", "categories", "categories of decimals", "time zones"],
)
def test_types_of_a_pandas_frame_do_not_depend_on_values(one: Any, other: Any) -> None:
    """They are those of the synthetic table: a key or a digit of one row would be public."""
    (found, _), (neighbour, _) = (frames.read(pd.DataFrame({"x": values})) for values in (one, other))
    assert isinstance(found, pa.Table) and isinstance(neighbour, pa.Table)
    assert found.schema.remove_metadata() == neighbour.schema.remove_metadata()
    assert MARK not in str(neighbour.schema.remove_metadata())


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pl.Series([uuid.UUID(int=7), uuid.UUID(int=7)]), "Object"),
        (pl.Series([{MARK: 1}, None], dtype=pl.Struct({MARK: pl.Int128})), "Struct"),
    ],
)
def test_types_of_polars_that_are_not_read(column: pl.Series, shown: str) -> None:
    """Of objects, polars gives the addresses: two rows of one person would be those of two owners."""
    with pytest.raises(dpsynth.SourceError, match=f"^column 'x' has the type {shown}, which Arrow does not") as caught:
        frames.read(pl.DataFrame({"x": column, "y": [1, 2]}))
    assert MARK not in str(caught.value)


@pytest.mark.parametrize("many", [Decimal("1e30"), Decimal("0.1234567891234567891")])
def test_a_decimal_with_too_many_digits_is_not_shown(many: Decimal) -> None:
    with pytest.raises(dpsynth.SourceError, match=r"^column 'x' has decimals with more than 20 digits") as caught:
        frames.read(pd.DataFrame({"x": [Decimal(1), many], "y": [1, 2]}))
    assert str(many) not in str(caught.value) and caught.value.__context__ is None


def test_decimals_of_a_pandas_frame_have_assumed_domains() -> None:
    cents = [Decimal(number) / 100 for number in range(100, 400)]
    terms = {"epsilon": 50, "delta": 1e-6, "method": "independent", "accept_weak_guarantee": "fictional numbers"}
    result = dpsynth.synthesize(pd.DataFrame({"x": cents}), assume_public_domain=True, progress=False, **terms)
    assert set(result.data["x"]) <= set(cents) and result.data["x"].nunique() > 50


def test_what_a_frame_says_of_itself_is_not_said_of_synthetic_rows() -> None:
    frame = pd.DataFrame({"age": [30, 40] * 100})
    frame.attrs["notes"] = MARK
    terms = {"epsilon": 1, "delta": 1e-6, "columns": {"age": {"type": "integer", "min": 18, "max": 90}}}
    result = dpsynth.synthesize(frame, method="independent", progress=False, **terms)
    assert not result.data.attrs and not result.sample(3).attrs and frame.attrs


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_structs_and_durations_come_back(kind: str) -> None:
    rows = [{"at": {"ward": "ab"[number % 2], "bed": {"nr": number % 3}}, "stay": number % 5} for number in range(600)]
    arrow = pa.Table.from_pylist(rows)
    arrow = arrow.set_column(1, "stay", arrow["stay"].cast(pa.duration("us")))
    in_pandas = arrow.to_pandas(types_mapper=pd.ArrowDtype)  # fields of a column of dicts would be read off its values
    given: Any = {"pandas": in_pandas, "polars": pl.from_arrow(arrow), "arrow": arrow}[kind]
    columns = {
        "at.ward": {"type": "categorical", "values": ["a", "b"]},
        "at.bed.nr": {"type": "integer", "min": 0, "max": 2},
        "stay": {"type": "integer", "min": 0, "max": 4},
    }
    terms = {name: TERMS[name] for name in ("epsilon", "expected_units", "progress")}
    result = dpsynth.synthesize(given, **terms, columns=columns, target="at.ward", method="aim", rows=200)
    for frame in (result.data, result.sample(20, {"at.bed.nr": 1})):
        assert type(frame) is type(given)
        if kind == "arrow":
            assert frame.schema.equals(given.schema)
        else:
            assert list(frame.dtypes) == list(given.dtypes)
    assert {at["bed"]["nr"] for at in pa.table(frame)["at"].to_pylist()} == {1}
    assert len(result.plot(["at.ward", "stay"]).data)
    found = dpsynth.evaluate(given, result.data, "at.ward", drop=["at.bed"])
    assert len(found.frame)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_a_struct_comes_back_with_the_fields_that_are_left(kind: str) -> None:
    """And with types that a file does not keep; so does a list, which is empty."""
    seconds = pa.timestamp("us" if kind == "polars" else "s")
    at = pa.struct([("ward", pa.dictionary(pa.int8(), pa.string())), ("bed", pa.int8()), ("day", seconds)])
    rows = [{"at": {"ward": "a", "bed": 1, "day": dt.datetime(2026, 1, 1)}, "all": [dt.datetime(2026, 1, 1)]}] * 2
    arrow = pa.Table.from_pylist(rows, pa.schema([("at", at), ("all", pa.list_(seconds))]))
    _, known = frames.read(
        {"pandas": arrow.to_pandas(types_mapper=pd.ArrowDtype), "polars": pl.from_arrow(arrow), "arrow": arrow}[kind]
    )
    file = pa.struct([("ward", pa.string()), ("day", pa.timestamp("ms"))])
    at_rows = [{"ward": "b", "day": dt.datetime(2026, 2, 1)}, None, {"ward": None, "day": None}]
    made = known.frame(pa.table({"at": pa.array(at_rows, file), "all": pa.nulls(3, pa.list_(pa.timestamp("ms")))}))
    found = pa.table(made)
    assert [part.name for part in found.schema.field("at").type] == ["ward", "day"]
    assert found.schema.field("at").type.field("day").type == seconds
    assert found["at"].to_pylist() == at_rows and found["all"].null_count == 3


def test_it_is_imported_quickly() -> None:
    heavy = "torch dagster plotly polars sklearn transformers presidio_analyzer"
    code = f"import sys, dpsynth; print([name for name in {heavy.split()!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "[]"


def test_names_that_differ_by_a_sign_are_different_owners() -> None:
    """Both are `person_id` in a contract; a guarantee for people and one for households are not added up."""
    rows = pd.DataFrame(
        {"person id": np.arange(600) // 2, "person_id": np.arange(600) // 20, "ok?": [True, False] * 300}
    )
    terms = TERMS | {"columns": None, "epsilon": 1, "cap_epsilon": 5, "expected_units": 300, "method": "independent"}
    dpsynth.synthesize(rows.drop(columns="person_id"), **terms)
    with pytest.raises(
        dpsynth.LedgerError, match="kept for the owners in column 'person id', and this run is for those"
    ):
        dpsynth.synthesize(rows.drop(columns="person id"), **(terms | {"owners": "person_id"}))
    assert not dpsynth.synthesize(rows.drop(columns="person_id"), **terms).synthesis.spent
