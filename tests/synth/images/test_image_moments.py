"""DP moments of pictures: cost, sensitivity, noise, files and models. Statistical bounds fail by chance below 1e-6."""

import itertools
import math
import shutil

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from dpsynth_platform.foundation.errors import AccountingError, MechanismFailed, ResumeRefused
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.foundation.storage import held_file
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianCountsEvent, matches_claim
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS, row_weight
from dpsynth_platform.synth.images import moments_measuring, moments_plan, noisy_results, picture_classifier
from dpsynth_platform.synth.images.exact_sums import UNIT, Batch, class_sums, clipped, norms
from dpsynth_platform.synth.images.moments_fitting import before_clipping, clipped_moments, low_frequencies
from dpsynth_platform.synth.images.moments_measuring import fit, measure
from dpsynth_platform.synth.images.moments_model import Model
from dpsynth_platform.synth.images.moments_plan import STYLES, MomentsPlan, describe, event, planned, style_name
from dpsynth_platform.synth.images.noisy_results import is_complete, with_noise
from dpsynth_platform.synth.images.picture_classifier import GRADIENT_UNIT, PictureClassifier, trained

ONE = Guarantee(1.0, 1e-5, "example", "add-or-remove", 1)
UNITS = {
    "class-counts": RECORD_PARTS,
    "brightness": RECORD_PARTS,
    "spread": RECORD_PARTS,
    **{style_name(style): RECORD_PARTS for style in STYLES},
    "class-means": UNIT,
    "centres": UNIT,
    "scatter": UNIT**2,
    "covariances": UNIT**2,
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few drawn pictures, so that networks are learned in moments."""
    monkeypatch.setattr(moments_measuring, "DRAWN", 48)
    monkeypatch.setattr(moments_measuring, "FEW_DRAWN", 24)
    monkeypatch.setattr("dpsynth_platform.synth.images.moments_model.TRIED", 8)


def passes(pixels, classes, weights=None, size=3):
    """Passes in batches of `size` records."""

    def batches():
        for start in range(0, len(pixels), size):
            part = slice(start, start + size)
            yield Batch(pixels[part], classes[part], None if weights is None else weights[part])

    return batches


def pictures(form, number, classes, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.integers(0, 256, (number, *form.shape), dtype=np.uint8),
        rng.integers(0, classes, number),
    )


# The cost.


def gaussian_epsilon(mu):
    """Of one Gaussian sum that a unit moves by mu deviations, at delta 1e-5 (Balle & Wang 2018, theorem 8)."""

    def excess(target):
        return stats.norm.cdf(mu / 2 - target / mu) - math.exp(target) * stats.norm.cdf(-mu / 2 - target / mu) - 1e-5

    return optimize.brentq(excess, 1e-3, 100)


@pytest.mark.parametrize("target", [0.5, 10.0])
@pytest.mark.parametrize(
    ("adjacency", "bound", "weighting", "moved"),
    [
        ("add-or-remove", 1, "rows", 1),
        ("zero-out", 3, "rows", 3),
        ("add-or-remove", 5, "owners", 1),
        ("replace-one", 1, "rows", 2),
        ("replace-one", 4, "owners", 2),
        ("fixed-graph", 2, "rows", 4),
    ],
)
def test_the_event_covers_the_composed_gaussian_sums(target, adjacency, bound, weighting, moved):
    """By the closed form of one Gaussian whose mu^2 is the queries' sum, by sealed noise and what a unit moves."""
    guarantee = Guarantee(target, 1e-5, "user", adjacency, bound, weighting)
    plan = planned(ImageForm(28, 28, 1), 10, 60_000, guarantee)
    mu = math.sqrt(sum((moved / noise) ** 2 for noise in plan.noise.values()))
    stated = epsilon(event(plan, guarantee), 1e-5).epsilon
    assert gaussian_epsilon(mu) <= stated
    assert 0.98 * target <= stated <= target
    assert matches_claim(event(plan, guarantee), guarantee)


def test_counted_columns_share_the_guarantee():
    already = GaussianCountsEvent(5.0, "add-or-remove", 1)
    alone, beside = (planned(ImageForm(8, 8, 1), 3, 1000, ONE, counted) for counted in (None, already))
    assert all(beside.noise[name] > noise for name, noise in alone.noise.items())
    mu = math.sqrt(1 / 25 + sum(1 / noise**2 for noise in beside.noise.values()))
    assert 0.98 < gaussian_epsilon(mu) <= 1
    whole = pld.from_gaussian_mechanism(5.0)
    for noise in beside.noise.values():
        whole = whole.compose(pld.from_gaussian_mechanism(noise))
    assert 0.98 < whole.get_epsilon_for_delta(1e-5) < 1.01  # each of the pessimistic losses is rounded up


def test_a_plan_is_public_json_and_impossible_ones_are_refused():
    plan = planned(ImageForm(64, 64, 3), 2, 1_000_000, ONE)
    assert MomentsPlan.from_json(plan.to_json()) == plan
    assert plan.frequencies == 18
    assert "gradients" in describe(plan)["event"]
    assert not planned(ImageForm(4, 4, 1), 1, 500, ONE).networks
    for classes, units in ((0, 10), (2, 0), (True, 10), (10**6, 10)):
        with pytest.raises(AccountingError, match="accepted"):
            planned(ImageForm(4, 4, 1), classes, units, ONE)


# Sensitivity.


def recorded(monkeypatch, plan, batches, directory, answers=None):
    """The exact sums of every query, by name. Queries answer without noise, or with the given answers."""
    exact = {}
    order = iter(plan.noise)

    def without_noise(sums, multiplier, unit, *, matrix=False):
        name = next(order)
        assert multiplier == plan.noise[name]
        assert unit == UNITS.get(name, GRADIENT_UNIT)
        exact[name] = sums
        return sums if answers is None else answers[name]

    with monkeypatch.context() as patched:
        patched.setattr(noisy_results, "with_noise", without_noise)
        measure(plan, batches, directory)
    return exact


def follow(source, target, plan):
    """What follows from the answers, so that a second run asks the very same queries."""
    target.mkdir()
    for path in source.glob("*.npz"):
        if path.stem not in plan.noise:
            shutil.copy(path, target / path.name)


def squared(difference):
    return sum(int(number) ** 2 for number in difference.ravel())


def within(difference, unit, records):
    return squared(difference) <= (unit * records) ** 2


RECORDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["black", "white", "corner", "noise"]), st.integers(0, 3)),
    min_size=1,
    max_size=9,
)


