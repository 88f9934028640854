"""The loss is EDM's, a picture's draws are its own, and drawing solves the reverse process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images import diffusion_sampling
from dpsynth_platform.synth.images.diffusion_loss import Rows, as_pixels, as_records, denoised, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, Solver
from dpsynth_platform.synth.images.diffusion_sampling import sample
from dpsynth_platform.synth.images.picture_codecs import AsPixels

CPU = torch.device("cpu")
FORM = ImageForm(6, 5, 3)


def drawn(network, *asked):
    return sample(network, AsPixels(FORM), *asked)


def records(number=4):
    pixels = np.random.default_rng(1).integers(0, 256, (number, *FORM.shape), dtype=np.uint8)
    return {"pixels": as_records(pixels), "classes": torch.arange(number) % 3}, pixels


def rows(**changes):
    return Rows(DiffusionLoss(**changes), FORM, 3, CPU)


def test_pixels_go_in_and_out_unchanged():
    given, pixels = records()
    drawn = rows(without_class=0.0).drawn(given, 1)["pictures"]
    assert drawn.min() >= -1
    assert drawn.max() <= 1
    assert (as_pixels(drawn) == pixels).all()


def test_a_pictures_draws_are_next_to_each_other_and_differ():
    given, _ = records()
    drawn = rows(without_class=0.0).drawn(given, 5)
    assert drawn["classes"].tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [0] * 5
    pictures = drawn["pictures"].unflatten(0, (4, 5))
    assert (pictures == pictures[:, :1]).all()
    assert len(set(drawn["level"].tolist())) == 20
    assert torch.pdist(drawn["noise"].flatten(1)).min() > 1


def test_levels_and_missing_classes_are_distributed_as_declared():
    """Kolmogorov and Smirnov's test, and a binomial one, each with a false alarm below 1e-9."""
    given, _ = records(1)
    drawn = rows(level_mean=-0.7, level_deviation=0.4, without_class=0.25).drawn(given, 20_000)
    assert stats.kstest(drawn["level"].log().numpy(), "norm", (-0.7, 0.4)).pvalue > 1e-9
    without = int((drawn["classes"] == 3).sum())
    assert stats.binomtest(without, 20_000, 0.25).pvalue > 1e-9
    assert stats.kstest(drawn["noise"].flatten().numpy(), "norm").pvalue > 1e-9


def test_shifts_and_flips_move_whole_pictures():
    given, _ = records(1)
    plain = rows().drawn(given, 1)["pictures"][0]
    flipped = rows(flip=True).drawn(given, 200)["pictures"]
    kinds = {bool((row == plain).all()) or -int((row == plain.flip(2)).all()) for row in flipped}
    assert kinds == {True, -1}  # missing one of both with probability 2^-199
    shifted = rows(shift=1).drawn(given, 400)["pictures"]
    inner = {tuple(row[:, 1:-1, 1:-1].flatten().tolist()) for row in shifted}
    places = [(down, right) for down in range(3) for right in range(3)]
    expected = {tuple(plain[:, down : down + 4, right : right + 3].flatten().tolist()) for down, right in places}
    assert inner == expected  # missing one of nine with probability below 9 (8/9)^400 < 1e-19


def test_the_loss_is_edms():
    """The weighted error of the denoised picture, by the formula of the paper (lambda times the square)."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(3, 3, generator=generator)

    def network(noisy, level, classes):
        return torch.einsum("dc,nchw->ndhw", weight, noisy) + level.view(-1, 1, 1, 1) + classes.view(-1, 1, 1, 1)

    given, _ = records()
    drawn = rows().drawn(given, 6)
    found = losses(network, drawn)
    level, pictures = drawn["level"], drawn["pictures"]
    noisy = pictures + level.view(-1, 1, 1, 1) * drawn["noise"]
    errors = (denoised(network, noisy, level, drawn["classes"]) - pictures).square().flatten(1).mean(1)
    weights = (level.square() + 0.25) / (level * 0.5).square()
    assert found.shape == (24,)
    assert torch.allclose(found, weights * errors, rtol=1e-3)


def perfect(mean, deviation):
    """The network whose denoised pictures are exact for pixels of a normal distribution."""

    def network(noisy, level, classes):
        sigma = (4 * level).exp().view(-1, 1, 1, 1)
        kept, scale = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
        seen = noisy * (sigma**2 + 0.25).sqrt()
        of_class = (mean * classes).view(-1, 1, 1, 1)
        exact = (deviation**2 * seen + sigma**2 * of_class) / (deviation**2 + sigma**2)
        return (exact - kept * seen) / scale

    return network


@pytest.mark.parametrize("churn", [0.0, 8.0])
def test_drawing_gives_the_distribution_of_the_data(monkeypatch, churn):
    """Means and deviations of 3,000 pixels of two classes, within bounds of seven deviations of each."""
    monkeypatch.setattr(diffusion_sampling, "TOGETHER", 64)
    number, deviation = 200, 0.15
    classes = torch.arange(number) % 2
    found = drawn(perfect(0.4, deviation), classes, np.random.default_rng(), Solver(steps=40, churn=churn), 2)
    values = found / 127.5 - 1
    assert found.shape == (number, *FORM.shape)
    for kind in (0, 1):
        mine = values[classes.numpy() == kind]
        near = 7 * deviation / mine.size**0.5
        assert abs(mine.mean() - 0.4 * kind) < near + 0.01
        assert abs(mine.std() - deviation) < near + 0.01


def test_guidance_goes_beyond_the_class():
    classes = torch.ones(60, dtype=torch.long)
    generator = np.random.default_rng()
    plain = drawn(perfect(0.2, 0.1), classes, generator, Solver(), 0)
    guided = drawn(perfect(0.2, 0.1), classes, generator, Solver(guidance=1.0), 0)
    assert guided.mean() - plain.mean() > 10


def test_drawn_pictures_differ_and_follow_the_given_generator():
    classes = torch.zeros(3, dtype=torch.long)
    one, same, other = (
        drawn(perfect(0.0, 0.3), classes, np.random.default_rng(seed), Solver(), 2) for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()
    assert (one[0] != one[1]).any()


@pytest.mark.parametrize(
    "wrong",
    [{"draws": 0}, {"level_deviation": 0.0}, {"without_class": 1.0}, {"shift": -1}, {"level_mean": float("nan")}],
)
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(AccountingError, match=f"loss: {next(iter(wrong))} .*; accepted: a"):
        DiffusionLoss(**wrong)
    with pytest.raises(AccountingError, match="solver"):
        Solver(steps=1)
