"""How well a detector finds personal data, held against texts whose personal data is known.

What belongs here: reading a gold set, matching found spans with gold ones, and precision, recall, F1 and F2 by entity
type. What does not: finding anything (`detection`), printing (`scrub_command`). Results hold counts only, never a text.

Rules of matching, the same for every detector that is compared:

- Types are compared by class (`CLASSES`): an address is a place, a domain name is a URL, "Mr." is part of a name.
- Spans of one class that only blanks part (for places also commas and marks of quotation) are one span, in gold and
  found alike: whether "12 Main St, Springfield" is one span or two is a habit of who marked it.
- *exact*: the same class, start and end. *overlapping*: the same class, and the common part is at least half of what
  both cover together (intersection over union, Jaccard). A gold span counts once, and so does a found one.
- *covered*: the share of gold characters that lie in a found span of any class, that is, that scrubbing removes.
- Found spans of a class that the gold set never marks are neither right nor wrong; they are counted as `unjudged`.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.scrub.findings import Finding

CLASSES: Mapping[str, str] = {
    "ADDRESS": "LOCATION",
    "STREET_ADDRESS": "LOCATION",
    "ZIP_CODE": "LOCATION",
    "GPE": "LOCATION",
    "FACILITY": "LOCATION",
    "DOMAIN_NAME": "URL",
    "PREFIX": "PERSON",
    "DATE": "DATE_TIME",
    "TIME": "DATE_TIME",
    "DATE_OF_BIRTH": "DATE_TIME",
    "EMAIL": "EMAIL_ADDRESS",
    "ORG": "ORGANIZATION",
    "NATIONALITY": "NRP",
    "US_ITIN": "US_SSN",
    "COORDINATES": "LOCATION",
    "UK_NINO": "NATIONAL_ID",
    "UK_NHS": "NATIONAL_ID",
    "ES_NIF": "NATIONAL_ID",
    "ES_NIE": "NATIONAL_ID",
    "IT_FISCAL_CODE": "NATIONAL_ID",
    "PL_PESEL": "NATIONAL_ID",
    "AU_TFN": "NATIONAL_ID",
    "IN_AADHAAR": "NATIONAL_ID",
    "IN_PAN": "NATIONAL_ID",
    "CA_SIN": "NATIONAL_ID",
    "DE_TAX_ID": "NATIONAL_ID",
    "SE_PERSONNUMMER": "NATIONAL_ID",
    "FI_PERSONAL_IDENTITY_CODE": "NATIONAL_ID",
}
"""Entity types that are compared as another one; a type that is not named here is its own class."""

LEAST_OVERLAP = 0.5
_BLANK = re.compile(r"\s*")
_BETWEEN_PLACES = re.compile(r"[\s,>]*")
_TYPE_KEYS = ("entity_type", "type", "label", "entity")
_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,40}")


@dataclass(frozen=True)
class GoldText:
    """A text with its known personal data, in order."""

    text: str
    spans: tuple[Finding, ...]


@dataclass(frozen=True)
class Score:
    """Counts of one class under one rule of matching, and what follows from them (None where nothing is counted).

    Attributes:
        gold: gold spans. found: found spans. matched: pairs of both.
    """

    gold: int
    found: int
    matched: int

    @property
    def precision(self) -> float | None:
        """Share of found spans that are right."""
        return self.matched / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        """Share of gold spans that were found."""
        return self.matched / self.gold if self.gold else None

    def f(self, beta: float) -> float | None:
        """F-measure; beta = 2 weighs recall four times as much as precision."""
        if not self.gold and not self.found:
            return None
        weight = beta * beta
        return (1 + weight) * self.matched / (weight * self.gold + self.found)

    def to_json(self) -> dict[str, Any]:
        """Counts and measures as JSON values."""
        return {
            "gold": self.gold,
            "found": self.found,
            "matched": self.matched,
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f(1),
            "f2": self.f(2),
        }


@dataclass(frozen=True)
class Evaluation:
    """Scores by class and over all, under both rules.

    Attributes:
        exact: by class. overlapping: by class.
        covered: share of gold characters removed, by *gold type* as the gold set names it.
        confused: how often a gold class was found in full or part, but only as other classes: {gold: {found: times}}.
        missed: gold spans of which no character was found, by gold type.
        unjudged: found spans of classes that the gold set does not know, by class.
        merged: types that occur and are compared as another one: {type: class}.
        unknown: gold types that nothing is ever found as, so that their recall is zero whatever is removed.
    """

    texts: int
    exact: Mapping[str, Score]
    overlapping: Mapping[str, Score]
    covered: Mapping[str, float]
    confused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    missed: Mapping[str, int] = field(default_factory=dict)
    unjudged: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)
    unknown: Sequence[str] = ()

    def total(self, rule: str) -> Score:
        """All classes together under `exact` or `overlapping`."""
        scores = (self.exact if rule == "exact" else self.overlapping).values()
        return Score(*(sum(getattr(score, name) for score in scores) for name in ("gold", "found", "matched")))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; no text."""
        return {
            "texts": self.texts,
            **{
                rule: {"all": self.total(rule).to_json()}
                | {name: score.to_json() for name, score in getattr(self, rule).items()}
                for rule in ("exact", "overlapping")
            },
            "covered": dict(self.covered),
            "confused": {name: dict(others) for name, others in self.confused.items()},
            "missed": dict(self.missed),
            "unjudged": dict(self.unjudged),
            "merged": dict(self.merged),
            "unknown": list(self.unknown),
        }


