"""Fictional values: of the same kind and layout, from ranges that are nobody's, never the original."""

from __future__ import annotations

import datetime as dt
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
from dpsynth_platform.scrub.dates import other_age, other_date
from dpsynth_platform.scrub.findings import Finding
from dpsynth_platform.scrub.replacement import Replacer, substituted

KEY = b"k" * 32


def test_replacement_is_alike_for_alike_within_a_document_and_fresh_in_the_next() -> None:
    texts = ["Ann Smith met Bo. Ann paid.", "Smith left."]
    findings = [
        [Finding(0, 9, "PERSON"), Finding(14, 16, "PERSON"), Finding(18, 21, "PERSON")],
        [Finding(0, 5, "PERSON")],
    ]
    results = set()
    for _ in range(20):
        values = Replacer().values(
            (text[item.start : item.end], item.entity)
            for text, items in zip(texts, findings, strict=True)
            for item in items
        )
        first, second = (
            substituted(text, items, lambda original, entity, values=values: values[original, entity])  # type: ignore[misc]
            for text, items in zip(texts, findings, strict=True)
        )
        name = re.fullmatch(r"(\S+) (\S+) met (\S+)\. \1 paid\.", first)
        assert name is not None
        assert second == f"{name.group(2)} left."
        assert not {"ann", "smith", "bo"} & set(re.findall(r"\w+", (first + second).lower()))
        results.add(first)
    # One of tens of thousands of names each time: twenty alike would be a seed. Ten pairs that are alike, of 190, have
    # a chance below (190 / 10^4)^10 = 1e-17.
    assert len(results) > 10


def test_values_hold_throughout_an_owner_and_differ_between_owners_and_keys() -> None:
    originals = [("Ann Smith", "PERSON"), ("Boston", "LOCATION"), ("ann.smith@corp.com", "EMAIL_ADDRESS")]
    one = Replacer(key=KEY).values(originals, "owner one")
    alone = Replacer(key=KEY).values(originals[:1], "owner one")
    assert alone.items() <= one.items()
    assert Replacer(key=KEY).values(originals, "owner one") == one
    assert Replacer(key=KEY).values(originals, "owner two") != one
    assert Replacer(key=b"j" * 32).values(originals, "owner one") != one
    assert Replacer(key=KEY).values([("Ann", "PERSON")], "owner one")["Ann", "PERSON"] == one[originals[0]].split()[0]


@pytest.mark.parametrize(
    ("entity", "original", "shape"),
    [
        ("EMAIL_ADDRESS", "a.b@corp.com", r"[a-z]+\.[a-z]+@example\.org"),
        ("EMAIL_ADDRESS", "BOB7@CORP.COM", r"[A-Z]+\d\d@EXAMPLE\.ORG"),
        ("PHONE_NUMBER", "(212) 736-5000", r"\([2-9]\d\d\) 555-01\d\d"),
        ("PHONE_NUMBER", "212.736.5000", r"[2-9]\d\d\.555\.01\d\d"),
        ("PHONE_NUMBER", "+1-212-736-5000 x12", r"\+1-[2-9]\d\d-555-01\d\d x\d\d"),
        ("PHONE_NUMBER", "+49 30 901820", r"\+49 [2-9]5 5501\d\d"),
        ("US_SSN", "078-05-1120", r"9\d\d-[0-4]\d-\d{4}"),
        ("US_SSN", "078051120", r"9\d\d[0-4]\d{5}"),
        (
            "US_SSN",
            "123-45-6789 (Ann: 987-65-4321)",
            r"9\d\d-[0-4]\d-\d{4} \((?!Ann)[A-Z][a-z]{2}: 9\d\d-[0-4]\d-\d{4}\)",
        ),
        ("US_SSN", "0780511201", r"9\d\d[0-4]\d{5}9"),
        ("PHONE_NUMBER", "Ann 212.736.5000", r"(?!Ann)[A-Z][a-z]{2} [2-9]\d\d\.555\.01\d\d"),
        ("CREDIT_CARD", "4485-5276-2750-9597", r"0000-\d{4}-\d{4}-\d{4}"),
        ("IBAN_CODE", "GB82 WEST 1234", r"XX00 [A-Z]{4} \d{4}"),
        ("IP_ADDRESS", "10.1.2.3/24", r"(?:192\.0\.2|198\.51\.100|203\.0\.113)\.\d{1,3}/24"),
        ("IP_ADDRESS", "fe80::1", r"2001:db8::[0-9a-f]+:[0-9a-f]+"),
        ("MAC_ADDRESS", "aa-bb-cc-dd-ee-ff", r"00-00-5e-00-53-[0-9a-f]{2}"),
        ("URL", "https://www.corp.com/a/b", r"https://www\.example\.org/[a-z]+"),
        ("URL", "corp.com", r"[a-z]+\.example\.org"),
        ("ID", "a123-B", r"[a-z]\d{3}-[A-Z]"),
        ("PERSON", "Dr. ANN van der MEER", r"Dr\. [A-Z]+ van der [A-Z]+"),
        ("PERSON", "j. q. public", r"[a-z]\. [a-z]\. [a-z]+"),
        ("ADDRESS", "12 Oak St\nApt. 5\nOslo, NO 0150", r"\d\d [^\n]+\nApt\. \d\n[^\n]+, [A-Z]{2} \d{4}"),
        ("NRP", "german", r"[a-z]+"),
        ("AGE", "34", r"29|3[0-35-9]"),
        ("STAFF_ID", "E123456", r"[A-Z]\d{6}"),
    ],
)
def test_layout_stays_and_the_value_is_nobodys(entity: str, original: str, shape: str) -> None:
    for key in (None, KEY):
        values = [Replacer(key=key).whole(original, entity, "owner") for _ in range(2)]
        for value in values:
            assert re.fullmatch(shape.replace("(?!Ann)", ""), value), value
            assert value != original
        # Letters beside a number are drawn: they are a name of three again once in 26^3 times, twice running 3e-9.
        assert any(re.fullmatch(shape, value) for value in values), values


