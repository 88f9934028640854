"""The detector as a recognizer of Presidio (presidio-analyzer 2.2), for those who have its engine.

    from presidio_analyzer import AnalyzerEngine
    from dpsynth_platform.scrub.presidio import DpsynthRecognizer

    analyzer = AnalyzerEngine()
    analyzer.registry.add_recognizer(DpsynthRecognizer())

What belongs here: this recognizer. What does not: rules of Presidio's registries (`presidio_rules`). Presidio takes
seconds to import, so nothing else imports this module. In a registry's YAML the recognizer is
`{name: DpsynthRecognizer, type: predefined}`, once this module was imported.

Scores are an order of evidence (`findings.Trust`), and no probabilities. None is below 0.5, so that usual thresholds
keep all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presidio_analyzer import LocalRecognizer, RecognizerResult

from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES, Scrub
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.findings import UNREAD, Trust
from dpsynth_platform.scrub.rules_file import read_rules

SCORES: Mapping[Trust, float] = {
    Trust.RECORD: 1.0,
    Trust.CONTRACT: 1.0,
    Trust.CHECKED: 0.95,
    Trust.SHAPE: 0.85,
    Trust.ADDRESS: 0.8,
    Trust.LIKELY: 0.7,
    Trust.MODEL: 0.6,
    Trust.LIST: 0.5,
}


class DpsynthRecognizer(LocalRecognizer):  # type: ignore[misc]
    """Finds the types of `contracts.scrubbing.ENTITY_TYPES` in English texts.

    Args:
        supported_entities: the types to report; None: all, with those of the rules.
        rules: rules as in a contract's `scrub`, or the path of a YAML file with them (`rules_file`); only patterns,
            `deny` and `allow` have an effect. A text on which patterns take too long is one finding, `UNREAD`, also if
            that type was not asked for: no other type in it was looked for.

    Raises:
        ConfigurationError: another language than English.
        ContractError: the rules cannot be read.
    """

    name: str

    def __init__(
        self,
        supported_entities: list[str] | None = None,
        name: str | None = None,
        supported_language: str = "en",
        context: list[str] | None = None,
        rules: Scrub | str | Path | None = None,
    ) -> None:
        if supported_language != "en":
            raise ConfigurationError(f"supported_language {supported_language!r}; accepted: en")
        self._rules = rules if isinstance(rules, Scrub) or rules is None else read_rules(Path(rules)).rules
        own = {item.entity for item in self._rules.patterns} | self._rules.deny.keys() if self._rules else set()
        super().__init__(
            supported_entities=supported_entities or [*ENTITY_TYPES, *sorted(own - ENTITY_TYPES.keys())],
            name=name or type(self).__name__,
            supported_language=supported_language,
            context=context,
        )

    def load(self) -> None:
        """Loads the detector, which takes some seconds."""
        text_detector()

    def analyze(
        self, text: str, entities: Sequence[str] | None = None, nlp_artifacts: Any = None
    ) -> list[RecognizerResult]:
        """The findings of the types in `entities` (None or empty: all), in order and without overlaps."""
        supported: list[str] = self.supported_entities
        wanted = {item for item in supported if not entities or item in entities} | {UNREAD}
        (found,) = text_detector().find([Document(text)], self._rules)
        return [
            RecognizerResult(
                entity_type=item.entity,
                start=item.start,
                end=item.end,
                score=SCORES[item.trust],
                recognition_metadata={
                    RecognizerResult.RECOGNIZER_NAME_KEY: self.name,
                    RecognizerResult.RECOGNIZER_IDENTIFIER_KEY: self.id,
                },
            )
            for item in found
            if item.entity in wanted
        ]
