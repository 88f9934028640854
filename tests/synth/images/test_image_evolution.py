"""Private evolution of images: what one owner moves, what it costs, and continuing after a crash."""

import ast
import itertools
import math
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from dpsynth_platform.foundation.errors import ContractError, ResumeRefused
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianCountsEvent, GaussianVotesEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS, vote_sensitivity
from dpsynth_platform.synth import images as package
from dpsynth_platform.synth.evolution import votes as votes_module
from dpsynth_platform.synth.evolution.journal import FILE_NAME, EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Rounds, Survivors
from dpsynth_platform.synth.evolution.votes import NOBODY, noisy_votes
from dpsynth_platform.synth.images import evolution
from dpsynth_platform.synth.images.encoders import LENGTH, AveragedPixels
from dpsynth_platform.synth.images.encoders_network import NetworkEncoder, trained
from dpsynth_platform.synth.images.evolution import (
    EvolutionPlan,
    describe,
    draw,
    event,
    evolve,
    expected_votes,
    planned,
)
from dpsynth_platform.synth.images.evolution_votes import ImageVoters, whole_candidates
from dpsynth_platform.synth.images.simulators_shapes import Shapes

FORM = ImageForm(12, 10, 1)
ENCODER = AveragedPixels(4)
B = 5
GUARANTEE = Guarantee(1.0, 1e-5, "user", "add-or-remove", B)
RANDOM = np.random.default_rng(11)
PICTURES = RANDOM.integers(0, 256, (60, *FORM.shape), dtype=np.uint8)
CANDIDATES = ENCODER.features(RANDOM.integers(0, 256, (9, *FORM.shape), dtype=np.uint8)).astype(np.float32) / LENGTH
GROUPS = [0, 0, 0, 0, 0, 0, 0, 1, 1]
"""Seven candidates of the first label and two of the second."""


def plan_of(guarantee=GUARANTEE, labels=("0", "1"), **changes):
    return planned(guarantee, labels, 10_000, "f" * 64, "e" * 64, **changes)


def histogram(records, *, several_owners=False):
    """Exact votes of (owner, picture, label) records."""
    owners, pictures, groups = (np.array(column, dtype=np.int64) for column in zip(*records, strict=True))
    voters = ImageVoters.of(PICTURES[pictures], groups, None if several_owners else owners, ENCODER)
    return voters.votes(CANDIDATES, GROUPS).astype(object)


def squared(change):
    return sum(int(part) ** 2 for part in change)


# 40 records of the first label and one of the second, each of an owner of its own.
OTHERS = [(100 + at, at, int(at == 40)) for at in range(41)]


def test_a_record_votes_for_the_nearest_candidate_of_its_label():
    """By brute force, in Python's integers."""
    records = [(at, at, at % 2) for at in range(60)]
    whole, features = whole_candidates(CANDIDATES).astype(object), ENCODER.features(PICTURES).astype(object)
    expected = np.zeros(len(CANDIDATES), dtype=object)
    for _, picture, label in records:
        own = [at for at, group in enumerate(GROUPS) if group == label]
        expected[min(own, key=lambda at: ((whole[at] - features[picture]) ** 2).sum())] += RECORD_PARTS
    assert (histogram(records) == expected).all()
    assert (expected > 0).sum() > 3


def test_one_owner_moves_the_votes_by_one_vote_at_most_whatever_it_has():
    """An owner of up to five pictures, of either label; the labels are unbalanced."""
    random, without = np.random.default_rng(2), histogram(OTHERS)
    norms = []
    for _ in range(300):
        number = int(random.integers(1, B + 1))
        own = [(9, int(random.integers(60)), int(random.integers(2))) for _ in range(number)]
        place = int(random.integers(len(OTHERS) + 1))
        change = histogram([*OTHERS[:place], *own, *OTHERS[place:]]) - without
        norms.append(squared(change))
    assert max(norms) == RECORD_PARTS**2  # of one picture, or several that vote alike
    assert min(norms) > 0.999 * RECORD_PARTS**2
    assert vote_sensitivity("add-or-remove", B).l2_squared == 1


