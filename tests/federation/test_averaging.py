"""Federated averaging by a trusted aggregator: limits on both sides, the noise, what is refused, and restarts."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import toeplitz

from dpsynth_platform.federation import averaging
from dpsynth_platform.federation.averaging import (
    Asked,
    AveragingServer,
    Client,
    Participations,
    Update,
    clipped,
    kept_rounds,
    noisy_sum,
)
from dpsynth_platform.federation.averaging_plan import AveragingPlan
from dpsynth_platform.foundation.errors import (
    AccountingError,
    CheckpointFailed,
    ConfigurationError,
    MechanismFailed,
    ResumeRefused,
    RoundRefused,
)
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import MatrixGaussianEvent, SampledGaussianEvent, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.training import stream
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.trial import NoJournal

FALSE_ALARM = 1e-8
B = 50
ANY = Guarantee(1e4, 1e-5, "user", "zero-out", B)
NAMES = tuple(f"client-{number}" for number in range(8))
KEY = bytes(range(32))


def plan_of(**changes):
    parameters = {
        "clients": 8,
        "rounds": 12,
        "cohort": 4,
        "noise_multiplier": 1.5,
        "max_contributions": B,
        "participations": 3,
        "separation": 4,
        "coefficients": (1.0, 0.5, 0.375),
        "momentum": 0.5,
        "server_rate": 0.25,
    }
    return AveragingPlan(**(parameters | changes))


def poisson_of(**changes):
    return plan_of(**({"asking": "poisson", "participations": 12, "separation": 1, "coefficients": (1.0,)} | changes))


def client_of(plan, name="client-0", vector=(3.0, 4.0), record=None):
    return Client(name, plan, lambda weights: np.array(vector), ANY, record)


def asked_of(plan, number, length=2):
    return Asked(plan.digest, number, np.zeros(length))


def server_of(plan, length=2, journal=None, names=NAMES):
    return AveragingServer(plan, np.zeros(length), names, journal or NoJournal())


def update_of(plan, number, name, vector):
    return Update(plan.digest, number, name, np.array(vector, dtype=np.float64))


@pytest.fixture
def fixed_keys(monkeypatch):
    keys = itertools.count()
    monkeypatch.setattr(stream, "random_key", lambda: next(keys).to_bytes(32, "little"))


@pytest.fixture
def drawn(monkeypatch):
    """What is added as noise, in clipping norms; a list of vectors."""
    add, found = GaussianNoise.add_, []

    def recorded(self, sums, deviation):
        before = sums.clone()
        add(self, sums, deviation)
        found.append((sums - before).numpy())

    monkeypatch.setattr(GaussianNoise, "add_", recorded)
    return found


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: None)


def matrix(coefficients, rounds):
    column = np.zeros(rounds)
    column[: len(coefficients)] = coefficients
    return toeplitz(column, np.zeros(rounds))


# A client's own record.


@pytest.mark.parametrize(("participations", "separation"), [(1, 1), (2, 3), (3, 2), (7, 1)])
def test_a_client_takes_part_in_exactly_what_the_plan_allows(participations, separation):
    plan = plan_of(
        rounds=7, participations=participations, separation=separation, coefficients=(1.0,) * min(separation, 2)
    )
    for size in range(8):
        for rounds in itertools.combinations(range(1, 8), size):
            near = any(later - earlier < separation for earlier, later in itertools.pairwise(rounds))
            record, refused = Participations(plan), False
            try:
                for number in rounds:
                    record.enter(number)
            except RoundRefused:
                refused = True
            assert refused == (near or size > participations)


def test_a_client_refuses_repeated_earlier_and_impossible_rounds():
    plan = plan_of(separation=1, coefficients=(1.0,))
    client = client_of(plan)
    client.answer(asked_of(plan, 5))
    for number in (5, 4, 13, -1, True, 6.0, "6"):
        with pytest.raises(RoundRefused, match="accepted"):
            client.answer(asked_of(plan, number))
    with pytest.raises(RoundRefused, match="another plan"):
        client.answer(Asked(plan_of(noise_multiplier=0.1).digest, 6, np.zeros(2)))
    with pytest.raises(RoundRefused, match="no vector of numbers"):
        client.answer(Asked(plan.digest, 6, np.array([np.nan, 0.0])))
    with pytest.raises(RoundRefused, match="another plan"):
        client.answer(asked_of(plan, 0))
    assert client.answer(asked_of(plan, 6)).round == 6


def test_a_record_in_a_file_outlives_its_process_and_counts_before_training(tmp_path):
    plan, path = plan_of(), tmp_path / "client" / "rounds.json"
    path.parent.mkdir()

    def fails(weights):
        raise ValueError("training failed")

    with pytest.raises(ValueError, match="training failed"):
        Client("client-0", plan, fails, ANY, path).answer(asked_of(plan, 1))
    with pytest.raises(RoundRefused, match="round 4 after round 1; accepted: from round 5"):
        client_of(plan, record=path).answer(asked_of(plan, 4))
    client_of(plan, record=path).answer(asked_of(plan, 5))
    assert json.loads(path.read_text()) == {"plan": plan.digest, "rounds": [1, 5]}
    other = plan_of(rounds=13)
    with pytest.raises(RoundRefused, match="of another plan"):
        client_of(other, record=path).answer(asked_of(other, 9))
    with averaging.held_file(path.with_suffix(".lock")), pytest.raises(RoundRefused, match="another process"):
        client_of(plan, record=path).answer(asked_of(plan, 9))
    path.write_text('{"plan": 3')
    with pytest.raises(RoundRefused, match="damaged"):
        client_of(plan, record=path).answer(asked_of(plan, 9))


def test_a_client_computes_the_cost_anew_and_refuses_a_plan_above_what_it_accepts():
    plan = plan_of()
    spent = epsilon(plan.event, 1e-5).epsilon
    Client("c", plan, np.copy, Guarantee(spent * 1.001, 1e-5, "user", "zero-out", B), None)
    for accepted in (
        Guarantee(spent * 0.999, 1e-5, "user", "zero-out", B),
        Guarantee(spent * 1.001, 1e-5, "user", "zero-out", B - 1),
        Guarantee(spent * 1.001, 1e-5, "user", "add-or-remove", B),
        Guarantee(spent * 1.001, 1e-5, "example", "zero-out", B),
        Guarantee(spent * 1.001, 1e-5, "user", "zero-out", B, "owners"),
    ):
        with pytest.raises(AccountingError, match="accepted"):
            Client("c", plan, np.copy, accepted, None)


@pytest.mark.parametrize(
    "vector", [(3.0, 4.0), (0.6, 0.8), (0.3, 0.4), (0.0, 0.0), (1e300, 1e300), (1e-300, 0.0), (1.79e308, 1.79e308)]
)
@pytest.mark.parametrize("norm", [1e-6, 1.0, 7.0])
def test_clipped_vectors_are_never_longer_and_shorter_ones_are_unchanged(vector, norm):
    vector = np.array(vector)
    found = clipped(vector, norm)
    assert np.linalg.norm(found) <= norm
    with np.errstate(over="ignore"):
        if np.linalg.norm(vector) < norm * (1 - 1e-5):
            assert np.array_equal(found, vector)
        elif vector.any():
            assert np.linalg.norm(found) == pytest.approx(norm, rel=1e-5)
            assert found[0] * vector[1] == pytest.approx(found[1] * vector[0])


def test_an_update_that_is_not_finite_is_zeros():
    for value in (np.nan, np.inf, -np.inf):
        assert not client_of(plan_of(), vector=(1.0, value)).answer(asked_of(plan_of(), 1)).vector.any()


# The server.


@pytest.mark.parametrize("asking", ["separated", "seldom", "poisson"])
def test_the_server_keeps_to_the_limits_by_itself(asking):
    """Clients come and go, and answer whatever they are asked."""
    plans = {"separated": plan_of(), "seldom": plan_of(participations=2, rounds=20), "poisson": poisson_of()}
    plan, rng = plans[asking], np.random.default_rng(1)
    server, rounds = server_of(plan), {name: [] for name in NAMES}
    for number in range(1, plan.rounds + 1):
        present = [name for name in NAMES if rng.random() < 0.7]
        allowed = server.available(present)
        asked = server.ask(present)
        assert set(asked) <= set(allowed) <= set(present)
        if asking != "poisson":
            assert len(asked) == min(plan.cohort, len(allowed))
        for name, one in asked.items():
            assert one.round == number and one.plan == plan.digest
            rounds[name].append(number)
        server.close()
    for found in rounds.values():
        assert len(found) <= plan.participations
        assert all(later - earlier >= plan.separation for earlier, later in itertools.pairwise(found))
    assert any(len(found) > 1 for found in rounds.values()) and not server.rounds_left
    with pytest.raises(MechanismFailed, match="none is left"):
        server.ask(NAMES)


def test_cohorts_are_drawn_from_all_that_are_allowed(fixed_keys):
    """Each of 8 is in 4 of 8 with probability 1/2: in 400 first rounds as often as a coin says."""
    times = dict.fromkeys(NAMES, 0)
    for _ in range(400):
        for name in server_of(plan_of()).ask(NAMES):
            times[name] += 1
    for number in times.values():
        assert stats.binomtest(number, 400, 0.5).pvalue > FALSE_ALARM


def test_coins_are_independent_and_of_the_planned_probability(fixed_keys):
    """q is by the planned number of clients, 16, and not by the 8 that there are."""
    plan = poisson_of(clients=16, rounds=2000, participations=2000)
    server, asked = server_of(plan), np.zeros((2000, 8), dtype=bool)
    for row in asked:
        row[[NAMES.index(name) for name in server.ask(NAMES)]] = True
        server.close()
    for count in asked.sum(axis=0):
        assert stats.binomtest(int(count), 2000, 0.25).pvalue > FALSE_ALARM
    for one, other in itertools.combinations(range(8), 2):
        assert stats.binomtest(int((asked[:, one] & asked[:, other]).sum()), 2000, 0.0625).pvalue > FALSE_ALARM
    again = int((asked[1:] & asked[:-1]).sum())
    assert stats.binomtest(again, 1999 * 8, 0.0625).pvalue > FALSE_ALARM


def test_with_probability_one_all_are_asked():
    assert set(server_of(poisson_of(cohort=8)).ask(NAMES)) == set(NAMES)


def answers_of(plan, server, present, rng, sums):
    total = np.zeros(3)
    for name in server.ask(present):
        vector = clipped(rng.normal(size=3), plan.clipping_norm)
        server.take(update_of(plan, len(sums) + 1, name, vector))
        total += vector
    sums.append(total)


@pytest.mark.parametrize("changes", [{}, {"clipping_norm": 3.0}, {"momentum": 0.0, "coefficients": (2.0, -0.3)}])
def test_without_noise_it_is_federated_averaging_with_momentum(without_noise, changes):
    plan, rng, sums = plan_of(**changes), np.random.default_rng(2), []
    server, speed, weights = server_of(plan, 3), np.zeros(3), np.zeros(3)
    for _ in range(plan.rounds):
        answers_of(plan, server, NAMES, rng, sums)
        speed = plan.momentum * speed + sums[-1] / plan.cohort  # whoever came
        weights = weights + plan.server_rate * speed
        assert server.close() == pytest.approx(weights)


def estimates_of(plan, models):
    """What a recipient of all models knows of each round's sum; shape (rounds, length)."""
    speeds = np.diff(models, axis=0) / plan.server_rate
    before = np.concatenate([np.zeros((1, models.shape[1])), speeds[:-1]])
    return (speeds - plan.momentum * before) * plan.cohort


