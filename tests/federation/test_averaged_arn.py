"""The network `arn` by federated averaging: a client's shares and training, and what the whole learns."""

import itertools

import numpy as np
import pytest
from federated_cases import contract, rows

from dpsynth_platform.federation.averaged_arn import AveragedArn, column_shares, counted_columns
from dpsynth_platform.federation.averaging import AveragingServer, Client, noisy_sum
from dpsynth_platform.federation.averaging_plan import AveragingPlan
from dpsynth_platform.foundation.errors import ConfigurationError, MechanismFailed
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.trial import NoJournal

CLIENTS, B = 40, 25
GUARANTEE = Guarantee(8.0, 1e-5, "user", "zero-out", B)
NUMBERS = {"clients": CLIENTS, "rounds": 24, "cohort": 10, "participations": 6, "separation": 4, "columns_share": 0.3}
PLAN = AveragingPlan.calibrated(
    GUARANTEE, **NUMBERS, momentum=0.5, clipping_norm=2.0, server_rate=2.0, local_rate=0.5, local_steps=3
)
DOMAIN = planned_domain(contract())
TABLE = rows(CLIENTS * B)
NAMES = [f"{number:02d}" for number in range(CLIENTS)]
OWN = {name: TABLE.slice(number * B, B) for number, name in enumerate(NAMES)}


@pytest.fixture
def the_same_each_time(monkeypatch):
    """First weights, orders and draws, so that a test of learning fails never or always."""
    sources, fresh = itertools.count(), np.random.default_rng
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    monkeypatch.setattr("os.urandom", lambda number: bytes([next(sources) % 256]) * number)
    monkeypatch.setattr(np.random, "default_rng", lambda seed=None: fresh(next(sources) if seed is None else seed))
    monkeypatch.setattr("secrets.SystemRandom.sample", lambda self, names, number: names[:number])


def learned_of(plan=PLAN, clients=None):
    shares = [column_shares(DOMAIN, plan, OWN[name]) for name in NAMES]
    describing = clients or {name: Client(name, plan, np.copy, GUARANTEE, None) for name in NAMES}
    updates = [client.describe(vector) for client, vector in zip(describing.values(), shares, strict=True)]
    return counted_columns(DOMAIN, plan, noisy_sum(plan, updates, sum(DOMAIN.sizes), None))


def pairs(codes):
    return k_way_distance(DOMAIN.encode(TABLE), codes, DOMAIN.sizes, 2).mean


def trained(plan=PLAN):
    """The network, and the weights after all rounds, by messages of clients with their own records."""
    arn = AveragedArn(learned_of(plan), plan, width=4)
    clients = {name: Client(name, plan, arn.training(OWN[name]), GUARANTEE, None) for name in NAMES}
    server = AveragingServer(plan, first := arn.weights, NAMES, NoJournal())
    while server.rounds_left:
        for name, asked in server.ask(NAMES).items():
            server.take(clients[name].answer(asked))
        server.close()
    return arn, first, server.weights


def test_clients_shares_have_norm_one_at_most_and_count_alike():
    one = column_shares(DOMAIN, PLAN, OWN["00"])
    assert np.linalg.norm(one) <= 1 and one.shape == (sum(DOMAIN.sizes),)
    assert np.add.reduceat(one, np.append(0, np.cumsum(DOMAIN.sizes)[:-1])) == pytest.approx(len(DOMAIN) ** -0.5)
    equal = column_shares(DOMAIN, PLAN, OWN["00"].take([0] * B))
    assert np.linalg.norm(equal) == pytest.approx(1) and equal.tolist() == pytest.approx(
        column_shares(DOMAIN, PLAN, OWN["00"].slice(0, 1)).tolist()
    )
    assert not column_shares(DOMAIN, PLAN, TABLE.slice(0, 0)).any()


def test_nothing_of_a_client_stays_in_the_shared_network(the_same_each_time):
    arn = AveragedArn(learned_of(), PLAN, width=4)
    first = arn.weights
    moved = arn.training(OWN["00"])(first + 0.5)
    assert np.abs(moved).max() > 0 and np.array_equal(arn.weights, first)


def test_more_rows_than_the_bound_are_refused():
    with pytest.raises(ConfigurationError, match="plan's 25"):
        column_shares(DOMAIN, PLAN, TABLE.slice(0, B + 1))
    with pytest.raises(ConfigurationError, match="plan's 25"):
        AveragedArn(learned_of(), PLAN).training(TABLE.slice(0, B + 1))


def test_without_noise_the_first_sum_is_of_the_columns(monkeypatch):
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: None)
    learned = learned_of()
    for at in range(3):  # the last column's values are spread evenly within fewer states
        states, shares = learned.states[at], learned.shares[at]
        real = np.bincount(states.state_of[DOMAIN.encode(TABLE)[:, at]], minlength=states.size) / TABLE.num_rows
        assert shares == pytest.approx(real, abs=1e-3)
    with pytest.raises(MechanismFailed, match="of this plan"):
        counted_columns(DOMAIN, PLAN, np.zeros(3))


def test_a_clients_update_is_descent_on_its_own_rows(monkeypatch):
    """One step: by the slope of the loss along the update, which is -|update|^2 over the rate, in the fixed order."""
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: None)
    plan = AveragingPlan.calibrated(GUARANTEE, **NUMBERS, local_rate=0.01)
    arn = AveragedArn(learned_of(plan), plan, width=4, fixed_order=1.0)
    first = arn.weights
    update = arn.training(OWN["03"])(first)
    states = arn.learned.states_of(DOMAIN.encode(OWN["03"]))

    def loss(weights):
        import torch

        arn.load(weights)
        drawn = arn._rows.drawn({"states": torch.from_numpy(states.astype(np.int64))}, 1)
        return float(arn._rows.losses(arn.network, drawn).double().mean().detach())

    slope = (loss(first + 20 * update) - loss(first - 20 * update)) / 40
    assert slope == pytest.approx(-np.dot(update, update) / 0.01, rel=0.02)
    assert not arn.training(TABLE.slice(0, 0))(first).any()
    with pytest.raises(ConfigurationError, match="accepted"):
        arn.load(first[1:])


def test_without_noise_it_learns_how_columns_depend(the_same_each_time, monkeypatch):
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: None)
    arn, first, weights = trained()
    alone, together = (pairs(arn.drawn_codes(each, 4000)) for each in (np.zeros_like(first), weights))
    assert together < 0.5 * alone
    codes = arn.drawn_codes(weights, 4000)
    assert k_way_distance(DOMAIN.encode(TABLE), codes, DOMAIN.sizes, 1).mean < 0.02


def test_with_noise_it_runs_to_the_end_within_the_guarantee():
    PLAN.check(GUARANTEE)
    arn, _, weights = trained()
    codes = arn.drawn_codes(weights, 100)
    assert codes.shape == (100, len(DOMAIN)) and (codes >= 0).all() and (codes < np.array(DOMAIN.sizes)).all()