def evaluate(
    gold: Sequence[GoldText], found: Sequence[Sequence[Finding]], known: Iterable[str] = ENTITY_TYPES
) -> Evaluation:
    """Holds findings against a gold set.

    Args:
        found: of each text of `gold`, in any order.
        known: entity types that can be found.
    """
    marked = {span.entity for item in gold for span in item.spans}
    occurring = marked | {span.entity for findings in found for span in findings}
    findable = {_class(entity) for entity in known}
    judged = {_class(entity) for entity in marked}
    counts: dict[str, Counter[tuple[str, str]]] = {"exact": Counter(), "overlapping": Counter()}
    characters: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    unjudged: Counter[str] = Counter()
    confused: dict[str, Counter[str]] = defaultdict(Counter)
    for item, findings in zip(gold, found, strict=True):
        right = _joined(item.text, item.spans)
        ours = _joined(item.text, findings)
        unjudged.update(span.entity for span in ours if span.entity not in judged)
        ours = [span for span in ours if span.entity in judged]
        for rule, least in (("exact", 1.0), ("overlapping", LEAST_OVERLAP)):
            matched = _matches(right, ours, least)
            counts[rule].update((span.entity, "gold") for span in right)
            counts[rule].update((span.entity, "found") for span in ours)
            counts[rule].update((span.entity, "matched") for span in matched)
        covered = [False] * len(item.text)
        for span in findings:
            covered[span.start : span.end] = [True] * (span.end - span.start)
        for span in item.spans:
            gone = sum(covered[span.start : span.end])
            characters[span.entity] += span.end - span.start
            removed[span.entity] += gone
            missed[span.entity] += gone == 0
        for span in right:
            touching = {other.entity for other in ours if other.start < span.end and span.start < other.end}
            if touching and span.entity not in touching:
                confused[span.entity].update(touching)
    return Evaluation(
        texts=len(gold),
        exact=_scores(counts["exact"]),
        overlapping=_scores(counts["overlapping"]),
        covered={name: removed[name] / characters[name] for name in sorted(characters)},
        confused=dict(sorted(confused.items())),
        missed={name: count for name, count in sorted(missed.items()) if count},
        unjudged=dict(sorted(unjudged.items())),
        merged={entity: CLASSES[entity] for entity in sorted(occurring & CLASSES.keys())},
        unknown=tuple(sorted(entity for entity in marked if _class(entity) not in findable)),
    )


def read_gold(path: Path, *, text: str = "text", spans: str = "spans") -> list[GoldText]:
    """Reads a gold set: Parquet, or JSON lines; one text a row, its spans as a list of objects.

    A span has `start`, `end` (characters, end excluded) and its type under `entity_type`, `entity`, `type` or `label`.

    Args:
        text: key of the text. spans: key of its spans.

    Raises:
        SourceError: the file is missing, of another form, or a span lies outside its text. Names row and key only.
    """
    rows = _parquet(path, [text, spans]) if path.suffix == ".parquet" else _json_lines(path)
    gold = [_gold_text(row, f"{path}: row {number}", text, spans) for number, row in enumerate(rows, start=1)]
    if not gold:
        raise SourceError(f"{path}: no row; accepted: at least one text with its spans")
    return gold