def test_noise_is_c_inverse_of_what_was_drawn_independently(drawn):
    plan, rng, sums = plan_of(clipping_norm=2.0), np.random.default_rng(3), []
    server = server_of(plan, 3)
    models = [server.weights]
    for _ in range(plan.rounds):
        answers_of(plan, server, NAMES, rng, sums)
        models.append(server.close())
    noise = estimates_of(plan, np.array(models)) - np.array(sums)
    assert matrix(plan.coefficients, plan.rounds) @ noise == pytest.approx(np.array(drawn))
    assert len(drawn) == plan.rounds


def test_noise_of_the_models_has_the_planned_covariance(fixed_keys):
    """Its product with C is independent noise of the planned deviation. 20,000 coordinates; fixed keys."""
    plan, length = plan_of(clipping_norm=2.0, rounds=6), 20_000
    server = server_of(plan, length)
    models = [server.weights]
    for _ in range(plan.rounds):
        server.ask(NAMES)
        models.append(server.close())
    noise = estimates_of(plan, np.array(models))
    white = matrix(plan.coefficients, 6) @ noise / (1.5 * 2.0)
    for row in white:
        assert stats.kstest(row, "norm").pvalue > FALSE_ALARM
    assert np.abs(white @ white.T / length - np.eye(6)).max() < 7 * np.sqrt(2 / length)
    inverse = np.linalg.inv(matrix(plan.coefficients, 6))
    assert np.cov(noise) / 9 == pytest.approx(inverse @ inverse.T, abs=0.1)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(3),
        np.zeros((1, 2)),
        np.zeros(2, dtype=np.float32),
        [0.0, 0.0],
        np.array([np.nan, 0.0]),
        np.array([np.inf, 0.0]),
        np.array([0.8, 0.7]),
        np.array([1e200, 1e200]),
    ],
)
def test_impossible_updates_are_refused_by_name_and_count_as_missing(without_noise, vector):
    plan = plan_of(cohort=8)
    server = server_of(plan)
    server.ask(NAMES)
    with np.errstate(over="ignore"), pytest.raises(RoundRefused, match="client client-3") as refused:
        server.take(Update(plan.digest, 1, "client-3", vector))
    assert "0.7" not in str(refused.value)
    with pytest.raises(RoundRefused, match="has answered"):
        server.take(update_of(plan, 1, "client-3", (0.1, 0.0)))
    server.take(update_of(plan, 1, "client-4", (1.0, 0.0)))
    assert server.close() == pytest.approx([0.25 / 8, 0.0])  # the others are zeros, and the divisor is as planned


