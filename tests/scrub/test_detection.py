"""Personal data in free text: what a record's own columns say is found always, the rest as well as the model can."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.scrub import detection
from dpsynth_platform.scrub.clues import clues, column_kind
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.findings import Candidate, Finding, Trust, resolved
from dpsynth_platform.scrub.lists import word_lists
from dpsynth_platform.scrub.names import NameModel
from dpsynth_platform.scrub.organizations import in_signature


def found(text: str, values: dict[str, str | None] | None = None, own: Scrub | None = None) -> dict[str, str]:
    (findings,) = text_detector().find([Document(text, values or {})], own)
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
    fresh = detection.TextDetector()
    (findings,) = fresh.find([Document("Write to someone@unheard-of-domain.example or see https://www.example.org/x.")])
    assert {item.entity for item in findings} >= {"EMAIL_ADDRESS", "URL"}


def test_a_record_tells_what_to_look_for_in_its_text() -> None:
    values: dict[str, str | None] = {
        "full_name": "Xqzmark Ploverdale",
        "phone": "(212) 555-0147",
        "ssn": "912-31-4567",
        "email": "xq.plover@example.org",
        "customer": "C-88123",
        "age_group": None,
    }
    text = "xqzmark said PLOVERDALE is right; 2125550147, 912 31 4567, c-88123; handle xq.plover."
    findings = found(text, values)
    assert findings["xqzmark"] == findings["PLOVERDALE"] == "PERSON"
    assert "2125550147" in findings
    assert "912 31 4567" in findings
    assert findings["c-88123"] == "ID"
    assert any("xq.plover" in value for value in findings)


@pytest.mark.parametrize(
    ("address", "text", "expected"),
    [
        ("nora@x.example", "Miriam Penhale and Nora Ostrander share", {"Nora Ostrander": "PERSON"}),
        ("nora@x.example", "Write to Nora@X.example.", {"Nora@X.example": "EMAIL_ADDRESS"}),
        ("nora@x.example", "Or to nora@y.example, please.", {"nora@y.example": "EMAIL_ADDRESS"}),
        ("xq.plo7@x.example", "Her login is xq.plo7 there.", {"xq.plo7": "ID"}),
        ("xq.plo7@x.example", "Mail xq.plo7@intranet there.", {"xq.plo7@intranet": "EMAIL_ADDRESS"}),
    ],
)
def test_what_stands_before_the_at_of_an_address_is_no_address_by_itself(
    address: str, text: str, expected: dict[str, str]
) -> None:
    values: dict[str, str | None] = {"email": address}
    if not address[:4].isalpha():  # a customer's id of the same letters: an address goes as a whole all the same
        values = {"customer": address.partition("@")[0]} | values
    findings = found(text, values)
    assert expected.items() <= findings.items()
    assert list(findings.values()).count("EMAIL_ADDRESS") == list(expected.values()).count("EMAIL_ADDRESS")


def test_clues_take_no_single_letters_no_titles_and_no_whole_texts() -> None:
    assert clues({"full_name": None, "phone": "", "code": "ab"}) is None
    assert clues({"remark": "this is a whole sentence of many words"}) is None
    short = clues({"first_name": "Bo"})
    assert short is not None
    assert short.search("then bo left")
    pattern = clues({"full_name": "Dr. X Quimby"})
    assert pattern is not None
    assert [match.group() for match in pattern.finditer("dr smith, x, quimby")] == ["quimby"]


def test_clues_are_short_and_few() -> None:
    assert clues({"full_name": "name " * 50, "phone": "1" * 300, "attachment": "x" * 3_000_000}) is None
    many = clues({f"name_{number}": f"Xqz{'abcdefghij'[number % 10]} Ploverdale{number}" for number in range(5_000)})
    assert many is not None
    assert many.search("xqza ploverdale0")
    assert many.pattern.count("|") <= 300


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
        ("Full name", "PERSON"),
        ("kunde.e-mail", "EMAIL_ADDRESS"),
        ("(telephone)", "PHONE_NUMBER"),
        ("ssn", "US_SSN"),
        ("remark", None),
        ("renamed", None),
    ],
)
def test_a_columns_kind_is_told_by_its_name(name: str, kind: str | None) -> None:
    assert column_kind(name) == kind


def test_the_more_trusted_finding_keeps_its_bounds_and_no_letter_of_the_other_stays() -> None:
    text = "John Smith 212-555-0147, Acme"
    findings = resolved(
        text,
        [
            Candidate(0, 23, "PERSON", Trust.MODEL),
            Candidate(11, 23, "PHONE_NUMBER", Trust.SHAPE),
            Candidate(15, 29, "ORGANIZATION", Trust.LIST),
        ],
    )
    assert findings == [Finding(0, 10, "PERSON"), Finding(11, 23, "PHONE_NUMBER"), Finding(25, 29, "ORGANIZATION")]


@given(
    st.lists(
        st.tuples(st.integers(0, 39), st.integers(1, 12), st.sampled_from("ABC"), st.sampled_from(list(Trust))),
        max_size=12,
    )
)
def test_findings_never_overlap_and_cover_what_is_surely_found(items: list[tuple[int, int, str, Trust]]) -> None:
    text = "Abc 12 de-f GHI, 345 jk Lmnop qr st UV9."
    candidates = [Candidate(start, min(start + length, len(text)), kind, trust) for start, length, kind, trust in items]
    findings = resolved(text, candidates)
    assert all(one.end <= other.start for one, other in itertools.pairwise(findings))
    covered = {position for item in findings for position in range(item.start, item.end)}
    for item in candidates:
        if item.trust < Trust.MODEL:
            assert all(position in covered for position in range(item.start, item.end) if text[position].isalnum())


def test_long_texts_are_read_in_sections_without_moving_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "SECTION_CHARACTERS", 100)
    text = "word " * 60 + "someone@example.org" + " word" * 60 + "x" * 250
    assert found(text) == {"someone@example.org": "EMAIL_ADDRESS"}


@pytest.mark.parametrize("secret", ["4111 1111 1111 1111", "(415) 555 2671", "GB82 WEST 1234 5698 7654 32"])
def test_what_stands_across_the_cut_of_a_long_text_is_found(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameModel, "find", lambda self, texts, lists: [[] for _ in texts])
    monkeypatch.setattr(detection, "SECTION_CHARACTERS", 1_000)
    for cut in (place for place, item in enumerate(secret) if item == " "):
        before = ("lorem " * 300)[: 999 - cut] + " "
        text = f"{before}{secret} and so on {'it goes ' * 200}"
        assert text[1_000] == " "  # where it is cut
        assert secret in found(text)


@pytest.mark.parametrize(
    ("text", "value", "entity"),
    [
        ("Please send it to 12 Rue de la Paix, 75002 Paris. Thanks", "12 Rue de la Paix, 75002 Paris", "ADDRESS"),
        (
            "He lives at 63 Oak Street Apt. 4, Springfield, IL 62701.",
            "63 Oak Street Apt. 4, Springfield, IL 62701",
            "ADDRESS",
        ),
        ("Ship to PSC 7004, Box 8380\nAPO AP 11949 today", "PSC 7004, Box 8380\nAPO AP 11949", "ADDRESS"),
        ("Ann Lee\nKirchweg 5\n53113 Bonn\nGermany\n", "Kirchweg 5\n53113 Bonn\nGermany", "ADDRESS"),
        ("Sie kam. An der Alten Weide 5, 53113 Bonn", "An der Alten Weide 5, 53113 Bonn", "ADDRESS"),
        ("wohnhaft auf der Weide 12 in Bremen", "auf der Weide 12", "ADDRESS"),
        ("my passport number is X1234567 and", "X1234567", "US_PASSPORT"),
        ("account no. 000123456789, please", "000123456789", "US_BANK_NUMBER"),
        ("patient 8841-22 came back", "8841-22", "MEDICAL_RECORD"),
        ("she is a 34-year-old teacher", "34", "AGE"),
        ("born on March 3rd, 1981 in town", "March 3rd, 1981", "DATE_TIME"),
        ("at fe80::1c2a:9 since", "fe80::1c2a:9", "IP_ADDRESS"),
        ("see www.example.net/a?b=c, then", "www.example.net/a?b=c", "URL"),
        ("she moved here from Dominican Republic.", "Dominican Republic", "LOCATION"),
        ("Tom works at Qwzlabs in sales", "Qwzlabs", "ORGANIZATION"),
        ("my name is katrin lindqvist and", "katrin lindqvist", "PERSON"),
        ("Dr. Megan O'Neill-Sato Jr. signed", "Dr. Megan O'Neill-Sato Jr.", "PERSON"),
    ],
)
def test_bounds_and_types(text: str, value: str, entity: str) -> None:
    assert found(text).get(value) == entity


@pytest.mark.parametrize(
    "text",
    [
        "The meeting is at noon, version 3.11 came out in 1995 to 1999, and 12,345 people paid $1,200.50.",
        "Chapter 4 of 12: the quick brown fox; see section 2.3.1 and table 5.",
        "Number is here. Please return the card.",
    ],
)
def test_what_is_nothing_of_anybody(text: str) -> None:
    assert found(text) == {}


def test_the_contracts_own_rules() -> None:
    own = Scrub.model_validate(
        {
            "patterns": [
                {"entity": "STAFF_ID", "pattern": r"E\d{6}"},
                {"entity": "WARD", "pattern": r"\b[A-Z]{2}\b", "context": ["ward"]},
            ],
            "deny": {"PROJECT": ["Blue  Bird"]},
            "allow": ["maria alvarez"],
        }
    )
    text = "Maria Alvarez (E123456) moved to ward QX for blue bird"
    assert found(text, own=own) == {"E123456": "STAFF_ID", "QX": "WARD", "blue bird": "PROJECT"}
    assert not {"WARD", "PERSON"} & set(found("Maria Alvarez and QX", own=own).values())
    # What the record itself says outweighs the list.
    assert found("Maria Alvarez", {"full_name": "Maria Alvarez"}, own) == {"Maria Alvarez": "PERSON"}


def test_a_text_that_a_pattern_never_ends_on_goes_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the process's own time: enough for the short text, also where memory is tidied up meanwhile.
    monkeypatch.setattr(detection, "PATTERN_SECONDS", 0.5)
    own = Scrub.model_validate({"patterns": [{"entity": "LOOP", "pattern": "(x+x+)+y"}]})
    texts = ["Maria Alvarez wrote " + "x" * 5000, "xxxy is one"]
    findings = text_detector().find([Document(text) for text in texts], own)
    assert findings == [[Finding(0, len(texts[0]), "UNREAD")], [Finding(0, 4, "LOOP")]]


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends what takes longer, be it inside of a single search."""

    def late(*_: Any) -> None:
        raise AssertionError(f"longer than {seconds} seconds")

    earlier = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)


