"""A network that first learns from public pictures: which ones, by which classes, and what the paid choice costs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from diffusion_cases import bounded_pictures, diffusion_plan, job
from dp_accounting import dp_event, pld
from public_pictures import LEVELS, OF_EACH, nearest_contract, public_table, table_contract
from scipy.stats import norm

from dpsynth_platform.foundation.errors import AccountingError, ConfigurationError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.events import GaussianCountsEvent, SampledGaussianEvent, event_from_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images import diffusion_training, moments_plan, public_warm_up
from dpsynth_platform.synth.images.diffusion import ImageDiffusion
from dpsynth_platform.synth.images.diffusion_plan import DiffusionParameters
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.picture_classifier import trained
from dpsynth_platform.synth.images.public_warm_up import COUNTS, PublicWarmUp, chosen_pictures, label_counts

GENERATOR = ImageDiffusion()
NUMBER = len(LEVELS) * OF_EACH
NO_CLASS = 2


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return public_table(tmp_path_factory.mktemp("warm") / "public")


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    return bounded_pictures(tmp_path_factory.mktemp("warm") / "bounded")


@pytest.fixture(scope="module")
def nearest(public):
    """A plan that buys a choice, for owners of two records."""
    return planned(nearest_contract(public))


@pytest.fixture
def without_gate(monkeypatch):
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *arguments: None)


def planned(contract, **changes):
    return diffusion_plan(contract, by_table=True, **changes)


def levels_of(found):
    """How many pictures of each class are nearest to each level."""
    pixels, classes = found
    names, levels = list(LEVELS), np.array(list(LEVELS.values()))
    nearest = np.abs(pixels.mean((1, 2, 3))[:, None] - levels).argmin(1)
    return Counter((int(number), names[level]) for number, level in zip(classes, nearest, strict=True))


def chosen(contract, place, batches=lambda: iter(()), most=1000, digest="d"):
    parameters = DiffusionParameters.of(planned(contract))
    return chosen_pictures(parameters.table, parameters.layout, batches, place, digest, most)


def no_pass():
    raise AssertionError("a record is read")


def test_pictures_have_the_class_of_their_label(public, tmp_path):
    """By the labels' names, by what the contract says, and without a class otherwise; no record is read."""
    found = levels_of(chosen(table_contract(public, b=1), tmp_path, no_pass))
    assert found == {(0, "bright"): 12, (1, "dark"): 12, (NO_CLASS, "dim"): 12, (NO_CLASS, "night"): 12}
    mapped = table_contract(public, b=1, labels={"dark": ["night", "dark"]})
    found = levels_of(chosen(mapped, tmp_path, no_pass))
    assert found == {(1, "dark"): 12, (1, "night"): 12, (NO_CLASS, "bright"): 12, (NO_CLASS, "dim"): 12}
    assert len(chosen(mapped, tmp_path, no_pass, most=5)[1]) == 5
    parameters = DiffusionParameters.of(planned(mapped))
    single = dataclasses.replace(parameters.layout, conditions=())
    assert set(chosen_pictures(parameters.table, single, no_pass, tmp_path, "d", 1000)[1]) == {0}
    assert not list(tmp_path.iterdir())


def test_a_public_table_costs_nothing(public):
    contract = table_contract(public, b=1)
    plan, plain = planned(contract), diffusion_plan(contract)
    assert plan.event == plain.event
    described = GENERATOR.describe(plan)
    assert described["public_pictures"] == NUMBER and "noise_of_nearest_classes" not in described


class ByLevel:
    """In the classifier's place: the label is known by the mean level, so that counts are known exactly."""

    def predict(self, pixels):
        levels = np.array([LEVELS[label] for label in sorted(LEVELS)])
        return np.abs(pixels.mean((1, 2, 3))[:, None] - levels).argmin(1)


