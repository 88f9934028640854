"""The tagger gives what spaCy gives; the detectors' numbers rest on it."""

from __future__ import annotations

import random
import warnings

import spacy
from faker import Faker

from dpsynth_platform.scrub.batches import pieces_of
from dpsynth_platform.scrub.names import MODEL
from dpsynth_platform.scrub.tagging import Entity, Tagger


def test_entities_are_those_of_spacy() -> None:
    faker = Faker(["en_US", "de_DE", "fr_FR"])
    faker.seed_instance(7)
    generator = random.Random(7)
    texts = ["", " ", "\n\n \n", "a", "Paris", "Mr. Smith", "\u00e9\u00e9 \u0130", "(", "Ann\nLee"]
    for _ in range(300):
        parts = [
            faker.name(),
            faker.sentence(),
            faker.city(),
            faker.company(),
            faker.date(),
            "\n",
            "  ",
            faker.country(),
        ]
        texts.append(" ".join(generator.choice(parts) for _ in range(generator.randrange(1, 30))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = spacy.load(MODEL)
    expected = [
        [Entity(item.start_char, item.end_char, item.label_) for item in document.ents]
        for document in model.pipe(texts)
    ]
    assert sum(map(len, expected)) > 1000
    tagger = Tagger(MODEL)
    assert tagger.entities(texts) == expected
    assert tagger.entities(texts[:3]) == [[], [], []]
    assert tagger.entities([]) == []


def test_pieces_are_the_whole_text_and_end_at_blanks() -> None:
    text = ("word " * 50 + "\n") * 40 + "x" * 3000
    pieces = list(pieces_of(text, 700))
    assert "".join(piece for _, piece in pieces) == text
    assert [start for start, _ in pieces] == [
        sum(len(piece) for _, piece in pieces[:number]) for number in range(len(pieces))
    ]
    assert max(len(piece) for _, piece in pieces) <= 700
    assert all(following[1][0] in " \nx" for following in pieces[1:])
