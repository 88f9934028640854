"""What an attacker proves who knows all but one owner's documents, of the mechanisms whose texts follow from votes and
from tokens: no more than their events claim, nearly as much, and more where noise or a bound was forgotten.

By calculation the chance is below 4e-7 that a mechanism as it is fails its test (FALSE_ALARM that too much is proven,
2e-7 that too little is), or that a planted mistake is missed (2e-7 by `found_for_certain`; those without it are far
larger: below 1e-13).
"""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from audit_cases import found_for_certain, gaussian_delta, gaussian_epsilon, proven_epsilon
from scipy import stats
from text_cases import letters_contract, save_model

from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianVotesEvent, event_from_json, leaves, token_selection_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.evolution import votes as evolution_votes
from dpsynth_platform.synth.evolution.loop import Rounds, evolve
from dpsynth_platform.synth.evolution.votes import noisy_votes
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian
from dpsynth_platform.synth.text import labelling, resampling
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.evolution_votes import Voters
from dpsynth_platform.synth.text.inference_choice import drawn, owner_score, scores
from dpsynth_platform.synth.text.labelling import LabelChoice

SHOWN = 1.0
"""The epsilon at which deltas are compared; the score is the logarithm of the likelihoods' ratio, so that an attacker
does best with it as the threshold."""
SOURCE = pa.schema([("letter", pa.int64()), ("reader", pa.int64()), ("body", pa.string())])
B = 4
"""Documents of one owner, all alike."""

# Votes.