def test_a_planted_mistake_is_caught():
    """Votes that are not scaled: an owner of five pictures with one nearest candidate moves it by five."""
    own = [(9, 3, 0)] * B
    change = histogram([*OTHERS, *own], several_owners=True) - histogram(OTHERS, several_owners=True)
    assert squared(change) == (B * RECORD_PARTS) ** 2 > RECORD_PARTS**2
    assert squared(histogram([*OTHERS, *own]) - histogram(OTHERS)) == RECORD_PARTS**2


def test_a_vote_does_not_depend_on_the_other_records():
    """Ties and near ties included: candidates and pictures that differ by one step of one pixel."""
    base = RANDOM.integers(0, 256, FORM.shape, dtype=np.uint8)
    pictures = np.repeat(base[None], 300, axis=0)
    for at in range(300):
        pictures[at].reshape(-1)[at % FORM.values] ^= 1
    candidates = ENCODER.features(pictures[::10]).astype(np.float32) / LENGTH
    voters = ImageVoters.of(pictures, np.zeros(300, dtype=np.int64), None, ENCODER)
    together = voters.votes(candidates, [0] * len(candidates))
    total = np.zeros(len(candidates), dtype=np.int64)
    for at in range(300):
        alone = ImageVoters.of(pictures[at : at + 1], np.zeros(1, dtype=np.int64), None, ENCODER)
        total += alone.votes(candidates, [0] * len(candidates))
    assert (together == total).all()


def test_products_of_whole_features_are_exact_in_float32():
    """At the largest length, in one feature and in many, against Python's integers."""
    rows = np.zeros((4, 64), dtype=np.int16)
    rows[0, 0], rows[1], rows[2, :2] = LENGTH, LENGTH // 8, (2894, -2894)
    rows[3] = np.random.default_rng(1).integers(-500, 501, 64)
    products = rows.astype(np.float32) @ rows.astype(np.float32).T
    assert (products.astype(object) == rows.astype(object) @ rows.astype(object).T).all()
    assert products.max() <= 2**24
    found = whole_candidates(np.array([[1.0, 0], [-0.6, 0.8], [2**-0.5, 2**-0.5]], dtype=np.float32))
    assert (found.astype(int) ** 2).sum(axis=1).max() <= (LENGTH + 1) ** 2


def test_a_record_without_a_group_or_without_candidates_does_not_vote():
    groups = np.array([0, NOBODY, 2, 1])
    voters = ImageVoters.of(PICTURES[:4], groups, None, ENCODER)
    assert voters.votes(CANDIDATES, GROUPS).sum() == 2 * RECORD_PARTS
    empty = ImageVoters.of(PICTURES[:0], groups[:0], None, ENCODER)
    assert not empty.votes(CANDIDATES, GROUPS).any()
    assert "[" not in repr(voters)


def test_votes_have_the_noise_of_the_plan():
    voters = ImageVoters.of(PICTURES[:0], np.zeros(0, dtype=np.int64), None, ENCODER)
    candidates = np.zeros((8000, 16), dtype=np.float32)
    found = noisy_votes(voters, candidates, [0] * 8000, 2.5) / RECORD_PARTS
    assert abs(found.mean()) < 6 * 2.5 / math.sqrt(8000)  # 2e-9
    assert found.std() == pytest.approx(2.5, rel=0.05)  # 6.3 deviations of 1 / sqrt(2 * 8000), 3e-10


# The plan


def delta_of(mu, target):
    """The exact delta of a Gaussian mechanism with sensitivity mu and deviation 1 (Balle & Wang 2018, theorem 8)."""
    return stats.norm.cdf(mu / 2 - target / mu) - math.exp(target) * stats.norm.cdf(-mu / 2 - target / mu)


