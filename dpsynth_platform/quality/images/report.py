"""The quality report of synthetic pictures: every measure, with that of real pictures for comparison, and by class.

What belongs here: which pictures each measure compares, names and directions of the figures, and the report as JSON,
as markdown, as rows for a terminal, and as charts. What does not: the measures, and any gate. The report compares with
real pictures, so it is restricted, and says so in every form.

Held-out real pictures test. The synthetic ones are measured against them, and then as many of the real ones that the
generator read: that second figure is what perfect synthetic pictures would reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_platform.foundation.contact_sheet import ContactSheet
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.figures import HEADER, HIGHER, LOWER, NEAR, Figure, estimate, figures_as_json
from dpsynth_platform.quality.images import nearest
from dpsynth_platform.quality.images.classifier import (
    MOST_PICTURES,
    STEPS,
    PictureClassifier,
    accuracy,
    accuracy_by_class,
    classifier_score,
)
from dpsynth_platform.quality.images.distances import NEIGHBOURS, coverage, frechet_distance
from dpsynth_platform.quality.images.features import MODEL, SIDE, Features, PictureEncoder
from dpsynth_platform.quality.images.nearest import Nearness
from dpsynth_platform.quality.images.samples import Labels, Pictures
from dpsynth_platform.quality.plots import Chart, closeness_chart
from dpsynth_platform.quality.report import NOTICE, markdown_row
from dpsynth_platform.quality.text.mauve import default_clusters, mauve

MOST_COMPARED = 5_000
"""A random sample of so many pictures of each table is compared by features."""
MOST_CLUSTERED = 1_000
"""Pictures of each table that MAUVE clusters."""
MOST_TESTED = 10_000
"""Held-out pictures that classifiers are tested on."""
LEAST_PICTURES = 20
"""Of each table."""
LEAST_OF_CLASS = 50
"""Of each table's sample, for figures by features of the pictures of one class."""
SEEDS = 3
"""Classifiers of each kind."""
_SIDES = ("synthetic", "real")
_NAN = float("nan")

MEASURES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("accuracy of a classifier, tested on held-out real pictures", HIGHER),
    "classifier_score": ("classifier score", NEAR),
    "frechet": (f"Frechet distance ({MODEL})", LOWER),
    "precision": ("precision", NEAR),
    "recall": ("recall", HIGHER),
    "density": ("density", NEAR),
    "coverage": ("coverage", HIGHER),
    "mauve": ("MAUVE", HIGHER),
}
"""Name and direction of each figure, in the order of the report."""