@settings(max_examples=6)
@given(records=RECORDS, removed=st.integers(0, 3), weighted=st.booleans())
def test_an_owner_moves_no_query_further_than_the_event_assumes(tmp_path_factory, records, removed, weighted):
    """Of unbalanced classes and extreme pixels; the change of every sum, in whole numbers."""
    form = ImageForm(5, 4, 1)
    rng = np.random.default_rng(len(records))
    kinds = {
        "black": np.zeros(form.shape, dtype=np.uint8),
        "white": np.full(form.shape, 255, dtype=np.uint8),
        "corner": np.zeros(form.shape, dtype=np.uint8),
    }
    kinds["corner"][0, 0, 0] = 255
    pixels = np.stack(
        [kinds[kind] if kind in kinds else rng.integers(0, 256, form.shape, dtype=np.uint8) for _, kind, _ in records]
    )
    classes = np.array([label for label, _, _ in records])
    owners = np.array([owner for _, _, owner in records])
    rows = np.bincount(owners, minlength=4)
    weights = row_weight(rows[owners].astype(np.int64)) if weighted else None
    bound = int(rows[removed])
    plan = planned(form, 3, 100, ONE)
    directory = tmp_path_factory.mktemp("neighbours")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moments_measuring, "DRAWN", 32)
        exact = recorded(patched, plan, passes(pixels, classes, weights), directory / "one")
        follow(directory / "one", directory / "other", plan)
        kept = owners != removed
        # The neighbour's other records have the same weights: their owners have the same rows.
        others = None if weights is None else weights[kept]
        neighbour = recorded(
            patched, plan, passes(pixels[kept], classes[kept], others, size=2), directory / "other", answers=exact
        )
    assert exact.keys() == plan.noise.keys()
    moved = (1 if bound else 0) if weighted else bound
    for name, sums in exact.items():
        assert within(sums - neighbour[name], UNITS.get(name, GRADIENT_UNIT), moved), name


