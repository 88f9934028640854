"""The plan of federated marginals, its rounds, and the model. Each statistical bound is missed below 1e-6."""

import itertools
import json
import math
from contextlib import suppress
from dataclasses import asdict, replace

import federated_cases
import numpy as np
import pyarrow as pa
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from federated_cases import COLUMNS, NAMES, SCHEMA, contract, plain_sum, plan_of, rows, started
from scipy.special import ive
from seeded_stream import Counted

from dpsynth_platform.federation import noise, trust
from dpsynth_platform.federation.coordinator import run_rounds
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.sums import SCALE
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_to_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.measurements import NoisyCounts, read_measurements
from dpsynth_platform.synth.tabular.model import load_model


@pytest.fixture
def seeded(monkeypatch):
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(federated_cases, "sample_skellam", lambda variance, number: np.zeros(number, dtype=np.int64))


# The plan.


def losses(variance, tables):
    """The privacy loss of one record in each of so many tables, from the masses of Bessel functions."""
    reach = math.ceil(10 * math.sqrt(variance)) + SCALE
    masses = {k: math.log(float(ive(abs(k), variance))) for k in range(-reach, reach + 1)}
    moved = {k + SCALE: mass for k, mass in masses.items()}
    one = pld.from_two_probability_mass_functions(masses, moved, value_discretization_interval=1e-4)
    return one.self_compose(tables)


@pytest.mark.parametrize("method", ["independent", "mst", "aim"])
def test_the_plan_costs_what_losses_of_its_noise_compose_to(method):
    plan = plan_of(method, 4.0)
    honest = plan.terms.minimum - plan.terms.colluders
    parts = [
        losses(honest * variance, tables)
        for variance, (_, tables) in zip(plan.terms.share_variances, plan.rounds, strict=True)
    ]
    composed = parts[0]
    for part in parts[1:]:
        composed = composed.compose(part)
    assert [tables for _, tables in plan.rounds] == {"independent": [4], "mst": [4, 6, 3], "aim": [4, 6, 6]}[method]
    assert composed.get_epsilon_for_delta(1e-5) == pytest.approx(4.0, rel=0.01)
    assert 3.98 < epsilon(plan.event, 1e-5).epsilon <= 4.0


def test_the_sums_of_all_rounds_cost_the_event_of_the_plan(silent, tmp_path):
    plan, asked = plan_of(), []
    runs = started(plan, tmp_path / "parties", rows(400))
    (tmp_path / "model").mkdir()

    def opened(round_):
        asked.append(round_)
        return plain_sum(runs)(round_)

    run_rounds(plan, tmp_path / "model", opened)
    against = trust.protections("distributed", [each.sum for each in asked], 1e-5)
    spent = epsilon(plan.event, 1e-5).epsilon
    assert {party.epsilon for party in against} == {spent}
    assert sum(times for _, times in leaves(plan.event)) == 4 + 6 + 3 == sum(each.sum.tables for each in asked)


def test_thirty_percent_may_drop_out_of_a_round_within_the_guarantee():
    names = [f"site{number}" for number in range(10)]
    plan = plan_of(participants=names, minimum=7, colluders=0)
    whole = plan_of(participants=names, minimum=10, colluders=0)
    for index, (_, tables) in enumerate(plan.rounds):
        each = plan.terms.sum_of(index, tables, tables, "add-or-remove")
        assert each.protecting_variance == 7 * each.share_variance
        assert 7 * each.share_variance == pytest.approx(10 * whole.terms.share_variances[index], rel=1e-3)
    assert epsilon(plan.event, 1e-5).epsilon <= 2.0


def test_one_person_in_two_silos_is_a_unit_of_the_records_in_both():
    one, plan = plan_of("independent"), plan_of("independent", silos=2)
    assert plan.guarantee.max_contributions == 2
    assert {leaf.max_contributions for leaf, _ in leaves(plan.event)} == {2}
    assert plan.terms.share_variances == pytest.approx([4 * each for each in one.terms.share_variances], rel=0.01)


def test_noise_is_no_more_than_that_of_the_central_mechanism():
    """Without dropouts and colluders. Both give a third to the choice of the tree."""
    plan = plan_of(minimum=4, colluders=0)
    central = calibrate_mst(4, plan.guarantee)
    deviations = [math.sqrt(4 * variance) / SCALE for variance in plan.terms.share_variances]
    assert deviations[0] < 1.02 * central.sigma_one
    assert deviations[2] < 1.02 * central.sigma_two