@pytest.mark.parametrize(("adjacency", "l2"), [("add-or-remove", 1), ("replace-one", math.sqrt(2)), ("zero-out", 1)])
@pytest.mark.parametrize("target", [1.0, 10.0])
@pytest.mark.parametrize("rounds", [1, 6])
def test_all_rounds_together_meet_the_guarantee(adjacency, l2, target, rounds):
    guarantee = Guarantee(target, 1e-5, "user", adjacency, B)
    plan = plan_of(guarantee, rounds=Rounds(rounds, 2))
    mu = l2 * math.sqrt(rounds) / plan.sigma
    assert 0.97e-5 < delta_of(mu, target) <= 1e-5
    assert epsilon(event(plan, guarantee), 1e-5).epsilon <= target


def test_records_of_several_owners_pay_for_votes_in_full():
    guarantee = Guarantee(1.0, 1e-5, "user", "fixed-graph", B)
    assert plan_of(guarantee).sigma == pytest.approx(plan_of().sigma * math.sqrt(2) * B, rel=0.01)


def test_other_parts_leave_less_for_the_votes():
    already = GaussianCountsEvent(8.0, "add-or-remove", 1)
    plan = plan_of(already=already)
    mu = math.sqrt(plan.rounds.rounds / plan.sigma**2 + 1 / 8.0**2)
    assert 0.97e-5 < delta_of(mu, 1.0) <= 1e-5
    whole = dp_event.ComposedDpEvent([already, event(plan, GUARANTEE)])
    assert 0.98 < epsilon(whole, 1e-5).epsilon <= 1.0


def test_the_plan_has_as_many_candidates_as_get_votes_above_the_noise():
    labels = tuple("0123456789")
    found = [planned(Guarantee(target, 1e-5, "user", "add-or-remove", B), labels, 60_000, "", "") for target in (1, 10)]
    assert [(plan.rounds.rounds, plan.population) for plan in found] == [(2, 300), (6, 300)]
    for units in (100, 60_000, 10**7):
        plan = planned(GUARANTEE, labels, units, "", "")
        mean = units / plan.candidates
        limits = evolution.POPULATION
        assert plan.rounds.rounds in range(evolution.ROUNDS[0], evolution.ROUNDS[1] + 1)
        assert mean >= evolution.VOTES_OVER_NOISE * plan.sigma or plan.population == limits[0]
        assert plan.population in range(limits[0], limits[1] + 1)
    assert plan.candidates == len(labels) * limits[1] * (plan.rounds.variations + 1)
    assert EvolutionPlan.from_json(plan.to_json()) == plan
    words = describe(plan, GUARANTEE)
    assert str(plan.candidates) in words
    assert "one owner" in words
    for wrong in ({"labels": ()}, {"population": 0}, {"rounds": Rounds(0, 1)}, {"rounds": Rounds(1, 1, -1)}):
        with pytest.raises(ContractError, match="at least one"):
            plan_of(**wrong)


def test_strengths_go_from_the_first_to_the_last_round():
    plan = plan_of(rounds=Rounds(5, 1))
    found = [plan.strength(number) for number in range(4)]
    assert found[0] == plan.strengths[0]
    assert found[-1] == pytest.approx(plan.strengths[1])
    assert all(later < earlier for earlier, later in itertools.pairwise(found))
    assert plan_of(rounds=Rounds(1, 1)).strength(0) == plan.strengths[0]


# Evolving

SHAPES = Shapes(FORM)
PLAN = plan_of(Guarantee(10.0, 1e-5, "user", "add-or-remove", B), rounds=Rounds(4, 2), population=6)
BRIGHT = np.concatenate([np.full((300, *FORM.shape), 20, np.uint8), np.full((300, *FORM.shape), 20, np.uint8)])
BRIGHT[:300, :6] = 230
BRIGHT[300:, :, 5:] = 230
VOTERS = ImageVoters.of(BRIGHT, np.repeat([0, 1], 300), np.arange(600), ENCODER)