@dataclass(frozen=True)
class ClassFigures:
    """Figures of the pictures of one class by key of `MEASURES`: of synthetic pictures, and of real ones instead.

    Attributes:
        pictures: of each table, in the samples that features compare.
        drawn: of them, as many on each side are compared; 0: too few.
    """

    name: str
    pictures: dict[str, int]
    drawn: int
    figures: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class ImageQualityReport:
    """Quality of one synthetic table of pictures. Restricted.

    Attributes:
        pictures: number of pictures of each table.
        drawn: number of pictures of each table that features compare.
        trained: number of pictures that train a classifier.
        majority_accuracy: share of the most frequent class among held-out pictures; None without classes.
        settings: only figures with equal settings are comparable.
        pixels, features: nearness to the pictures that the generator read, by two kinds of vectors.
        nearest: the nearest pairs; it holds real pictures, and no JSON does.
    """

    pictures: dict[str, int]
    drawn: int
    trained: int
    majority_accuracy: float | None
    settings: dict[str, float | str]
    figures: tuple[Figure, ...]
    classes: tuple[ClassFigures, ...]
    pixels: Nearness
    features: Nearness
    remarks: tuple[str, ...]
    nearest: ContactSheet | None = None
    notice: str = NOTICE
    restricted: bool = True

    def to_json(self) -> dict[str, Any]:
        document = asdict(replace(self, nearest=None))
        del document["nearest"]
        for found in document["classes"]:
            found["figures"] = {
                key: {side: None if math.isnan(value) else value for side, value in zip(_SIDES, values, strict=True)}
                for key, values in found["figures"].items()
            }
        return document | {"figures": figures_as_json(self.figures)}

    def table(self) -> list[tuple[str, str, str, str]]:
        """Rows with the columns of `HEADER`: mean ± standard error."""
        rows = [(figure.name, figure.better, str(figure.synthetic), str(figure.real)) for figure in self.figures]
        for kind, found in (("pixels", self.pixels), ("features", self.features)):
            for percentile, share in found.nearer.items():
                name = f"pictures nearer to a real one than {percentile} of held-out ones ({kind})"
                rows.append((name, NEAR, f"{share:.3f}", f"{int(percentile[:-1]) / 100:.3f}"))
        made, real = self.pixels.closeness.synthetic, self.pixels.closeness.real
        rows.append(("exact copies, share of pictures", NEAR, f"{made.copied:.3f}", f"{real.copied:.3f}"))
        return rows

    def remarks_for_people(self) -> list[str]:
        """Sizes, settings and remarks."""
        sizes = ", ".join(f"{count} {name}" for name, count in self.pictures.items())
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        share = self.majority_accuracy
        return [
            f"Pictures: {sizes}.",
            f"Classifiers: {SEEDS} of each kind, trained on {self.trained} pictures; means ± standard error.",
            f"Features: of {self.drawn} pictures of each table.",
            f"Settings: {settings}.",
            *([] if share is None else [f"Accuracy of the most frequent class alone: {share:.3f}."]),
            *self.remarks,
        ]

    def markdown(self) -> str:
        rows = [markdown_row(row) for row in (HEADER, ["---"] * len(HEADER), *self.table())]
        return "\n".join([f"**{self.notice}**", "", *rows, "", *self.remarks_for_people()])

    def charts(self) -> dict[str, Chart]:
        """The available charts by name."""
        found = {
            "accuracy_by_class": self._by_class("accuracy", "Accuracy by class, tested on held-out real pictures"),
            "frechet_by_class": self._by_class("frechet", f"{MEASURES['frechet'][0]} by class"),
            "coverage_by_class": self._by_class("coverage", "Coverage by class"),
            "closeness_pixels": closeness_chart(self.pixels.closeness, "picture", "distance in pixels"),
            "closeness_features": closeness_chart(self.features.closeness, "picture", "distance in features"),
        }
        return {name: chart for name, chart in found.items() if chart is not None}

    def plots(self) -> dict[str, str]:
        """The available charts by name, as SVG."""
        return {name: chart.svg for name, chart in self.charts().items()}

    def _by_class(self, key: str, title: str) -> Chart | None:
        shown = [
            (found.name, found.figures[key])
            for found in self.classes
            if key in found.figures and not any(math.isnan(value) for value in found.figures[key])
        ]
        if not shown:
            return None
        names = [name for name, _ in shown]
        return Chart(
            title=title,
            description="Of synthetic pictures, and of as many real ones that the generator read.",
            x_label="class",
            y_label=MEASURES[key][0].partition(" of ")[0],
            series={
                "synthetic pictures": (names, [made for _, (made, _) in shown]),
                "real pictures": (names, [real for _, (_, real) in shown]),
            },
            bars=True,
        )


