"""Networks of linked tables: what one owner moves, what that costs, evidence, interruptions, and a whole run."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from clinic import TABLES, clinic
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from network_cases import job
from short_fits import short_fits  # noqa: F401  (an autouse fixture)
from test_linked_privacy import database, person, task, views

from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.linked_tables import task as tasks
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json, event_to_json
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
from dpsynth_platform.synth.neural.network_generator import NETWORK, LearnedColumns
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.relational.views import GivenNetwork
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.rows import RowDivision

METHODS = ("arn", "tbart")
SHORT = {"steps": 5, "replay_steps": 3, "batch_size": 40, "width": 4}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plan() -> SealedPlan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "UNREPEATED", SHORT)
        return task("arn", expected_units=100).plan


# What one owner moves.


def moved(view: SealedPlan, method: str, without: pa.Table, more: pa.Table, *, by_owner: bool = True) -> float:
    """How far the clipped sum of a step with all units moves by one owner, in clipping norms."""
    made = generator(method)
    sealed, learned = made.sealed(view.parameters), LearnedColumns.planned(Domain.from_json(view.columns))
    training = replace(sealed.training, clipping_norm=1e-3)  # below every gradient's norm
    ready = made.ready(replace(sealed, fixed_order=1.0), learned, "cpu")  # rows have the same order in both tables
    found = []
    for table in (without, more):
        records = learned.records(sealed, table)
        units = records.units(training.sampled) if by_owner else [[each] for each in range(len(records))]
        with ready.sums(ready.network, training, ready.losses) as sums:
            batch = records.batch([record for unit in units for record in unit])
            for parts in RowDivision(64, 1, ready.drawn, 256, CPU).parts(batch, list(map(len, units)), 64):
                for part in parts:
                    sums.add(part.batch, part.weights)
            found.append(torch.cat([total.flatten().double() for total in sums.totals.values()]))
    return float((found[1] - found[0]).norm()) / training.clipping_norm


@pytest.mark.parametrize("method", METHODS)
def test_a_person_with_all_rows_moves_a_step_by_one_clipping_norm(tmp_path: Path, method: str) -> None:
    """Neighbours: 40 people, and these with one whose rows exceed every bound."""
    made = task(method)
    sealed, tables, rng = SealedTables.of(made.plan), made.tables, np.random.default_rng(3)
    people = [person(number, rng) for number in range(40)]
    without = views(tmp_path / "without", tables, database(people))
    more = views(tmp_path / "with", tables, database([*people, person(99, rng, most=True)]))
    for name, bound in (("people", 1), ("visits", 3), ("drugs", 6)):
        view = sealed.plan(made.plan, name)
        assert more[name].num_rows - without[name].num_rows == bound
        assert moved(view, method, without[name], more[name]) == pytest.approx(1, abs=0.02)
        # The mistake that sampling owners prevents: their rows are much alike, and each is clipped alone.
        alone = moved(view, method, without[name], more[name], by_owner=False)
        assert alone > 1.5 if bound > 1 else alone == pytest.approx(1, abs=0.02)


# What it costs.


def test_the_whole_costs_what_an_independent_accountant_says(plan: SealedPlan) -> None:
    sealed, accountant = SealedTables.of(plan), PLDAccountant()
    for name in sealed.tables.private:
        parameters = sealed.views[name]["parameters"]
        training = parameters["training"]
        assert training["sampled"] == "user" and training["units"] == 100
        accountant.compose(GaussianDpEvent(parameters["sigma_total"]))  # an owner's rows weigh one record together
        step = PoissonSampledDpEvent(training["batch_size"] / 100, GaussianDpEvent(training["noise_multiplier"]))
        accountant.compose(SelfComposedDpEvent(step, training["steps"] + training["replay_allowance"]))
    claimed = epsilon(event_from_json(plan.event), 1e-6).epsilon
    assert accountant.get_epsilon(1e-6) == pytest.approx(claimed, rel=5e-3)
    assert 0.98 * 4 < claimed <= 4


@pytest.mark.parametrize(
    "change",
    [{"sampled": "record"}, {"noise_multiplier": 0.5}, {"steps": 50}, {"max_contributions": 1}, {"units": 400}],
)
def test_a_plan_with_another_training_is_refused(plan: SealedPlan, change: dict[str, Any]) -> None:
    sealed = SealedTables.of(plan)
    view = sealed.views["drugs"]
    training = view["parameters"]["training"] | change
    changed = replace(
        sealed, views=sealed.views | {"drugs": view | {"parameters": view["parameters"] | {"training": training}}}
    )
    with pytest.raises(GrantRefused):
        generator("linked").check(
            replace(plan, parameters=dataclasses.asdict(changed), event=event_to_json(changed.event))
        )


def test_only_own_columns_are_learned_and_evidence_comes_first(plan: SealedPlan) -> None:
    sealed = SealedTables.of(plan)
    for name in sealed.tables.private:
        view, evidence = sealed.plan(plan, name), sealed.tables.evidence(name)
        made = generator("arn")
        parameters = made.sealed(view.parameters)
        domain = Domain.from_json(view.columns)
        assert {domain.names[index] for index in parameters.evidence} == set(evidence)
        assert parameters.fixed_order == (1.0 if evidence else 0.7)
        network = made.ready(parameters, LearnedColumns.planned(domain), "cpu").network
        assert {domain.names[int(index)] for index in network.heads} == set(domain.names) - set(evidence)


# Drawing.


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_drawn_given_their_evidence_exactly(method: str) -> None:
    """Against the sum of all combinations; so many rows that a frequency is off by 6 deviations with chance 1e-8."""
    made, sizes, evidence, number = generator(method), (3, 2, 4), (2,), 50_000
    shares = [np.full(size, 1 / size) for size in sizes]
    network = made.network(shares, 4)
    network.leave_out(evidence)
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for values in network.parameters():
            values.normal_(0, 1 if method == "arn" else 0.5, generator=source)
    every = np.array(list(itertools.product(*map(range, sizes))), dtype=np.int64)
    rows = made.rows()(sizes, SimpleNamespace(fixed_order=1.0, evidence=evidence), CPU)
    with torch.no_grad():
        losses = rows.losses(network.eval(), rows.drawn({"states": torch.from_numpy(every)}, 1))
    exact = (-losses).exp().double().numpy().reshape(sizes)
    assert exact.sum((0, 1)) == pytest.approx(np.ones(4), abs=1e-5)
    assert np.ptp(exact, axis=2).max() > 0.03  # the evidence matters
    joint, rng = ColumnwiseJoint(network, shares, evidence=evidence), np.random.default_rng(1)
    parents = [np.arange(size) for size in sizes]
    states = np.zeros((4 * number, 3), dtype=np.int32, order="F")
    states[:, 2] = known = rng.permutation(np.repeat(np.arange(4), number))
    GivenNetwork(joint, {}, parents, evidence).draw(states, rng)
    assert (states[:, 2] == known).all()
    found = np.zeros(sizes)
    np.add.at(found, tuple(states.T), 1 / number)
    assert np.abs(found - exact).max() < 6 * (0.25 / number) ** 0.5
    # What may not be drawn is not, and the rest keeps its proportions.
    weights = {(0,): np.array([0.0, -np.inf, 0.0]), (1, 2): np.where(np.eye(2, 4) > 0, -np.inf, 0.0)}
    GivenNetwork(joint, weights, parents, evidence).draw(states, rng)
    assert 1 not in states[:, 0] and not (states[:, 1] == states[:, 2]).any()
    left = exact.sum(1)[[0, 2]]
    shown = np.array([[((states[:, 0] == a) & (known == c)).mean() * 4 for c in range(4)] for a in (0, 2)])
    assert np.abs(shown - left / left.sum(0)).max() < 6 * (0.25 / number) ** 0.5


# Interruptions.


class Killed(BaseException):
    """The process ends here."""


def fitted(plan: SealedPlan, place: Path, *, resume: bool = False) -> None:
    generator("linked").run(job(plan, place / "views", place / "model", resume=resume))


@pytest.fixture
def place(tmp_path: Path, plan: SealedPlan) -> Path:
    rng = np.random.default_rng(4)
    views(tmp_path / "data", SealedTables.of(plan).tables, database([person(each, rng) for each in range(100)]))
    (tmp_path / "data" / "views").rename(tmp_path / "views")
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    names = (measurements.FILE_NAME, f"{NETWORK}/weights.safetensors")
    return {name: (directory / name).read_bytes() for name in names}


@pytest.mark.parametrize("at", [1, 3])
def test_a_training_that_was_killed_continues_and_complete_tables_stay(
    plan: SealedPlan, place: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """In the second table, in its first step or a later one; the third has not begun."""
    linked, begin, begun = generator("linked"), StepJournal.begin_step, list[int]()

    def killing(self: StepJournal) -> int:
        executed = begin(self)
        begun.append(executed)
        if len(begun) == SHORT["steps"] + at:
            raise Killed
        return executed

    monkeypatch.setattr(StepJournal, "begin_step", killing)
    with pytest.raises(Killed):
        fitted(plan, place)
    first = contents(place / "model" / "people")
    counted = (place / "model" / "visits" / measurements.FILE_NAME).read_bytes()
    assert not linked.is_complete(place / "model") and linked.can_resume(place / "model")
    with pytest.raises(MechanismFailed):
        linked.estimate(plan, place / "model")
    fitted(plan, place, resume=True)
    assert linked.is_complete(place / "model") and not linked.can_resume(place / "model")
    assert contents(place / "model" / "people") == first
    assert (place / "model" / "visits" / measurements.FILE_NAME).read_bytes() == counted
    executed = json.loads((place / "model" / "visits" / NETWORK / "trained.json").read_text())
    assert SHORT["steps"] < executed["executed_steps"] <= SHORT["steps"] + SHORT["replay_steps"], executed
    assert len(begun) == 3 * SHORT["steps"] + executed["executed_steps"] - SHORT["steps"]
    # Complete: nothing is read or trained again.
    monkeypatch.setattr(StepJournal, "begin_step", lambda _: pytest.fail("a step"))
    (place / "views").rename(place / "gone")
    fitted(plan, place, resume=True)
    linked.estimate(plan, place / "model")


def test_between_tables_the_next_one_begins(plan: SealedPlan, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked, arn = generator("linked"), type(generator("arn"))
    run, ran = arn.run, list[str]()

    def killing(self: Any, given: Any) -> None:
        ran.append(given.directory.name)
        if len(ran) == 2:
            raise Killed
        run(self, given)

    monkeypatch.setattr(arn, "run", killing)
    with pytest.raises(Killed):
        fitted(plan, place)
    first = contents(place / "model" / "people")
    assert not linked.is_complete(place / "model") and linked.can_resume(place / "model")
    fitted(plan, place, resume=True)
    assert ran == ["people", "visits", "visits", "drugs"] and contents(place / "model" / "people") == first


def test_counts_that_were_interrupted_are_not_made_again(
    plan: SealedPlan, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = measurements.MeasurementLog.counts

    def killing(self: Any, kind: str, measured: Any) -> None:
        counts(self, kind, measured)
        if measured.clique == (2,):  # the root has two columns
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(measurements.MeasurementLog, "counts", killing)
        with pytest.raises(Killed):
            fitted(plan, place)
    linked = generator("linked")
    assert not linked.is_complete(place / "model") and not linked.can_resume(place / "model")
    with pytest.raises(MechanismFailed, match="not measured twice"):
        fitted(plan, place, resume=True)


# A whole run.


@pytest.mark.parametrize("method", METHODS)
def test_tables_by_networks_join_and_keep_constraints(tmp_path: Path, method: str) -> None:
    schema = json.loads(json.dumps({"tables": {name: TABLES["tables"][name] for name in ("patients", "stays")}}))
    if method == "arn":
        schema["tables"]["stays"]["columns"]["ward"] = {"type": "categorical", "values": "learned", "most": 10}
    data = {name: table for name, table in clinic(400).items() if name in schema["tables"]}
    options = TablesOptions(epsilon=8, delta=1e-6, expected_units=400, schema=schema, method=method)
    made = synthesize_tables(data, tmp_path / "out", options)
    again = synthesize_tables(data, tmp_path / "out", replace(options, roots=30, given={"sex": ["F"]}))
    assert made.spent and not again.spent
    found = {name: pq.read_table(made.synthetic / f"{name}.parquet").to_pandas() for name in schema["tables"]}
    patients, stays = found["patients"], found["stays"]
    assert len(patients) == 30 and set(patients["sex"]) == {"F"}
    assert patients["patient id"].is_unique and stays["stay"].is_unique
    assert set(stays["patient id"]) <= set(patients["patient id"]) and len(stays)
    assert (stays["left"] >= stays["admitted"]).all() and set(stays["ward"].dropna()) <= {"A", "B", "C"}
    assert stays.groupby("patient id")["admitted"].apply(lambda days: days.is_monotonic_increasing).all()
    assert stays.groupby("patient id").size().max() <= 4
    text = made.statement.read_text()
    assert "DP-SGD" in text and "of 400 expected owners" in text


def test_nothing_is_trained_where_noise_leaves_own_columns_one_value(plan: SealedPlan, tmp_path: Path) -> None:
    sealed, made = SealedTables.of(plan), generator("arn")
    view = sealed.plan(plan, "drugs")
    parameters, learned = made.sealed(view.parameters), LearnedColumns.planned(Domain.from_json(view.columns))
    own = next(index for index in range(len(learned.shares)) if index not in parameters.evidence)
    merged = [np.ones(1) if index == own else share for index, share in enumerate(learned.shares)]
    assert not made._left_untrained(parameters, learned, tmp_path)
    assert made._left_untrained(parameters, replace(learned, shares=merged), tmp_path)
