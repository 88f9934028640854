"""Federated training of `arn`: what a unit moves over all rounds, whatever they ask; rounding, steps, whole runs."""

import base64
import hashlib
import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from federated_cases import COLUMNS, NAMES, SCHEMA, contract, rows
from seeded_stream import Counted
from test_exchanges import Ending, Killed, run
from test_nodes import Wires, nodes_of, states

from dpsynth_platform.federation import gradients, noise
from dpsynth_platform.federation.coordinator import run_rounds
from dpsynth_platform.federation.exchanges import Exchanges
from dpsynth_platform.federation.gradients import PARTS, GradientsPlan, rounded
from dpsynth_platform.federation.mechanisms import plan_of
from dpsynth_platform.federation.noise import sample_skellam
from dpsynth_platform.foundation.errors import AccountingError, ContractError, StaleInput
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import SkellamSumsEvent
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural import arn_network

SHORT = {name: COLUMNS[name] for name in ("drink", "food")}


def plan_for(target=4.0, *, columns=COLUMNS, privacy=None, **changes):
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000} | changes
    return GradientsPlan.of(contract(target, columns=columns, **privacy or {}), SCHEMA, **terms)


def owned(table, per=1):
    """With fingerprints of owners, of so many rows each."""
    owners = [hashlib.md5(str(row // per).encode()).hexdigest() for row in range(table.num_rows)]
    return table.append_column(OWNER_COLUMN, pa.array(owners, pa.string()))


@pytest.fixture(scope="module")
def plan():
    return plan_for()


@pytest.fixture(scope="module")
def small():
    return plan_for(2.0, columns=SHORT, privacy={"max_contributions": 2})


def document(plan, number, weights=None, *, sizes=None, seed=0):
    """A round of training as any server may send it."""
    sizes = sizes or [len(values["values"]) + 1 for values in SHORT.values()]
    groups = [[cell % size for cell in range(cells)] for cells, size in zip(plan.domain.sizes, sizes, strict=True)]
    length = gradients._weights(sizes, plan.training.width)
    found = np.random.default_rng(seed).normal(0, 1, length) if weights is None else np.full(length, weights)
    coded = base64.b64encode(found.astype("<f4").tobytes()).decode()
    return {
        "index": plan.before + number,
        "groups": groups,
        "shares": [[1 / size] * size for size in sizes],
        "weights": coded,
    }


def of_each_slot(plan, number):
    """Two rows of each of so many units, the first of them in different slots."""
    found, place = {}, 0
    while len(found) < plan.terms.separation:  # a thousand fingerprints without one have a chance below 1e-96
        name = hashlib.md5(f"unit {place}".encode()).hexdigest()
        found.setdefault(plan.slot(name), name)
        place += 1
    names = [*found.values(), *(f"{each:032x}" for each in range(number - len(found)))]
    return rows(2 * number).append_column(OWNER_COLUMN, pa.array([name for name in names for _ in range(2)]))


def vectors(plan, documents, table):
    """What one participant's rows give in each round, as a node computes them."""
    memory = {}
    return [plan.vector(plan.read_round(each), table, memory) for each in documents]


def moved(plan, documents, table, who):
    """By how much the vectors of all rounds move without a unit: squared L2, and L1."""
    others = table.filter(pa.array([each != who for each in table[OWNER_COLUMN].to_pylist()]))
    both = zip(vectors(plan, documents, table), vectors(plan, documents, others), strict=True)
    changes = [one - other for one, other in both]
    return sum(int((each * each).sum()) for each in changes), sum(int(np.abs(each).sum()) for each in changes)


def training_event(plan):
    return next(leaf for leaf in plan.event.events if isinstance(leaf, SkellamSumsEvent))


# What a unit moves.


@pytest.mark.parametrize("wild", [None, 1e38, 0.0, 30.0])
def test_a_unit_moves_all_rounds_together_by_no_more_than_the_event_says(small, wild):
    """Rounds with other weights each time; some of a network of other sizes, or left out. Of units in each slot."""
    table = of_each_slot(small, 12)
    documents = [document(small, number, wild, seed=number) for number in range(small.terms.rounds)]
    others = [document(small, 3, wild, sizes=[2, 2]), *documents[7:9], *documents[12:]]
    event, whole = training_event(small), []
    units = list(dict.fromkeys(table[OWNER_COLUMN].to_pylist()))[: small.terms.separation + 1]
    for who in units:
        for asked in (documents, others):
            l2_squared, l1 = moved(small, asked, table, who)
            assert l2_squared <= event.l2_squared and l1 <= event.l1
            whole.append(l2_squared)
    if wild is None:  # so the bound is not far: the gradients are longer than the clipping norm
        assert max(whole) > 0.9 * event.l2_squared


def test_the_bound_would_find_a_unit_in_the_rounds_of_two_slots(small):
    table = owned(rows(24), per=2)
    documents = [document(small, number, seed=number) for number in range(small.terms.rounds)]
    who, event = table[OWNER_COLUMN][0].as_py(), training_event(small)
    with patch.object(gradients.GradientsPlan, "slot", lambda plan, name: _Either()):
        assert moved(small, documents, table, who)[0] > 1.5 * event.l2_squared


class _Either:
    """Equal to two slots."""

    def __eq__(self, slot):
        return slot in (0, 1)

    __hash__ = None


def test_a_unit_adds_the_same_whatever_other_units_there_are(small):
    """The vectors of a table are the sum of those of its units, each alone, in any order."""
    table = owned(rows(12), per=2)
    documents = [document(small, number, seed=number) for number in range(8)]
    units = [table.slice(start, 2) for start in range(0, 12, 2)]
    alone = [vectors(small, documents, unit) for unit in units]
    turned = [unit.take([1, 0]) for unit in units]  # so may they be read where other units move batches
    for order in (units, units[::-1], turned):
        for number, found in enumerate(vectors(small, documents, pa.concat_tables(order))):
            assert np.array_equal(found, sum(each[number] for each in alone))


def test_rows_without_owners_are_units_where_the_plan_says_so(small):
    """A node writes no owners then. Each row is in the rounds of one slot, also of rows that are alike."""
    plan = plan_for(2.0, columns=SHORT, privacy={"unit": "example"})
    alike = rows(1).take([0] * 60)
    memory, documents = {}, [document(plan, number, 0.0) for number in range(plan.terms.separation)]
    found = [plan.vector(plan.read_round(each), alike, memory) for each in documents]
    assert len(memory["units"]) == 60 and any(each.any() for each in found)
    with pytest.raises(StaleInput, match="lacks column '_owner'"):
        small.read_units(alike)


def test_the_event_is_that_of_the_whole_matrix(small):
    """C as a matrix, and the worst of all rounds that a slot has; two silos are twice as far."""
    terms = small.terms
    matrix = np.zeros((terms.rounds, terms.rounds), dtype=np.int64)
    for back, coefficient in enumerate(terms.coefficients):
        matrix += coefficient * np.eye(terms.rounds, k=-back, dtype=np.int64)
    slots = [matrix[:, slot :: terms.separation].sum(axis=1) for slot in range(terms.separation)]
    worst = max(int(each @ each) for each in slots) * terms.scale**2
    event = training_event(small)
    assert worst <= event.l2_squared <= worst * (1 + 1e-9) + 1
    assert event.variance == 2 * terms.share_variances[0]  # of the three that finish, one may be known
    assert event.l1 >= np.sqrt(terms.rounds * small.most_weights * worst) - 1
    twice = plan_for(2.0, columns=SHORT, privacy={"max_contributions": 2}, silos=2)
    assert training_event(twice).l2_squared == pytest.approx(4 * event.l2_squared, rel=1e-6)
    assert training_event(twice).variance > 3.9 * event.variance  # the same epsilon, beside counts that cost the same
    assert epsilon(small.event, 1e-5).epsilon <= 2.0


def test_replaced_records_move_twice_as_far():
    """And other adjacencies have the same noise for the same guarantee, or are refused."""
    plain, replaced = (
        plan_for(columns=SHORT, privacy={"adjacency": adjacency, "unit": "user"})
        for adjacency in ("zero-out", "replace-one")
    )
    assert training_event(replaced).sensitivity.l2_squared == 4 * training_event(plain).sensitivity.l2_squared


# Rounding.


def test_rounding_has_no_bias_and_no_vector_is_longer_than_the_norm():
    """The mean over an even grid of dithers is the vector, but for the grid; however long it was, at any length."""
    rng, scale = np.random.default_rng(3), 64
    vector = rng.normal(0, 1, 200)
    vector *= 0.5 / np.linalg.norm(vector)
    steps = 1000
    grid = [rounded(vector, scale, np.full(200, (step + 0.5) / steps)) for step in range(steps)]
    assert np.abs(np.mean(grid, axis=0) - vector * scale).max() <= 1 / steps
    for length in (0.1, 1.0, 1e3, 1e30, 1e200, np.inf, np.nan):
        for dither in (np.zeros(200), np.full(200, 1 - 2.0**-24), rng.uniform(size=200)):
            found = rounded(vector * length, scale, dither)
            assert found.dtype == np.int64 and int(found @ found) <= scale**2


def test_steps_undo_the_coefficients(small):
    """Without noise, the estimates are the sums of each round."""
    rng, terms = np.random.default_rng(2), small.terms
    sums = rng.normal(size=(terms.rounds, 5))
    steps = gradients._Steps(small, np.zeros(5))
    speed, weights = np.zeros(5), np.zeros(5)
    for number in range(terms.rounds):
        opened = sum(
            coefficient / PARTS * sums[number - back]
            for back, coefficient in enumerate(terms.coefficients)
            if back <= number
        )
        steps.take(opened)
        speed = small.training.momentum * speed + sums[number] / small.training.cohort
        weights = weights - small.training.learning_rate * speed
        assert np.allclose(steps.weights, weights, rtol=1e-9)


# Plans and rounds.


def test_a_plan_is_refused_whose_parameters_are_not_those_of_its_event(small):
    sealed = small.sealed
    for key, values in (
        ("federated", {"separation": 10}),
        ("federated", {"rounds": 19}),
        ("federated", {"coefficients": [PARTS, PARTS + 1]}),
        ("federated", {"coefficients": [PARTS, 1, 1, 1, 1, 1]}),
        ("federated", {"coefficients": []}),
        ("federated", {"coefficients": "4"}),
        ("federated", {"coefficients": [4.0]}),
        ("federated", {"scale": small.terms.scale * 2}),
        ("federated", {"share_variances": [*small.terms.share_variances[1:], 1024.0]}),
        ("training", {"width": 0}),
        ("training", {"clipping_norm": 0.0}),
        ("training", {"evidence": [1]}),
        ("training", {"cohort": 0.0}),
        ("training", {"cohort": "x"}),
        ("training", {"average": 1.5}),
    ):
        parameters = sealed.parameters | {key: sealed.parameters[key] | values}
        with pytest.raises(AccountingError):
            plan_of(replace(sealed, parameters=parameters).to_json())


def test_rounds_that_the_plan_does_not_allow_are_refused(small):
    good = document(small, 3)
    assert small.read_round(json.loads(json.dumps(good))).digest == small.read_round(good).digest
    far = document(small, small.terms.rounds)
    wrong = [
        {"weights": good["weights"][:-4]},
        {"weights": base64.b64encode(np.full(len(good["weights"]) * 3 // 16, np.nan, "<f4").tobytes()).decode()},
        {"weights": document(small, 0, np.inf)["weights"]},
        {"weights": 7},
        {"shares": [[0.5, 0.5], *good["shares"][1:]]},
        {"shares": [[0.25, 0.25, 0.5, 0.0], *good["shares"][1:]]},
        {"shares": [[float("nan")] * 4, *good["shares"][1:]]},
        {"groups": [[9] * len(good["groups"][0]), *good["groups"][1:]]},
        {"groups": good["groups"][:1]},
        {"index": True},
        {"index": small.before + small.terms.rounds},
        {"further": 1},
    ]
    for change in [*wrong, far]:
        with pytest.raises(AccountingError):
            small.read_round(good | change)
    many = [[1 / 50] * 50, *good["shares"][1:]]
    with pytest.raises(AccountingError, match="a network that the plan does not allow"):
        small.read_round(good | {"shares": many})


def test_one_column_alone_teaches_no_network():
    with pytest.raises(ContractError, match="one is modelled, so that there is nothing to learn by method"):
        plan_for(columns={"drink": COLUMNS["drink"]})


def test_the_central_generator_refuses_a_federated_plan(plan):
    from dpsynth_platform.foundation.errors import GrantRefused

    with pytest.raises(GrantRefused, match="the plan of a federated run"):
        generator("arn").check(plan.sealed)


# Runs.


def agreement(table):
    """How many of the rows have the town that mostly follows from their age."""
    towns = np.array(COLUMNS["town"]["values"])
    return float(np.mean(np.array(table["town"].to_pylist()) == towns[table["age"].to_numpy().astype(int) // 3]))


def trained(plan, directory, table, *, missing=()):
    """A run with fixed noise and first weights; (round, participant) that are missing."""
    parts = {name: table.take(np.arange(at, table.num_rows, len(NAMES))) for at, name in enumerate(NAMES)}
    memories, stream, asked_of = {name: {} for name in NAMES}, Counted(), plan_of(plan.to_json())

    def open_sum(asked):
        here = asked_of.read_round(json.loads(json.dumps(asked.to_json())))
        total, live = np.zeros(asked.sum.length, dtype=np.int64), []
        for name in NAMES:
            vector = asked_of.vector(here, parts[name], memories[name])
            if (asked.index, name) not in missing:
                total += vector + sample_skellam(asked.sum.share_variance, asked.sum.length)
                live.append(name)
        return total, live

    with (
        patch.object(noise, "SecureStream", lambda: stream),
        patch.object(arn_network.secrets, "randbits", lambda _: 5),
    ):
        run_rounds(plan, directory, open_sum)
    return generator("arn").draw(directory, 2000).table()


@pytest.mark.parametrize("missing", [(), [(plan_round, NAMES[0]) for plan_round in (4, 9, 10)]])
def test_a_run_learns_how_columns_hang_together(tmp_path, plan, missing):
    """Noise and first weights are fixed, so the model is always the same, with .8 or more of its rows in agreement
    (independent columns: .3). Of 2,000 drawn rows fewer than .7 have it with a chance of exp(-2 2000 .1^2) < 1e-17."""
    place = tmp_path / "model"
    place.mkdir()
    assert agreement(trained(plan, place, owned(rows(2000)), missing=missing)) > 0.7


def test_a_run_without_a_training_signal_learns_nothing(tmp_path, plan):
    """The agreement of the test above comes from gradients: where a server adds none up, columns are independent."""
    place = tmp_path / "model"
    place.mkdir()
    with patch.object(gradients.GradientRound, "of_units", lambda asked, _: np.zeros(asked.sum.length, np.int64)):
        assert agreement(trained(plan, place, owned(rows(2000)))) < 0.5


@pytest.mark.parametrize("number", [4, 2 + 5 + 5 * 7 + 3, 2 + 5 * 21 + 1])
def test_a_run_continues_where_its_coordinator_was_killed(tmp_path, small, number):
    """Also in the middle of the training: the nodes still have the rounds before. Each pays once."""
    nodes, exchanges = nodes_of(tmp_path, owned(rows(400))), Exchanges(tmp_path / "said")
    for node in nodes.values():
        object.__setattr__(node.participant, "domain", small.domain)
        document = node.participant.policy.model_dump() | {"methods": ["arn"], "max_contributions": 2}
        object.__setattr__(node.participant, "policy", type(node.participant.policy).model_validate(document))
    with pytest.raises(Killed):
        run(Ending(nodes, number, heard=True), exchanges, small, tmp_path / "model")
    made = run(Wires(nodes), exchanges, small, tmp_path / "model")
    assert [set(names) for names in made.finished] == [set(NAMES)] * len(small.rounds)
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    assert generator("arn").draw(tmp_path / "model", 10).table().num_rows == 10


def test_what_a_run_keeps_between_rounds_is_gone_when_it_is_complete(tmp_path, small):
    nodes = nodes_of(tmp_path, owned(rows(12)))
    for node in nodes.values():
        object.__setattr__(node.participant, "domain", small.domain)
        document = node.participant.policy.model_dump() | {"methods": ["arn"], "max_contributions": 2}
        object.__setattr__(node.participant, "policy", type(node.participant.policy).model_validate(document))
    kept, vector = [], GradientsPlan.vector

    def watched(plan, asked, bounded, memory):
        kept.append(memory)
        return vector(plan, asked, bounded, memory)

    with patch.object(GradientsPlan, "vector", watched):
        run(Wires(nodes), Exchanges(tmp_path / "said"), small, tmp_path / "model")
    assert len({id(memory) for memory in kept}) == len(NAMES) and not any(kept)