def test_few_columns_need_fewer_rounds():
    columns = {"drink": {"type": "boolean"}, "food": {"type": "boolean"}}
    schema = pa.schema([("person", pa.string()), ("drink", pa.bool_()), ("food", pa.bool_())])
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 9}
    two = MarginalsPlan.of(contract(columns=columns), schema, method="mst", **terms)
    assert two.rounds == (("one-way", 2), ("joint", 1))
    one = MarginalsPlan.of(contract(columns=columns | {"food": {"type": "identifier"}}), schema, method="mst", **terms)
    assert one.rounds == (("one-way", 1),)
    first = two.round(0, [(0,), (1,)], [range(3), range(3)])
    tables = first.noisy(np.zeros(6, dtype=np.int64), 3)
    assert two.next_round([tables]).cliques == ((0, 1),)
    assert two.next_round([tables, tables]) is None


def test_documents_and_sums_are_as_long_as_the_plan_says_at_most():
    """Of all pairs, in cells of their own: as `mst` and `aim` ask for them, and whatever a server asks for."""
    for plan in (plan_of(), plan_of("aim"), plan_of("independent")):
        pairs, groups = [*itertools.combinations(range(4), 2)], [[*range(size)] for size in plan.domain.sizes]
        for index, (stage, most) in enumerate(plan.rounds):
            cliques = [(column,) for column in range(4)] if stage == "one-way" else pairs[:most]
            asked = plan.round(index, cliques, groups)
            assert len(json.dumps(asked.to_json(), separators=(",", ":"))) <= plan.most_document_bytes
            if stage == "one-way":
                assert asked.sum == plan.sums[index]


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ContractError, match="'gem'"):
        plan_of("gem")
    with pytest.raises(ContractError, match="weighting rows"):
        plan_of(privacy={"weighting": "owners", "max_contributions": 2})
    for changes in ({"colluders": 3}, {"minimum": 5}, {"silos": 5}, {"participants": ["alone"]}):
        with pytest.raises(AccountingError):
            plan_of(**changes)


def altered(plan, **changes):
    """The plan with other parameters, sealed anew, with the event that follows from them where there is one."""
    sealed = replace(plan.sealed, parameters=plan.sealed.parameters | changes)
    with suppress(AccountingError, TypeError, ValueError):
        sealed = replace(sealed, event=event_to_json(MarginalsPlan(sealed).event))
    return sealed.to_json()


def test_a_plan_is_recomputed_by_who_reads_it():
    plan = plan_of()
    assert MarginalsPlan.from_json(plan.to_json()) == plan
    with pytest.raises(GrantRefused):
        MarginalsPlan.from_json(plan.to_json().replace('"minimum": 3', '"minimum": 2'))
    less = [variance - 1024.0 for variance in plan.terms.share_variances]
    with pytest.raises(AccountingError, match=r"costs epsilon 2\.\d+ .*accepted: at most"):
        MarginalsPlan.from_json(altered(plan, share_variances=less))
    with pytest.raises(AccountingError, match="colluders 2"):
        MarginalsPlan.from_json(altered(plan, colluders=2))
    for wrong in (
        {"share_variances": plan.terms.share_variances[:2]},
        {"share_variances": "123"},
        {"participants": [*reversed(NAMES)]},
        {"participants": [1, 2, 3, 4]},
        {"max_contributions": 2},
        {"minimum": 2.5},
        {"more": 1},
    ):
        with pytest.raises(AccountingError):
            MarginalsPlan.from_json(altered(plan, **wrong))
    for changes in (
        {"method": "aim"},
        {"method": "gem"},
        {"columns": []},
        {"columns": [{}]},
        {"period": "2026-01"},
        {"event": {}},
    ):
        with pytest.raises(AccountingError, match="damaged"):
            MarginalsPlan.from_json(replace(plan.sealed, **changes).to_json())


# Rounds.


def adversarial(plan, index):
    """A round with cells grouped by a coin, as no honest party would group them."""
    rng = np.random.default_rng(index)
    columns = range(len(plan.domain))
    groups = [rng.integers(0, 2, size).tolist() for size in plan.domain.sizes]
    pairs = list(itertools.combinations(columns, 2)) if index else [(column,) for column in columns]
    return plan.round(index, pairs[: plan.rounds[index][1]], groups)


