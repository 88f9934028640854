"""One adaptive selection over linked tables: what one person moves, what it costs, mistakes, and interruptions."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from audit_cases import OtherRun, Transcript, claim_of, gaussian_epsilon, precision_used, proven_epsilon, run, run_again
from scipy import optimize
from test_linked_privacy import DELTA, FAMILY, changed, database, neighbours, person  # noqa: F401  (a fixture)
from test_linked_privacy import task as other_task

from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.linked_tables.task import LinkedTask, TablesOptions, linked_task
from dpsynth_platform.privacy.events import event_from_json, leaves
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan, generator
from dpsynth_platform.synth.relational.drawing import LinkedDrawing
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular import counting, measurements
from dpsynth_platform.synth.tabular import drawing as draws
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE

Views = dict[str, pa.Table]


def exact(counts: np.ndarray, _: Fraction) -> np.ndarray:
    return np.array(counts)


def best(scores: list[int], *_: Any) -> int:
    return int(np.argmax(scores))


def with_shares(**shares: float | str) -> dict[str, Any]:
    schema = json.loads(json.dumps(FAMILY))
    for name, share in shares.items():
        schema["tables"][name]["share"] = share
    return schema


ALL_CHOSEN = with_shares(people="chosen", visits="chosen", drugs="chosen")


def task(method: str = "aim", epsilon: float = 4.0, schema: dict[str, Any] = ALL_CHOSEN) -> LinkedTask:
    return other_task(method, epsilon, schema)


# Which plans have it.


def test_one_selection_is_declared_and_other_plans_say_nothing_of_it() -> None:
    plan = task().plan
    assert SealedTables.of(plan).one_selection
    assert {table["share"] for table in plan.parameters["declared"]["tables"].values()} == {"chosen"}
    for schema in (FAMILY, with_shares(people=1, visits=2, drugs=7)):
        apart = task("independent", schema=schema).plan
        assert not SealedTables.of(apart).one_selection and "one_selection" not in apart.parameters


def test_what_one_selection_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpsynth_platform.synth.relational import one_selection, sealing

    with pytest.raises(ContractError, match=r"tables\.drugs\.share: that of people is chosen; accepted: chosen of all"):
        task(schema=with_shares(people="chosen", visits="chosen"))
    with pytest.raises(ContractError, match="share: chosen with method 'mst'; accepted: with aim, or numbers"):
        task("mst")
    for share in ("chose", 0, -1):
        with pytest.raises(ContractError, match=r"tables\.drugs\.share"):
            task(schema=with_shares(drugs=share))
    plan = task().plan
    cells = one_selection.counted_cells(SealedTables.of(plan).plans(plan).values())
    monkeypatch.setattr(sealing, "MAX_CELLS", cells)
    assert task().plan.digest == plan.digest
    monkeypatch.setattr(sealing, "MAX_CELLS", cells - 1)
    with pytest.raises(ContractError, match=f"have {cells} cells together; accepted: up to {cells - 1}, or numbers"):
        task()


# What one person moves.


@pytest.fixture(scope="module")
def runs(neighbours: tuple[Views, Views]) -> tuple[SealedPlan, Transcript, Transcript]:  # noqa: F811
    """The mechanism's draws without and with a person, who gets the same answers."""
    plan, (without, more) = task().plan, neighbours
    before = run(plan, without, noise=exact, choose=best)
    return plan, before, run_again(plan, more, before)


def test_a_person_with_all_rows_moves_every_draw_of_every_view_by_no_more_than_planned(runs) -> None:
    plan, before, after = runs
    views = SealedTables.of(plan).views
    assert [view["guarantee"] for view in views.values()] == [plan.guarantee] * 3
    moved_by = {"noise": [], "choice": []}
    for one, other in zip(before.draws, after.draws, strict=True):
        moved = np.abs(one.exact - other.exact)
        if one.kind == "choice":
            assert one.sensitivity == WEIGHT_SCALE * RECORD_PARTS
            assert moved.max() <= one.sensitivity
            moved_by["choice"].append(int(moved.max()))
        else:
            assert moved.sum() <= RECORD_PARTS
            moved_by["noise"].append(int(moved.sum()))
    assert min(moved_by["noise"]) >= RECORD_PARTS - 6  # rounding of weights: nothing is lost either
    assert max(moved_by["choice"]) > RECORD_PARTS / 2


