"""Linked tables: one person with all rows, what they move, what that costs, and mistakes that are planted."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from audit_cases import claim_of, gaussian_epsilon, precision_used, proven_epsilon, run, run_again
from clinic import TABLES

from dpsynth_platform.bounding.linked import ID_COLUMN, root_ids, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import BoundingError, GrantRefused
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.linked_tables.task import LinkedTask, TablesOptions, linked_task
from dpsynth_platform.privacy.events import event_from_json, event_to_json, leaves
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan, generator
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular import drawing as draws
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.worker.inputs import check_owners

DELTA = 1e-6
WHOLE = {"type": "integer", "min": 0, "max": 3}
FAMILY = {
    "tables": {
        "people": {"key": ["id"], "columns": {"a": WHOLE}},
        "visits": {
            "key": ["visit"],
            "parent": {"table": "people", "columns": ["id"]},
            "max_children": 3,
            "columns": {"b": WHOLE},
        },
        "drugs": {"parent": {"table": "visits", "columns": ["visit"]}, "max_children": 2, "columns": {"c": WHOLE}},
    }
}


def person(number: int, rng: np.random.Generator, *, most: bool = False) -> dict[str, list[dict[str, Any]]]:
    """A person's rows; with `most` more than every bound, all alike."""
    draw = (lambda: 0) if most else (lambda: int(rng.integers(0, 4)))
    visits = range(5 if most else int(rng.integers(0, 4)))
    return {
        "people": [{"id": str(number), "a": draw()}],
        "visits": [{"visit": f"{number}-{each}", "id": str(number), "b": draw()} for each in visits],
        "drugs": [
            {"visit": f"{number}-{each}", "c": draw()}
            for each in visits
            for _ in range(4 if most else int(rng.integers(0, 3)))
        ],
    }


TYPES = {"a": pa.int64(), "b": pa.int64(), "c": pa.int64()}
COLUMNS = {"people": ["id", "a"], "visits": ["visit", "id", "b"], "drugs": ["visit", "c"]}


def database(people: list[dict[str, list[dict[str, Any]]]]) -> dict[str, pa.Table]:
    return {
        name: pa.Table.from_pylist(
            [row for each in people for row in each[name]],
            pa.schema([(column, TYPES.get(column, pa.string())) for column in columns]),
        )
        for name, columns in COLUMNS.items()
    }