def test_sums_use_the_norm_that_is_paid_for(monkeypatch, tmp_path):
    """One record reaches nearly the whole unit, so that no noise is wasted, and no sum is zero by mistake."""
    form = ImageForm(4, 4, 1)
    plan = planned(form, 2, 100, ONE)
    pixels, classes = pictures(form, 1, 1)
    exact = recorded(monkeypatch, plan, passes(pixels, classes), tmp_path / "one")
    for name in ("class-counts", "brightness", "spread"):
        assert squared(exact[name]) == RECORD_PARTS**2
    assert squared(exact["class-means"]) > 0.98 * UNIT**2


def test_noise_for_a_mean_class_size_is_found_out():
    """The mistake: each class's sum over its own true size, with noise as if every class had the mean size."""
    pixels = np.full((101, 16), 255.0)
    classes = np.array([0] * 100 + [1])
    everyone = np.ones(101, dtype=bool)
    without_last = np.arange(101) < 100

    def sums(chosen):
        return class_sums(clipped(pixels[chosen], 100.0, np.ones((chosen.sum(), 1))), classes[chosen], 2)

    def divided(chosen):
        return sums(chosen) // np.maximum(np.bincount(classes[chosen], minlength=2), 1)[:, None]

    assert within(sums(everyone) - sums(without_last), UNIT, 1)
    assert not within(divided(everyone) - divided(without_last), UNIT / (101 / 2), 1)


