"""Bought measures in a dossier: figures with intervals, from the noisy numbers that the mechanism left.

What belongs here: their computation, their words, and whether a dossier's follow from its own noisy numbers. What does
not: the measures and their noise (`synth.tabular.paid`). Verifiers need this module without large libraries.

Intervals are of the noise alone: the exact figure of this sample and these records is within, with the stated
confidence. How much another sample, or other people's records, would differ is not in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from dpsynth_platform.privacy.units import count_sensitivity
from dpsynth_platform.release.noisy_tables import COUNTS, ROUNDING, precision_of

if TYPE_CHECKING:
    from dpsynth_platform.contracts.contract import DataContract

FILE = "paid.json"
"""Beside the rows of `synthetic`, whose content hash covers it."""
CONFIDENCE = 0.95
_OF_MEASURES = frozenset({"gaussian-measures"})
_ROUNDING = 1 / 12
"""Variance that rounding to whole records adds."""
_ROUNDED = 1.5
"""Records that rounding to whole ones adds to the limits of a share, at most."""
_DIGITS = 5
_UNLIKELY = 6.2
"""Deviations that honest noise exceeds once in more than a billion releases."""
_OF_TWO = (
    " Of the value that fewer drawn rows have, F1 is {f1} ({f1_low} to {f1_high}); balanced accuracy is {balanced} "
    "({balanced_low} to {balanced_high})."
)
"""More about the accuracy of a target of two values."""
_NOTE = (
    "Measured with noise by the mechanism itself, and covered by the guarantee: rows drawn from the same model as the "
    "published ones are compared with the records that it read{canaries}. Intervals are of the noise."
)
_NOTES = tuple(_NOTE.format(canaries=canaries) for canaries in ("", ", fictional owners (canaries) among them"))
_WORDS = {
    "accuracy": (
        "A classifier that learned from drawn rows alone predicts {target} right for {value} ({low} to {high}) of the "
        "{unit} that have one. Always naming the most frequent value is right for {usual} ({usual_low} to "
        "{usual_high})."
    ),
    "regression": (
        "A regressor that learned from drawn rows alone is off by {value} ({low} to {high}) of the declared range of "
        "{target}, on average over the {unit} that have one. Always naming the median of the drawn rows is off by "
        "{usual} ({usual_low} to {usual_high})."
    ),
    "pairs": (
        "Over {pairs} pairs of columns, the shares of {unit} and of drawn rows differ by {value} ({low} to {high}) on "
        "average (total variation: none where all are equal, 100% where nothing is). As many {unit}, taken from the "
        "drawn rows at random, differ by {by_chance}."
    ),
}


def read_paid(directory: Path) -> dict[str, Any] | None:
    """The noisy numbers beside drawn rows; None if there are none.

    Raises `ReleaseRefused` if the file cannot be read.
    """
    from dpsynth_platform.foundation.storage import read_beside_rows  # late: verifiers have no storage

    return read_beside_rows(directory / FILE, dict)


def has_canaries(contract: DataContract) -> bool:
    """Whether the mechanism of the released model reads fictional owners, too."""
    return contract.canary_count > 0 and not contract.separate_audit_model


def published(drawn: Mapping[str, Any], *, canaries: bool) -> dict[str, Any]:
    """The dossier's part: the noisy numbers as `synth.tabular.paid` left them, with what follows from them.

    Args:
        canaries: whether the mechanism read fictional owners, too.
    """
    if "measures" not in drawn:
        return {name: drawn[name] for name in ("share", "rows", "not_available")}
    return {
        **{name: drawn[name] for name in ("share", "rows", "unit", "total", "total_sigma")},
        "confidence": CONFIDENCE,
        "measures": [_figures(item, drawn) for item in drawn["measures"]],
        "note": _NOTES[canaries],
    }


def in_words(part: Mapping[str, Any] | None) -> tuple[str, ...]:
    """A dossier's bought measures in sentences."""
    if part is None:
        return ()
    if "measures" not in part:
        return (f"Measures were bought and are not available: {part['not_available']}.",)
    return (*(item["in_words"] for item in part["measures"]), part["note"])