def views(place: Path, tables: LinkedTables, read: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The bounded views, where an owner's fingerprint is the id."""
    ids = pa.chunked_array(list(root_ids(tables, read[tables.root]))).unique()
    owners = pa.table({ID_COLUMN: ids, OWNER_COLUMN: [f"{int(text):032x}" for text in ids.to_pylist()]})
    place.mkdir()
    with DuckDBChoice(threads=1).open(place / "spill") as engine:
        write_linked(tables, read, place / "views", engine=engine, owners=owners, key=b"k" * 32)
    return {name: pa.Table.from_batches(read_table(place / "views" / name)) for name in tables.private}


def task(method: str = "aim", epsilon: float = 4.0, schema: dict[str, Any] = FAMILY, **others: Any) -> LinkedTask:
    rng = np.random.default_rng(0)
    options = TablesOptions(epsilon=epsilon, delta=DELTA, schema=schema, method=method, **others)
    return linked_task(database([person(number, rng, most=True) for number in range(3)]), options)


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
    """Views of 60 people, and of these with another person, who has more rows than every bound."""
    rng, place = np.random.default_rng(3), tmp_path_factory.mktemp("views")
    tables, people = task().tables, [person(number, rng) for number in range(60)]
    without = views(place / "without", tables, database(people))
    return without, views(place / "with", tables, database([*people, person(99, rng, most=True)]))


# What one person moves.


@pytest.mark.parametrize("method", ["aim", "mst", "mwem", "independent"])
def test_a_person_with_all_rows_moves_every_draw_by_no_more_than_planned(neighbours, method: str) -> None:
    plan = task(method).plan
    sealed = SealedTables.of(plan)
    without, more = neighbours
    for name, bound in (("people", 1), ("visits", 3), ("drugs", 6)):
        view = sealed.plan(plan, name)
        assert more[name].num_rows - without[name].num_rows == bound
        before = run(view, without[name])
        after = run_again(view, more[name], before)
        reached = []
        for one, other in zip(before.draws, after.draws, strict=True):
            moved = np.abs(one.exact - other.exact)
            if one.kind == "choice":
                assert moved.max() <= one.sensitivity
            else:
                assert moved.sum() <= RECORD_PARTS  # one record in all, with whatever rows
                reached.append(int(moved.sum()))
        assert min(reached) >= RECORD_PARTS - bound  # rounding of weights: nothing is lost either
        assert precision_used(view, before) <= claim_of(view).precision


def test_every_column_of_every_view_is_paid_for_numbers_of_children_among_them(neighbours) -> None:
    plan = task("independent").plan
    sealed = SealedTables.of(plan)
    paid = 0
    for name, table in neighbours[1].items():
        view = sealed.plan(plan, name)
        names = Domain.from_json(view.columns).names
        found = run(view, table)
        assert [item.clique for item in found.measured] == [(index,) for index in range(len(names))]
        assert set(names) == set(table.column_names) - {OWNER_COLUMN}
        assert precision_used(view, found) <= claim_of(view).precision
        paid += len(found.measured)
    people, visits = ["a", "visits__rows"], ["b", "drugs__rows", "people__a", "visits__rows", "previous__b"]
    drugs = ["c", "visits__b", "drugs__rows", "visits__rows", "previous__c"]
    assert paid == len([*people, *visits, *drugs])
    counted = sum(
        Fraction(1) / Fraction(leaf.sigma) ** 2 * times for leaf, times in leaves(event_from_json(plan.event))
    )
    assert counted == claim_of(plan).precision


def test_the_claim_is_that_of_all_views_together() -> None:
    """Independent of the accountant: Gaussian counts of all views are one Gaussian vector (Balle & Wang 2018)."""
    made = task("independent")
    plan, precision = made.plan, claim_of(made.plan).precision
    views = [SealedTables.of(plan).plan(plan, name) for name in made.tables.private]
    assert precision == sum(claim_of(view).precision for view in views)
    exact = gaussian_epsilon(math.sqrt(precision), DELTA)
    assert exact <= 4.0 and exact == pytest.approx(4.0, rel=0.02)
    assert plan.guarantee["max_contributions"] == 1 + 3 + 6 and plan.guarantee["weighting"] == "owners"


def test_declared_shares_decide_how_the_budget_is_spread() -> None:
    schema = json.loads(json.dumps(FAMILY))
    for name, share in (("people", 1), ("visits", 2), ("drugs", 7)):
        schema["tables"][name]["share"] = share
    made = task("independent", schema=schema)
    sealed = SealedTables.of(made.plan)
    found = [float(claim_of(sealed.plan(made.plan, name)).precision) for name in ("people", "visits", "drugs")]
    assert [each / sum(found) for each in found] == pytest.approx([0.1, 0.2, 0.7], abs=0.03)


# An audit.


TRIALS = 40_000


def proven(neighbours, *, forgotten: bool) -> float:
    """What the best attack on independent counts proves: the likelihood ratio of all noisy counts together.

    With `forgotten`, the mechanism counts each row as one record, whatever the bounds.
    """
    plan = task("independent", AUDITED).plan
    sealed, rng = SealedTables.of(plan), np.random.default_rng(11)
    scores, precision = np.zeros((2, TRIALS)), 0.0
    for name in neighbours[0]:
        view = sealed.plan(plan, name)
        without, more = (run(view, views[name], noise=lambda counts, _: counts).draws for views in neighbours)
        rows = neighbours[1][name].num_rows - neighbours[0][name].num_rows if forgotten else 1
        for one, other in zip(without, more, strict=True):
            moved, sigma = (other.exact - one.exact) * rows, float(one.scale)
            precision += float((moved**2).sum()) / sigma**2
            for inside in (0, 1):
                noise = np.rint(rng.normal(0, sigma, (TRIALS, moved.size)))
                scores[inside] += (noise + inside * moved) @ moved / sigma**2
    included = np.repeat([False, True], TRIALS)
    return proven_epsilon(scores.ravel(), included, threshold=1.5 * precision, delta=DELTA)


AUDITED = 2.0


def test_an_auditor_of_all_views_proves_less_than_the_claim(neighbours) -> None:
    """A sound mechanism is above the claim with a chance of 1e-7; here the seed is fixed."""
    assert AUDITED / 8 < proven(neighbours, forgotten=False) <= AUDITED


def test_an_auditor_finds_a_forgotten_bound(neighbours) -> None:
    assert proven(neighbours, forgotten=True) > AUDITED


# Planted mistakes.


def changed(plan: SealedPlan, **parameters: Any) -> SealedPlan:
    return dataclasses.replace(plan, parameters=plan.parameters | parameters)


def test_a_bound_that_is_not_that_of_the_declaration_is_refused() -> None:
    plan = task().plan
    generator(plan.method).check(plan)
    declared = json.loads(json.dumps(plan.parameters["declared"]))
    declared["tables"]["drugs"]["max_children"] = 5
    with pytest.raises(GrantRefused, match="other rows of an owner"):
        generator(plan.method).check(changed(plan, declared=declared))


def test_a_view_that_is_not_paid_for_is_refused() -> None:
    plan = task().plan
    made = generator(plan.method)
    events = event_to_json(event_from_json(plan.event))
    with pytest.raises(GrantRefused, match="event"):
        made.check(dataclasses.replace(plan, event=events | {"events": events["events"][:2]}))
    views = dict(plan.parameters["views"])
    views["visits"] = views["visits"] | {"parameters": views["people"]["parameters"]}
    with pytest.raises(GrantRefused):
        made.check(changed(plan, views=views))
    rows = {name: view | {"guarantee": view["guarantee"] | {"weighting": "rows"}} for name, view in views.items()}
    with pytest.raises(GrantRefused):
        made.check(changed(plan, views=rows))


def test_a_view_for_others_than_the_whole_or_of_another_method_is_refused() -> None:
    plan = task().plan
    made, views = generator(plan.method), plan.parameters["views"]
    made.check(plan)
    for key, value in (("unit", "group"), ("delta", 1e-3)):
        with pytest.raises(GrantRefused, match="another method or guarantee"):
            made.check(dataclasses.replace(plan, guarantee=plan.guarantee | {key: value}))
    with pytest.raises(GrantRefused, match="another method or guarantee"):
        made.check(dataclasses.replace(plan, guarantee=plan.guarantee | {"adjacency": "replace-one"}))
    with pytest.raises(GrantRefused, match="another method or guarantee"):
        made.check(changed(plan, views=views | {"drugs": views["drugs"] | {"method": "jam"}}))


def test_the_worker_counts_the_rows_of_each_owner_in_each_view_again(neighbours, tmp_path: Path) -> None:
    plan = task().plan
    for name, table in neighbours[1].items():
        write_table(tmp_path / name, table.schema, table.to_batches())
    inputs = generator(plan.method).inputs(plan, tmp_path)
    assert inputs == {tmp_path / "people": 1, tmp_path / "visits": 3, tmp_path / "drugs": 6}
    owners = np.sort(np.array([bytes.fromhex(text) for text in neighbours[1]["people"]["_owner"].to_pylist()], "S16"))
    for place, bound in inputs.items():
        check_owners(place, owners, bound)
    forgotten = pa.concat_tables([neighbours[1]["drugs"], neighbours[1]["drugs"]])
    write_table(tmp_path / "twice", forgotten.schema, forgotten.to_batches())
    with pytest.raises(BoundingError, match="more than 6 records"):
        check_owners(tmp_path / "twice", owners, inputs[tmp_path / "drugs"])


def test_a_second_path_to_the_same_rows_is_refused() -> None:
    """A table has one parent, so that no row is counted by two paths; a second parent is a public table only."""
    schema = json.loads(json.dumps(FAMILY))
    schema["tables"]["drugs"]["lookups"] = {"id": "people"}
    with pytest.raises(Exception, match="'people' is no public table"):
        task(schema=schema)


# Interruptions.


def test_views_that_were_not_begun_are_measured_and_no_view_twice(
    neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = task("independent").plan
    made = generator(plan.method)
    for name, table in neighbours[1].items():
        write_table(tmp_path / "bounded" / name, table.schema, table.to_batches())
    model = tmp_path / "model"
    model.mkdir()
    whole = MechanismRun(plan, tmp_path / "bounded", None, model)  # type: ignore[arg-type]
    done, drawn = measurements.MeasurementLog.complete, []
    noise = draws.sample_rounded_gaussian

    def counted(counts: np.ndarray, sigma: Fraction) -> np.ndarray:
        drawn.append(sigma)
        return noise(counts, sigma)

    def stop_at(number: int, before: bool) -> None:
        calls = []

        def complete(log: Any) -> None:
            calls.append(None)
            if len(calls) == number and before:
                raise RuntimeError
            done(log)
            if len(calls) == number:
                raise RuntimeError

        monkeypatch.setattr(measurements.MeasurementLog, "complete", complete)

    monkeypatch.setattr(draws, "sample_rounded_gaussian", counted)
    stop_at(2, before=False)
    with pytest.raises(RuntimeError):
        made.run(whole)
    assert made.can_resume(model) and not made.is_complete(model)
    monkeypatch.setattr(measurements.MeasurementLog, "complete", done)
    kept = (model / "people" / "measurements.jsonl").read_bytes()
    made.run(whole)
    assert made.is_complete(model) and not made.can_resume(model)
    assert (model / "people" / "measurements.jsonl").read_bytes() == kept
    assert len(drawn) == sum(len(each["columns"]) for each in plan.parameters["views"].values())
    other = tmp_path / "other"
    other.mkdir()
    stop_at(2, before=True)
    with pytest.raises(RuntimeError):
        made.run(dataclasses.replace(whole, directory=other))
    assert not made.can_resume(other) and not made.is_complete(other)  # a view was interrupted while it counted


def test_a_plan_is_the_same_whatever_the_order_of_keys_in_the_file() -> None:
    one = task().plan
    turned = {"tables": {name: dict(reversed(table.items())) for name, table in reversed(FAMILY["tables"].items())}}
    assert task(schema=turned).plan.digest == one.digest
    assert SealedPlan.from_json(one.to_json()).digest == one.digest
    generator(one.method).check(SealedPlan.from_json(one.to_json()))


def test_declarations_that_change_no_model_are_one_run_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    data = database([person(number, rng) for number in range(9)])
    data["visits"] = data["visits"].append_column("d", pa.array([0] * data["visits"].num_rows))
    data["drugs"] = data["drugs"].append_column("code", pa.array(["x"] * data["drugs"].num_rows))
    data["codes"] = pa.table({"code": ["x", "y"]})

    def key(table: str = "visits", **others: Any) -> str:
        schema = json.loads(json.dumps(FAMILY))
        schema["tables"]["visits"] |= {"columns": {"b": WHOLE, "d": WHOLE}, "order_by": ["b"]}
        schema["tables"]["drugs"]["lookups"] = {"code": "codes"}
        schema["tables"]["codes"] = {"public": "Doctors print them.", "key": ["code"]}
        schema["tables"][table] |= others
        options = TablesOptions(epsilon=4.0, delta=DELTA, schema=schema, method="independent")
        (found,) = linked_task(data, options).keys(b"s")
        return found

    same = [
        {"columns": {"d": WHOLE, "b": WHOLE}},  # whose order says nothing
        {"lags": 1},
        {"context": ["people.a"]},
        {"share": 3},
        {"table": "codes", "public": "They are printed in books."},
    ]
    assert {key(**change) for change in same} == {key()}
    listed = {"type": "categorical", "values": ["x", "y"]}
    other = [
        {"max_children": 2},
        {"order_by": []},
        {"order_by": ["b", "d"]},
        {"lags": 2},
        {"lags": 0},
        {"context": []},
        {"share": 4},
        {"constraints": [{"ascending": ["b", "d"]}]},
        {"columns": {"b": WHOLE, "d": WHOLE | {"max": 4}}},
        {"table": "drugs", "lookups": {}, "columns": {"c": WHOLE, "code": listed}},
    ]
    assert len({key(), *(key(**change) for change in other)}) == len(other) + 1


def test_the_clinics_plan_describes_each_table() -> None:
    from clinic import clinic

    made = linked_task(clinic(30), TablesOptions(epsilon=1, delta=DELTA, schema=TABLES))
    described = generator(made.plan.method).describe(made.plan)
    assert {name: table["bound"] for name, table in described["tables"].items()} == {
        "patients": 1,
        "stays": 4,
        "diagnoses": 12,
    }
    assert "of whose rows one owner has at most 12" in described["event"]
    assert pc.sum(pa.array([table["epsilon"] ** 2 for table in described["tables"].values()])).as_py() > 0.9