@pytest.mark.parametrize(
    "name", ["le", "Hon", "di", "van der la", "hon le", "Rev. del la", "DR", "mx", "II", "Col. Hon", "Maria le"]
)
def test_a_title_or_particle_that_is_a_name_does_not_come_back(name: str) -> None:
    for key in (None, KEY):
        value = Replacer(key=key).whole(name, "PERSON", "owner")
        assert name.casefold().split()[-1] not in value.casefold().split()
        assert len(value.split()) >= len(name.split())


def test_a_country_becomes_a_country_and_a_woman_a_woman() -> None:
    from faker.providers.person.en_US import Provider

    assert Replacer().whole("FRANCE", "LOCATION").isupper()
    men_only = set(Provider.first_names_male) - set(Provider.first_names_female)
    names = {Replacer().whole("Margaret Smith", "PERSON").split()[0] for _ in range(40)}
    assert not names & men_only


@pytest.mark.parametrize(
    "locale", ["en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL", "pt_BR", "en_CA", "en_AU"]
)
def test_every_locale_has_all_kinds(locale: str) -> None:
    replacer = Replacer(locale)
    for entity in ("PERSON", "LOCATION", "ORGANIZATION", "ADDRESS", "EMAIL_ADDRESS", "TITLE", "URL"):
        assert replacer.whole("12 Abc Def", entity) not in ("", "12 Abc Def")


@given(
    st.dates(dt.date(1900, 1, 1), dt.date(2099, 12, 31)),
    st.sampled_from(["%Y-%m-%d", "%m/%d/%Y", "%d.%m.%Y", "%B %d, %Y"]),
)
def test_a_date_stays_a_date_of_the_same_format_and_a_near_year(date: dt.date, form: str) -> None:
    other = dt.datetime.strptime(other_date(date.strftime(form), random.Random()), form).date()
    assert abs(other.year - date.year) <= 2


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("THURSDAY", r"[A-Z]+DAY"),
        ("thu, 3 jan 1999", r"[a-z]{3}, (?:\d|\d\d) [a-z]{3} (?:199[78]|200[01])"),
        ("March 3rd at 10:30 pm", r"[A-Z][a-z]+ \d{1,2}(?:st|nd|rd|th) at \d\d:\d\d pm"),
        ("1993-01-04 14:56:41", r"199[1245]-\d\d-\d\d \d\d:\d\d:\d\d"),
        ("12/5/85", r"\d\d/\d/8[3467]"),
    ],
)
def test_dates_in_words(text: str, shape: str) -> None:
    for _ in range(20):
        assert re.fullmatch(shape, other_date(text, random.Random())), text


@given(st.integers(0, 115))
def test_an_age_stays_in_its_part_of_life(age: int) -> None:
    other = int(other_age(str(age), random.Random()))
    assert other != age
    assert [age >= 18, age >= 13, age >= 65, age >= 90] == [other >= 18, other >= 13, other >= 65, other >= 90]


@given(
    st.text(max_size=30),
    st.sampled_from(["PERSON", "ADDRESS", "PHONE_NUMBER", "DATE_TIME", "URL", "US_SSN", "ID", "AGE"]),
)
def test_any_text_is_replaced_by_another(text: str, entity: str) -> None:
    value = Replacer().whole(text, entity)
    assert not text or value != text or not any(letter.isalnum() for letter in text)


def test_what_chance_does_not_replace_is_masked() -> None:
    assert Replacer().whole("-", "ID") == "***"


def test_masking_names_the_kind() -> None:
    assert substituted("Ann paid 5.", [Finding(0, 3, "PERSON")], lambda _, entity: f"<{entity}>") == "<PERSON> paid 5."


@pytest.mark.parametrize("entity", [*ENTITY_TYPES, "OWN_TYPE"])
@pytest.mark.parametrize(
    "text",
    [
        "Dr. Xqzmark owes Qvondaville a debt",
        "Xqzmark@corp.com/Qvondaville?x",
        "10.1.2.3/Xqzmark",
        "http://Xqzmark.com/Qvondaville",
        "born 12/2/1990, Xqzmark",
        "47 Xqzmark",
        "lat 4812345.5 Xqzmark",
        "12 Xqzmark Street, Qvondaville 12345",
    ],
)
def test_no_word_of_a_text_that_is_not_of_its_type_stays(entity: str, text: str) -> None:
    # A column's name, or a rule of a contract, gives a type to any text. Seven drawn letters are these with 26^-7.
    assert not re.search("xqzmark|qvondaville", Replacer().whole(text, entity).casefold())
