"""An audit of federated averaging by a recipient, who sees all models and nothing else, and mistakes that it must find.

Canaries are clients that each send an update of one direction of their own, or zeros by a coin, in the worst rounds
that the limits allow: noise of different directions is independent, so that each canary is a trial of its own. The
attack is the most powerful one for known directions: C times the estimated sums, along what a canary moves there, which
is normal of deviation 1 with mean mu or 0. It guesses "in" above mu / 2, for the mu of the noise that is really added
(above 1 where there is none); that is fixed before the run.

**Arithmetic.** The claim is at delta 0.3, where few trials prove much. 1,000 canaries are in and 1,000 out. The bound
holds with probability 1 - 1e-7, so that the right mechanism raises a false alarm with probability 1e-7 at most. With a
mistake, both rates of the attack are known (the normal distribution); with probability 1 - 2e-7 what is proven is at
least `epsilon_to_expect`, which each test requires to be above the claim: a miss has probability 2e-7 at most.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dpsynth_platform.audit.laboratory import Guess, Trials, epsilon_to_expect
from dpsynth_platform.federation.averaging import AveragingServer, Client, Participations, clipped
from dpsynth_platform.federation.averaging_plan import AveragingPlan
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.matrix_noise import matrix_sensitivity
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.trial import NoJournal

CANARIES, DELTA, CONFIDENCE, MISS = 2000, 0.3, 1 - 1e-7, 1e-7
ROUNDS, APART, TIMES = 24, 3, 8
GUARANTEE = Guarantee(4.0, 1e-5, "user", "zero-out", 1)
NAMES = [f"{number:04d}" for number in range(CANARIES)]
INCLUDED = np.arange(CANARIES) % 2 == 0  # the attack does not know it


def calibrated(**changes):
    numbers = {
        "clients": CANARIES,
        "rounds": ROUNDS,
        "cohort": CANARIES,
        "participations": TIMES,
        "separation": APART,
        "momentum": 0.5,
        "clipping_norm": 2.0,
    }
    return AveragingPlan.calibrated(GUARANTEE, **(numbers | changes))


def models_of(plan, present_in):
    """All models of a run in which the canaries are there in certain rounds, from 1; shape (rounds + 1, canaries)."""

    def training(place):
        vector = np.zeros(CANARIES)
        vector[place] = 9.0 * INCLUDED[place]  # clipped

        return lambda weights: vector

    accepted = Guarantee(1e4, 1e-5, "user", "zero-out", 1)
    clients = {name: Client(name, plan, training(place), accepted, None) for place, name in enumerate(NAMES)}
    server = AveragingServer(plan, np.zeros(CANARIES), NAMES, NoJournal())
    models = [server.weights]
    for number in range(1, plan.rounds + 1):
        for name, asked in server.ask(NAMES if number in present_in else []).items():
            server.take(clients[name].answer(asked))
        models.append(server.close())
    return np.array(models)


def proven_by(plan, models, present_in, real_noise):
    """What a recipient proves, by all models and the public plan, and the mu of its attack."""
    speeds = np.diff(models, axis=0) / plan.server_rate
    before = np.concatenate([np.zeros((1, CANARIES)), speeds[:-1]])
    estimates = (speeds - plan.momentum * before) * plan.cohort / plan.clipping_norm
    seen, moved = np.zeros((plan.rounds, CANARIES)), np.zeros(plan.rounds)
    for lag, coefficient in enumerate(plan.coefficients):
        seen[lag:] += coefficient * estimates[: plan.rounds - lag]
        for number in present_in:
            if number - 1 + lag < plan.rounds:
                moved[number - 1 + lag] += coefficient
    mu = np.linalg.norm(moved) / real_noise if real_noise else np.inf
    scores = moved @ seen / np.linalg.norm(moved)
    threshold = np.linalg.norm(moved) / 2
    proof = Guess("recipient", threshold).prove(
        Trials({"recipient": scores}, INCLUDED), delta=DELTA, confidence=CONFIDENCE
    )
    return proof.epsilon, mu


def expected(mu):
    """With probability 1 - 2 `MISS`, at least this is proven."""
    return epsilon_to_expect(
        true_rate=float(norm.cdf(mu / 2)),
        false_rate=float(norm.sf(mu / 2)),
        runs=CANARIES // 2,
        delta=DELTA,
        confidence=CONFIDENCE,
        miss=MISS,
    )


WORST = range(1, ROUNDS + 1, APART)


@pytest.mark.parametrize("bands", [1, 3])
def test_the_right_mechanism_proves_no_more_than_it_claims(bands):
    plan = calibrated(bands=bands)
    claimed = epsilon(plan.event, DELTA).epsilon
    proven, mu = proven_by(plan, models_of(plan, WORST), WORST, plan.noise_multiplier)
    assert proven <= claimed
    # The attack is as strong as the accountant says: what it moves is the whole sensitivity.
    assert mu == pytest.approx(plan.event.sensitivity.l2 / plan.noise_multiplier)


def test_sensitivity_of_one_participation_is_found(monkeypatch):
    """The noise is calibrated as if a client were in one round, and it is in eight: a third of what it should be."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "dpsynth_platform.privacy.events.matrix_sensitivity",
            lambda coefficients, rounds, participations, separation: matrix_sensitivity(
                coefficients, rounds, 1, separation
            ),
        )
        plan = calibrated()
        claimed = epsilon(plan.event, DELTA).epsilon
        proven, mu = proven_by(plan, models_of(plan, WORST), WORST, plan.noise_multiplier)
    assert mu == pytest.approx(8**0.5 * mu_of(plan), rel=0.01)
    assert claimed < expected(mu)
    assert proven > claimed