def evolved(place, *, plan=PLAN, voters=VOTERS, resuming=False, foundation=SHAPES):
    with EvolutionJournal.opened(place, "p" * 64, resuming=resuming) as journal:
        return evolve(
            plan,
            lambda features, groups: noisy_votes(voters, features, groups, plan.sigma),
            foundation,
            ENCODER,
            journal,
        )


def test_candidates_come_near_to_the_records_of_their_label(tmp_path, monkeypatch):
    monkeypatch.setattr(evolution.np.random, "default_rng", lambda: np.random.Generator(np.random.PCG64(5)))
    monkeypatch.setattr(votes_module, "sample_rounded_gaussian", lambda votes, sigma: votes)
    found = evolved(tmp_path)
    monkeypatch.undo()
    assert set(found.groups) == {0, 1}
    generator = np.random.default_rng(1)
    for label, own in (("0", BRIGHT[0]), ("1", BRIGHT[300])):
        drawn = draw(PLAN, found, label, 50, SHAPES, generator)
        assert drawn.shape == (50, *FORM.shape)
        assert drawn.dtype == np.uint8
        features = ENCODER.features(drawn).astype(float)
        own, other = (ENCODER.features(which[None])[0].astype(float) for which in (own, BRIGHT[300 - 300 * int(label)]))
        # Everything is fixed by seeds, without noise.
        assert np.median(features @ own) > np.median(features @ other) + 0.1 * LENGTH**2
    random = SHAPES.pixels(SHAPES.random("0", 50, np.random.default_rng(1)))
    assert np.median(features @ own) > np.median(ENCODER.features(random).astype(float) @ own)