def breaches(
    quality: Mapping[str, Any], event: Mapping[str, Any], counted: Mapping[str, Any] | None, *, chosen: bool = False
) -> Iterator[tuple[str, str]]:
    """Where a dossier's bought measures do not follow from its noisy numbers, or are not in the statement's event.

    Pairs of a JSON path and what is wrong. Nothing in them is trusted beyond the schema.

    Args:
        counted: the dossier's `fidelity`.
        chosen: whether the mechanism kept one run of several (`generate.tune`), so that its noise is none of known
            intervals: then there are no such figures.
    """
    where, paid = "$.quality.paid", quality.get("paid")
    if chosen:
        for place, part in ((where, paid), ("$.fidelity", counted)):
            if part is not None:
                yield place, "has noisy numbers of a run that was kept for its score, whose intervals do not hold"
        return
    try:
        bought = precision_of(event, _OF_MEASURES)
        if (paid is None) != (bought == 0):
            yield where, "does not go with the event of the privacy statement: measures are in one of both only"
        elif paid is not None and "measures" in paid:
            precision = sum(1 / item["sigma"] ** 2 for item in paid["measures"])
            if not precision <= bought * (1 + 1e-6) or _too_little(paid["measures"], event):
                yield where, "claims less noise than the event of the privacy statement has"
            if any("classes" in item and item["name"] != "accuracy" for item in paid["measures"]):
                yield where, "says how many values the target has, which only accuracy depends on"
            if not _is_total(paid, event, [] if counted is None else counted["tables"]):
                yield where, "its number of records does not follow from the noisy counts"
            if paid["confidence"] != CONFIDENCE or paid["note"] not in _NOTES:
                yield where, "claims another confidence, or says more than it may"
            if [_figures(item, paid) for item in paid["measures"]] != paid["measures"]:
                yield where, "its figures do not follow from its noisy numbers"
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        yield where, "its figures, or the privacy statement's event, cannot be read"


def _too_little(measures: Sequence[Mapping[str, Any]], event: Mapping[str, Any]) -> bool:
    """Whether a distance has less noise than one that costs what its `sigma` does (`selection.scale_of_distances`)."""
    stretches = []
    for leaf in _leaves(event):
        moved = count_sensitivity(leaf["adjacency"], leaf["max_contributions"], leaf.get("weighting", "rows"))
        stretches.append(moved.l1 / math.sqrt(moved.l2_squared))
    return any(not item["noise"] * (1 + 1e-6) >= item["sigma"] * max(stretches) for item in measures if "noise" in item)


