"""The audit of pictures against the real mechanism: without noise it must fail, with it it must not."""

from __future__ import annotations

import secrets
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from diffusion_cases import SIZE, diffusion_plan, pictures
from picture_cases import PICTURES, SIDE, drawings_table
from scipy import stats

from dpsynth_platform.audit.attacks import PICTURE_LOSS, PICTURE_SUMS, Scored
from dpsynth_platform.audit.canaries import make_canaries, random_patterns
from dpsynth_platform.audit.picture_scoring import distance_scores, score_pictures, sum_scores
from dpsynth_platform.audit.policy import attacks_on
from dpsynth_platform.audit.verdict import AuditReport, judge
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.scrub import scrubbed_schema
from dpsynth_platform.sources.pictures import read_pictures
from dpsynth_platform.synth.images import moments_plan, noisy_results
from dpsynth_platform.synth.images.diffusion_loss import Rows, mean_losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss, WarmUpNumbers
from dpsynth_platform.synth.images.diffusion_plan import DiffusionParameters
from dpsynth_platform.synth.images.diffusion_training import WarmUp, warm
from dpsynth_platform.synth.images.image_moments import ImageMoments
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.interface import MechanismRun

ROWS = 4_000
TABLE = {"directory": "/public/drawings", "public": "drawn by ourselves and published"}


def drawn(confidence: float) -> DataContract:
    return validated(DataContract, PICTURES | {"audit": {"canaries": 150, "confidence": confidence}}, "people")


@pytest.fixture(autouse=True)
def no_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifier's gradients are no part of what is attacked here, and take most of the time."""
    monkeypatch.setattr(moments_plan, "NETWORKS", 0)


def audited(contract: DataContract, directory: Path) -> AuditReport:
    """Canaries in, the whole mechanism, drawing, attacks, verdict."""
    source = drawings_table(ROWS)
    made = ImageMoments()
    plan = made.plan(contract, source.schema, Guarantee.target(contract))
    schema = scrubbed_schema(contract, source.schema)
    canaries = make_canaries(contract, schema, contract.canary_count, 2, None)
    pixels, _, _ = read_pictures(source["drawing"], ImageForm(SIDE, SIDE, 1), "refuse", raw=False)
    data = pa.table({"kind": source["kind"], "drawing": ImageForm(SIDE, SIDE, 1).stored(pixels)})
    rows = pa.concat_tables([data, canaries.joining.select(data.schema.names)])
    write_table(directory / "bounded", rows.schema, rows.to_batches())
    model = directory / "model"
    model.mkdir()
    made.run(MechanismRun(plan, directory / "bounded", Mock(), model))
    released = made.draw(model, 200).table()
    return judge(contract, None, canaries.included, score_pictures(contract, plan, canaries, model, released))