def test_candidates_of_all_views_are_in_one_choice(runs) -> None:
    plan, before, _ = runs
    views = SealedTables.of(plan).views
    first = before.of("choice")[0]
    assert first.exact.size == sum(len(view["parameters"]["workload"]) for view in views.values())  # one resolution
    chosen = {len(item.clique) for item in before.measured}
    assert chosen == {1, 2}
    rounds = next(iter(views.values()))["parameters"]["rounds"]
    assert len(before.of("choice")) <= rounds == claim_of(plan).choices
    columns = [len(view["columns"]) for view in views.values()]
    assert len(before.of("noise")) == sum(columns) + len(before.of("choice"))


def test_the_budget_is_used_up_and_never_exceeded(runs) -> None:
    plan, before, _ = runs
    used, claimed = precision_used(plan, before), claim_of(plan).precision
    assert 0.99 * claimed < used <= claimed


def test_the_event_is_that_of_one_budget_whatever_the_number_of_views() -> None:
    """Independent of the accountant: below zCDP's epsilon, and above that of the Gaussian counts alone."""
    plan = task().plan
    claim = claim_of(plan)
    assert len(list(leaves(event_from_json(plan.event)))) == 2
    budget = next(iter(SealedTables.of(plan).views.values()))["parameters"]
    assert claim.precision == 1 / Fraction(budget["sigma_total"]) ** 2
    assert gaussian_epsilon(math.sqrt(claim.precision), DELTA) <= 4.0
    rho = float(claim.precision) / 2 + claim.choices * claim.epsilon_select**2 / 8

    def zcdp(order: float) -> float:
        return order * rho + (math.log(1 / (DELTA * order)) + (order - 1) * math.log1p(-1 / order)) / (order - 1)

    loose = optimize.minimize_scalar(zcdp, bounds=(1.01, 200), method="bounded").fun
    assert 4.0 <= loose < 4.4
    assert plan.guarantee["max_contributions"] == 10 and plan.guarantee["weighting"] == "owners"


# An audit.

TRIALS, AUDITED = 40_000, 2.0


def proven(pair: tuple[Views, Views], *, forgotten: bool) -> float:
    """What the likelihood ratio of all noisy counts proves, of rounds that chose by exact counts.

    With `forgotten`, the mechanism counts each row as one record, whatever the bounds.
    """
    plan, rng = task(epsilon=AUDITED).plan, np.random.default_rng(11)
    with pytest.MonkeyPatch.context() as patch:
        if forgotten:
            patch.setattr(counting, "row_weight", lambda rows: rows * 0 + RECORD_PARTS)
        before = run(plan, pair[0], noise=exact, choose=best)
        after = run_again(plan, pair[1], before)
    scores, precision = np.zeros((2, TRIALS)), 0.0
    for one, other in zip(before.of("noise"), after.of("noise"), strict=True):
        moved, sigma = (other.exact - one.exact).ravel(), float(one.scale)
        precision += float((moved**2).sum()) / sigma**2
        for inside in (0, 1):
            noise = np.rint(rng.normal(0, sigma, (TRIALS, moved.size)))
            scores[inside] += (noise + inside * moved) @ moved / sigma**2
    included = np.repeat([False, True], TRIALS)
    return proven_epsilon(scores.ravel(), included, threshold=1.5 * precision, delta=DELTA)


def test_an_auditor_of_all_views_proves_less_than_the_claim(neighbours) -> None:  # noqa: F811
    assert AUDITED / 8 < proven(neighbours, forgotten=False) <= AUDITED


