"""Personal data in free text: what a record's own columns say is found always, the rest as well as the model can."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from dpsynth_platform.scrub import text as text_module
from dpsynth_platform.scrub.clues import clues, column_kind
from dpsynth_platform.scrub.replacement import Replacer, masked
from dpsynth_platform.scrub.text import Finding, _merged, text_detector


def found(text: str, pattern: re.Pattern[str] | None = None) -> dict[str, str]:
    (findings,) = text_detector().find([text], [pattern])
    return {text[item.start : item.end]: item.entity for item in findings}


@pytest.mark.parametrize(
    ("value", "entity"),
    [
        ("maria.alvarez@example.org", "EMAIL_ADDRESS"),
        ("maria@mailhost.internal", "EMAIL_ADDRESS"),
        ("(212) 555-0147", "PHONE_NUMBER"),
        ("+49 30 901820", "PHONE_NUMBER"),
        ("912-31-4567", "US_SSN"),
        ("4111 1111 1111 1111", "CREDIT_CARD"),
        ("192.0.2.17", "IP_ADDRESS"),
        ("GB82 WEST 1234 5698 7654 32", "IBAN_CODE"),
        ("03/14/1981", "DATE_TIME"),
        ("Maria Alvarez", "PERSON"),
    ],
)
def test_kinds_that_must_be_found(value: str, entity: str) -> None:
    findings = found(f"As we heard yesterday, {value} was written in the file.")
    assert findings.get(value) == entity


def test_no_network_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was tried")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    fresh = text_module.TextDetector()
    (findings,) = fresh.find(["Write to someone@unheard-of-domain.example or see https://www.example.org/x."], [None])
    assert {item.entity for item in findings} >= {"EMAIL_ADDRESS", "URL"}


def test_a_record_tells_what_to_look_for_in_its_text() -> None:
    pattern = clues(
        {
            "full_name": "Xqzmark Ploverdale",
            "phone": "(212) 555-0147",
            "ssn": "912-31-4567",
            "email": "xq.plover@example.org",
            "customer": "C-88123",
            "age_group": None,
        }
    )
    text = "xqzmark said PLOVERDALE is right; 2125550147, 912 31 4567, c-88123; handle xq.plover."
    findings = found(text, pattern)
    assert findings["xqzmark"] == findings["PLOVERDALE"] == "PERSON"
    assert "2125550147" in findings
    assert "912 31 4567" in findings
    assert findings["c-88123"] == "ID"
    assert any("xq.plover" in value for value in findings)


def test_clues_take_no_single_letters_no_titles_and_no_whole_texts() -> None:
    assert clues({"full_name": None, "phone": "", "code": "ab"}) is None
    assert clues({"remark": "this is a whole sentence of many words"}) is None
    short = clues({"first_name": "Bo"})
    assert short is not None
    assert short.search("then bo left")
    pattern = clues({"full_name": "Dr. X Quimby"})
    assert pattern is not None
    assert [match.group() for match in pattern.finditer("dr smith, x, quimby")] == ["quimby"]


def test_clues_of_odd_characters_match_literally() -> None:
    pattern = clues({"code": "a(b|c)*[", "surname": "O'Brien-\u0141uk"})
    assert pattern is not None
    assert pattern.search("see a(b|c)*[ there")
    assert pattern.search("o'brien-\u0142uk")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("email", "EMAIL_ADDRESS"),
        ("work_email", "EMAIL_ADDRESS"),
        ("full_name", "PERSON"),
        ("lastName", "PERSON"),
        ("phone-2", "PHONE_NUMBER"),
        ("ssn", "US_SSN"),
        ("remark", None),
        ("renamed", None),
    ],
)
def test_a_columns_kind_is_told_by_its_name(name: str, kind: str | None) -> None:
    assert column_kind(name) == kind


def test_overlapping_findings_become_one_that_covers_all() -> None:
    findings = [Finding(0, 5, "A"), Finding(3, 12, "B"), Finding(11, 13, "C"), Finding(13, 14, "D")]
    assert _merged(findings) == [Finding(0, 13, "B"), Finding(13, 14, "D")]


def test_long_texts_are_read_in_pieces_without_moving_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "PIECE_CHARACTERS", 100)
    text = "word " * 60 + "someone@example.org" + " word" * 60 + "x" * 250
    assert found(text) == {"someone@example.org": "EMAIL_ADDRESS"}


def test_replacement_is_alike_for_alike_within_a_document_and_fresh_in_the_next() -> None:
    texts = ["Ann Smith met Bo. Ann paid.", "Smith left."]
    findings = [
        [Finding(0, 9, "PERSON"), Finding(14, 16, "PERSON"), Finding(18, 21, "PERSON")],
        [Finding(0, 5, "PERSON")],
    ]
    results = set()
    for _ in range(20):
        first, second = Replacer().document(texts, findings)
        name = re.fullmatch(r"(\S+) (\S+) met (\S+)\. \1 paid\.", first)
        assert name is not None
        assert second == f"{name.group(2)} left."
        assert not {"ann", "smith", "bo"} & set(re.findall(r"\w+", (first + second).lower()))
        results.add(first)
    # One of tens of thousands of names each time: twenty alike would be a seed.
    assert len(results) > 10


@pytest.mark.parametrize(
    ("entity", "shape"),
    [
        ("EMAIL_ADDRESS", r"[^@\s]+@example\.org"),
        ("PHONE_NUMBER", r"\(\d{3}\) 555-01\d\d"),
        ("US_SSN", r"9\d\d-[0-4]\d-\d{4}"),
        ("CREDIT_CARD", r"0000 \d{4} \d{4} \d{4}"),
        ("IBAN_CODE", r"XX00\d{16}"),
        ("IP_ADDRESS", r"192\.0\.2\.\d{1,3}"),
        ("URL", r"https://www\.example\.org/\S+"),
        ("ID", r"[A-Z]\d{3}-[A-Z]"),
    ],
)
def test_fictional_numbers_lie_in_ranges_kept_for_examples(entity: str, shape: str) -> None:
    assert re.fullmatch(shape, Replacer().whole("a123-b", entity))


def test_what_chance_does_not_replace_is_masked() -> None:
    assert Replacer().whole("-", "ID") == "***"


def test_masking_names_the_kind() -> None:
    assert masked("Ann paid 5.", [Finding(0, 3, "PERSON")]) == "<PERSON> paid 5."