@pytest.mark.parametrize(("b", "adjacency"), [(1, "add-or-remove"), (2, "add-or-remove"), (1, "replace-one")])
def test_a_unit_moves_each_table_by_what_the_event_says(b, adjacency):
    """All records of a unit, over the whole domain of three columns, in rounds of honest and of other groups."""
    columns = {name: {"type": "categorical", "values": ["x", "y"]} for name in ("drink", "food", "town")}
    plan = plan_of(columns=columns, privacy={"max_contributions": b, "adjacency": adjacency})
    values = ["x", "y", None]
    whole = plan.round(1, [(0, 1), (0, 2), (1, 2)], [range(3)] * 3)
    alone = plan.round(0, [(0,), (1,), (2,)], [range(3)] * 3)
    for asked in (alone, whole, adversarial(plan, 0), adversarial(plan, 1), adversarial(plan, 2)):
        records = []
        for record in itertools.product(values, repeat=3):
            table = pa.table({name: pa.array([value]) for name, value in zip(columns, record, strict=True)})
            records.append(asked.counted(table.cast(pa.schema([(name, pa.string()) for name in columns])), plan.domain))
        ends = np.cumsum([len(table) for table in split(asked, records[0])])[:-1]
        units = [np.sum(chosen, axis=0) for chosen in itertools.combinations_with_replacement(records, b)]
        others = units if adjacency == "replace-one" else [np.zeros_like(records[0])]
        moved = [np.split(unit - other, ends) for unit in units for other in others]
        sensitivity = next(iter(leaves(asked.sum.event)))[0].sensitivity
        for place in range(asked.sum.tables):
            l1 = max(np.abs(tables[place]).sum() for tables in moved) * SCALE
            squared = max((tables[place] ** 2).sum() for tables in moved) * SCALE**2
            assert l1 <= sensitivity.l1 and squared <= sensitivity.l2_squared
            if asked in (alone, whole):
                assert (l1, squared) == (sensitivity.l1, sensitivity.l2_squared)


def split(asked, vector):
    sizes = [max(groups) + 1 for groups in asked.cell_groups]
    ends = np.cumsum([math.prod(sizes[column] for column in clique) for clique in asked.cliques])
    return np.split(vector, ends[:-1])


def test_a_round_is_the_same_for_all_and_nothing_else_is_counted():
    plan = plan_of()
    first = plan.next_round([])
    again = MarginalsPlan.from_json(plan.to_json()).round(**json.loads(json.dumps(first.to_json())))
    assert again == first and first.sum.tables == 4 and first.sum.length == 4 + 3 + 5 + 11
    assert plan_of(epsilon=2.1).next_round([]).digest != first.digest
    groups = [list(column) for column in first.cell_groups]
    pairs = list(itertools.combinations(range(4), 2))
    beyond = [[*groups[0][:-1], 4], *groups[1:]]
    for wrong in (
        (3, pairs, groups),
        (-1, pairs, groups),
        ("0", pairs, groups),
        (True, pairs, groups),
        (0, [(0.0,)], groups),
        (0, pairs[:4], groups),
        (0, [], groups),
        (0, [(0,), (0,)], groups),
        (0, [(0,), (1,), (2,), (3,), (0,)], groups),
        (0, [(4,)], groups),
        (1, [(1, 0)], groups),
        (1, [(1, 1)], groups),
        (1, [(0,)], groups),
        (2, pairs[:4], groups),
        (1, pairs, groups[:3]),
        (1, pairs, [groups[0][:-1], *groups[1:]]),
        (1, pairs, beyond),
        (1, pairs, [[-1] * 4, *groups[1:]]),
        (1, pairs, [[0.0] * 4, *groups[1:]]),
        (1, 7, groups),
    ):
        with pytest.raises(AccountingError, match="does not allow"):
            plan.round(*wrong)


def test_an_opened_sum_is_read_in_records_with_the_noise_of_those_who_finished():
    plan = plan_of("independent")
    first = plan.next_round([])
    opened = np.arange(first.sum.length, dtype=np.int64) * SCALE + 7
    tables = first.noisy(opened, 3)
    assert [table.counts.tolist() for table in tables[:2]] == [[0, 1, 2, 3], [4, 5, 6]]
    assert {table.sigma for table in tables} == {math.sqrt(3 * plan.terms.share_variances[0]) / SCALE}
    assert first.noisy(opened + 1, 3)[0].counts.tolist() == [1, 2, 3, 4]


def test_the_tree_joins_the_strongest_pairs():
    plan, table = plan_of(), rows(3000)
    first = plan.next_round([])
    measured = [first.noisy(first.counted(table, plan.domain) * SCALE, 4)]
    second = plan.next_round(measured)
    measured.append(second.noisy(second.counted(table, plan.domain) * SCALE, 4))
    third = plan.next_round(measured)
    assert [tuple(plan.domain.names[column] for column in edge) for edge in third.cliques] == [
        ("drink", "food"),
        ("drink", "town"),
        ("town", "age"),
    ]
    assert third.sum.tables == 3
    # Whatever is opened, there is a next round that the plan allows.
    for extreme in (-(10**9), 0, 10**12):
        wild = []
        for tables in (4, 6, 3):
            asked = plan.next_round(wild)
            assert asked.sum.tables == tables
            wild.append(asked.noisy(np.full(asked.sum.length, extreme, dtype=np.int64), 3))