def test_the_labels_of_the_largest_noisy_counts_are_taken(public, bounded, tmp_path, monkeypatch):
    """Of each class, 40 records are in one cell, and none in the others.

    Its noisy count is below another one only if a difference of two draws exceeds 40: beyond nine deviations, for six
    pairs below 1e-18.
    """
    monkeypatch.setattr(public_warm_up, "trained", lambda *given: ByLevel())
    contract = nearest_contract(public, b=1)
    parameters = DiffusionParameters.of(planned(contract))
    assert math.sqrt(2) * parameters.table.noise < 40 / 9
    passes = []

    def batches():
        passes.append(1)
        for part in parameters.layout.read(bounded):
            yield Batch(part.pixels, part.classes)

    unfinished = tmp_path / f".{COUNTS}.0123"  # counts that a killed process had drawn, and that nothing used
    unfinished.write_bytes(b"drawn")
    assert levels_of(chosen(contract, tmp_path, batches)) == {(0, "bright"): 12, (1, "dark"): 12}
    assert not unfinished.exists()
    two = dataclasses.replace(parameters.table, nearest=2)
    found = levels_of(chosen_pictures(two, parameters.layout, batches, tmp_path, "d", 1000))
    assert found[0, "bright"] == found[1, "dark"] == 12 and sum(found.values()) == 48
    assert len(passes) == 1
    with pytest.raises(MechanismFailed, match="belong to another plan"):
        chosen(contract, tmp_path, no_pass, digest="other")
    (tmp_path / COUNTS).write_bytes(b"damaged")
    with pytest.raises(MechanismFailed, match="missing or damaged"):
        chosen(contract, tmp_path, no_pass)


def test_an_owner_moves_the_counts_by_its_pictures_at_most(nearest, tmp_path, monkeypatch):
    """On tables with and without one owner, by the true classifier; and the noise is the plan's for this bound."""
    exact, scales = [], []

    def seen(counts, sigma):
        exact.append(counts.copy())
        scales.append(sigma)
        return counts

    monkeypatch.setattr(public_warm_up, "sample_rounded_gaussian", seen)
    pictures = np.random.default_rng(1).integers(0, 256, (NUMBER, 8, 6, 1), dtype=np.uint8)
    once = trained(pictures, np.arange(NUMBER) % 4, 4, np.random.default_rng(1), 1)
    monkeypatch.setattr(public_warm_up, "trained", lambda *given: once)
    parameters = DiffusionParameters.of(nearest)

    def counts(records, place):
        table = bounded_pictures(tmp_path / place, records)

        def batches():
            for part in parameters.layout.read(table):
                yield Batch(part.pixels, part.classes)

        (tmp_path / COUNTS).unlink(missing_ok=True)
        chosen_pictures(parameters.table, parameters.layout, batches, tmp_path, "d", 1000)
        return exact[-1]

    whole, less = counts(80, "whole"), counts(78, "less")  # the last owner has two records
    assert whole.sum() == 80 * RECORD_PARTS
    assert 0 < np.linalg.norm(whole - less) <= 2 * RECORD_PARTS
    assert set(scales) == {parameters.table.noise * RECORD_PARTS}
    paid = GaussianCountsEvent(parameters.table.noise, "add-or-remove", 2)
    assert [leaf for leaf, _ in leaves(event_from_json(nearest.event))].count(paid) == 1


def test_a_record_is_counted_alike_in_every_batch(public):
    pixels = np.random.default_rng(2).integers(0, 256, (300, 8, 6, 1), dtype=np.uint8)
    classes = np.arange(300) % 2
    classifier = trained(pixels, np.arange(300) % 4, 4, np.random.default_rng(3), 1)
    together = label_counts(classifier, 4, 2, Batch(pixels, classes))
    alone = [label_counts(classifier, 4, 2, Batch(pixels[[row]], classes[[row]])) for row in range(300)]
    assert (together == np.sum(alone, axis=0)).all()
    assert len(np.unique(classifier.predict(pixels))) > 1