def test_updates_of_others_of_other_rounds_and_repeated_ones_are_refused():
    plan, server = plan_of(), server_of(plan_of())
    with pytest.raises(RoundRefused, match="round 1"):
        server.take(update_of(plan, 1, "client-0", (0.0, 0.0)))
    with pytest.raises(MechanismFailed, match="ask first"):
        server.close()
    asked = server.ask(NAMES)
    first, *_ = asked
    (idle, *_) = [name for name in NAMES if name not in asked]
    for update in (
        update_of(plan, 1, idle, (0.0, 0.0)),
        update_of(plan, 1, "stranger", (0.0, 0.0)),
        update_of(plan, 2, first, (0.0, 0.0)),
        update_of(plan, 0, first, (0.0, 0.0)),
        update_of(plan_of(rounds=13), 1, first, (0.0, 0.0)),
    ):
        with pytest.raises(RoundRefused, match="client"):
            server.take(update)
    server.take(update_of(plan, 1, first, (0.0, 0.0)))
    with pytest.raises(RoundRefused, match="has answered"):
        server.take(update_of(plan, 1, first, (0.0, 0.0)))
    with pytest.raises(MechanismFailed, match="a round is open"):
        server.ask(NAMES)
    server.close()
    with pytest.raises(RoundRefused, match="round 2"):
        server.take(update_of(plan, 1, list(asked)[1], (0.0, 0.0)))


