"""A quality report in a few numbers, and how they differ from those of the last release of the dataset.

What belongs here: which numbers of a report stand for it. What does not: measuring (`quality`), and finding releases.
All of it compares with real rows: restricted, for `READ_QUALITY`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpsynth_platform.foundation import svg
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.release.reviewers import DOSSIER_STEP, JSON_NAME, directory_name
from dpsynth_platform.reviewing.chronicle import Publication

MeasureKey = Literal["columns", "pairs", "f1", "auc", "accuracy", "copies", "nearer"]
_LESS_IS_BETTER: tuple[MeasureKey, ...] = ("columns", "pairs")
_MORE_IS_BETTER: tuple[MeasureKey, ...] = ("f1", "auc", "accuracy")
_SAME = 0.0005
"""Differences below it are not shown as one: tables have three decimals."""
_MARGIN = 2.0
"""Standard errors by which a share of copies may exceed that of held-out rows by chance."""


@dataclass(frozen=True)
class Measure:
    """One number of the synthetic rows, with the best possible (or that of real rows) and that without any model."""

    key: MeasureKey
    synthetic: float
    real: float | None
    baseline: float | None = None


@dataclass(frozen=True)
class CopiesView:
    """Exact copies of real rows, as shares of the synthetic and of held-out real rows.

    `more` says that synthetic rows are copies more often than held-out rows are, beyond chance.
    """

    synthetic: float
    held_out: float
    more: bool


@dataclass(frozen=True)
class DriftRow:
    """A measure before and now; `change` is `better`, `worse`, `same`, or `other` where neither end is better."""

    key: MeasureKey
    before: float
    now: float
    change: Literal["better", "worse", "same", "other"]


@dataclass(frozen=True)
class DriftView:
    """The quality of a candidate beside that of the last release, with a plot as SVG where columns were measured."""

    previous: str
    rows: tuple[DriftRow, ...]
    plot: str | None


def measures(report: Mapping[str, Any]) -> tuple[Measure, ...]:
    """The numbers that stand for a report (`QualityReport.to_json`), as far as it has them."""
    return tuple(_measures(report))


def copies(report: Mapping[str, Any]) -> CopiesView | None:
    """The exact copies of a report, or None where they were not measured."""
    found = report.get("closeness")
    if not found:
        return None
    made, kept = found["synthetic"], found["real"]
    shares = [item["copies"] / item["rows"] for item in (made, kept)]
    together = (made["copies"] + kept["copies"]) / (made["rows"] + kept["rows"])
    error = (together * (1 - together) * (1 / made["rows"] + 1 / kept["rows"])) ** 0.5
    return CopiesView(shares[0], shares[1], shares[0] > shares[1] + _MARGIN * error)


def drift(settings: Settings, previous: Publication, now: Mapping[str, Any]) -> DriftView | None:
    """The comparison with the reviewers' dossier that the last release left; None where there is none any more."""
    before = _report_of(settings, previous)
    if before is None:
        return None
    earlier = {item.key: item.synthetic for item in measures(before)}
    rows = tuple(
        DriftRow(item.key, earlier[item.key], item.synthetic, _change(item.key, earlier[item.key], item.synthetic))
        for item in measures(now)
        if item.key in earlier
    )
    return DriftView(previous.release, rows, _plot(before, now))


def _measures(report: Mapping[str, Any]) -> Iterator[Measure]:
    fidelity, utility = report.get("fidelity") or {}, report.get("utility") or {}
    for key, name, parts in (("columns", "mean_column", "columns"), ("pairs", "mean_pair", "pairs")):
        if fidelity.get(name) is not None:
            best = [item["resampled"] for item in fidelity.get(parts, ()) if item["resampled"] is not None]
            yield Measure(key, fidelity[name], sum(best) / len(best) if best else None)  # type: ignore[arg-type]
    made, kept = (((utility.get(of) or {}).get("mean") or {}) for of in ("synthetic", "real"))
    for key, name in (("f1", "f1"), ("auc", "roc_auc"), ("accuracy", "accuracy")):
        if made.get(name) is not None:
            baseline = utility.get("majority_accuracy") if key == "accuracy" else None
            yield Measure(key, made[name], kept.get(name), baseline)  # type: ignore[arg-type]
    copied = copies(report)
    if copied is not None:
        yield Measure("copies", copied.synthetic, copied.held_out)
        yield Measure("nearer", report["closeness"]["closer"], 0.5)


def _change(key: MeasureKey, before: float, now: float) -> Literal["better", "worse", "same", "other"]:
    if abs(now - before) < _SAME:
        return "same"
    if key in _LESS_IS_BETTER:
        return "better" if now < before else "worse"
    if key in _MORE_IS_BETTER:
        return "better" if now > before else "worse"
    return "other"


def _plot(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    was, present = (
        {item["column"]: item["synthetic"] for item in (report.get("fidelity") or {}).get("columns", ())}
        for report in (before, now)
    )
    names = [name for name in present if name in was]
    if not names:
        return None
    worst = max(names, key=lambda name: present[name] - was[name])
    return svg.bar_chart(
        names,
        {"last release": [was[name] for name in names], "this candidate": [present[name] for name in names]},
        title="One-way distances, last release and now",
        description=(
            f"Total variation distance of each column from the real rows of its run; {worst} changed most for the "
            f"worse, from {was[worst]:.3f} to {present[worst]:.3f}."
        ),
        x_label="column",
        y_label="total variation distance",
    )


def _report_of(settings: Settings, publication: Publication) -> Mapping[str, Any] | None:
    """The quality report in the reviewers' dossier that was written when the release was published."""
    place = Storage(settings.restricted).location(publication.place, DOSSIER_STEP)
    try:
        document = json.loads((place / directory_name(publication.candidate) / JSON_NAME).read_text(encoding="utf-8"))
        found = document["quality"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if found is None else found["report"]