@pytest.mark.parametrize(
    "text",
    [
        "She lives at 12 Main Street" + f"{' ' * 80}\n" * 2 + " " * 80 + "x",
        "12 Main Street" + " " * 8_000 + "x",
        "Aa'" * 5_500,
        "Aa\u2019" * 5_500,
    ],
)
def test_short_texts_take_no_long_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that tries all ways to share blanks or apostrophes would take minutes to years here."""
    monkeypatch.setattr(NameModel, "find", lambda self, texts, lists: [[] for _ in texts])
    detector = text_detector()
    with within(20):
        findings = detector.find([Document(text)])[0]
    assert ("12 Main Street" in text) == any(item.entity == "ADDRESS" for item in findings)


def test_signatures_are_read_in_one_pass() -> None:
    text = "John Smith\nAcme Widget\n" * 20_000
    people = [Finding(start, start + 10, "PERSON") for start in range(0, len(text), 23)]
    with within(20):
        findings = in_signature(text, people, word_lists())
    assert sum(item.entity == "ORGANIZATION" for item in findings) == 20_000 - 1


@pytest.mark.parametrize(
    "part",
    [
        "x",
        "1",
        "A ",
        "a@",
        "1 ",
        "Ab ",
        "A-",
        "\n",
        "http://",
        "::1",
        "(1",
        "Von der ",
        "0-",
        "NI number ",
        "12 N ",
        "Mark! ",
    ],
)
def test_time_grows_with_the_text_and_no_faster(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is quadratic would take minutes here. The model is linear by design and left out."""
    monkeypatch.setattr(NameModel, "find", lambda self, texts, lists: [[] for _ in texts])
    began = time.process_time()
    text_detector().find([Document(part * (200_000 // len(part)))])
    assert time.process_time() - began < 20


def test_odd_texts() -> None:
    texts = ["", " ", "\n\n", "\x00", "\ud800 lone", "😀", "I\u0307STANBUL \u0130zmir", "a" * 3]
    findings = text_detector().find([Document(text) for text in texts])
    assert [len(items) for items in findings[:4]] == [0, 0, 0, 0]
    for text, items in zip(texts, findings, strict=True):
        assert all(0 <= item.start < item.end <= len(text) for item in items)
