"""Forms beyond the commonest: national numbers by name, cards without a sum, ages, postal codes, years, coordinates,
nationalities and names in an address to somebody; and what must not be taken for them.
"""

from __future__ import annotations

import random
import re

import pytest

from dpsynth_platform.scrub.coordinates import other_coordinates
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.national_numbers import is_brazilian
from dpsynth_platform.scrub.nationalities import other_nationality
from dpsynth_platform.scrub.rule import any_of

FOUND: dict[str, list[tuple[str, str]]] = {
    "NATIONAL_ID": [
        ("My NI number is AB123456C.", "AB123456C"),
        ("her National Insurance number: QQ 12 34 56 C, please", "QQ 12 34 56 C"),
        ("the NI number 12 34 56 is not complete", "12 34 56"),
        ("NINO AB 12 34 56 D was given", "AB 12 34 56 D"),
        ("AB123456C is my NI number", "AB123456C"),
        ("AB 12 34 56 C stands there", "AB 12 34 56 C"),
        ("DNI 12345678Z", "12345678Z"),
        ("dni: 12.345.678-z", "12.345.678-z"),
        ("su DNI es 99999999", "99999999"),
        ("her NIE X1234567L", "X1234567L"),
        ("12345678Z alone has its check letter", "12345678Z"),
        ("CPF 123.456.789-09", "123.456.789-09"),
        ("cpf 11122233344 is no valid one", "11122233344"),
        ("see 123.456.789-09 there", "123.456.789-09"),
        ("CNPJ: 12.345.678/0001-95", "12.345.678/0001-95"),
        ("BSN 123456782", "123456782"),
        ("her BSN-nummer: 1234.56.782", "1234.56.782"),
        ("123456782 (BSN)", "123456782"),
        ("codice fiscale RSSMRA85T10A562S", "RSSMRA85T10A562S"),
        ("RSSMRA85T10A562S without its name", "RSSMRA85T10A562S"),
        ("NIR 1 85 05 78 006 084 36", "1 85 05 78 006 084 36"),
        ("French social security number 1 85 05 78 006 084 36", "1 85 05 78 006 084 36"),
        ("Steuer-ID 65 929 970 489", "65 929 970 489"),
        ("personnummer 811218-9876", "811218-9876"),
        ("PESEL 44051401359", "44051401359"),
        ("SIN 046 454 286", "046 454 286"),
        ("his social insurance number is 046-454-286", "046-454-286"),
        ("TFN: 123 456 782", "123 456 782"),
        ("Aadhaar 2345 6789 0124", "2345 6789 0124"),
        ("PAN ABCDE1234F", "ABCDE1234F"),
        ("NHS number 943 476 5919", "943 476 5919"),
    ],
    "CREDIT_CARD": [
        ("credit card number 123456789012", "123456789012"),
        ("card number: 9876 5432 1098 7654 321", "9876 5432 1098 7654 321"),
        ("My Visa 1234567890123", "1234567890123"),
        ("card no. 1111222233334444", "1111222233334444"),
    ],
    "AGE": [
        ("She turned 40 in May.", "40"),
        ("He turns 18 tomorrow", "18"),
        ("when I turn 65, I retire", "65"),
        ("turning 100 next week", "100"),
    ],
    "ZIP_CODE": [
        ("ZIP 02139", "02139"),
        ("zip: 94103-1234", "94103-1234"),
        ("zip code SW1A 1AA", "SW1A 1AA"),
        ("my postcode is ec1a 1bb", "ec1a 1bb"),
        ("postcode 1012 AB", "1012 AB"),
        ("postal code K1A 0B1", "K1A 0B1"),
        ("post code: D-80331 please", "D-80331"),
        ("zip code 100-0001", "100-0001"),
        ("postal code 28013.", "28013"),
        ("zip codes 02139 and 02140", "02140"),
    ],
    "DATE_TIME": [
        ("I moved there in 1973.", "1973"),
        ("born 1981 in town", "1981"),
        ("here since 2011", "2011"),
        ("the class of 1999", "1999"),
        ("from 1990 to 1995", "1995"),
        ("in the summer of 1968", "1968"),
    ],
    "COORDINATES": [
        ("it is at 52.520008, 13.404954", "52.520008, 13.404954"),
        ("lat 52.52, lon 13.40", "52.52, lon 13.40"),
        ("her GPS position: -33.86 151.21", "-33.86 151.21"),
        ("seen at 40°26'46\"N 79°58'56\"W", "40°26'46\"N 79°58'56\"W"),
        ("seen at 40.446° N, 79.982° W", "40.446° N, 79.982° W"),
        ("seen at N40 26.767 W079 58.933", "N40 26.767 W079 58.933"),
    ],
    "NRP": [
        ("the germans came late", "germans"),
        ("she met a french woman there", "french"),
        ("he's dutch, he said", "dutch"),
        ("and the welsh were late", "welsh"),
        ("an american nurse came", "american"),
        ("two canadians and a dane", "dane"),
        ("a polish plumber's polish wife", "polish"),
    ],
    "PERSON": [
        ("Hi Mark!", "Mark"),
        ("hi mark! come here", "mark"),
        ("Mark! come here", "Mark"),
        ("I could not have said it better, Mark!", "Mark"),
        ("Dear Bill,\nplease come", "Bill"),
        ("Mark,\nplease come", "Mark"),
        ("Best regards,\nMark", "Mark"),
    ],
}
NOTHING = [
    "my sin is 4000 years old, and he put 1234 pans on 5678 shelves",
    "a national identity was born in 18 countries",
    "I have 123456789012 of them, and no card",
    "He turned 90 degrees, turned 2 pages, and turned 3 into 4.",
    "Take the first turn 3 times; it is my turn 5 and turn 180.",
    "zip 100 files, zip 2.04, and pkzip 204",
    "in 2000 people and in 1900 cases, in 1973.5 seconds",
    "It was 20° of frost, 3.14, 2.71 and 0.1234, 0.5678",
    "a dutch oven, french fries and english muffins",
    "translated into french, and polish the car",
    "Mark the date! And mark my words! A question mark! Thanks! will do.",
]


