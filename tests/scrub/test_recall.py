"""Recall on made-up sentences: values of many countries from Faker, and companies called like nobody else.

What belongs here: floors of recall by type, on sentences other than those by which quality is measured and published
(`tests/benchmarks/bench_scrub.py`). What does not: single rules (`test_detection`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from faker import Faker

from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.evaluation import GoldText, evaluate
from dpsynth_platform.scrub.findings import Finding

EACH = 12
LOCALES = [
    "en_US", "en_GB", "en_AU", "en_CA", "en_IN", "en_NZ", "de_DE", "de_AT", "de_CH", "fr_FR", "fr_CH", "it_IT",
    "es_ES", "es_MX", "es_CL", "pt_BR", "pt_PT", "nl_NL", "nl_BE", "sv_SE", "da_DK", "no_NO", "fi_FI", "pl_PL",
    "cs_CZ", "sk_SK", "sl_SI", "hr_HR", "hu_HU", "ro_RO", "tr_TR",
]  # fmt: skip
BRANDS = [
    " ".join(words)
    for words in itertools.product(
        ["Blue", "Golden", "Northern", "Summit", "Urban", "Prime", "Open", "Quick", "True", "Pacific", "Crystal"],
        ["Harbor", "Fork", "Maple", "Outfitters", "Books", "Kitchen", "Motors", "Energy", "Yard", "Report", "Nation"],
    )
] + ["Zentify", "Quasilabs", "Osivance", "Polytronica", "Nexlytics", "Verbasoft", "Kroplex", "Tradiware"]

SENTENCES: Mapping[str, Sequence[str]] = {
    "ORGANIZATION": (
        "My sister has worked at {} since 2011.",
        "I bought a lamp from {} last week and it broke after two days.",
        "Please close my account at {} as soon as possible.",
        "{} announced a new product today.",
        "She left {} to join a competitor.",
        "The CEO of {} resigned on Monday.",
        "{} is hiring engineers in three cities.",
        "Our contract with {} ends in June.",
        "He founded {} in 1998 with a loan from his uncle.",
        "The invoice from {} is attached to this message.",
        "Employer: {}",
        "She used to be an accountant for {} before she retired.",
        "I have been a customer of {} for years.",
        "{} is a small startup that sells maps.",
        "We sued {} for breach of contract.",
    ),
    "PHONE_NUMBER": (
        "Call me at {} tonight.",
        "My number is {}.",
        "Please ring {} and ask for the manager.",
        "Fax: {}",
        "I dialed {} but nobody answered.",
        "Contact the office ({}) if it rains.",
        "The hotline, {}, was busy.",
    ),
    "LOCATION": (
        "My address is {}.",
        "She lives at {}.",
        "Please send the parcel to {}.",
        "Our office is located at {}.",
        "Deliver it to {}, please.",
        "Billing address: {}",
        "A fire broke out at {}.",
    ),
}
# Values whose kind nothing tells (a company called Müller, a number of six digits) are among them.
FLOORS = {"ORGANIZATION": 0.88, "PHONE_NUMBER": 0.95, "LOCATION": 0.90}


def company(draw: random.Random, fakers: Sequence[Faker]) -> str:
    return draw.choice(BRANDS) if draw.random() < 0.4 else str(draw.choice(fakers).company())


def phone(draw: random.Random, fakers: Sequence[Faker]) -> str:
    return str(draw.choice(fakers).phone_number())


def address(draw: random.Random, fakers: Sequence[Faker]) -> str:
    return str(draw.choice(fakers).address()).replace("\n", ", ")


MAKERS: Mapping[str, Callable[[random.Random, Sequence[Faker]], str]] = {
    "ORGANIZATION": company,
    "PHONE_NUMBER": phone,
    "LOCATION": address,
}


@pytest.mark.parametrize("entity", SENTENCES)
def test_most_are_found_as_what_they_are(entity: str) -> None:
    draw = random.Random(11)
    fakers = [Faker(locale) for locale in LOCALES]
    for number, faker in enumerate(fakers):
        faker.seed_instance(number)
    gold = []
    for sentence in SENTENCES[entity] * EACH:
        value, start = MAKERS[entity](draw, fakers), sentence.index("{}")
        gold.append(GoldText(sentence.format(value), (Finding(start, start + len(value), entity),)))
    report = evaluate(gold, text_detector().find([Document(item.text) for item in gold]))
    score = report.overlapping[entity]
    assert score.recall is not None
    assert score.precision is not None
    assert score.recall >= FLOORS[entity]
    assert score.precision >= 0.9
    # What is taken for something else is removed all the same.
    assert report.covered[entity] >= 0.93
