"""The randomness of training: its distribution, measured, and that it is fresh."""

import numpy as np
import pytest
import torch
from scipy import stats

from dpsynth_platform.training import stream
from dpsynth_platform.training.noise import CHUNK, STEP, GaussianNoise
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.sampler import PoissonSampler
from dpsynth_platform.training.stream import SecureStream

FALSE_ALARM = 1e-8


def sampler(batch_size, units, number):
    return PoissonSampler(TrainingPlan(units=units, batch_size=batch_size, steps=1, noise_multiplier=1.0), number)


def test_each_record_is_in_a_batch_as_often_as_planned():
    """Counts of inclusion are binomial, for each record and in sum; sizes of batches vary as independent coins do."""
    rounds, number, q = 4000, 60, 0.3
    drawn = sampler(3, 10, number)
    batches = np.zeros((rounds, number), dtype=bool)
    for row in batches:
        row[drawn.draw()] = True
    for count in batches.sum(axis=0):
        assert stats.binomtest(int(count), rounds, q).pvalue > FALSE_ALARM / number
    assert stats.binomtest(int(batches.sum()), rounds * number, q).pvalue > FALSE_ALARM
    sizes = batches.sum(axis=1)
    chi = ((sizes - number * q) ** 2).sum() / (number * q * (1 - q))  # about chi squared with `rounds` degrees
    assert abs(chi - rounds) < 7 * np.sqrt(2 * rounds)


def test_coins_of_two_records_and_of_two_steps_are_independent():
    rounds, number, q = 4000, 20, 0.5
    drawn = sampler(1, 2, number)
    batches = np.zeros((rounds, number), dtype=bool)
    for row in batches:
        row[drawn.draw()] = True
    pairs = [(i, j) for i in range(number) for j in range(i)]
    for i, j in pairs:
        both = int((batches[:, i] & batches[:, j]).sum())
        assert stats.binomtest(both, rounds, q * q).pvalue > FALSE_ALARM / len(pairs)
    for i in range(number):
        again = int((batches[:-1, i] ^ batches[1:, i]).sum())
        assert stats.binomtest(again, rounds - 1, 0.5).pvalue > FALSE_ALARM / number


def test_the_probability_is_of_the_planned_number_and_not_of_the_actual_one():
    drawn = sampler(10, 1000, 50_000)
    total = sum(len(drawn.draw()) for _ in range(20))
    assert stats.binomtest(total, 20 * 50_000, 0.01).pvalue > FALSE_ALARM


def test_a_full_batch_holds_everybody_and_no_record_makes_an_empty_one():
    assert sampler(10, 10, 12).draw().tolist() == list(range(12))
    assert len(sampler(1, 10, 0).draw()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_planned_distribution(dtype):
    number = 200_001  # odd
    sums = torch.full((number,), 3.0, dtype=dtype)
    GaussianNoise().add_(sums, 2.5)
    noise = ((sums - 3.0) / 2.5).double().numpy()
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM
    assert abs(noise.var() - 1) < 7 * np.sqrt(2 / number)
    assert abs(noise.mean()) < 7 / np.sqrt(number)
    halves = noise[: number // 2], noise[-(number // 2) :]  # made of the same radii
    assert abs(np.mean(halves[0] * halves[1])) < 7 / np.sqrt(number // 2)
    assert abs(np.mean((halves[0] ** 2 - 1) * (halves[1] ** 2 - 1))) < 7 * 2 / np.sqrt(number // 2)
    assert 3 < np.abs(noise).max() < 9


def test_every_coordinate_of_every_chunk_gets_noise_of_its_own():
    sums = torch.zeros(2, CHUNK // 2 + 3)
    GaussianNoise().add_(sums, 1.0)
    assert len(torch.unique(sums.view(-1))) > 0.2 * sums.numel()  # of some 2^19 steps within four deviations
    assert (sums == 0).sum() < 60  # about six
    assert (sums.view(-1)[CHUNK:] != sums.view(-1)[: sums.numel() - CHUNK]).any()


@pytest.mark.parametrize(("word", "largest"), [(0, 13.27), (2**64 - 1, 0.0), (2**63 - 1, 0.0), (2**63, 13.27)])
def test_extreme_words_make_finite_noise(monkeypatch, word, largest):
    monkeypatch.setattr(SecureStream, "words", lambda self, number: np.full(number, word, dtype=np.uint64))
    sums = torch.zeros(2, dtype=torch.float64)
    GaussianNoise().add_(sums, 1.0)
    assert torch.linalg.vector_norm(sums).item() == pytest.approx(largest, abs=0.01)


def test_the_longest_radii_lie_as_close_as_others(monkeypatch):
    """Where the first word is 0, the second one tells how long a radius is; else there would be one such radius."""

    def words(self, number):
        drawn = np.full(number, 2**62, dtype=np.uint64)
        drawn[: number // 3] = 0
        drawn[number // 3 : 2 * number // 3] = np.arange(1, number // 3 + 1, dtype=np.uint64) << np.uint64(40)
        return drawn

    monkeypatch.setattr(SecureStream, "words", words)
    sums = torch.zeros(100, dtype=torch.float64)
    GaussianNoise().add_(sums, 1.0)
    radii = torch.hypot(sums[:50], sums[50:])
    assert len(radii.unique()) == 50
    assert 9 < radii.min() < radii.max() < 13.3


@pytest.mark.parametrize("deviation", [1.0, 0.7, 3e-3, 1000.0])
@pytest.mark.parametrize("place", [0.0, 1 / 3, -7.1])
def test_noised_sums_are_whole_steps_wherever_they_lie(deviation, place):
    """Or digits near zero would tell what was added up."""
    sums = torch.full((20_000,), place * deviation)
    GaussianNoise().add_(sums, deviation)
    steps = sums.double() / (2.0 ** np.floor(np.log2(deviation)) * STEP)
    assert torch.equal(steps, steps.round())
    assert len(steps.unique()) > 15_000


def test_streams_are_fresh(monkeypatch):
    assert (SecureStream().words(4) != SecureStream().words(4)).all()
    one = SecureStream()
    assert (one.words(4) != one.words(4)).all()
    monkeypatch.setattr(stream, "random_key", lambda: bytes(32))
    assert (SecureStream().words(4) == SecureStream().words(4)).all()


def test_words_are_uniform():
    words = SecureStream().words(100_000)
    assert stats.kstest(words.astype(np.float64) * 2.0**-64, "uniform").pvalue > FALSE_ALARM
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(axis=0)
    assert all(stats.binomtest(int(count), 100_000, 0.5).pvalue > FALSE_ALARM / 64 for count in bits)