def _class(entity: str) -> str:
    return CLASSES.get(entity, entity)


def _joined(text: str, spans: Iterable[Finding]) -> list[Finding]:
    """Spans under their class, those joined that only blanks part."""
    joined: list[Finding] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        entity = _class(span.entity)
        between = _BETWEEN_PLACES if entity == "LOCATION" else _BLANK
        last = next((other for other in reversed(joined) if other.entity == entity), None)
        if last is not None and (span.start <= last.end or between.fullmatch(text, last.end, span.start)):
            joined.remove(last)
            joined.append(Finding(last.start, max(last.end, span.end), entity))
        else:
            joined.append(Finding(span.start, span.end, entity))
    return joined


def _matches(gold: Sequence[Finding], found: Sequence[Finding], least: float) -> list[Finding]:
    """Gold spans that have a found span of their own, the best-fitting pairs first."""
    pairs = sorted(
        (
            (-_overlap(right, ours), number, other)
            for number, right in enumerate(gold)
            for other, ours in enumerate(found)
            if right.entity == ours.entity and _overlap(right, ours) >= least
        ),
    )
    taken_gold: set[int] = set()
    taken_found: set[int] = set()
    for _, number, other in pairs:
        if number not in taken_gold and other not in taken_found:
            taken_gold.add(number)
            taken_found.add(other)
    return [gold[number] for number in sorted(taken_gold)]


def _overlap(one: Finding, other: Finding) -> float:
    common = min(one.end, other.end) - max(one.start, other.start)
    return common / (max(one.end, other.end) - min(one.start, other.start)) if common > 0 else 0.0


def _scores(counts: Counter[tuple[str, str]]) -> dict[str, Score]:
    names = sorted({name for name, _ in counts})
    return {name: Score(*(counts[name, kind] for kind in ("gold", "found", "matched"))) for name in names}


def _parquet(path: Path, columns: list[str]) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        missing = [name for name in columns if name not in schema.names]
        if not missing:
            return list(pq.read_table(path, columns=columns).to_pylist())
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot be read as Parquet ({reason_of(error)})") from None
    raise SourceError(f"{path}: no column {', '.join(missing)}; accepted: {', '.join(schema.names)}")


def _json_lines(path: Path) -> list[Any]:
    problem = ""
    rows = []
    try:
        check_regular(path)
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                problem = f", line {number}"
                if line.strip():
                    rows.append(json.loads(line))
    except FileNotFoundError:
        raise SourceError(f"{path}: there is no such file") from None
    except (OSError, ValueError, RecursionError):
        raise SourceError(f"{path}{problem}: no JSON lines; accepted: a .parquet or .jsonl file") from None
    return rows


def _gold_text(row: Any, where: str, text: str, spans: str) -> GoldText:
    if not isinstance(row, dict) or not isinstance(row.get(text), str):
        raise SourceError(f"{where}: {text}: missing or no text; accepted: a row with a text under that key")
    marked = row.get(spans)
    if not isinstance(marked, list):
        raise SourceError(f"{where}: {spans}: missing or no list; accepted: a list of spans, which may be empty")
    return GoldText(row[text], tuple(sorted(_span(item, len(row[text]), f"{where}: {spans}") for item in marked)))


def _span(item: Any, length: int, where: str) -> Finding:
    found = [item.get(key) for key in _TYPE_KEYS] if isinstance(item, dict) else []
    # Some layouts keep the marked words under such a key: what does not look like a type must not be shown as one.
    names = [name for name in found if isinstance(name, str) and _TYPE.fullmatch(name)]
    if not names:
        raise SourceError(f"{where}: a span without a type; accepted: a type in capitals under {', '.join(_TYPE_KEYS)}")
    start, end = item.get("start"), item.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start < end <= length:
        raise SourceError(f"{where}: a span outside its text; accepted: 0 <= start < end <= length, in characters")
    return Finding(start, end, names[0])