def mu_of(plan):
    return matrix_sensitivity(plan.coefficients, ROUNDS, 1, APART).l2 / plan.noise_multiplier


def test_noise_that_is_left_out_is_found(monkeypatch):
    plan = calibrated()
    claimed = epsilon(plan.event, DELTA).epsilon
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: None)
    proven, mu = proven_by(plan, models_of(plan, WORST), WORST, 0)
    assert mu == np.inf and claimed < expected(mu) <= proven


def test_limits_that_no_side_enforces_are_found(monkeypatch):
    """Clients are in all rounds, three times as often and next to each other, so that what they move adds up."""
    plan = calibrated()
    claimed = epsilon(plan.event, DELTA).epsilon
    monkeypatch.setattr(Participations, "enter", lambda self, number: None)
    monkeypatch.setattr(AveragingServer, "available", lambda self, present: sorted(present))
    always = range(1, ROUNDS + 1)
    proven, mu = proven_by(plan, models_of(plan, always), always, plan.noise_multiplier)
    assert claimed < expected(mu)
    assert proven > claimed


def test_updates_that_no_side_clips_are_found(monkeypatch):
    """A client's update is 4.5 times as long as the clipping norm."""
    plan = calibrated()
    claimed = epsilon(plan.event, DELTA).epsilon
    monkeypatch.setattr("dpsynth_platform.federation.averaging.clipped", lambda vector, norm: vector)
    monkeypatch.setattr("dpsynth_platform.federation.averaging.check_vector", lambda *_: None)
    proven, mu = proven_by(plan, models_of(plan, WORST), WORST, plan.noise_multiplier)
    # In units of the clipping norm scores have the mean 4.5 |C u| or 0, and the threshold is at |C u| / 2.
    true_rate, false_rate = norm.cdf(4 * mu), norm.sf(mu / 2)
    least = epsilon_to_expect(
        true_rate=float(true_rate),
        false_rate=float(false_rate),
        runs=CANARIES // 2,
        delta=DELTA,
        confidence=CONFIDENCE,
        miss=MISS,
    )
    assert claimed < least
    assert proven > claimed


def test_either_side_alone_keeps_the_limits(monkeypatch):
    """With the server's limits gone the clients refuse, and with the clients' gone the server does not ask."""
    plan = calibrated()
    server = AveragingServer(plan, np.zeros(1), NAMES[:3], NoJournal())
    client = Client(NAMES[0], plan, np.copy, GUARANTEE, None)
    with monkeypatch.context() as patch:
        patch.setattr(AveragingServer, "available", lambda self, present: sorted(present))
        client.answer(server.ask(NAMES[:3])[NAMES[0]])
        server.close()
        asked = server.ask(NAMES[:3])[NAMES[0]]
        with pytest.raises(Exception, match="round 2 after round 1"):
            client.answer(asked)
        server.close()
    monkeypatch.setattr(Participations, "enter", lambda self, number: None)
    assert not server.ask(NAMES[:3])
    assert np.linalg.norm(clipped(np.full(3, 9.0), plan.clipping_norm)) <= plan.clipping_norm