def test_clients_that_are_unknown_or_there_twice_are_refused():
    with pytest.raises(ConfigurationError, match="1 unknown"):
        server_of(plan_of()).ask(["stranger"])
    with pytest.raises(ConfigurationError, match="twice"):
        server_of(plan_of(), names=("a", "a"))
    with pytest.raises(ConfigurationError, match="numbers"):
        AveragingServer(plan_of(), np.array([np.nan]), NAMES, NoJournal())


# The sum before the first round.


def test_the_first_sum_has_its_noise_and_each_client_once(fixed_keys, drawn):
    plan = plan_of(columns_noise=4.0)
    clients = [client_of(plan, name) for name in NAMES]
    updates = [client.describe(np.full(5000, 1.0)) for client in clients]
    found = noisy_sum(plan, updates, 5000, None)
    assert found == pytest.approx(sum(update.vector for update in updates) + drawn[0])
    assert np.linalg.norm(updates[0].vector) == pytest.approx(1.0, rel=1e-5)
    assert stats.kstest(drawn[0] / 4.0, "norm").pvalue > FALSE_ALARM
    with pytest.raises(RoundRefused, match="once"):
        clients[0].describe(np.zeros(5000))
    clients[1].answer(asked_of(plan, 1))
    late = client_of(plan)
    late.answer(asked_of(plan, 1))
    with pytest.raises(RoundRefused, match="before any"):
        late.describe(np.zeros(2))
    with pytest.raises(RoundRefused, match="second one"):
        noisy_sum(plan, [updates[0], updates[0]], 5000, None)
    with pytest.raises(RoundRefused, match="longer than 1"):
        noisy_sum(plan, [update_of(plan, 0, "c", (1.0, 1.0))], 2, None)
    with pytest.raises(MechanismFailed):
        noisy_sum(plan_of(), [], 2, None)
    with pytest.raises(RoundRefused, match="if planned"):
        client_of(plan_of()).describe(np.zeros(2))