OWNERS, RUNS = 40, 600
"""Each owner has a candidate of its own, and a coin of its own for being there, so that each is a trial."""
KNOWN = 60
"""Records of others, which vote for any of the candidates."""
FEATURES = np.eye(OWNERS, dtype=np.float32)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Three rounds and a last vote for clusters, of texts alone: the whole budget is for votes."""
    contract = letters_contract(
        {},
        {
            "method": "aug_pe",
            "base_model": str(save_model(tmp_path_factory.mktemp("base"))),
            "rows": 10,
            "text": {
                "max_tokens": 20,
                "evolution": {"population": OWNERS, "rounds": 3, "variations": 1},
                "resample": {"clusters": OWNERS, "noise": 1.0, "pool": 2},
            },
        },
        privacy={"max_contributions": B, "guarantee": {"epsilon": 8.0, "delta": 1e-5}},
    )
    return generator("aug_pe").plan(contract, SOURCE, Guarantee.target(contract))


def mu_of(plan, *, forgotten=()):
    """Of the Gaussian that all votes come to, by the sealed event: one owner moves each histogram by one vote."""
    found = list(leaves(event_from_json(plan.event)))
    assert all(isinstance(leaf, GaussianVotesEvent) for leaf, _ in found)
    return math.sqrt(sum(times / leaf.sigma**2 for leaf, times in found if leaf.sigma not in forgotten))


class Candidates:
    """A foundation whose samples are the candidates, and which varies none: all of them live on."""

    def random(self, groups):
        return list(range(len(groups)))

    def features(self, samples):
        return FEATURES[list(samples)]

    def to_json(self, sample):
        return sample

    def from_json(self, document):
        return document


class Journal:
    """What `evolution.journal` keeps on disk."""

    def __init__(self):
        self.counted = []

    def candidates(self, number):
        return None

    def propose(self, number, samples, groups):
        self.samples = samples

    def votes(self, number):
        return None

    def count(self, number, votes):
        # By candidate, in whatever order they live on.
        self.counted.append(votes[np.argsort(self.samples)])


class Letters:
    def encode(self, texts):
        return FEATURES[[int(text) for text in texts]]


def owner_votes(plan, monkeypatch, *, by_owner=True):
    """Coins and scores of all trials: for each owner, the log-ratio of everything that was shown with it and without.

    Others' records are known to the attacker, the other owners' coins included.
    """
    parameters, rng = EvolutionParameters.of(plan), np.random.default_rng()
    monkeypatch.setattr(resampling, "clustered", lambda features, clusters: features)
    chosen, coins, found = parameters.resampling, [], []
    for _ in range(RUNS):
        there = rng.random(OWNERS) < 0.5
        known = rng.integers(0, OWNERS, KNOWN)
        nearest = np.concatenate([known, np.repeat(np.flatnonzero(there), B)])
        owners = np.concatenate([OWNERS + np.arange(KNOWN), np.repeat(np.flatnonzero(there), B)])
        voters = Voters(FEATURES[nearest], np.zeros(len(nearest), dtype=np.int64), owners if by_owner else None)
        journal = Journal()
        evolve(
            Rounds(parameters.rounds.rounds, 0),
            [OWNERS],
            Candidates(),
            lambda features, groups, voters=voters: noisy_votes(voters, features, groups, parameters.sigma),
            journal,
        )
        last = chosen.measured(lambda: [str(number) for number in range(OWNERS)], voters, Letters())
        without = np.bincount(known, minlength=OWNERS)
        shown = [(votes, parameters.sigma) for votes in journal.counted] + [(last.votes, chosen.sigma)]
        moved = [(votes / RECORD_PARTS - without - 1 / 2) / sigma**2 for votes, sigma in shown]
        coins.append(there)
        found.append(np.sum(moved, axis=0))
    return np.concatenate(coins), np.concatenate(found)


def rates_of(mu, factor):
    """Share above the threshold of those who are there, and of those who are not, with so many times the noise."""
    return {
        "true_rate": stats.norm.cdf((mu**2 / 2 - SHOWN) / (factor * mu)),
        "false_rate": stats.norm.cdf((-(mu**2) / 2 - SHOWN) / (factor * mu)),
    }


def rates_by(mu, times):
    """As `rates_of`, where an owner moves what is shown by so many times what is allowed."""
    return {
        "true_rate": stats.norm.cdf((mu**2 * (times - 1 / 2) - SHOWN) / mu),
        "false_rate": stats.norm.cdf((-(mu**2) / 2 - SHOWN) / mu),
    }


TRIALS = {"members": RUNS * OWNERS // 2 - 500, "others": RUNS * OWNERS // 2 - 500}
"""6.4 deviations fewer than half of the coins: 2e-10."""


def test_votes_of_all_rounds_and_for_clusters_prove_no_more_than_is_claimed(plan, monkeypatch):
    mu = mu_of(plan)
    assert 7.9 < gaussian_epsilon(mu, 1e-5) <= 8.0  # the whole budget, and what is claimed is what this attacker has
    coins, found = owner_votes(plan, monkeypatch)
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_of(mu, 1.0), delta=delta, claimed=0.4, miss=1e-7)
    assert 0.4 < proven_epsilon(found, coins, threshold=SHOWN, delta=delta) <= SHOWN


def test_votes_with_too_little_noise_by_a_fifth_are_found(plan, monkeypatch):
    noise = sample_rounded_gaussian
    monkeypatch.setattr(evolution_votes, "sample_rounded_gaussian", lambda votes, sigma: noise(votes, 0.8 * sigma))
    mu = mu_of(plan)
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_of(mu, 0.8), delta=delta, claimed=SHOWN, miss=1e-7)
    coins, found = owner_votes(plan, monkeypatch)
    assert proven_epsilon(found, coins, threshold=SHOWN, delta=delta) > SHOWN


def test_an_owner_whose_votes_are_not_scaled_is_found(plan, monkeypatch):
    mu = mu_of(plan)
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_by(mu, B), delta=delta, claimed=SHOWN, miss=1e-7)
    coins, found = owner_votes(plan, monkeypatch, by_owner=False)
    assert proven_epsilon(found, coins, threshold=SHOWN, delta=delta) > SHOWN


SHARE = 3
"""Candidates that share a record's vote: three of each owner's own, so that owners are separate trials."""


def shared_votes(plan):
    """As `owner_votes`, of the rounds alone, where records share their votes."""
    parameters, rng = EvolutionParameters.of(plan), np.random.default_rng()
    candidates = np.eye(OWNERS * SHARE, dtype=np.float32)
    own = np.kron(np.eye(OWNERS), [1.0, 0.5, 0.25]).astype(np.float32)
    moved = np.kron(np.eye(OWNERS), np.ones(SHARE)) / math.sqrt(SHARE)  # one owner's votes, of length 1
    coins, found = [], []
    for _ in range(RUNS):
        there = rng.random(OWNERS) < 0.5
        owners = np.repeat(np.flatnonzero(there), B)
        voters = Voters(own[owners], np.zeros(len(owners), dtype=np.int64), owners, SHARE)
        shown = sum(
            noisy_votes(voters, candidates, [0] * len(candidates), parameters.sigma)
            for _ in range(parameters.rounds.rounds)
        )
        scores = moved @ (shown / RECORD_PARTS) - parameters.rounds.rounds / 2
        coins.append(there)
        found.append(scores / parameters.sigma**2)
    return np.concatenate(coins), np.concatenate(found)


def test_shared_votes_prove_no_more_than_is_claimed(plan):
    mu = mu_of(plan, forgotten=[EvolutionParameters.of(plan).resampling.sigma])
    delta = gaussian_delta(mu, SHOWN)
    coins, found = shared_votes(plan)
    assert found_for_certain(**TRIALS, **rates_of(mu, 1.0), delta=delta, claimed=0.4, miss=1e-7)
    assert 0.4 < proven_epsilon(found, coins, threshold=SHOWN, delta=delta) <= SHOWN


def test_shared_votes_in_full_for_each_candidate_are_found(plan, monkeypatch):
    """Each of three candidates gets a whole vote: 1.7 times the length."""
    scaled = evolution_votes.scaled
    monkeypatch.setattr(evolution_votes, "scaled", lambda votes, parts: dict.fromkeys(scaled(votes), parts))
    mu = mu_of(plan, forgotten=[EvolutionParameters.of(plan).resampling.sigma])
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_by(mu, math.sqrt(SHARE)), delta=delta, claimed=SHOWN, miss=1e-7)
    coins, found = shared_votes(plan)
    assert proven_epsilon(found, coins, threshold=SHOWN, delta=delta) > SHOWN


def test_a_last_vote_without_payment_is_found(plan, monkeypatch):
    whole, rounds = mu_of(plan), mu_of(plan, forgotten=[EvolutionParameters.of(plan).resampling.sigma])
    delta = gaussian_delta(rounds, SHOWN)
    assert found_for_certain(**TRIALS, **rates_of(whole, 1.0), delta=delta, claimed=SHOWN, miss=1e-7)
    coins, found = owner_votes(plan, monkeypatch)
    assert proven_epsilon(found, coins, threshold=SHOWN, delta=delta) > SHOWN


# Sums of features by label.

SUMMED = np.eye(3, dtype=np.float32)[0]
LABEL = Condition("kind", tuple(f"kind {number}" for number in range(OWNERS)))
SUMS = LabelChoice(LABEL, 0.625, 1.0)
"""Of epsilon 8 and delta 1e-5, about, like all votes above together."""


class Three:
    def encode(self, texts):
        return np.eye(3, dtype=np.float32)[: len(texts)]


def owner_sums(*, by_owner=True):
    """Coins and scores of all trials, as for votes: each owner has a label of its own, and a coin for being there."""
    rng = np.random.default_rng()
    one, own = labelling.vector(SUMMED) / RECORD_PARTS, labelling.shortened(B * labelling.vector(SUMMED)) / RECORD_PARTS
    coins, found = [], []
    for _ in range(RUNS):
        there = rng.random(OWNERS) < 0.5
        known = rng.integers(0, OWNERS, KNOWN)
        groups = np.concatenate([known, np.repeat(np.flatnonzero(there), B)])
        owners = np.concatenate([OWNERS + np.arange(KNOWN), np.repeat(np.flatnonzero(there), B)])
        voters = Voters(np.repeat(SUMMED[None], len(groups), axis=0), groups, owners if by_owner else None)
        shown = SUMS.measured(list, voters, Three()).sums / RECORD_PARTS
        without = np.bincount(known, minlength=OWNERS)[:, None] * one
        coins.append(there)
        found.append((shown - without - own / 2) @ own / SUMS.sigma**2)
    return np.concatenate(coins), np.concatenate(found)


def test_sums_by_label_prove_no_more_than_is_claimed():
    (leaf,) = [leaf for leaf, _ in leaves(SUMS.event("add-or-remove", B))]
    mu = 1 / leaf.sigma
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_of(mu, 1.0), delta=delta, claimed=0.4, miss=1e-7)
    coins, found = owner_sums()
    assert 0.4 < proven_epsilon(found, coins, threshold=SHOWN, delta=delta) <= SHOWN


def test_sums_with_too_little_noise_by_a_fifth_are_found(monkeypatch):
    noise, mu = sample_rounded_gaussian, 1 / SUMS.sigma
    monkeypatch.setattr(labelling, "sample_rounded_gaussian", lambda sums, sigma: noise(sums, 0.8 * sigma))
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_of(mu, 0.8), delta=delta, claimed=SHOWN, miss=1e-7)
    coins, found = owner_sums()
    assert proven_epsilon(found, coins, threshold=SHOWN, delta=delta) > SHOWN


def test_an_owner_whose_features_are_not_shortened_together_is_found():
    mu = 1 / SUMS.sigma
    delta = gaussian_delta(mu, SHOWN)
    assert found_for_certain(**TRIALS, **rates_by(mu, B - 0.01), delta=delta, claimed=SHOWN, miss=1e-7)
    coins, found = owner_sums(by_owner=False)
    assert proven_epsilon(found, coins, threshold=SHOWN, delta=delta) > SHOWN


# Tokens.

TOKENS, DOCUMENTS = 4, 5_000
"""Tokens of a context, and contexts with the owner and without."""
PUBLIC = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
TERMS = {"clip": "difference", "clipping_norm": 0.5}
CHOICE = {"tokens": TOKENS, "clipping_norm": 0.5, "temperature": 0.5, "batch_size": 2}
SURE = torch.tensor([[50.0, -50.0]]).repeat(B, 1)
"""What the owner's documents say: the first token, and nothing but it."""
ALWAYS = TOKENS - 0.5
"""The attacker guesses that the owner is there where the first token came each time."""