def test_without_noise_the_audit_finds_the_canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed before it was tried: the mistake is noise of zero in the sums of pictures.

    In nine runs the area was 0.97, deviation below 0.01, and all but one or two of 36 guesses were right: a claim of 1
    was refuted each time. An area of 0.75 is more than twenty deviations below; without any leak it has a deviation of
    0.047, so that 0.75 is above it by more than five.
    """
    monkeypatch.setattr(noisy_results, "sample_rounded_gaussian", lambda counts, sigma: counts.copy())
    report = audited(drawn(0.95), tmp_path)
    (sums,) = [attack for attack in report.attacks if attack.name == PICTURE_SUMS.name]
    assert sums.area_under_curve > 0.75


def test_with_its_noise_the_audit_does_not_fail(tmp_path: Path) -> None:
    # At a confidence of 0.999999 of all attacks together, a correct mechanism fails with a chance of 1e-6 at most.
    report = audited(drawn(0.999999), tmp_path)
    assert report.verdict != "fail"


def test_coins_follow_from_sums_without_noise_and_background() -> None:
    rng = np.random.default_rng(3)
    vectors, coins = rng.random((40, 200)), rng.integers(0, 2, 40)
    sums = MeasuredSums((vectors * coins[:, None]).sum(axis=0)[None], vectors, 1e-3)
    found = sum_scores(sums, np.zeros(40, np.int64), 1)
    assert ((found > 0.5) == coins.astype(bool)).all()
    twice = MeasuredSums(2 * sums.sums, vectors, 1e-3)
    assert ((sum_scores(twice, np.zeros(40, np.int64), 2) > 0.5) == coins.astype(bool)).all()
    assert (sum_scores(sums, np.full(40, -1), 1) == 0.5).all()


def test_distances_are_to_the_nearest_released_picture() -> None:
    rng = np.random.default_rng(4)
    pictures = rng.integers(0, 256, (50, 3, 4, 2), dtype=np.uint8)
    released = rng.integers(0, 256, (600, 3, 4, 2), dtype=np.uint8)
    released[599] = pictures[7]
    found = distance_scores(pictures, released)
    away = pictures[:, None].astype(float) - released[None].astype(float)
    assert found == pytest.approx(-np.sqrt((away**2).sum(axis=(2, 3, 4))).min(axis=1), abs=0.05)
    assert found[7] == 0 and found.argmax() == 7


@pytest.mark.parametrize("form", [ImageForm(1, 1, 1), ImageForm(28, 28, 1), ImageForm(5, 9, 3), ImageForm(64, 48, 3)])
def test_canary_patterns_are_black_and_white_and_coarse(form: ImageForm) -> None:
    pictures = random_patterns(form, 64, np.random.default_rng(5))
    assert pictures.shape == (64, *form.shape) and set(np.unique(pictures)) <= {0, 255}
    if form.values > 1:
        assert len(np.unique(pictures.reshape(64, -1), axis=0)) == 64  # 2^25 patterns at least, a pair in 16,000 seeds
    if form.height == 28:
        assert (pictures[:, 0] == pictures[:, 1]).all()


def test_losses_are_compared_by_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network that was trained without privacy on half of the canaries and a few other pictures.

    All random numbers are the same each time. With others, eight runs of 150 steps gave areas of 0.89 to 0.99; without
    a leak the deviation is 0.047 around 0.5.
    """
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
    rng_of = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed=7: rng_of(seed))
    torch.manual_seed(7)
    network, loss = DiffusionParameters.of(diffusion_plan()).network(), DiffusionLoss()
    rng, form = np.random.default_rng(), ImageForm(*SIZE, 1)
    canaries, coins, classes = random_patterns(form, 150, rng), np.arange(150) % 2 == 0, rng.integers(0, 2, 150)
    others, kinds = pictures(40)
    learned = np.concatenate([others, canaries[coins], canaries[coins]])
    labels = np.concatenate([kinds, classes[coins], classes[coins]])
    rows = Rows(loss, form, 2, torch.device("cpu"))
    warm(network, rows, WarmUp(learned, labels, WarmUpNumbers(steps=200)))
    found = mean_losses(network.eval(), loss, canaries, classes)
    assert stats.mannwhitneyu(-found[coins], -found[~coins]).statistic > 0.65 * 75 * 75
    repeated = mean_losses(network, loss, canaries[[3, 3]].repeat(2, 0), classes[[3, 3]].repeat(2, 0))
    assert repeated == pytest.approx(np.full(4, repeated[0]), rel=1e-4)


def test_the_loss_is_attacked_where_a_diffusion_model_is_kept() -> None:
    checkpoint = {"checkpoint": "/public/model", "public": "trained on drawings of our own"}
    for method, image, kept in (
        ("image_diffusion", {}, True),
        ("image_finetune", {"finetune": checkpoint}, True),
        ("image_gan", {}, False),
        ("image_moments", {}, False),
    ):
        generate = {"method": method, "rows": 10, "image": image}
        contract = validated(DataContract, PICTURES | {"generate": generate}, "people")
        assert (PICTURE_LOSS in attacks_on(contract)) == kept


@pytest.mark.parametrize(
    ("generate", "summed"),
    [
        ({"method": "image_moments"}, True),
        ({"method": "image_mixed"}, True),
        ({"method": "image_embedding"}, True),
        ({"method": "image_pe"}, False),
        ({"method": "image_gan"}, False),
        ({"method": "image_diffusion"}, True),
        ({"method": "image_diffusion", "image": {"diffusion": {"warm_up": "none"}}}, False),
        ({"method": "image_diffusion", "image": {"diffusion": {"warm_up": "table", "table": TABLE}}}, False),
        ({"method": "image_diffusion", "image": {"diffusion": {"warm_up": "table-and-moments", "table": TABLE}}}, True),
    ],
)
def test_sums_are_attacked_where_some_are_measured(generate: dict[str, object], summed: bool) -> None:
    contract = validated(DataContract, PICTURES | {"generate": generate | {"rows": 10}}, "people")
    assert (PICTURE_SUMS in attacks_on(contract)) == summed


@pytest.mark.parametrize("method", ["image_moments", "image_pe", "image_gan", "image_finetune"])
def test_a_pass_says_where_no_attack_that_works_is_about_pictures(method: str) -> None:
    """Of evolution, GAN and fine-tuning a pass rests on the counted kinds alone."""
    checkpoint = {"finetune": {"checkpoint": "/public/model", "public": "trained on drawings of our own"}}
    image = checkpoint if method == "image_finetune" else {}
    audit = {"canaries": 500, "confidence": 0.95}
    generate = {"method": method, "rows": 10, "image": image}
    contract = validated(DataContract, PICTURES | {"generate": generate, "audit": audit}, "people")
    # Every second guess is right, and ties follow the canaries' order: no verdict by chance.
    scored = [Scored(attack, np.arange(500.0)) for attack in attacks_on(contract)]
    passed = judge(contract, None, np.arange(500) % 2 == 0, scored)
    assert passed.verdict == "pass"
    assert ("This rests on the counted columns alone" in passed.summary) == (method != "image_moments")
    assert "counted columns alone" not in AuditReport.from_json(passed.to_json() | {"verdict": "fail"}).summary