def test_the_first_sum_is_drawn_once_for_its_file(tmp_path):
    """Its mean over many draws would be the sum without noise."""
    plan, kept = plan_of(columns_noise=4.0), tmp_path / "sum.json"
    updates = [client_of(plan, name).describe(np.full(50, 1.0)) for name in NAMES]
    found = noisy_sum(plan, updates, 50, kept)
    assert np.array_equal(noisy_sum(plan, updates, 50, kept), found)
    assert not np.array_equal(noisy_sum(plan, updates, 50, None), found)
    assert kept.stat().st_mode & 0o777 == 0o600
    with pytest.raises(MechanismFailed, match="the sum of another plan"):
        noisy_sum(plan_of(columns_noise=5.0), updates, 50, kept)


def test_a_round_whose_state_is_not_kept_shows_no_model(monkeypatch):
    class Full(NoJournal):
        def save(self, state, *, now=False):
            raise OSError("no space")

    plan = plan_of()
    server = server_of(plan, 3, Full())
    server.ask(NAMES)
    with pytest.raises(OSError, match="no space"):
        server.close()
    assert np.array_equal(server.weights, np.zeros(3)) and server.rounds_left == plan.rounds


# The plan.


def test_the_event_is_what_the_rounds_do():
    plan = plan_of(columns_noise=4.0)
    (first, _), (training, times) = leaves(plan.event)
    assert times == 1 and first.sigma == 4.0 and first.adjacency == "zero-out"
    assert training == MatrixGaussianEvent(1.5, (1.0, 0.5, 0.375), 12, 3, 4, "zero-out", B)
    ((step, times),) = leaves(poisson_of().event)
    assert (step, times) == (SampledGaussianEvent(1.5, 0.5, "user", "zero-out", B), 12)