@given(
    st.lists(st.lists(st.integers(-(2**21), 2**21), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(1, 1e6),
    st.integers(0, RECORD_PARTS),
)
def test_a_clipped_vector_is_within_its_share_exactly(rows, norm, weight):
    vectors = np.array(rows, dtype=np.float64)
    shares = np.full((len(rows), 1), weight / RECORD_PARTS)
    found = clipped(vectors, norm, shares)
    for row in found:
        assert squared(row) <= weight**2  # UNIT is RECORD_PARTS
    for row in clipped(vectors, norm, np.sqrt(shares)):
        assert squared(row) <= weight * RECORD_PARTS


# Whole numbers: a record does not depend on its batch.


@pytest.fixture(scope="module")
def classifier():
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (64, 9, 7, 3), dtype=np.uint8)
    return trained(pixels, np.arange(64) % 3, 3, rng, epochs=1)


def test_features_are_those_of_integer_arithmetic(classifier):
    rng = np.random.default_rng(2)
    pixels = rng.choice(np.array([0, 1, 254, 255], dtype=np.uint8), (5, 9, 7, 3))

    def convolved(held, name, padding):
        kernel = classifier.weights[f"{name}.kernel"].astype(np.int64)
        size = kernel.shape[-1]
        held = np.pad(held, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        high, wide = ((side - size) // 2 + 1 for side in held.shape[2:])
        out = np.zeros((len(held), len(kernel), high, wide), dtype=np.int64)
        for down, right in itertools.product(range(size), repeat=2):
            taken = held[:, :, down : down + 2 * high - 1 : 2, right : right + 2 * wide - 1 : 2]
            out += np.einsum("nchw,oc->nohw", taken, kernel[:, :, down, right])
        return reduced(out, name)

    def reduced(sums, name):
        bias, scale = (
            classifier.weights[f"{name}.{part}"].reshape(-1, *[1] * (sums.ndim - 2)) for part in ("bias", "scale")
        )
        whole = sums + bias.astype(np.int64)
        assert np.abs(whole).max() <= 2**24
        return np.clip(np.floor(whole.astype(np.float32) * scale), 0, 255).astype(np.int64)

    held = convolved(convolved(pixels.transpose(0, 3, 1, 2).astype(np.int64), "first", 2), "second", 1)
    held = reduced(held.reshape(len(held), -1) @ classifier.weights["dense.kernel"].T.astype(np.int64), "dense")
    assert np.array_equal(classifier._activations(pixels).astype(np.int64), held)


def test_no_sum_of_the_features_can_leave_exact_numbers(classifier):
    for name in ("first", "second", "dense"):
        kernel, bias = classifier.weights[f"{name}.kernel"], classifier.weights[f"{name}.bias"]
        assert np.array_equal(kernel, np.rint(kernel))
        assert (255 * np.abs(kernel).reshape(len(kernel), -1).sum(axis=1) + np.abs(bias)).max() <= 2**24


def test_a_gradient_is_the_sum_of_its_records_gradients(classifier):
    rng = np.random.default_rng(3)
    pixels, classes = rng.integers(0, 256, (23, 9, 7, 3), dtype=np.uint8), rng.integers(0, 3, 23)
    weights = rng.integers(0, RECORD_PARTS + 1, 23)
    alone = [classifier.gradient(Batch(pixels[i : i + 1], classes[i : i + 1], weights[i : i + 1])) for i in range(23)]
    assert np.array_equal(classifier.gradient(Batch(pixels, classes, weights)), sum(alone))
    for gradient, weight in zip(alone, weights, strict=True):
        assert squared(gradient) * RECORD_PARTS**2 <= (GRADIENT_UNIT * int(weight)) ** 2


# The noise.


def test_every_query_has_its_noise(tmp_path):
    """Sums of squares over 2,000 cells or more are within chi-square limits of 1e-8 on either side."""
    exact = np.zeros((3000,), dtype=np.int64)
    noisy = with_noise(exact, 2.5, UNIT)
    assert_variance(noisy, (2.5 * UNIT) ** 2)
    matrices = with_noise(np.zeros((20, 100, 100), dtype=np.int64), 2.5, UNIT**2, matrix=True)
    diagonal, above = np.arange(100), np.triu_indices(100, 1)
    assert_variance(matrices[:, diagonal, diagonal], (2.5 * UNIT**2) ** 2)
    assert_variance(matrices[:, above[0], above[1]], (2.5 * UNIT**2) ** 2 / 2, slack=1e-4)
    assert not np.tril(matrices, -1).any()


def assert_variance(noisy, variance, slack=0.0):
    total, cells = float((noisy.astype(np.float64) ** 2).sum() / variance), noisy.size
    assert stats.chi2.ppf(1e-8, cells) <= total <= stats.chi2.isf(1e-8, cells) * (1 + slack)


def test_measured_sums_have_the_sealed_noise(tmp_path):
    """Of no record, so that all that is stored is noise: 16 x 16 pixels of 10 classes are 2,560 cells."""
    plan = planned(ImageForm(16, 16, 1), 10, 1000, ONE)
    measure(plan, passes(*pictures(plan.form, 0, 10)), tmp_path / "m")
    found = np.load(tmp_path / "m" / "class-means.npz")["sums"]
    assert_variance(found, (plan.noise["class-means"] * UNIT) ** 2)
    gradients = [np.load(path)["sums"] for path in sorted((tmp_path / "m").glob("gradient-*.npz"))]
    assert len(gradients) == plan.networks * plan.rounds
    noise = plan.noise["gradient-0-0"] * GRADIENT_UNIT
    assert_variance(np.stack(gradients), noise**2)


# Files.


def test_a_stopped_run_continues_and_draws_nothing_twice(tmp_path):
    form = ImageForm(6, 6, 1)
    plan = planned(form, 2, 100, ONE)
    whole = passes(*pictures(form, 20, 2))
    begun = itertools.count()

    class Stopped(Exception):
        pass

    def stopping():
        if next(begun) == 8:
            raise Stopped
        return whole()

    directory = tmp_path / "m"
    with pytest.raises(Stopped):
        measure(plan, stopping, directory)
    assert not is_complete(directory)
    with pytest.raises(MechanismFailed, match="new spend"):
        fit(directory, plan)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert len([name for name in before if name.removesuffix(".npz") in plan.noise]) == 8
    measure(plan, whole, directory)
    assert is_complete(directory)
    assert all((directory / name).read_bytes() == content for name, content in before.items())
    kept = {path.name: path.read_bytes() for path in directory.iterdir()}
    measure(plan, stopping_always, directory)
    assert kept == {path.name: path.read_bytes() for path in directory.iterdir()}


def stopping_always():
    raise AssertionError("a complete directory is measured again")


def test_two_processes_do_not_measure_into_one_directory(tmp_path):
    plan = planned(ImageForm(3, 3, 1), 1, 100, ONE)
    (tmp_path / "m").mkdir()
    with held_file(tmp_path / "m" / "lock"), pytest.raises(ResumeRefused, match="another process"):
        measure(plan, stopping_always, tmp_path / "m")


def test_measurements_of_another_plan_and_damaged_ones_are_refused(tmp_path):
    form = ImageForm(3, 3, 1)
    plan, other = planned(form, 1, 100, ONE), planned(form, 1, 101, ONE)
    data = passes(*pictures(form, 4, 1))
    measure(plan, data, tmp_path / "m")
    with pytest.raises(MechanismFailed, match="another plan"):
        measure(other, data, tmp_path / "m")
    with pytest.raises(MechanismFailed, match="another plan"):
        fit(tmp_path / "m", other)
    (tmp_path / "m" / "scatter.npz").write_bytes(b"PK")
    with pytest.raises(MechanismFailed, match="damaged"):
        fit(tmp_path / "m", plan)
    (tmp_path / "m" / "scatter.npz").unlink()
    with pytest.raises(MechanismFailed, match="lack scatter"):
        fit(tmp_path / "m", plan)


def test_progress_says_nothing_of_the_records(tmp_path):
    form = ImageForm(3, 3, 1)
    plan = planned(form, 2, 100, ONE)
    said = []
    for number in (0, 17):
        found = []
        measure(
            plan,
            passes(*pictures(form, number, 2)),
            tmp_path / str(number),
            lambda *words, found=found: found.append(words),
        )
        said.append(found)
    assert said[0] == said[1]
    assert {(done, total) for _, done, total in said[0]} == {(0, 1), (1, 1)}


# Models.


def test_the_same_noisy_sums_give_the_same_model(monkeypatch, tmp_path):
    """Whatever the records: nothing but noisy sums is divided by or kept."""
    form = ImageForm(6, 5, 1)
    plan = planned(form, 3, 100, ONE)
    exact = recorded(monkeypatch, plan, passes(*pictures(form, 40, 3)), tmp_path / "one")
    follow(tmp_path / "one", tmp_path / "other", plan)
    recorded(monkeypatch, plan, passes(*pictures(form, 7, 1, seed=5)), tmp_path / "other", answers=exact)
    one, other = (fit(tmp_path / name, plan) for name in ("one", "other"))
    one.save(tmp_path / "one.npz")
    other.save(tmp_path / "other.npz")
    with np.load(tmp_path / "one.npz") as first, np.load(tmp_path / "other.npz") as second:
        assert sorted(first) == sorted(second)
        assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["none", "one", "black", "white", "one class"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 3), (8, 8, 1)])
@pytest.mark.parametrize("classes", [1, 3])
def test_any_records_give_pictures(tmp_path, kind, shape, classes):
    form = ImageForm(*shape)
    plan = planned(form, classes, 50, ONE)
    pixels, labels = pictures(form, {"none": 0, "one": 1}.get(kind, 12), classes)
    if kind in ("black", "white"):
        pixels[:] = 255 * (kind == "white")
    if kind == "one class":
        labels[:] = 0
    measure(plan, passes(pixels, labels), tmp_path / "m")
    model = fit(tmp_path / "m", plan)
    assert model.class_counts.shape == (classes,)
    for label in range(classes):
        drawn = model.draw(label, 5, np.random.default_rng(0))
        assert drawn.shape == (5, *shape)
        assert drawn.dtype == np.uint8
    assert model.draw(0, 0, np.random.default_rng(0)).shape == (0, *shape)


def test_large_colour_pictures_are_measured_in_low_frequencies(monkeypatch, tmp_path):
    monkeypatch.setattr(moments_plan, "MOST_BASIS", 200)
    form = ImageForm(9, 12, 3)
    plan = planned(form, 1, 30_000, Guarantee(10.0, 1e-5, "example", "add-or-remove", 1))
    assert plan.frequencies == 8
    ramp = np.linspace(0, 255, 12)[None, None, :, None] * np.ones((60, 9, 1, 3))
    measure(plan, passes(ramp.astype(np.uint8), np.zeros(60, dtype=np.int64), size=50), tmp_path / "m")
    with np.load(tmp_path / "m" / "scatter.npz") as found:
        assert found["sums"].shape == (192, 192)
    drawn = fit(tmp_path / "m", plan).draw(0, 50, np.random.default_rng(0)).astype(np.float64)
    assert drawn.shape == (50, 9, 12, 3)


def test_enough_records_give_pictures_like_them(tmp_path):
    """Two classes, left and right halves bright, at epsilon 10: draws are told apart, and have their class's mean."""
    form = ImageForm(8, 8, 1)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 6000)
    pixels = rng.normal(40, 15, (6000, 8, 8))
    pixels[labels == 0, :, :4] += 150
    pixels[labels == 1, :, 4:] += 150
    pixels = np.clip(pixels, 0, 255).astype(np.uint8)[..., None]
    plan = planned(form, 2, 6000, Guarantee(10.0, 1e-5, "example", "add-or-remove", 1))
    measure(plan, passes(pixels, labels, size=1000), tmp_path / "m")
    model = fit(tmp_path / "m", plan)
    # Six deviations of the noise.
    assert np.abs(model.class_counts - np.bincount(labels)).max() < 6 * plan.noise["class-counts"]
    for label, side in ((0, slice(0, 4)), (1, slice(4, 8))):
        drawn = model.draw(label, 100, np.random.default_rng(1))[..., 0].astype(np.float64)
        dark = drawn.mean() * 2 - drawn[:, :, side].mean()
        assert abs(drawn[:, :, side].mean() - 190) < 15
        assert abs(dark - 40) < 15


