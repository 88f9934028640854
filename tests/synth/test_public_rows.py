"""A declared public table: what a plan seals of it, what is counted, and that no other table passes for it."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.contracts.methods import PUBLIC_METHODS
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.marginals import sealed_rows
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.public_rows import SealedRows

WHY = "made up, and published"


def plan_of(place, method="aim", **changes):
    contract = contract_with(
        generate={"rows": 500, "method": method, "public": {"uri": str(place), "why": WHY}}, **changes
    )
    return generator(method).plan(contract, SCHEMA, Guarantee.target(contract))


def written(table, place):
    if place.suffix == ".csv":
        pa_csv.write_csv(table, place)
    elif place.suffix:
        pq.write_table(table, place)
    else:
        write_table(place, table.schema, table.to_batches())
    return place


ROWS = people(400, seed=5).select(["age", "city", "member"])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t"])
def test_a_plan_seals_what_it_reads_of_any_format(tmp_path, name):
    table = ROWS.append_column("other", pa.array(["x"] * 400))
    plan = plan_of(written(table, tmp_path / name))
    public = sealed_rows(plan)
    assert sorted(public.columns) == ["age", "city", "member"] and public.rows == 400
    assert plan.describe()["public"] == {
        "rows": 400,
        "columns": ["age", "city", "member"],
        "unlisted": {"age": 0, "city": ROWS["city"].null_count, "member": ROWS["member"].null_count},
    }
    assert generator("aim").check_public(plan) == (tmp_path / name,)
    assert plan == plan_of(tmp_path / name)


def test_a_plan_that_was_stored_reads_the_same_rows(tmp_path):
    place = written(ROWS.select(["member", "city", "age"]), tmp_path / "t.parquet")
    declared = {name: contract_with().columns[name].model_dump(mode="json") for name in ("member", "city", "age")}
    person = {"person_id": {"type": "identifier"}}
    found = sealed_rows(plan_of(place, columns=person | declared))
    stored = SealedRows(**json.loads(json.dumps(dataclasses.asdict(found), sort_keys=True)))
    assert stored.read().num_rows == 400
    assert stored.digest == sealed_rows(plan_of(place, columns=declared | person)).digest


@pytest.mark.parametrize("change", ["value", "order", "row", "column", "gone"])
def test_another_table_is_refused_before_anything_is_paid(tmp_path, change):
    place = written(ROWS, tmp_path / "t.parquet")
    plan = plan_of(place)
    place.unlink()
    changed = {
        "value": ROWS.set_column(0, "age", pa.array([9, *ROWS["age"].to_pylist()[1:]], pa.int8())),
        "order": ROWS.take(pa.array(np.arange(400)[::-1])),
        "row": ROWS.slice(1),
        "column": ROWS.drop(["member"]),
        "gone": None,
    }[change]
    assert changed != ROWS
    if changed is not None:
        written(changed, place)
    with pytest.raises(ConfigurationError, match=r"public table .*t\.parquet"):
        generator("aim").check_public(plan)
    written(ROWS, place)
    assert generator("aim").check_public(plan) == (place,)


def test_values_outside_of_the_domain_are_treated_as_private_ones_and_counted(tmp_path):
    rows = pa.table({"age": [-5, 4, 100], "city": ["Aix", "Rome", None], "member": [True, None, False]})
    plan = plan_of(written(rows, tmp_path / "t.parquet"))
    assert plan.describe()["public"]["unlisted"] == {"age": 0, "city": 2, "member": 1}
    domain = dataclasses.replace(sealed_rows(plan)).opened(_domain(plan))
    counts = domain.one_way()
    assert counts[(0,)].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0], "clamped"
    assert counts[(3,)].tolist() == [1, 0, 0, 2]


def _domain(plan):
    from dpsynth_platform.synth.tabular.domain import Domain

    return Domain.from_json(plan.columns)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"zone": ["a"]}), "has none of the modelled columns (by their names)"),
        (pa.table({"age": [1, 2]}), "has 2 rows and 1 of the modelled columns (age)"),
        (ROWS.slice(0, 0), "has 0 rows and 3 of"),
        (
            pa.table({"age": [4], "city": ["AIX"]}),
            "no value of city is a listed or readable one; accepted: two columns",
        ),
        (pa.table({"age": ["young"], "city": ["Aix"]}), "column age has the type string; accepted: integer"),
    ],
)
def test_tables_that_cannot_help_are_refused(tmp_path, table, words):
    place = tmp_path / "t.parquet"
    pq.write_table(table, place)
    with pytest.raises(ConfigurationError) as refused:
        plan_of(place)
    assert words in str(refused.value)


@pytest.mark.parametrize("method", PUBLIC_METHODS)
def test_from_table_to_rows_with_a_public_one_that_is_gone_afterwards(tmp_path, method):
    place = written(ROWS, tmp_path / "t.parquet")
    plan, made = plan_of(place, method), generator(method)
    model = tmp_path / "model"
    model.mkdir()
    made.fit(plan, write_bounded(people(1000), tmp_path / "bounded"), grant_for(plan), model)
    place.unlink()
    made.estimate(plan, model)
    assert made.sample(model, 50).num_rows == 50
    stored = read_measurements(model, plan.digest)
    assert {clique for clique in stored.public if len(clique) == 1} == {(0,), (3,), (4,)}
    assert stored.public[(0, 3)].sum() == 400


def test_learned_values_are_counted_in_the_public_table_too(tmp_path):
    place = written(ROWS, tmp_path / "t.parquet")
    columns = {"person_id": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 9}}
    columns["city"] = {"type": "categorical", "values": "learned", "most": 5}
    plan = plan_of(place, columns=columns)
    (tmp_path / "model").mkdir()
    bounded = write_bounded(people(2000), tmp_path / "bounded")
    generator("aim").fit(plan, bounded, grant_for(plan), tmp_path / "model")
    stored = read_measurements(tmp_path / "model", plan.digest)
    learned = stored.learned[1]
    cities = ROWS["city"].to_pylist()
    assert stored.public[(1,)].tolist()[:-1] == [cities.count(value) for value in learned]


def test_a_plan_says_how_many_values_are_missing_or_unlisted(tmp_path):
    rows = pa.table({"age": [-5, 4, 100], "city": ["Aix", "Rome", None], "member": [True, None, False]})
    words = plan_of(written(rows, tmp_path / "t.parquet")).describe()["public_in_words"]
    assert words.startswith("3 rows with ")
    assert words.endswith("; missing or unlisted values: city 2, member 1")
    assert str(sealed_rows(plan_of(written(rows.slice(0, 1), tmp_path / "u.parquet")))).endswith(": none")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"age;city\n4;Aix\n", "CSV in UTF-8 with commas"),
        ("t.csv", b"age,city\nfour,Aix\n", "CSV in UTF-8 with commas"),
        ("t.csv", b"age,city\n4,\xe9\n", "CSV in UTF-8 with commas"),
        ("t.csv", b"", "CSV in UTF-8 with commas"),
        ("t", None, "declare generate.public.format: parquet or csv"),
    ],
)
def test_the_way_out_is_one_that_a_public_table_has(tmp_path, name, content, words):
    place = tmp_path / name
    place.mkdir() if content is None else place.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        plan_of(place)
    assert words in str(refused.value) and "csv." not in str(refused.value) and "--csv" not in str(refused.value)
