"""The report of pictures: good ones reach what real ones reach, bad ones do not, and it says that it is restricted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_picture_weights import random_weights
from toy_pictures import bars

from dpsynth_platform.foundation.errors import ConfigurationError, SourceError
from dpsynth_platform.quality.images import classifier, features, report
from dpsynth_platform.quality.images.report import MEASURES, ImageQualityReport, compare_images
from dpsynth_platform.release.dossier import check_svg

NAMES = ("top", "middle", "below")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save(random_weights(), path)
    return path


def compare(weights: Path, pixels: np.ndarray, labels: np.ndarray | None, **changes: Any) -> ImageQualityReport:
    real, held_out = bars(170, 1), bars(150, 2)
    labelled = labels is not None
    arguments: dict[str, Any] = {
        "real_train_pixels": real[0],
        "real_train_labels": real[1] if labelled else None,
        "real_test_pixels": held_out[0],
        "real_test_labels": held_out[1] if labelled else None,
        "synthetic_pixels": pixels,
        "synthetic_labels": labels,
        "names": NAMES if labelled else (),
        "weights": weights,
    }
    return compare_images(**arguments | changes)


@pytest.fixture(scope="module")
def quick() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "STEPS", 60)
        patch.setattr(classifier, "BATCH", 32)
        patch.setattr(report, "SEEDS", 2)
        yield


@pytest.fixture
def without_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures by features for classes: they take half the time."""
    monkeypatch.setattr(report, "LEAST_OF_CLASS", 10_000)


REPORTED: list[tuple[str, int, int]] = []


@pytest.fixture(scope="module")
def good(weights: Path, quick: None) -> ImageQualityReport:
    def progress(stage: str, done: int, total: int, beside: str = "", /) -> None:
        REPORTED.append((stage, done, total))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "LEAST_OF_CLASS", 20)
        return compare(weights, *bars(160, 3), progress=progress)


def figures(found: ImageQualityReport) -> dict[str, tuple[float, float]]:
    return {figure.key: (figure.synthetic.mean, figure.real.mean) for figure in found.figures}


def test_pictures_of_the_same_kind_reach_what_real_ones_reach(good: ImageQualityReport) -> None:
    found = figures(good)
    assert list(found) == list(MEASURES)
    assert found["accuracy"][0] > 0.9 and found["accuracy"][1] > 0.9
    assert found["frechet"][0] < 2 * found["frechet"][1] and found["frechet"][1] < 2 * found["frechet"][0]
    for key in ("precision", "recall", "density", "coverage"):
        assert found[key][0] == pytest.approx(found[key][1], abs=0.2)
    assert good.pixels.nearer["5%"] < 0.2 and good.features.nearer["5%"] < 0.2
    assert good.drawn == 150 and good.trained == 160


def test_noise_does_not(weights: Path, good: ImageQualityReport, without_classes: None) -> None:
    pixels, labels = bars(160, 3)
    noise = np.random.default_rng(0).integers(150, 256, pixels.shape, dtype=np.uint8)
    found, before = figures(compare(weights, noise, labels)), figures(good)
    assert found["accuracy"][0] < 0.7 < found["accuracy"][1]
    assert found["frechet"][0] > 1.3 * before["frechet"][0]
    assert found["coverage"][0] < before["coverage"][0] / 2
    assert found["mauve"][0] < before["mauve"][0] / 2
    assert found["frechet"][1] == pytest.approx(before["frechet"][1], rel=0.5)


def test_copies_are_noticed(weights: Path, quick: None, without_classes: None) -> None:
    found = compare(weights, *bars(170, 1))
    assert found.pixels.closeness.synthetic.copies == 170
    assert found.pixels.closeness.synthetic.copied == 1 and found.pixels.closeness.real.copied == 0
    assert found.pixels.nearer["1%"] == 1 and found.features.nearer["1%"] > 0.8
    shown = {row[0]: row[2:] for row in found.table()}
    assert shown["exact copies, share of pictures"] == ("1.000", "0.000")


def test_the_report_is_json_without_pictures_and_says_what_it_is(good: ImageQualityReport) -> None:
    document = json.loads(json.dumps(good.to_json(), allow_nan=False))
    assert document["restricted"] is True and document["notice"] == good.notice
    assert "Restricted" in good.markdown() and "nearest" not in document
    assert [found["name"] for found in document["classes"]] == list(NAMES)
    assert set(document["classes"][0]["figures"]) == {*MEASURES} - {"classifier_score"}
    assert document["figures"][2]["name"] == "Frechet distance (EfficientNet-lite0)"
    assert document["figures"][2]["synthetic"]["standard_error"] is None
    assert "FID" not in json.dumps(document)
    assert good.nearest is not None and len(good.nearest.rows) == 10


def test_the_charts_may_stand_in_a_dossier(good: ImageQualityReport) -> None:
    plots = good.plots()
    names = ["accuracy_by_class", "frechet_by_class", "coverage_by_class", "closeness_pixels", "closeness_features"]
    assert list(plots) == names
    for name, plot in plots.items():
        check_svg(name, plot)
    assert all(name in plots["accuracy_by_class"] for name in NAMES)


def test_without_classes_there_is_no_classifier(weights: Path, quick: None) -> None:
    found = compare(weights, bars(160, 3)[0], None)
    assert list(figures(found)) == [key for key in MEASURES if key not in ("accuracy", "classifier_score")]
    assert found.majority_accuracy is None and not found.classes
    assert list(found.plots()) == ["closeness_pixels", "closeness_features"]
    json.dumps(found.to_json(), allow_nan=False)


def test_classes_without_pictures_have_no_figures(weights: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LEAST_OF_CLASS", 40)
    pixels, labels = bars(160, 3)
    found = compare(weights, pixels[labels > 0], labels[labels > 0], names=(*NAMES, "never"))
    assert list(found.classes[0].figures) == ["accuracy"] and found.classes[0].drawn == 0
    assert found.classes[0].figures["accuracy"][0] == 0
    assert np.isnan(found.classes[3].figures["accuracy"]).all()
    json.dumps(found.to_json(), allow_nan=False)


def test_progress_shows_steps_and_percents_only(good: ImageQualityReport) -> None:
    assert {total for _, _, total in REPORTED} <= {1, 100, 2 * report.SEEDS}
    assert ("nearest pictures", 1, 1) in REPORTED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"real_test_pixels": np.zeros((150, 9, 12, 1), np.uint8)}, "several forms"),
        ({"synthetic_pixels": bars(19, 1)[0], "synthetic_labels": bars(19, 1)[1]}, "at least 20"),
        ({"synthetic_labels": np.zeros(3, int)}, "labels"),
        ({"synthetic_labels": np.full(160, 3)}, "from 0 to 2"),
        ({"synthetic_labels": np.full(160, -1)}, "from 0 to 2"),
    ],
)
def test_tables_that_do_not_fit_are_refused(weights: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        compare(weights, *bars(160, 3), **changes)


def test_missing_weights_are_said_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "PACKAGE", "no_such_package_of_weights")
    monkeypatch.setattr(report, "PictureClassifier", None)
    with pytest.raises(ConfigurationError, match="not installed"):
        compare(None, *bars(160, 3))  # type: ignore[arg-type]