def test_a_model_is_saved_with_its_classifier(tmp_path):
    form = ImageForm(6, 6, 1)
    plan = planned(form, 3, 100, ONE)
    measure(plan, passes(*pictures(form, 30, 3)), tmp_path / "m")
    model = fit(tmp_path / "m", plan)
    model.save(tmp_path / "model.npz")
    again = Model.load(tmp_path / "model.npz")
    assert isinstance(again.classifier, PictureClassifier)
    one, other = (found.draw(1, 9, np.random.default_rng(4)) for found in (model, again))
    assert np.array_equal(one, other)
    (tmp_path / "model.npz").write_bytes(b"")
    with pytest.raises(MechanismFailed, match="damaged"):
        Model.load(tmp_path / "model.npz")


@given(st.floats(-1, 2), st.floats(0.05, 1))
def test_the_moments_before_clipping_are_found_again(location, scale):
    mean, variance = clipped_moments(np.array([location]), np.array([scale]))
    if 0.01 < mean[0] < 0.99 and variance[0] > 1e-3:
        again = clipped_moments(*before_clipping(mean, variance))
        assert np.allclose(again, (mean, variance), atol=0.02)


def test_low_frequencies_are_orthonormal_and_ordered_as_pixels():
    columns = low_frequencies(6, 5, 3, 4)
    assert columns.shape == (90, 48)
    assert np.allclose(columns.T @ columns, np.eye(48))
    red = np.zeros((6, 5, 3))
    red[:, :, 0] = 1
    assert np.allclose(columns @ (columns.T @ red.ravel()), red.ravel())


def test_norms_are_exact_roots():
    assert norms(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[5.0], [0.0]]
    assert picture_classifier.FEATURE_PART**2 + picture_classifier.CONSTANT_PART**2 < 1