def test_counts_cost_their_share_and_belong_to_the_event(public):
    """Against the closed form of the Gaussian mechanism (Balle & Wang 2018, theorem 8), and PLD of plain events."""
    contract = nearest_contract(public, b=1)
    plan, target = planned(contract, sketch_share=0.4), Guarantee.target(contract)
    noise = plan.parameters["table"]["noise"]
    share = 0.3 * 0.9  # the kinds have a tenth

    def delta(sigma):
        inner, outer = 1 / (2 * sigma), share * target.epsilon * sigma
        return norm.cdf(inner - outer) - math.exp(share * target.epsilon) * norm.cdf(-inner - outer)

    assert delta(noise) <= share * target.delta < delta(0.98 * noise)
    parts = list(leaves(event_from_json(plan.event)))
    plain = []
    for leaf, times in parts:
        if isinstance(leaf, SampledGaussianEvent):
            step = dp_event.PoissonSampledDpEvent(
                leaf.sampling_probability, dp_event.GaussianDpEvent(leaf.noise_multiplier)
            )
            plain.append(dp_event.SelfComposedDpEvent(step, times))
        else:
            assert isinstance(leaf, GaussianCountsEvent)
            plain.append(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(leaf.sigma), times))
    sigmas = [leaf.sigma for leaf, _ in parts if isinstance(leaf, GaussianCountsEvent)]
    assert sigmas.count(noise) == 1
    found = pld.PLDAccountant().compose(dp_event.ComposedDpEvent(plain)).get_epsilon(target.delta)
    assert 0.97 * target.epsilon < found <= target.epsilon + 1e-6


def test_a_plan_with_cheaper_counts_is_refused(nearest):
    plan = nearest
    GENERATOR.check(plan)
    table = plan.parameters["table"]
    for changed in (table | {"noise": table["noise"] / 2}, table | {"noise": 0.0, "nearest": 0}):
        with pytest.raises(GrantRefused, match="event is not that of its parts"):
            GENERATOR.check(dataclasses.replace(plan, parameters=plan.parameters | {"table": changed}))
    with pytest.raises(AccountingError, match="nearest 1 with noise 0; accepted"):
        PublicWarmUp.from_json(table | {"noise": 0.0})
    assert "counts of the pictures of each class by the public label" in GENERATOR.describe(plan)["event"]


def test_what_cannot_be_chosen_from_is_refused(public, tmp_path):
    with pytest.raises(ConfigurationError, match=r"4 of the 4 labels in .*; accepted: fewer than the table has"):
        planned(nearest_contract(public, 4))
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    (unlabelled / "metadata.csv").write_text("file_name\n0.png\n")
    (unlabelled / "0.png").write_bytes((public / "dark" / "0.png").read_bytes())
    with pytest.raises(ConfigurationError, match=r"1 of the 0 labels in .*; declare a column of labels"):
        planned(nearest_contract(unlabelled))
    with pytest.raises(ConfigurationError, match="no picture has a label"):
        planned(table_contract(public, b=1, labels={"dark": ["violet"]}))
    with pytest.raises(ConfigurationError, match="accepted: a readable directory"):
        planned(table_contract(tmp_path / "nowhere"))


def test_another_table_than_the_plans_is_refused(tmp_path):
    contract = table_contract(public_table(tmp_path / "public"), b=1)
    plan = DiffusionParameters.of(planned(contract))
    (tmp_path / "public" / "dark" / "0.png").unlink()
    with pytest.raises(ConfigurationError, match="are not those of the sealed plan; accepted: the earlier ones"):
        chosen_pictures(plan.table, plan.layout, no_pass, tmp_path, "d", 10)


def test_public_pictures_come_before_the_draws_of_moments(public, bounded, tmp_path, without_gate, monkeypatch):
    learned = []
    monkeypatch.setattr(diffusion_training, "warm", lambda *given: learned.append(given[2]))
    monkeypatch.setattr(moments_plan, "NETWORKS", 0)
    plan = planned(nearest_contract(public), sketch_share=0.4)
    GENERATOR.run(job(plan, bounded, tmp_path / "model"))
    first, second = learned
    assert (len(first.pixels), first.then) == (24, second)
    assert (len(second.pixels), second.then) == (200, None)
    left = {path.name for path in (tmp_path / "model/pictures").iterdir()}
    assert left == {COUNTS, "sketch", "trained.json", "weights.safetensors"}
    assert GENERATOR.sample(tmp_path / "model", 10).num_rows == 10
