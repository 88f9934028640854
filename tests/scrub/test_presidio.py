"""Presidio both ways: its recognizer registries as rules, and the detector as one of its recognizers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES, Scrub
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.findings import UNREAD, Trust
from dpsynth_platform.scrub.names import MODEL
from dpsynth_platform.scrub.presidio_rules import Converted, converted
from dpsynth_platform.scrub.rules_file import read_rules

STAFF = {
    "name": "Staff numbers",
    "supported_entity": "STAFF_ID",
    "patterns": [{"name": "staff", "regex": r"\bqz\d{4}\b", "score": 0.85}],
}


def of(*recognizers: Any, **registry: Any) -> Converted:
    return converted({"recognizers": list(recognizers), **registry}, "rules.yaml")


def found(rules: Scrub, text: str) -> list[tuple[str, str]]:
    return [(text[item.start : item.end], item.entity) for item in text_detector().find([Document(text)], rules)[0]]


def test_patterns_have_the_flags_of_the_registry() -> None:
    assert found(of(STAFF).rules, "badge QZ1234 here") == [("QZ1234", "STAFF_ID")]  # 26 ignores case
    assert found(of(STAFF, global_regex_flags=0).rules, "badge QZ1234 here") != [("QZ1234", "STAFF_ID")]
    flagged = STAFF | {"patterns": [{"name": "staff", "regex": r"(?x) \b qz \d{4} \b", "score": 1}]}
    assert found(of(flagged).rules, "badge QZ1234 here") == [("QZ1234", "STAFF_ID")]


def test_words_of_a_deny_list_are_found_as_presidio_finds_them() -> None:
    rules = of({"name": "Projects", "supported_entities": ["PROJECT"], "deny_list": ["Blue Bird", "C3.po"]}).rules
    assert found(rules, "the BLUE BIRD and c3.po") == [("BLUE BIRD", "PROJECT"), ("c3.po", "PROJECT")]


@pytest.mark.parametrize(
    ("score", "registry", "context", "note"),
    [
        (0.5, {}, [], ""),
        (
            0.1,
            {},
            ["badge"],
            "Staff numbers: pattern staff: its score 0.1 is below 0.4: it counts near its context only",
        ),
        (0.1, {"default_score_threshold": 0}, [], ""),
        (0.1, {"default_score_threshold": 0.3}, ["badge"], "score 0.1 is below 0.3: it counts near its context only"),
        (0.1, {"default_score_threshold": 0.9}, None, "left out: its score 0.1 is below the threshold 0.9"),
    ],
)
def test_a_weak_pattern_needs_its_context(score: float, registry: Any, context: list[str] | None, note: str) -> None:
    pattern = STAFF["patterns"][0] | {"score": score}  # type: ignore[index,operator]
    made = of(STAFF | {"patterns": [pattern], "context": ["badge"]}, **registry)
    assert [item.context for item in made.rules.patterns] == ([] if context is None else [context])
    assert (len(made.notes) == 1 and note in made.notes[0]) if note else not made.notes


def test_a_weak_pattern_without_context_counts_if_no_threshold_is_declared() -> None:
    weak = STAFF | {"patterns": [{"name": "staff", "regex": "qz1", "score": 0.01}]}
    assert len(of(weak).rules.patterns) == 1 and not of(weak).notes
    ruled = weak | {"score_thresholds": {"default": 0.9, "STAFF_ID": 0.2}}
    assert of(ruled).notes == ("Staff numbers: pattern staff: left out: its score 0.01 is below the threshold 0.2",)


@pytest.mark.parametrize(
    ("recognizer", "note"),
    [
        ("CreditCardRecognizer", "CreditCardRecognizer: left out: it is Presidio's own"),
        ({"name": "UsSsnRecognizer", "type": "predefined"}, "UsSsnRecognizer: left out: it is Presidio's own"),
        ({"name": "Remote", "type": "remote"}, "Remote: left out: it is Presidio's own, by its class"),
        (STAFF | {"enabled": False}, "Staff numbers: left out: it is not enabled"),
        (STAFF | {"supported_language": "de"}, "Staff numbers: left out: it is for de; accepted: en"),
        (STAFF | {"supported_languages": [{"language": "es"}]}, "left out: it is for es"),
        (STAFF | {"patterns": []}, "it has neither patterns nor a deny_list"),
        (STAFF | {"patterns": [{"name": "p", "regex": r"\d*", "score": 1}]}, "p: left out: it matches the empty text"),
        (STAFF | {"patterns": [{"name": "p", "regex": "(", "score": 1}]}, "p: left out: it is no regular expression"),
        (STAFF | {"patterns": [{"name": "p", "regex": "a" * 1001, "score": 1}]}, "it is longer than 1,000 characters"),
        (STAFF | {"patterns": [], "deny_list": ["x"]}, "deny_list: left out: 1 words of less than 2"),
    ],
)
def test_what_has_no_counterpart_is_named(recognizer: Any, note: str) -> None:
    made = of(recognizer)
    assert made.rules == Scrub() and len(made.notes) == 1 and note in made.notes[0]


def test_context_is_that_of_english_and_other_names_and_keys_are_named() -> None:
    languages = [{"language": "es", "context": ["placa"]}, {"language": "en", "context": ["badge"]}]
    weak = STAFF | {"patterns": [{"name": "p", "regex": "qz1", "score": 0.1}], "supported_languages": languages}
    made = of(weak | {"supported_entity": "staff-id", "check": "luhn"}, nlp_configuration={})
    assert made.rules.patterns[0].context == ["badge"] and made.rules.patterns[0].entity == "STAFF_ID"
    assert made.notes[:3] == (
        "nlp_configuration: has no effect here",
        "Staff numbers: its entity type staff-id is STAFF_ID here",
        "Staff numbers: check: has no effect here",
    )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"recognizers": "all"}, "recognizers: no list"),
        ({"recognizers": [STAFF], "global_regex_flags": "i"}, "global_regex_flags: 'i'"),
        ({"recognizers": [STAFF | {"supported_entity": 7}]}, "supported_entity: 7"),
        ({"recognizers": [STAFF | {"patterns": ["x"]}]}, "pattern 1: no regex"),
        ({"recognizers": [STAFF | {"patterns": {"a": 1}}]}, "patterns: no list"),
        ({"recognizers": [STAFF | {"deny_list": ["ab"], "deny_list_score": "high"}]}, "deny_list_score: 'high'"),
    ],
)
def test_what_is_no_registry_is_refused(document: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said.replace("(", r"\(")):
        converted(document, "rules.yaml")


def test_presidios_own_files_are_read(tmp_path: Path) -> None:
    import presidio_analyzer

    conf = Path(presidio_analyzer.__file__).parent / "conf"
    example = read_rules(conf / "example_recognizers.yaml")
    assert example.rules.deny == {"TITLE": ["Mr.", "Mrs.", "Ms.", "Miss", "Dr.", "Prof."]}
    assert example.notes == ("Zip code Recognizer: left out: it is for de; accepted: en",)
    for name in ("default_recognizers.yaml", "default_analyzer_full.yaml"):
        made = read_rules(conf / name)
        assert made.rules == Scrub() and any("CreditCardRecognizer" in note for note in made.notes)
    path = tmp_path / "rules.yaml"
    path.write_text("scrub: {allow: [Acme]}\ncolumns: {}\n", encoding="utf-8")
    assert read_rules(path) == Converted(Scrub(allow=["Acme"]))
    path.write_text("rules: []\n", encoding="utf-8")
    with pytest.raises(ContractError, match="neither scrub nor recognizers"):
        read_rules(path)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    from dpsynth_platform.scrub.presidio import DpsynthRecognizer

    registry = RecognizerRegistry(supported_languages=["en"])
    registry.add_recognizer(DpsynthRecognizer())
    models = {"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": MODEL}]}
    words = NlpEngineProvider(nlp_configuration=models).create_engine()
    yield AnalyzerEngine(registry=registry, nlp_engine=words, supported_languages=["en"])


TEXT = "Ann Lee called 212-736-5001, then wrote to ann@corp.com."


def test_presidios_engine_finds_what_the_detector_finds(engine: Any) -> None:
    expected = {(item.start, item.end, item.entity) for item in text_detector().find([Document(TEXT)])[0]}
    results = engine.analyze(TEXT, language="en")
    assert {(item.start, item.end, item.entity_type) for item in results} == expected
    scores = {item.entity_type: item.score for item in results}
    assert scores["EMAIL_ADDRESS"] > scores["PERSON"] >= 0.5
    assert {item.recognition_metadata["recognizer_name"] for item in results} == {"DpsynthRecognizer"}
    only = engine.analyze(TEXT, language="en", entities=["PERSON"])
    assert {item.entity_type for item in only} == {"PERSON"}
    assert set(engine.get_supported_entities("en")) == set(ENTITY_TYPES)


def test_scores_follow_the_evidence() -> None:
    from dpsynth_platform.scrub.presidio import SCORES

    assert list(SCORES) == list(Trust) and list(SCORES.values()) == sorted(SCORES.values(), reverse=True)


def test_own_rules_and_a_text_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpsynth_platform.scrub.presidio import DpsynthRecognizer

    one = DpsynthRecognizer(rules=of(STAFF).rules)
    assert "STAFF_ID" in one.supported_entities
    assert [(item.entity_type, item.score) for item in one.analyze("badge qz1234", ["STAFF_ID"])] == [("STAFF_ID", 1.0)]

    def too_slow(*_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr("dpsynth_platform.scrub.detection._ContractRules.find", too_slow)
    (whole,) = one.analyze(TEXT, ["PERSON"])
    assert (whole.entity_type, whole.start, whole.end) == (UNREAD, 0, len(TEXT))
    with pytest.raises(ConfigurationError, match="accepted: en"):
        DpsynthRecognizer(supported_language="de")


def test_a_registry_in_yaml_names_the_recognizer(tmp_path: Path) -> None:
    from presidio_analyzer.recognizer_registry import RecognizerRegistryProvider

    import dpsynth_platform.scrub.presidio  # noqa: F401  (registers the class)

    path = tmp_path / "registry.yaml"
    path.write_text(
        "supported_languages: [en]\nglobal_regex_flags: 26\nrecognizers:\n"
        "- {name: DpsynthRecognizer, type: predefined, supported_languages: [en]}\n",
        encoding="utf-8",
    )
    registry = RecognizerRegistryProvider(conf_file=path).create_recognizer_registry()
    (one,) = [item for item in registry.recognizers if type(item).__name__ == "DpsynthRecognizer"]
    found = one.analyze(TEXT, [], None)  # type: ignore[arg-type]
    assert {item.entity_type for item in found} == {"PERSON", "PHONE_NUMBER", "EMAIL_ADDRESS"}