def test_votes_follow_from_the_journal_and_no_round_votes_twice(tmp_path, monkeypatch):
    """A process is killed right after a round's votes are on disk, and another continues."""
    drawn = []
    real = votes_module.sample_rounded_gaussian
    monkeypatch.setattr(votes_module, "sample_rounded_gaussian", lambda *given: drawn.append(1) or real(*given))
    child = os.fork()
    if child == 0:
        count = EvolutionJournal.count

        def killed(self, number, votes):
            count(self, number, votes)
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        EvolutionJournal.count = killed
        try:
            evolved(tmp_path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = (tmp_path / FILE_NAME).read_bytes()
    assert before.count(b'"kind":"votes"') == 2
    found = evolved(tmp_path, resuming=True)
    assert len(drawn) == PLAN.rounds.rounds - 2
    after = (tmp_path / FILE_NAME).read_bytes()
    assert after.startswith(before)
    assert evolved(tmp_path, resuming=True) == found
    assert len(drawn) == PLAN.rounds.rounds - 2
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(ResumeRefused):
        evolved(tmp_path, resuming=True)


def test_a_journal_s_candidates_are_small_and_exact(tmp_path):
    found = evolved(tmp_path)
    samples = list(found.samples)
    again = [SHAPES.from_json(SHAPES.to_json(sample)) for sample in samples]
    assert again == samples
    assert (SHAPES.pixels(again) == SHAPES.pixels(samples)).all()
    candidates = PLAN.rounds.rounds * PLAN.candidates
    assert (tmp_path / FILE_NAME).stat().st_size < candidates * 12 * (SHAPES.genes + 2)


def test_parents_are_drawn_by_their_votes_and_all_candidates_of_the_last_round_return():
    candidates = evolution._Candidates(PLAN, SHAPES, ENCODER)
    votes = np.array([100, 0, 300, 5, 5]) * RECORD_PARTS
    sizes = [4000, 10]
    found = candidates.select(list("abcde"), [0, 0, 0, 1, 1], votes, sizes)
    assert (found.groups.count(0), found.groups.count(1)) == (4000, 10)
    assert set(found.samples[4000:]) <= {"d", "e"}
    weighed = expected_votes(np.array([100.0, 0, 300]), PLAN.sigma)
    share = weighed[0] / weighed.sum()
    assert share == pytest.approx(0.25, abs=0.01)
    deviation = math.sqrt(4000 * share * (1 - share))
    assert abs(found.samples.count("a") - 4000 * share) < 6 * deviation  # 2e-9
    assert found.samples.count("b") < 200
    candidates._round = PLAN.rounds.rounds - 1
    last = candidates.select(list("abcde"), [0, 0, 0, 1, 1], votes, sizes)
    assert last == Survivors(("c", "a", "b", "d", "e"), (0, 0, 0, 1, 1), tuple(votes[[2, 0, 1, 3, 4]].tolist()))


def test_expected_votes_are_those_of_exponential_votes_with_noise():
    """By numerical integration; far below the noise, weights stay above 0 and in order."""
    votes, sigma = np.array([-40.0, -12, 0, 3, 10, 60, 400, -300]), 5.0
    mean = votes.mean()
    grid = np.linspace(0, 600, 600_001)
    found = expected_votes(votes, sigma)
    for at in range(7):
        logarithm = -((votes[at] - grid) ** 2) / (2 * sigma**2) - grid / mean
        density = np.exp(logarithm - logarithm.max())
        assert found[at] == pytest.approx((grid * density).sum() / density.sum(), rel=0.02)
    assert (found > 0).all()
    assert (np.diff(found[np.argsort(votes)]) >= 0).all()
    low = expected_votes(np.array([-1e6, -1e5, -3.0, 2.0]), sigma)
    assert np.isfinite(low).all()
    assert (low > 0).all()


def test_candidates_are_drawn_by_their_votes():
    """With a strength of 0, draws are the candidates themselves."""
    samples = [sample for sample in SHAPES.random("0", 3, np.random.default_rng(3)) if sample]
    found = Survivors(tuple(samples), (0, 0, 0), (50 * RECORD_PARTS, -20 * RECORD_PARTS, 150 * RECORD_PARTS))
    plan = EvolutionPlan(**vars(PLAN) | {"drawn": 0.0})
    drawn = draw(plan, found, "0", 200, SHAPES, np.random.default_rng(1))
    whole = SHAPES.pixels(samples)
    same = [int((drawn == whole[at]).all(axis=(1, 2, 3)).sum()) for at in range(3)]
    assert sum(same) == 200
    assert same[1] <= 10  # its weight is a 50th of the first one's
    assert same[2] > same[0] > 0


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_owner_moves_all_rounds_by_no_more_than_the_event_pays_for(tmp_path, monkeypatch, forgotten):
    """Two tables that differ by an owner of five pictures, through the whole evolution.

    Noise is replaced by public numbers, and candidates by a seed, so that both see the same candidates. Without the
    scaling of an owner's votes (the planted mistake) it moves more.
    """
    exact = []

    def noise(votes, sigma):
        exact.append(votes.astype(object))
        assert sigma == PLAN.sigma * RECORD_PARTS
        return (np.arange(len(votes), dtype=np.int64) * 7919 % 101) * RECORD_PARTS

    monkeypatch.setattr(votes_module, "sample_rounded_gaussian", noise)
    own = np.repeat(BRIGHT[:1], B, axis=0)
    with_owner = ImageVoters.of(
        np.concatenate([BRIGHT, own]),
        np.repeat([0, 1, 0], [300, 300, B]),
        np.repeat([*range(601)], [1] * 600 + [B]),
        ENCODER,
    )
    for number, voters in enumerate((VOTERS, with_owner)):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.setattr(evolution.np.random, "default_rng", lambda: np.random.Generator(np.random.PCG64(5)))
        each = ImageVoters(voters.features, voters.groups, None) if forgotten else voters
        evolved(place, voters=each)
    rounds = PLAN.rounds.rounds
    assert len(exact) == 2 * rounds
    moved = [squared(one - other) / RECORD_PARTS**2 for one, other in zip(exact[:rounds], exact[rounds:], strict=True)]
    assert moved == [B**2 if forgotten else 1] * rounds
    paid = dp_event.SelfComposedDpEvent(GaussianVotesEvent(PLAN.sigma, "add-or-remove", B), rounds)
    assert event(PLAN, GUARANTEE) == paid


# Private pictures stay where they are


def test_what_makes_candidates_takes_no_pixels_and_knows_no_votes():
    root = Path(package.__file__).parent
    for name in ("foundations", "simulators", "simulators_shapes", "simulators_table", "simulators_deformations"):
        known = _names(root / f"{name}.py")
        assert not known & {"evolution_votes", "ImageVoters", "read_table", "evolution"}, name
    known = _names(root / "evolution_votes.py")
    assert not known & {"foundations", "ImageFoundation", "Genes", "httpx2", "evolution"}
    voters = ImageVoters.of(BRIGHT[:2], np.zeros(2, dtype=np.int64), None, ENCODER)
    assert set(vars(voters)) == {"features", "groups", "owners"}


@pytest.mark.parametrize("wrong", [BRIGHT[0], BRIGHT[:3], [BRIGHT[0]]])
def test_a_picture_is_no_sample(wrong):
    with pytest.raises(TypeError, match="accepted: the numbers that it made"):
        SHAPES.variation(wrong, "0", 0.5, np.random.default_rng())
    with pytest.raises(TypeError, match="accepted: the numbers that it made"):
        SHAPES.to_json(wrong)


def _names(file):
    """All that a module imports, by its last names."""
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    found = {alias.name.rpartition(".")[2] for node in imports for alias in node.names}
    return found | {str(node.module).rpartition(".")[2] for node in imports if isinstance(node, ast.ImportFrom)}


def test_an_encoder_is_trained_on_the_declared_fonts_alone_and_sealed(tmp_path, monkeypatch):
    """The plan names the network's digest; another network in its place is refused."""
    from picture_cases import PICTURES

    from dpsynth_platform.contracts.contract import DataContract
    from dpsynth_platform.contracts.validation import validated
    from dpsynth_platform.foundation.errors import ConfigurationError
    from dpsynth_platform.synth.images import declared_foundations, image_pe
    from dpsynth_platform.synth.images.layout import ImageLayout

    class Labelled(Shapes):
        """Shapes that differ by label, in place of fonts, which not every machine has."""

        def sources(self, label):
            return np.arange(3) + 50 * ["bar", "cross", "disc"].index(label)

    monkeypatch.setattr(declared_foundations, "Fonts", lambda directory, form, characters: Labelled(form))
    monkeypatch.setattr(
        declared_foundations, "trained", lambda made, labels: trained(made, labels, pictures=300, epochs=1)
    )
    fonts = {"characters": {"bar": "1", "cross": "x", "disc": "o"}}

    def declared(**more):
        evolution = {"foundation": "fonts", "fonts": fonts} | more
        generate = {"method": "image_pe", "rows": 10, "image": {"evolution": evolution}}
        return validated(DataContract, PICTURES | {"generate": generate}, "people")

    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        declared_foundations.train_encoder(declared()).save(file)
    contract = declared(encoder=str(files[0]))
    layout = ImageLayout.of(contract)
    foundation = declared_foundations.DeclaredFoundation.of(contract, layout)
    inputs = Mock(contract=contract, guarantee=Guarantee.target(contract))
    plan = image_pe.evolution_plan(inputs, layout, foundation, None)
    assert plan.encoder == NetworkEncoder.load(files[0]).digest != NetworkEncoder.load(files[1]).digest
    image_pe.opened(layout, plan, foundation)
    assert files[0] in foundation.paths
    files[1].replace(files[0])
    with pytest.raises(ConfigurationError, match="not those of the sealed plan"):
        image_pe.opened(layout, plan, foundation)