def compare_images(
    real_train_pixels: Pixels,
    real_train_labels: Labels | None,
    real_test_pixels: Pixels,
    real_test_labels: Labels | None,
    synthetic_pixels: Pixels,
    synthetic_labels: Labels | None,
    names: Sequence[str] = (),
    weights: Path | None = None,
    progress: Progress = silent,
) -> ImageQualityReport:
    """Measures synthetic pictures against real ones.

    Args:
        real_train_pixels, real_test_pixels: those that the generator read, and held-out ones; shapes (pictures, height,
            width, channels) of one form.
        real_train_labels, real_test_labels, synthetic_labels: indices into `names`, shapes (pictures,); all None:
            there are no classes.
        names: of the classes.
        weights: file of the network's weights; None: of the installed package.
        progress: in steps, and in percent of a sample.

    Raises:
        SourceError: too few pictures, or tables of different forms.
        ConfigurationError: the network's weights are not installed.
    """
    real, held_out, synthetic = (
        Pictures(real_train_pixels, real_train_labels),
        Pictures(real_test_pixels, real_test_labels),
        Pictures(synthetic_pixels, synthetic_labels),
    )
    tables = {"real": real, "held-out": held_out, "synthetic": synthetic}
    _check(tables, names)
    encoder = PictureEncoder(weights)  # before the work: it may be missing
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    classified = all(table.labels is not None for table in tables.values()) and len(names) > 1
    trained = min(MOST_PICTURES, len(real), len(synthetic)) if classified else 0
    figures, by_class = _classified(synthetic, real, held_out, len(names), progress) if classified else ({}, {})
    drawn = min(MOST_COMPARED, *(len(table) for table in tables.values()))
    samples = {name: table.some(drawn, rng) for name, table in tables.items()}
    vectors = {name: encoder.encode(sample.pixels, progress) for name, sample in samples.items()}
    progress("picture distances", 0, 1)
    sides = (vectors["synthetic"], vectors["real"])
    compared = [_compared(vectors["held-out"], side) for side in sides]
    figures |= {key: ([compared[0][key]], [compared[1][key]]) for key in compared[0]}
    classes = [_class_figures(index, name, samples, vectors, by_class.get(index)) for index, name in enumerate(names)]
    progress("picture distances", 1, 1)
    by_pixels, by_features, sheet = _nearest(tables, samples, vectors, rng, progress)
    remarks = [f"{name}: {len(table)} pictures are few." for name, table in tables.items() if len(table) < 1_000]
    return ImageQualityReport(
        pictures={name: len(table) for name, table in tables.items()},
        drawn=drawn,
        trained=trained,
        majority_accuracy=_majority(held_out) if classified else None,
        settings={
            "features": f"{MODEL} at {SIDE} x {SIDE} pixels",
            "neighbours": NEIGHBOURS,
            "MAUVE clusters": default_clusters(min(drawn, MOST_CLUSTERED)),
            "training steps": STEPS,
        },
        figures=tuple(
            Figure(key, name, better, estimate(figures[key][0]), estimate(figures[key][1]))
            for key, (name, better) in MEASURES.items()
            if key in figures
        ),
        classes=tuple(classes),
        pixels=by_pixels,
        features=by_features,
        remarks=tuple(remarks),
        nearest=sheet,
    )


def _check(tables: Mapping[str, Pictures], names: Sequence[str]) -> None:
    forms = {table.pixels.shape[1:] for table in tables.values()}
    if len(forms) > 1:
        raise SourceError(
            f"pictures of several forms: {', '.join(map(str, sorted(forms)))}; accepted: one height, width and number "
            "of channels; scale them alike first"
        )
    for name, table in tables.items():
        if len(table) < LEAST_PICTURES:
            raise SourceError(
                f"the {name} pictures are {len(table)}; accepted: at least {LEAST_PICTURES}; give more, or leave out "
                "the comparison"
            )
        labels = table.labels
        if labels is not None and (len(labels) != len(table) or labels.min() < 0 or labels.max() >= len(names)):
            raise SourceError(
                f"labels of the {name} pictures do not fit; accepted: one for each picture, from 0 to "
                f"{len(names) - 1}; number the classes in the order of their names"
            )


