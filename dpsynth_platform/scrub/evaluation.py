"""Evaluation of a detector on texts whose personal data is known (a gold set).

What belongs here: reading a gold set, matching found spans with gold ones, and precision, recall, F1 and F2 by entity
type. What does not: detection (`detection`), printing (`scrub_command`). Results hold counts only, never a text.

Rules of matching:

- Types are compared by class (`CLASSES`): an address is a place, a domain name is a URL, "Mr." is part of a name.
- Spans of one class that only white space separates (for places also commas and quotation marks) are one span, in gold
  and found spans, since annotators differ on whether "12 Main St, Springfield" is one span or two.
- *exact*: the same class, start and end. *overlapping*: the same class, and an intersection over union (Jaccard) of at
  least one half. Each gold span and each found span is matched at most once.
- *covered*: the share of gold characters in a found span of any class, that is, which scrubbing removes.
- Found spans of a class that the gold set never marks are not judged; they are counted as `unjudged`.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import check_regular
from dpsynth_platform.scrub.findings import Finding

_TYPES_BY_CLASS = {
    "LOCATION": "ADDRESS STREET_ADDRESS ZIP_CODE GPE FACILITY COORDINATES",
    "URL": "DOMAIN_NAME",
    "PERSON": "PREFIX",
    "DATE_TIME": "DATE TIME DATE_OF_BIRTH",
    "EMAIL_ADDRESS": "EMAIL",
    "ORGANIZATION": "ORG",
    "NRP": "NATIONALITY",
    "US_SSN": "US_ITIN",
    "NATIONAL_ID": (
        "UK_NINO UK_NHS ES_NIF ES_NIE IT_FISCAL_CODE PL_PESEL AU_TFN IN_AADHAAR IN_PAN CA_SIN DE_TAX_ID "
        "SE_PERSONNUMMER FI_PERSONAL_IDENTITY_CODE"
    ),
}
CLASSES = {entity: name for name, entities in _TYPES_BY_CLASS.items() for entity in entities.split()}
"""The class of each entity type; a type that is missing here is its own class."""

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
    """Numbers of gold spans, found spans and matched pairs of one class. Measures without counts are None."""

    gold: int
    found: int
    matched: int

    @property
    def precision(self) -> float | None:
        return self.matched / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        return self.matched / self.gold if self.gold else None

    def f(self, beta: float) -> float | None:
        """F-measure; beta = 2 weighs recall four times as much as precision."""
        if not self.gold and not self.found:
            return None
        weight = beta * beta
        return (1 + weight) * self.matched / (weight * self.gold + self.found)

    def to_json(self) -> dict[str, Any]:
        measures = {"precision": self.precision, "recall": self.recall, "f1": self.f(1), "f2": self.f(2)}
        return asdict(self) | measures


@dataclass(frozen=True)
class Evaluation:
    """Scores by class and over all, under both rules.

    Attributes:
        covered: share of gold characters removed, by the gold set's types.
        confused: how often a gold class was found, fully or partly, as other classes only: {gold: {found: times}}.
        missed: number of gold spans without any found character, by gold type.
        unjudged: number of found spans of classes that the gold set does not have, by class.
        merged: occurring types that are compared as another class: {type: class}.
        unknown: gold types that no detector reports, so that their recall is zero.
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
        scores = {
            rule: {"all": self.total(rule).to_json()}
            | {name: score.to_json() for name, score in getattr(self, rule).items()}
            for rule in ("exact", "overlapping")
        }
        confused = {name: dict(others) for name, others in self.confused.items()}
        return vars(self) | scores | {"confused": confused, "unknown": list(self.unknown)}


def evaluate(
    gold: Sequence[GoldText], found: Sequence[Sequence[Finding]], known: Iterable[str] = ENTITY_TYPES
) -> Evaluation:
    """Compares each text's findings with a gold set; `known` are the entity types that can be found."""
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
        gold_spans = _joined(item.text, item.spans)
        found_spans = _joined(item.text, findings)
        unjudged.update(span.entity for span in found_spans if span.entity not in judged)
        found_spans = [span for span in found_spans if span.entity in judged]
        for rule, least in (("exact", 1.0), ("overlapping", LEAST_OVERLAP)):
            matched = _matches(gold_spans, found_spans, least)
            for kind, spans in (("gold", gold_spans), ("found", found_spans), ("matched", matched)):
                counts[rule].update((span.entity, kind) for span in spans)
        covered = [False] * len(item.text)
        for span in findings:
            covered[span.start : span.end] = [True] * (span.end - span.start)
        for span in item.spans:
            covered_characters = sum(covered[span.start : span.end])
            characters[span.entity] += span.end - span.start
            removed[span.entity] += covered_characters
            missed[span.entity] += covered_characters == 0
        for span in gold_spans:
            touching = {other.entity for other in found_spans if other.start < span.end and span.start < other.end}
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
    """Reads a gold set: Parquet or JSON lines, one text per row, with a list of spans. `text` and `spans` are the keys.

    A span has `start`, `end` (characters, end excluded) and its type under `entity_type`, `entity`, `type` or `label`.
    Raises `SourceError` with row and key only for an unreadable file, and for a span outside its text.
    """
    rows = _parquet(path, [text, spans]) if path.suffix == ".parquet" else _json_lines(path)
    gold = [_gold_text(row, f"{path}: row {number}", text, spans) for number, row in enumerate(rows, start=1)]
    if not gold:
        raise SourceError(f"{path}: no row; accepted: at least one text with its spans")
    return gold


def _class(entity: str) -> str:
    return CLASSES.get(entity, entity)


def _joined(text: str, spans: Iterable[Finding]) -> list[Finding]:
    """Spans with their class, joined if only white space separates them."""
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
    """Gold spans that are matched with a found span, in a greedy matching of the best-fitting pairs."""
    pairs = sorted(
        (-_overlap(one, other), number, place)
        for number, one in enumerate(gold)
        for place, other in enumerate(found)
        if one.entity == other.entity and _overlap(one, other) >= least
    )
    taken_gold: set[int] = set()
    taken_found: set[int] = set()
    for _, number, place in pairs:
        if number not in taken_gold and place not in taken_found:
            taken_gold.add(number)
            taken_found.add(place)
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
        raise SourceError(f"{path}{problem}: not JSON lines; accepted: a .parquet or .jsonl file") from None
    return rows


def _gold_text(row: Any, where: str, text: str, spans: str) -> GoldText:
    if not isinstance(row, dict) or not isinstance(row.get(text), str):
        raise SourceError(f"{where}: {text}: missing or not a text; accepted: a row with a text under that key")
    marked = row.get(spans)
    if not isinstance(marked, list):
        raise SourceError(f"{where}: {spans}: missing or not a list; accepted: a list of spans, which may be empty")
    return GoldText(row[text], tuple(sorted(_span(item, len(row[text]), f"{where}: {spans}") for item in marked)))


def _span(item: Any, length: int, where: str) -> Finding:
    found = [item.get(key) for key in _TYPE_KEYS] if isinstance(item, dict) else []
    # Some formats keep the marked words under such a key; only what looks like a type may be shown.
    names = [name for name in found if isinstance(name, str) and _TYPE.fullmatch(name)]
    if not names:
        raise SourceError(f"{where}: a span without a type; accepted: a type in capitals under {', '.join(_TYPE_KEYS)}")
    start, end = item.get("start"), item.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start < end <= length:
        raise SourceError(f"{where}: a span outside its text; accepted: 0 <= start < end <= length, in characters")
    return Finding(start, end, names[0])
