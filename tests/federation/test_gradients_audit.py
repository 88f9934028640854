"""An audit of federated training by a coordinator with its colluders, and mistakes that it must find.

Canaries are units that each add a vector of one direction of their own, or are not there by a coin, all in the slot
that moves most: noise of different directions is independent, so that each canary is a trial of its own. The adversary
sees what is opened, and knows all shares of noise but those of the honest participants. Its attack is the most powerful
one for known directions: all rounds along what a canary moves there, close to normal of deviation 1 with mean mu
or 0 (the noise is Skellam, of a variance of millions). It guesses "in" above mu / 2, for the mu of the noise that is
really added (above 1 where there is none); that is fixed before the run.

**Arithmetic.** The claim is at delta 0.3, where few trials prove much. 600 canaries are in and 600 out. The bound holds
with probability 1 - 1e-7, so that the right mechanism raises a false alarm with probability 1e-7 at most. With a
mistake, both rates of the attack are known (the normal distribution); with probability 1 - 2e-7 what is proven is at
least `epsilon_to_expect`, which each test requires to be above the claim: a miss has probability 2e-7 at most.
"""

import numpy as np
import pytest
from scipy.stats import norm
from test_gradients import plan_for, training_event

from dpsynth_platform.audit.laboratory import Guess, Trials, epsilon_to_expect
from dpsynth_platform.federation import gradients
from dpsynth_platform.federation.gradients import PARTS, GradientsPlan
from dpsynth_platform.federation.noise import sample_skellam
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.matrix_noise import matrix_sensitivity

CANARIES, DELTA, CONFIDENCE, MISS = 1200, 0.3, 1 - 1e-7, 1e-7
INCLUDED = np.arange(CANARIES) % 2 == 0  # the attack does not know it


@pytest.fixture
def sent(monkeypatch):
    """Units that are canaries by their number, in slot 0, each with 4.5 times the clipping norm along its direction."""

    def of_unit(self, name, codes):
        vector = np.zeros(self._asked.sum.length)
        vector[int(name)] = 4.5
        return gradients.rounded(vector, self._asked.plan.terms.scale, np.zeros(len(vector)))

    monkeypatch.setattr(gradients._Gradients, "of_unit", of_unit)
    monkeypatch.setattr(
        GradientsPlan, "read_units", lambda plan, bounded: dict.fromkeys(map(str, np.flatnonzero(INCLUDED)), None)
    )
    monkeypatch.setattr(GradientsPlan, "slot", lambda plan, name: 0)


def opened(plan, noise=1.0):
    """All rounds of a run, with the noise of the honest participants times a factor; shape (rounds, canaries)."""
    sizes = list(plan.domain.most_states)
    document = {
        "groups": [
            [cell % size for cell in range(cells)] for cells, size in zip(plan.domain.sizes, sizes, strict=True)
        ],
        "shares": [[1 / size] * size for size in sizes],
        "weights": gradients._coded(np.zeros(gradients._weights(sizes, plan.training.width))),
    }
    memory, found = {}, []
    for number in range(plan.terms.rounds):
        asked = plan.read_round({"index": plan.before + number, **document})
        total = plan.vector(asked, None, memory)
        for _ in range(plan.terms.minimum - plan.terms.colluders if noise else 0):
            steps = max(1, round(noise**2 * asked.sum.share_variance * 2**10))
            total = total + sample_skellam(steps / 2**10, asked.sum.length)
        found.append(total[:CANARIES] / (plan.terms.scale * PARTS))
    return np.array(found)


def proven_by(plan, seen, present_in, noise=1.0, factor=1.0):
    """What is proven by all opened sums and the public plan, and what is to be expected of the attack."""
    terms = plan.terms
    moved = np.zeros(terms.rounds)
    for lag, coefficient in enumerate(terms.coefficients):
        for number in present_in:
            if number + lag < terms.rounds:
                moved[number + lag] += coefficient / PARTS
    real = noise * (terms.minimum - terms.colluders) ** 0.5 * terms.share_variances[0] ** 0.5 / (terms.scale * PARTS)
    mu = np.linalg.norm(moved) / real if real else np.inf
    scores, threshold = moved @ seen / np.linalg.norm(moved), np.linalg.norm(moved) / 2
    trials = Trials({"coordinator": scores}, INCLUDED)
    proof = Guess("coordinator", threshold).prove(trials, delta=DELTA, confidence=CONFIDENCE)
    least = epsilon_to_expect(
        true_rate=float(norm.cdf((factor - 0.5) * mu)),
        false_rate=float(norm.sf(mu / 2)),
        runs=CANARIES // 2,
        delta=DELTA,
        confidence=CONFIDENCE,
        miss=MISS,
    )
    return proof.epsilon, least, mu


def rounds_of(plan, step=None):
    return range(0, plan.terms.rounds, step or plan.terms.separation)


def weak():
    """With so little noise that few canaries prove a mistake."""
    return plan_for(8.0)


def claimed_by(plan):
    return epsilon(training_event(plan), DELTA).epsilon


def test_the_right_mechanism_proves_no_more_than_it_claims(sent):
    plan = plan_for()
    proven, _, mu = proven_by(plan, opened(plan), rounds_of(plan))
    assert proven <= claimed_by(plan)
    event = training_event(plan)  # the attack is as strong as the accountant says: it moves the whole sensitivity
    assert mu == pytest.approx((event.l2_squared / event.variance) ** 0.5, rel=1e-6)


def test_noise_of_one_participation_is_found(sent, monkeypatch):
    """Calibrated as if a unit were in one round, and it is in sixteen: a quarter of what it should be."""

    def of_one(coefficients, rounds, _, apart):
        return matrix_sensitivity(coefficients, rounds, 1, apart)

    with monkeypatch.context() as patch:
        patch.setattr(gradients, "ROUNDS", 80)
        patch.setattr(
            gradients, "matrix_sensitivity", lambda c, rounds, _, apart: matrix_sensitivity(c, rounds, 1, apart)
        )
        plan = weak()
        claimed = claimed_by(plan)
    proven, least, _ = proven_by(plan, opened(plan), rounds_of(plan))
    assert claimed < least <= proven


def test_noise_that_is_left_out_is_found(sent):
    plan = plan_for()
    proven, least, mu = proven_by(plan, opened(plan, noise=0), rounds_of(plan), noise=0)
    assert mu == np.inf and claimed_by(plan) < least <= proven


def test_shares_of_a_fifth_of_the_deviation_are_found(sent):
    plan = weak()
    proven, least, _ = proven_by(plan, opened(plan, noise=0.2), rounds_of(plan), noise=0.2)
    assert claimed_by(plan) < least <= proven


def test_units_in_all_rounds_are_found(sent, monkeypatch):
    """Nodes that do not keep to slots: what a unit moves adds up over neighbouring rounds."""

    class Any:
        def __eq__(self, slot):
            return True

        __hash__ = None

    monkeypatch.setattr(GradientsPlan, "slot", lambda plan, name: Any())
    plan = plan_for()
    proven, least, _ = proven_by(plan, opened(plan), rounds_of(plan, 1))
    assert claimed_by(plan) < least <= proven


def test_gradients_that_are_not_clipped_are_found(sent, monkeypatch):
    monkeypatch.setattr(
        gradients, "rounded", lambda vector, scale, dither: np.floor(vector * scale + dither).astype(np.int64)
    )
    plan = weak()
    proven, least, _ = proven_by(plan, opened(plan), rounds_of(plan), factor=4.5)
    assert claimed_by(plan) < least <= proven