@pytest.mark.parametrize("changes", [{}, {"columns_share": 0.2}, {"asking": "poisson", "separation": 1}, {"bands": 2}])
def test_calibrated_plans_meet_their_guarantee_with_little_to_spare(changes):
    guarantee = Guarantee(4.0, 1e-5, "user", "zero-out", B)
    numbers = {"clients": 1000, "rounds": 20, "cohort": 100, "separation": 10, "momentum": 0.9} | changes
    if numbers.get("asking") != "poisson":
        numbers["participations"] = 2
    plan = AveragingPlan.calibrated(guarantee, **numbers)
    plan.check(guarantee)
    assert 3.98 < epsilon(plan.event, 1e-5).epsilon <= 4
    assert len(plan.coefficients) == {"poisson": 1}.get(plan.asking, changes.get("bands", 10))
    assert (plan.columns_noise is not None) == ("columns_share" in changes)
    assert AveragingPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert AveragingPlan.from_json(plan.to_json()).digest == plan.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": 3},
        {"rounds": 0},
        {"cohort": 1.5},
        {"noise_multiplier": 0.0},
        {"clipping_norm": float("inf")},
        {"asking": "shuffled"},
        {"participations": 13},
        {"separation": 0},
        {"coefficients": (0.0,)},
        {"coefficients": (1.0, 2.0), "separation": 1},
        {"columns_noise": -1.0},
        {"momentum": 1.0},
        {"server_rate": 0.0},
        {"local_steps": True},
        {"max_contributions": 0},
        {"asking": "poisson"},
    ],
)
def test_impossible_plans_are_refused(changes):
    with pytest.raises(AccountingError, match="accepted"):
        plan_of(**changes)


def test_impossible_calibrations_and_documents_are_refused():
    guarantee = Guarantee(4.0, 1e-5, "user", "zero-out", B)
    numbers = {"clients": 10, "rounds": 5, "cohort": 5, "separation": 2}
    for given, changes in (
        (Guarantee(4.0, 1e-5, "user", "add-or-remove", B), {}),
        (guarantee, {"bands": 3}),
        (guarantee, {"bands": 0}),
        (guarantee, {"columns_share": 1.0}),
        (guarantee, {"noise_multiplier": 1.0}),
        (guarantee, {"unknown": 1.0}),
    ):
        with pytest.raises(AccountingError, match="accepted"):
            AveragingPlan.calibrated(given, **(numbers | changes))
    document = plan_of().to_json()
    for changed in ({**document, "more": 1}, {**document, "coefficients": 1.0}, [], {"rounds": 1}):
        with pytest.raises(AccountingError):
            AveragingPlan.from_json(changed)


def test_the_aggregator_has_no_guarantee_and_the_words_say_so():
    plan = plan_of()
    aggregator, others, recipient = plan.protections(1e-5)
    assert (aggregator.party, aggregator.epsilon, aggregator.rests_on) == ("aggregator", None, "nothing")
    spent = epsilon(plan.event, 1e-5).epsilon
    assert others.epsilon == recipient.epsilon == spent and recipient.rests_on == "noise-of-aggregator"
    words = " ".join(plan.in_words(1e-5))
    for said in (
        "Against the aggregator there is no guarantee",
        "zero-out",
        "at most 50 rows",
        "at most 3 rounds of 12",
        "at least 4 after",
        "not who takes part",
    ):
        assert said in words
    coins = " ".join(poisson_of().in_words(1e-5))
    assert "A client cannot check that" in coins and "only the aggregator, beside the client itself, learns" in coins
    assert "not who takes part" not in coins and "take part in the same rounds" not in coins


# Restarts.


def test_a_restart_continues_with_the_same_noise(tmp_path, drawn):
    """The models before and after each restart are of one matrix of noise."""
    plan, rng, sums = plan_of(), np.random.default_rng(4), []
    models = [np.zeros(3)]
    for run in range(4):
        with kept_rounds(tmp_path / "run", KEY, plan, entry_id="entry", resuming=run > 0) as journal:
            server = server_of(plan, 3, journal)
            assert np.array_equal(server.weights, models[-1]) and server.rounds_left == 12 - 3 * run
            for _ in range(3):
                answers_of(plan, server, NAMES, rng, sums)
                models.append(server.close())
            if server.rounds_left:
                server.ask(NAMES)  # and is killed while clients train: nothing was drawn
    noise = estimates_of(plan, np.array(models)) - np.array(sums)
    assert matrix(plan.coefficients, plan.rounds) @ noise == pytest.approx(np.array(drawn))