def found(text: str) -> list[tuple[str, str]]:
    (findings,) = text_detector().find([Document(text)])
    return [(text[item.start : item.end], item.entity) for item in findings]


@pytest.mark.parametrize("entity", FOUND)
def test_forms_are_found(entity: str) -> None:
    for text, value in FOUND[entity]:
        assert (value, entity) in found(text), text


@pytest.mark.parametrize("text", NOTHING)
def test_what_only_looks_alike(text: str) -> None:
    assert found(text) == []


def test_check_digits_of_brazil() -> None:
    assert [is_brazilian(text) for text in ("123.456.789-09", "11.222.333/0001-81")] == [True, True]
    assert [is_brazilian(text) for text in ("123.456.789-08", "11.222.333/0001-82", "111.111.111-11")] == [False] * 3


def test_a_list_of_words_is_one_tree() -> None:
    pattern = re.compile(rf"{any_of(['ab', 'abc', 'b', 'Abd'])}\Z")
    assert [bool(pattern.match(word)) for word in ("ab", "abc", "abd", "b", "a", "abcd", "")] == [True] * 4 + [
        False
    ] * 3


def test_fictional_coordinates_and_nationalities_keep_their_form() -> None:
    draw = random.Random(1)
    for text in ("52.520008, 13.404954", "-33.86 151.21", "40°26'46\"N 79°58'56\"W", "N40 26.767 W079 58.933"):
        for _ in range(50):
            other = other_coordinates(text, draw)
            assert re.sub(r"\d", "0", other) == re.sub(r"\d", "0", text)
            degrees = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", other)]
            assert all(number < 180 for number in degrees)
        assert other != text
    assert all(other_nationality("germans", draw).endswith("s") for _ in range(50))