def first_tokens(said, range_):
    """How often the first token came, of each document of a context of nobody else."""
    scored = scores(said, PUBLIC, batch_size=CHOICE["batch_size"], **TERMS)
    every = torch.arange(2)
    return [sum(drawn(scored, every, range_) == 0 for _ in range(TOKENS)) for _ in range(DOCUMENTS)]


def proven_of_tokens(said, *, colder=1.0):
    """What is proven by contexts with the owner and without, and what is claimed at the same delta.

    The delta is that at which this attack on the mechanism as it is comes to SHOWN.
    """
    event = token_selection_event(**CHOICE, adjacency="add-or-remove", max_contributions=B, clipped="user")
    ((leaf, tokens),) = leaves(event)
    assert tokens == TOKENS
    hits, alarms = (1 + math.exp(-leaf.epsilon)) ** -TOKENS, 0.5**TOKENS
    delta = hits - math.exp(SHOWN) * alarms
    sides = [first_tokens(one, colder * leaf.epsilon) for one in (said, torch.zeros_like(said))]
    there = np.arange(2 * DOCUMENTS) < DOCUMENTS
    certain = {"members": DOCUMENTS, "others": DOCUMENTS, "true_rate": hits, "false_rate": alarms}
    assert found_for_certain(**certain, delta=delta, claimed=0.0, miss=1e-7)
    proven = proven_epsilon(np.concatenate(sides), there, threshold=ALWAYS, delta=delta)
    return proven, epsilon(event, delta).epsilon


def test_tokens_prove_no_more_than_is_claimed():
    proven, claimed = proven_of_tokens(owner_score(SURE, PUBLIC, **TERMS))
    assert 0 < proven <= SHOWN <= claimed


def test_tokens_at_a_third_of_the_temperature_are_found():
    proven, claimed = proven_of_tokens(owner_score(SURE, PUBLIC, **TERMS), colder=3.0)
    assert proven > claimed


def test_an_owner_whose_documents_are_clipped_one_by_one_is_found():
    proven, claimed = proven_of_tokens(sum(owner_score(one[None], PUBLIC, **TERMS) for one in SURE))
    assert proven > claimed
