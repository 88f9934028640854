"""Measuring a plan of DP moments of pictures, and the model that follows.

What belongs here: the order of measurement: moments, styles of drawing, classifiers. What does not: the moments' sums
(`moments_queries`), the classifier's (`picture_classifier`), noise and files (`noisy_results`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images.exact_sums import Batches, Whole
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.images.moments_fitting import Floats
from dpsynth_platform.synth.images.moments_model import Model
from dpsynth_platform.synth.images.moments_plan import STYLES, MomentsPlan, gradient_name, style_name
from dpsynth_platform.synth.images.moments_queries import MomentsResults, measured_moments, sums_with
from dpsynth_platform.synth.images.noisy_results import (
    Opened,
    Query,
    Results,
    Unmeasured,
    check_plan,
    complete_results,
    measure_all,
)
from dpsynth_platform.synth.images.picture_classifier import GRADIENT_UNIT, PictureClassifier, trained

DRAWN, FEW_DRAWN = 40_000, 10_000
"""Pictures that a network is trained on; fewer for the comparison of styles, whose best is the first network."""
EPOCHS, EPOCHS_OF_FEW = 2, 4
"""Passes over these pictures."""
HESSIAN_DRAWN = 5000
"""Pictures that a classifier's Hessian is of."""
DEFAULT_STYLE = "normal"
"""Of one class, where no classifier compares styles."""


def measure(plan: MomentsPlan, batches: Batches, directory: Path, progress: Progress = silent) -> None:
    """Measures everything of a plan, or what a stopped run has not measured.

    Args:
        batches: begins a pass; every pass gives the same records, of the plan's form and classes.
        directory: the results' own, private.

    Raises:
        MechanismFailed: the directory holds results of another plan, or damaged ones.
        ResumeRefused: another process measures into the directory.
    """
    measure_all(plan, batches, directory, progress, _estimated)


def fit(directory: Path, plan: MomentsPlan) -> Model:
    """The model of complete measurements, at no cost.

    Raises:
        MechanismFailed: the measurements are missing, incomplete, damaged, or of another plan.
    """
    return _estimated(complete_results(plan, directory))


def first_unmeasured(results: Opened[MomentsPlan]) -> Query | None:
    """The first query whose sum is not there; None where all are."""
    try:
        _estimated(results)
    except Unmeasured as missing:
        return missing.query
    return None


def class_sums_of(directory: Path, plan: MomentsPlan, pictures: Pixels) -> MeasuredSums:
    """The noisy class sums of complete measurements, with what some pictures would add to them.

    Raises:
        MechanismFailed: the measurements are missing, damaged, or of another plan.
    """
    check_plan(plan, directory)
    return sums_with(Results(plan, directory), pictures)


def _estimated(results: MomentsResults) -> Model:
    """The model; each result is measured where it is first needed and not there yet."""
    moments = measured_moments(results)
    if not results.plan.networks:
        return moments.model(DEFAULT_STYLE)
    generator = np.random.default_rng()
    correct: dict[str, float] = {}
    for style in STYLES:
        classifier = _network(results, moments.model(style), style, FEW_DRAWN, generator)
        correct[style] = float(results.query(style_name(style), classifier.correct, RECORD_PARTS)[0])
    best = max(correct, key=lambda style: correct[style])
    model = moments.model(best)
    for network in range(results.plan.networks):
        name = best if network == 0 else f"relabelled-{network}"
        classifier = _network(results, model, name, DRAWN, generator)
        model = _classified(results, model, classifier, network, generator)
    return model


def _classified(
    results: MomentsResults, model: Model, classifier: PictureClassifier, network: int, generator: np.random.Generator
) -> Model:
    """The model with a classifier whose last layer follows noisy gradients."""
    drawn: list[Whole] = []
    for round_ in range(results.plan.rounds):
        name = gradient_name(network, round_)
        gradient = results.query(name, classifier.gradient, GRADIENT_UNIT)

        def stepped(
            before: PictureClassifier = classifier, gradient: Floats = gradient, name: str = name
        ) -> dict[str, npt.NDArray[Any]]:
            if not drawn:
                drawn.append(before.features(model.pool(min(DRAWN, HESSIAN_DRAWN), generator)[0]))
            records = float(model.class_counts.sum())
            return {"head": before.stepped(gradient, drawn[0], records, results.deviation(name)).head}

        # Steps leave the features as they are. Directories of earlier versions have them here once more.
        classifier = replace(classifier, head=results.kept(f"after-{name}", stepped)["head"])

    def labels() -> dict[str, npt.NDArray[Any]]:
        return {"labels": model.with_classifier(classifier, generator).labels}

    return model.labelled(classifier, results.kept(f"labels-{network}", labels)["labels"])


def _network(
    results: MomentsResults, model: Model, name: str, number: int, generator: np.random.Generator
) -> PictureClassifier:
    """A classifier trained on a number of draws."""

    def made() -> dict[str, npt.NDArray[Any]]:
        stage = f"training on draws: {name}"
        results.progress(stage, 0, 1)
        pixels, labels = model.pool(number, generator)
        epochs = EPOCHS if number > FEW_DRAWN else EPOCHS_OF_FEW
        found = trained(pixels, labels, model.classes, generator, epochs).arrays()
        results.progress(stage, 1, 1)
        return found

    return PictureClassifier.from_arrays(results.kept(f"network-{name}", made))