# The model.


def test_noise_that_is_nothing_gives_the_counts_of_all_rows(silent, tmp_path):
    plan, table = plan_of(), rows(2000)
    (tmp_path / "model").mkdir()
    run_rounds(plan, tmp_path / "model", plain_sum(started(plan, tmp_path, table)))
    stored = read_measurements(tmp_path / "model", plan.digest)
    model = load_model(tmp_path / "model")
    assert model.total == pytest.approx(2000)
    codes = model.domain.encode(table)
    for noisy in stored.one_way:
        assert noisy.counts.tolist() == np.bincount(codes[:, noisy.clique[0]], minlength=noisy.counts.size).tolist()
    assert [noisy.counts.sum() for noisy in stored.joint] == [2000] * 6
    assert (
        stored.chosen
        == tuple(noisy.clique for noisy in stored.joint[:3])
        == (tuple(n.clique for n in stored.joint[3:]))
    )


@pytest.mark.parametrize("method", ["independent", "mst", "aim"])
def test_rows_of_a_run_are_near_those_of_all_participants_together(seeded, tmp_path, method):
    """Noise is seeded. The rows' own draws move a distance by up to 0.02, but for a chance of exp(-2 20000 0.02^2)."""
    plan, table = plan_of(method, minimum=4, colluders=0), rows(4000)
    runs = started(plan, tmp_path, table)
    (tmp_path / "model").mkdir()
    digest = run_rounds(plan, tmp_path / "model", plain_sum(runs))
    assert [run.complete(digest).model_digest for run in runs] == [digest] * 4
    made = generator(method).draw(tmp_path / "model", 20_000).table()
    assert made.schema.names == SCHEMA.names
    real, other = (plan.domain.encode(each) for each in (table, made))
    one, two = (k_way_distance(real, other, plan.domain.sizes, ways).mean for ways in (1, 2))
    assert one < 0.025
    assert two > 0.3 if method == "independent" else two < 0.035


def test_rounds_go_on_without_those_who_drop_out_and_end_below_the_minimum(seeded, tmp_path):
    plan = plan_of()
    (tmp_path / "model").mkdir()
    run_rounds(plan, tmp_path / "model", plain_sum(started(plan, tmp_path, rows(900)), {0: 1, 2: 1}))
    stored = read_measurements(tmp_path / "model", plan.digest)
    shares = plan.terms.share_variances
    assert {noisy.sigma for noisy in stored.one_way} == {math.sqrt(3 * shares[0]) / SCALE}
    assert {noisy.sigma for noisy in stored.joint[:3]} == {math.sqrt(4 * shares[1]) / SCALE}
    assert {noisy.sigma for noisy in stored.joint[3:]} == {math.sqrt(3 * shares[2]) / SCALE}
    (tmp_path / "other").mkdir()
    with pytest.raises(MechanismFailed, match=r"round 1 .* with 2 participants"):
        run_rounds(plan, tmp_path / "other", plain_sum(started(plan, tmp_path, rows(90), "next"), {1: 2}))
    with pytest.raises(MechanismFailed, match="stopped before"):
        read_measurements(tmp_path / "other", plan.digest)
    (tmp_path / "third").mkdir()
    with pytest.raises(MechanismFailed, match="of those that the plan names"):
        run_rounds(
            plan, tmp_path / "third", lambda asked: (np.zeros(asked.sum.length, dtype=np.int64), ["a", "b", "c"])
        )


def test_a_model_on_disk_knows_the_federated_plan(seeded, tmp_path):
    plan = plan_of("independent")
    (tmp_path / "model").mkdir()
    run_rounds(plan, tmp_path / "model", plain_sum(started(plan, tmp_path, rows(300))))
    stored = load_model(tmp_path / "model").plan
    assert isinstance(stored, SealedPlan) and MarginalsPlan(stored) == plan
    assert stored.parameters == asdict(plan.terms) and Guarantee.from_json(stored.guarantee).epsilon == 2.0
    assert isinstance(read_measurements(tmp_path / "model", plan.digest).one_way[0], NoisyCounts)


@pytest.mark.parametrize("method", ["mst", "aim"])
@pytest.mark.parametrize("columns", [("drink",), ("drink", "food")])
def test_one_and_two_columns_leave_nothing_to_choose(tmp_path, method, columns):
    plan = plan_of(method, columns={name: COLUMNS[name] for name in columns})
    (tmp_path / "model").mkdir()
    table = rows(500).select(["person", *columns])
    run_rounds(plan, tmp_path / "model", plain_sum(started(plan, tmp_path, table)))
    assert len(plan.rounds) == len(columns)