def test_an_auditor_finds_a_forgotten_bound(neighbours) -> None:  # noqa: F811
    assert proven(neighbours, forgotten=True) > AUDITED


# Planted mistakes.


def test_a_view_whose_rows_are_not_weighed_moves_scores_beyond_the_plan(
    neighbours,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, (without, more) = task().plan, neighbours
    monkeypatch.setattr(counting, "row_weight", lambda rows: rows * 0 + RECORD_PARTS)
    before = run(plan, without, noise=exact, choose=best)
    after = run_again(plan, more, before)
    scores = [(one, other) for one, other in zip(before.draws, after.draws, strict=True) if one.kind == "choice"]
    assert any(np.abs(one.exact - other.exact).max() > one.sensitivity for one, other in scores)
    counts = [(one, other) for one, other in zip(before.draws, after.draws, strict=True) if one.kind == "noise"]
    assert any(np.abs(one.exact - other.exact).sum() > RECORD_PARTS for one, other in counts)


def test_a_view_whose_marginals_are_not_paid_for_exceeds_the_claim(
    neighbours,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, columns = task().plan, draws.Draws.columns

    def unpaid(self: draws.Draws, records: Any, sigma: float, *others: Any) -> Any:
        left = self.left
        found = columns(self, records, sigma, *others)
        if "c" in records.domain.names:
            self.left = left
        return found

    monkeypatch.setattr(draws.Draws, "columns", unpaid)
    assert precision_used(plan, run(plan, neighbours[0], noise=exact, choose=best)) > claim_of(plan).precision


def test_a_plan_of_other_budgets_or_guarantees_is_refused() -> None:
    plan = task().plan
    made, views = generator(plan.method), plan.parameters["views"]
    made.check(plan)

    def with_view(**others: Any) -> SealedPlan:
        return changed(plan, views=views | {"drugs": views["drugs"] | others})

    own = views["drugs"]["parameters"]
    for key, value in (("sigma_total", own["sigma_total"] / 2), ("rounds", own["rounds"] + 1), ("epsilon_select", 1.0)):
        with pytest.raises(GrantRefused, match="budgets of their own"):
            made.check(with_view(parameters=own | {key: value}))
    # The same in every view is not what the event is of.
    every = {
        name: view | {"parameters": view["parameters"] | {"sigma_total": own["sigma_total"] / 2}}
        for name, view in views.items()
    }
    with pytest.raises(GrantRefused, match="event"):
        made.check(changed(plan, views=every))
    with pytest.raises(GrantRefused, match="budgets of their own"):
        made.check(with_view(guarantee=views["drugs"]["guarantee"] | {"weighting": "rows"}))
    rows = {name: view | {"guarantee": view["guarantee"] | {"max_contributions": 1}} for name, view in views.items()}
    with pytest.raises(GrantRefused):
        made.check(changed(plan, views=rows))
    with pytest.raises(GrantRefused):
        made.check(with_view(method="mst"))
    with pytest.raises(GrantRefused, match="event"):
        made.check(changed(plan, views={name: view for name, view in views.items() if name != "people"}))


def test_mechanisms_of_their_own_and_one_selection_do_not_pass_for_each_other() -> None:
    together, apart = task().plan, task(schema=with_shares(people=1, visits=2, drugs=7)).plan
    made = generator(together.method)
    parts = {key: value for key, value in together.parameters.items() if key != "one_selection"}
    with pytest.raises(GrantRefused, match="event"):
        made.check(dataclasses.replace(together, parameters=parts))
    with pytest.raises(GrantRefused, match="budgets of their own"):
        made.check(changed(apart, one_selection=True))


def test_a_draw_beyond_the_shared_budget_is_refused(neighbours, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    columns = draws.Draws.columns

    def twice(self: draws.Draws, records: Any, sigma: float, *others: Any) -> Any:
        return columns(self, records, 1.0, *others)

    monkeypatch.setattr(draws.Draws, "columns", twice)
    with pytest.raises(AccountingError, match="accepted: more noise"):
        run(task().plan, neighbours[0], noise=exact, choose=best)


# Learned values.


def with_learned() -> LinkedTask:
    schema = json.loads(json.dumps(ALL_CHOSEN))
    learned = {"type": "categorical", "values": "learned", "most": 5}
    schema["tables"]["visits"]["columns"]["d"] = learned
    schema["tables"]["drugs"]["columns"]["e"] = learned
    rng = np.random.default_rng(0)
    data = database([person(number, rng, most=True) for number in range(3)])
    for table, column in (("visits", "d"), ("drugs", "e")):
        data[table] = data[table].append_column(column, pa.array(["x"] * data[table].num_rows))
    return linked_task(data, TablesOptions(epsilon=4.0, delta=DELTA, schema=schema, method="aim"))


def test_values_that_are_learned_in_any_view_are_paid_beside_the_selection() -> None:
    plan = with_learned().plan
    sealed = SealedTables.of(plan)
    assert sealed.one_selection
    generator(plan.method).check(plan)
    found = [type(leaf).__name__ for leaf, _ in leaves(event_from_json(plan.event))]
    assert found.count("ThresholdedGaussianCountsEvent") == 2 and len(found) == 4
    rules = [
        column.learning
        for view in sealed.views.values()
        for column in Domain.from_json(view["columns"])
        if column.learning is not None
    ]
    assert len(rules) == 2 and len(set(rules)) == 1
    words = generator(plan.method).describe(plan)["event"]
    assert "the values of d of visits, e of drugs, each shown if" in words
    views = dict(sealed.views)
    columns = [dict(column) for column in views["drugs"]["columns"]]
    for column in columns:
        if column.get("learning"):
            column["learning"] = column["learning"] | {"threshold": column["learning"]["threshold"] - 1}
    with pytest.raises(GrantRefused):
        generator(plan.method).check(changed(plan, views=views | {"drugs": views["drugs"] | {"columns": columns}}))


# Interruptions.


class Killed(Exception):
    """In place of the end of a process."""


@pytest.fixture
def ready(neighbours, tmp_path: Path) -> MechanismRun:  # noqa: F811
    for name, table in neighbours[1].items():
        write_table(tmp_path / "bounded" / name, table.schema, table.to_batches())
    (tmp_path / "model").mkdir()
    return MechanismRun(task().plan, tmp_path / "bounded", None, tmp_path / "model")  # type: ignore[arg-type]


def killed_at(patch: pytest.MonkeyPatch, kind: str, number: int) -> None:
    """The process ends in the middle of writing the logs' `number`th line of a kind."""
    append, seen = measurements.MeasurementLog._append, []

    def stopped(log: Any, document: dict[str, Any]) -> None:
        seen.append(document["kind"])
        if document["kind"] == kind and seen.count(kind) == number:
            log._file.write(json.dumps(document).encode()[:7])
            raise Killed
        append(log, document)

    patch.setattr(measurements.MeasurementLog, "_append", stopped)


def contents(model: Path) -> dict[str, bytes]:
    return {place.parent.name: place.read_bytes() for place in sorted(model.glob("*/measurements.jsonl"))}


@pytest.mark.parametrize(
    ("kind", "number"),
    [("header", 1), ("header", 2), ("one-way", 4), ("joint", 1), ("chosen", 3), ("complete", 1)],
)
def test_a_run_that_was_killed_while_it_measured_draws_nothing_further(
    ready: MechanismRun, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are three rounds at least: of the plan's `rounds` shares, the first costs one, the second two at most.

    The second is the last only if fewer than four shares were left before it.
    """
    made, drawn = generator(ready.plan.method), []
    assert claim_of(ready.plan).choices > 5
    with monkeypatch.context() as patch:
        killed_at(patch, kind, number)
        with pytest.raises(Killed):
            made.run(ready)
    assert not made.can_resume(ready.directory) and not made.is_complete(ready.directory)
    left = contents(ready.directory)
    monkeypatch.setattr(draws, "sample_rounded_gaussian", lambda *_: drawn.append(None))
    with pytest.raises(MechanismFailed, match="not measured twice"):
        made.run(ready)
    assert contents(ready.directory) == left and not drawn
    with pytest.raises(MechanismFailed):
        made.estimate(ready.plan, ready.directory)


def test_nothing_that_is_paid_is_lost_between_the_last_lines_of_the_tables(
    ready: MechanismRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, drawn = generator(ready.plan.method), []
    assert not made.can_resume(ready.directory)  # nothing is sealed there yet
    with monkeypatch.context() as patch:
        done, calls = measurements.MeasurementLog.complete, []

        def complete(log: Any) -> None:
            calls.append(None)
            if len(calls) == 2:
                log._file.write(b'{"kind":"comp')
                raise Killed
            done(log)

        patch.setattr(measurements.MeasurementLog, "complete", complete)
        with pytest.raises(Killed):
            made.run(ready)
    assert made.can_resume(ready.directory) and not made.is_complete(ready.directory)
    left = contents(ready.directory)
    with monkeypatch.context() as patch:
        patch.setattr(draws, "sample_rounded_gaussian", lambda *_: drawn.append(None))
        patch.setattr(counting, "read_table", lambda *_: drawn.append(None))
        made.run(ready)
    assert not drawn and made.is_complete(ready.directory) and not made.can_resume(ready.directory)
    last = b'{"kind":"complete"}\n'
    for name, content in contents(ready.directory).items():
        assert content == left[name][: left[name].rfind(b"\n") + 1].removesuffix(last) + last
    batches = list(LinkedDrawing.of(ready.plan, ready.directory).batches(20))
    assert sum(batch["people"].num_rows for batch in batches) == 20


def test_a_plan_that_nothing_was_begun_of_is_measured_when_it_resumes(ready: MechanismRun) -> None:
    made = generator(ready.plan.method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements.MeasurementLog, "create", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            made.run(ready)
    assert made.can_resume(ready.directory)
    made.run(ready)
    assert made.is_complete(ready.directory)


def test_completed_measurements_of_another_plan_are_refused(ready: MechanismRun) -> None:
    made = generator(ready.plan.method)
    made.run(ready)
    with pytest.raises(MechanismFailed, match="another plan"):
        made.run(dataclasses.replace(ready, plan=task(epsilon=3.0).plan))


# Words.


def test_the_description_is_of_one_mechanism_and_names_no_epsilon_of_a_table() -> None:
    plan = task().plan
    described = generator(plan.method).describe(plan)
    rounds = claim_of(plan).choices
    assert described["event"].startswith("one mechanism for 3 tables together (people, of whose rows one owner has at ")
    assert f"12 one-way marginals with rounded Gaussian noise, then up to {rounds} rounds" in described["event"]
    assert "a choice of a table and its columns by the exponential mechanism" in described["event"]
    assert "of a table and its columns" in plan.describe()["event"]
    for table in described["tables"].values():
        assert "epsilon" not in table and table["expected_error_per_one_way_cell"] > 0
        assert table["expected_error_per_two_way_cell"] > 0
    apart = task(schema=with_shares(people=1, visits=2, drugs=7)).plan
    assert all("epsilon" in table for table in generator(apart.method).describe(apart)["tables"].values())


def test_another_answer_for_the_neighbour_is_noticed(neighbours) -> None:  # noqa: F811
    """The replay compares what each draw asks for: noise, shape, epsilon and sensitivity."""
    plan, (without, more) = task().plan, neighbours
    before = run(plan, without, noise=exact, choose=best)
    before.draws[3] = dataclasses.replace(before.draws[3], scale=before.draws[3].scale + 1)
    with pytest.raises(OtherRun):
        run_again(plan, more, before)