def _classified(
    synthetic: Pictures, real: Pictures, held_out: Pictures, classes: int, progress: Progress
) -> tuple[dict[str, tuple[list[float], list[float]]], dict[int, tuple[float, float]]]:
    """Accuracies and scores by seed, and mean accuracies by class, of synthetic and of real pictures.

    Both kinds train on equal numbers. The score is that of the classifier trained on real pictures.
    """
    trained = min(MOST_PICTURES, len(real), len(synthetic))
    found: dict[str, tuple[list[float], list[float]]] = {"accuracy": ([], []), "classifier_score": ([], [])}
    by_class: tuple[list[list[float]], list[list[float]]] = ([], [])
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        test = held_out.some(MOST_TESTED, rng)
        scored = min(len(test), len(synthetic))
        for at, side in enumerate((synthetic, real)):
            sample = side.some(trained, rng)
            classifier = PictureClassifier(sample.pixels, _labels(sample), classes, seed)
            guessed = classifier.probabilities(test.pixels)
            found["accuracy"][at].append(accuracy(guessed, _labels(test)))
            by_class[at].append(accuracy_by_class(guessed, _labels(test)))
            progress("classifiers", 2 * seed + at + 1, 2 * SEEDS)
        made = classifier.probabilities(synthetic.some(scored, rng).pixels)
        found["classifier_score"][0].append(classifier_score(made))
        found["classifier_score"][1].append(classifier_score(guessed[:scored]))
    means = [np.mean(side, axis=0) for side in by_class]
    return found, {index: (float(means[0][index]), float(means[1][index])) for index in range(classes)}


def _compared(held_out: Features, side: Features) -> dict[str, float]:
    """Measures that compare features with those of as many held-out pictures."""
    shares = coverage(held_out, side)
    clustered = min(MOST_CLUSTERED, len(side))
    return {
        "frechet": frechet_distance(held_out, side),
        **asdict(shares),
        "mauve": mauve(held_out[:clustered], side[:clustered], default_clusters(clustered), 0),
    }


def _class_figures(
    index: int,
    name: str,
    samples: Mapping[str, Pictures],
    vectors: Mapping[str, Features],
    accuracies: tuple[float, float] | None,
) -> ClassFigures:
    places = {side: sample.of_class(index) for side, sample in samples.items()}
    counts = {side: len(found) for side, found in places.items()}
    drawn = min(counts.values())
    drawn = drawn if drawn >= LEAST_OF_CLASS else 0
    figures = {} if accuracies is None else {"accuracy": accuracies}
    if drawn:
        parts = {side: vectors[side][found[:drawn]] for side, found in places.items()}
        made, real = (_compared(parts["held-out"], parts[side]) for side in _SIDES)
        figures |= {key: (made[key], real[key]) for key in made}
    return ClassFigures(name, counts, drawn, figures)


def _nearest(
    tables: Mapping[str, Pictures],
    samples: Mapping[str, Pictures],
    vectors: Mapping[str, Features],
    rng: np.random.Generator,
    progress: Progress,
) -> tuple[Nearness, Nearness, ContactSheet]:
    """Nearness by pixels to as many real pictures as possible, by features to the sampled ones, and the pairs.

    Samples are in random order, so their first pictures are a random sample.
    """
    progress("nearest pictures", 0, 1)
    queries = {side: samples[side].pixels[: nearest.MOST_PICTURES] for side in ("synthetic", "held-out")}
    real = tables["real"].pixels
    others = [tables[side].pixels for side in ("synthetic", "held-out")]
    copies = nearest.exact_copies(others[0], real), nearest.exact_copies(others[1], real)
    rows = len(others[0]), len(others[1])
    most = nearest.most_among(nearest.pixel_vectors(real[:1]).size)
    among = real if len(real) <= most else real[rng.choice(len(real), most, replace=False)]
    among_vectors = nearest.pixel_vectors(among)
    pixels = {side: nearest.neighbours(nearest.pixel_vectors(found), among_vectors) for side, found in queries.items()}
    features = {side: nearest.neighbours(vectors[side][: nearest.MOST_PICTURES], vectors["real"]) for side in queries}
    by_pixels, by_features = (
        nearest.nearness(found["synthetic"], found["held-out"], count, copies, rows)
        for found, count in ((pixels, len(among)), (features, len(vectors["real"])))
    )
    sheet = nearest.pairs_sheet(
        queries["synthetic"], among, pixels["synthetic"], samples["real"].pixels, features["synthetic"]
    )
    progress("nearest pictures", 1, 1)
    return by_pixels, by_features, sheet


def _labels(pictures: Pictures) -> Labels:
    if pictures.labels is None:
        raise ValueError("pictures without labels")
    return pictures.labels


def _majority(pictures: Pictures) -> float:
    return float(np.bincount(_labels(pictures)).max() / len(pictures))