def _is_total(paid: Mapping[str, Any], event: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a number of records is what noisy counts make of it (`estimation.estimate_total`).

    It is the mean of the tables of single columns, by their precision. A dossier can leave tables out. Of these, it is
    known that they have some of the event's precision, and that the mean over all of them differs from that over those
    shown by their noise.
    """
    shown = [table for table in tables if not table["order"]]
    each = [1 / (sum(table["parts"]) * (table["sigma"] ** 2 + _ROUNDING)) for table in shown]
    known, claimed = sum(each), 1 / paid["total_sigma"] ** 2
    # A table has two cells or more, and a part of the event's precision for each of them.
    others = precision_of(event, COUNTS) - sum(1 / table["sigma"] ** 2 for table in tables)
    if not known * (1 - 1e-9) <= claimed <= (known + max(others, 0.0) / 2) * (1 + 1e-6):
        return False
    if not shown:
        return True
    mean = sum(one * sum(table["measured"]) for one, table in zip(each, shown, strict=True)) / known
    noise = math.sqrt(max(0.0, 1 / known - 1 / claimed))
    return bool(abs(paid["total"] - max(1.0, mean)) <= _UNLIKELY * noise + 1e-6 * max(1.0, abs(mean)))


def _leaves(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The events of measures in a plan's event, which has them beside its mechanism."""
    for part in event["events"] if event["kind"] == "composed" else [event]:
        if part["kind"] in _OF_MEASURES:
            yield part


def _figures(item: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """A measure with value and interval."""
    names = ("name", "target", "classes", "pairs", "sigma", "noise", "noisy", "by_chance")
    found: dict[str, Any] = {name: item[name] for name in names if name in item}
    words = _WORDS[item["name"]]
    if item["name"] == "pairs":
        found |= _distance(item, whole)
    else:
        (neither, usual), (model, both) = item["noisy"]
        each = item["sigma"] ** 2
        own, other = (model + both, neither + usual), (usual + both, neither + model)
        if item["name"] == "regression":  # parts of records that are off, not right
            own, other = own[::-1], other[::-1]
        found |= _share(*own, 2 * each)  # each share compares two cells with two others
        found["usual"] = _share(*other, 2 * each)
        if item.get("classes") == 2:
            words += _OF_TWO
            found |= _of_two(model, neither, both, usual, each)
    shown: dict[str, str] = {key: f"{found[key]:.1%}" for key in ("value", "low", "high", "by_chance") if key in found}
    for name in {"usual", "f1", "balanced"}.intersection(found):
        shown |= {f"{name}{end}": f"{found[name][key]:.1%}" for end, key in _ENDS.items()}
    named = {key: found.get(key) for key in ("target", "pairs")} | {"unit": whole["unit"]}
    return found | {"in_words": words.format(**shown, **named)}


_ENDS = {"": "value", "_low": "low", "_high": "high"}


def _of_two(
    found: float, missed: float, rightly_not: float, wrongly: float, variance: float
) -> dict[str, dict[str, float]]:
    """F1 of the rarer of two values and balanced accuracy, from four cells with independent noise of that variance.

    F1 is 2 f / (2 f + m + w). The two shares of balanced accuracy are within their limits together (Bonferroni), and so
    is their mean.
    """
    both = (1 + CONFIDENCE) / 2
    recalls = [_share(*cells, variance, confidence=both) for cells in ((found, missed), (rightly_not, wrongly))]
    balanced = {end: _rounded(sum(recall[end] for recall in recalls) / 2) for end in ("value", "low", "high")}
    return {"f1": _share(2 * found, missed + wrongly, 4 * variance, 2 * variance), "balanced": balanced}


def _share(
    first: float, second: float, variance: float, of_second: float | None = None, confidence: float = CONFIDENCE
) -> dict[str, float]:
    """first / (first + second), where both have independent noise of known variances v and w (Fieller 1954).

    The interval is of all p for which first (1 - p) - second p, which has the variance v (1 - p)^2 + w p^2 and the mean
    0 at the exact share, is within its noise and its rounding. Either number is rounded by 1 at most (two cells by 1/2,
    or twice one cell). `_ROUNDED` more of both deviations' multiples covers that for every p: it is above sqrt(2) where
    they are equal, and above 1.44 where v is 2 w.

    Args:
        variance: v.
        of_second: w; by default the same.
    """
    total, z = first + second, NormalDist().inv_cdf((1 + confidence) / 2)
    squared = (z * math.sqrt(variance) + _ROUNDED) ** 2
    both = squared + (squared if of_second is None else (z * math.sqrt(of_second) + _ROUNDED) ** 2)
    a, b, c = total**2 - both, first * total - squared, first**2 - squared
    if a <= 0 or total <= 0:
        return {"value": _rounded(first / total if total > 0 else 0.5), "low": 0.0, "high": 1.0}
    root = math.sqrt(max(0.0, b**2 - a * c))
    return {"value": _rounded(first / total), "low": _rounded((b - root) / a), "high": _rounded((b + root) / a)}


def _distance(item: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, float]:
    """Total variation T, from the noisy mean L1 distance d, which was measured with an estimate N of the total n.

    d / 2 without its noise is half the distance of counts from N times the sample's shares, which differs from n T by
    |N - n| / 2 at most (triangle inequality). So |T - d / 2N| <= (T + 1/2) |N - n| / N + noise / 2N. Both noises are
    within their limits together with the confidence (Bonferroni).
    """
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 4)
    total = whole["total"]
    if total <= z * whole["total_sigma"]:  # noise hides whether there are any
        return {"value": 0.5, "low": 0.0, "high": 1.0}
    value, of_total = item["noisy"] / (2 * total), z * whole["total_sigma"] / total
    noise = (z * item["noise"] + ROUNDING) / (2 * total)
    low = (value - noise - of_total / 2) / (1 + of_total)
    high = (value + noise + of_total / 2) / (1 - of_total)
    return {"value": _rounded(value), "low": _rounded(low), "high": _rounded(high)}


def _rounded(share: float) -> float:
    return round(min(max(share, 0.0), 1.0), _DIGITS)