def test_limits_are_kept_over_a_restart(tmp_path):
    plan = plan_of(cohort=8)
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry") as journal:
        server = server_of(plan, journal=journal)
        assert set(server.ask(NAMES)) == set(NAMES)
        server.close()
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry", resuming=True) as journal:
        server = server_of(plan, journal=journal)
        for number in range(2, 6):
            assert (set(server.ask(NAMES)) == set(NAMES)) == (number == 5)
            server.close()


def test_a_round_that_was_begun_and_not_kept_ends_the_run(tmp_path, monkeypatch):
    plan = plan_of()
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry") as journal:
        server = server_of(plan, journal=journal)
        server.ask(NAMES)
        server.close()
        server.ask(NAMES)
        monkeypatch.setattr(journal, "save", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            server.close()
    monkeypatch.undo()
    with (
        pytest.raises(ResumeRefused, match="2 rounds were begun"),
        kept_rounds(tmp_path, KEY, plan, entry_id="entry", resuming=True),
    ):
        pass


def test_an_older_state_is_refused_and_so_is_none(tmp_path):
    plan = plan_of()
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry") as journal:
        server = server_of(plan, journal=journal)
        for _ in range(3):
            server.ask(NAMES)
            server.close()
    states = sorted((tmp_path / "states").glob("*.checkpoint"))
    assert len(states) == 2
    for state in reversed(states):
        state.unlink()
        with (
            pytest.raises(ResumeRefused, match="3 rounds were begun"),
            kept_rounds(tmp_path, KEY, plan, entry_id="entry", resuming=True),
        ):
            pass


def test_a_state_that_cannot_be_kept_shows_no_model(tmp_path, monkeypatch):
    plan = plan_of()
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry") as journal:
        server = server_of(plan, journal=journal)
        server.ask(NAMES)
        monkeypatch.setattr(averaging.Checkpoints, "save", _full)
        with pytest.raises(MechanismFailed, match="its model is not shown"):
            server.close()


def _full(*_):
    raise CheckpointFailed("the disk is full")


def test_states_of_another_plan_key_entry_or_clients_are_refused(tmp_path):
    plan = plan_of()
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry") as journal:
        server = server_of(plan, journal=journal)
        server.ask(NAMES)
        server.close()
    for key, other, entry in (
        (bytes(32), plan, "entry"),
        (KEY, plan_of(momentum=0.1), "entry"),
        (KEY, plan_of(rounds=13), "entry"),
        (KEY, plan, "another"),
    ):
        with pytest.raises(ResumeRefused), kept_rounds(tmp_path, key, other, entry_id=entry, resuming=True):
            pass
    with kept_rounds(tmp_path, KEY, plan, entry_id="entry", resuming=True) as journal:
        for names, length in (([*NAMES[:7], "other"], 2), (NAMES[:7], 2), (NAMES, 3)):
            with pytest.raises(MechanismFailed, match="another model or other clients"):
                AveragingServer(plan, np.zeros(length), names, journal)


def test_a_round_that_failed_half_way_is_not_drawn_again(monkeypatch):
    server = server_of(plan_of())
    server.ask(NAMES)
    monkeypatch.setattr(GaussianNoise, "add_", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        server.close()
    monkeypatch.undo()
    server.ask(NAMES)
    with pytest.raises(MechanismFailed, match="paid anew"):
        server.close()


def test_kept_states_are_bounded_by_the_bands():
    plan = plan_of()
    server = server_of(plan)
    for _ in range(6):
        server.ask(NAMES)
        server.close()
    tensors = server._state(server._kept, 6).tensors
    assert tensors["sums"].shape == tensors["estimates"].shape == (2, 2)
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
