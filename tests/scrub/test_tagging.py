"""The tagger gives what spaCy gives; the detectors' numbers rest on it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import spacy
from faker import Faker
from threadpoolctl import threadpool_limits

from dpsynth_platform.scrub import tagging
from dpsynth_platform.scrub.batches import pieces_of
from dpsynth_platform.scrub.names import MODEL
from dpsynth_platform.scrub.tagging import Entity, Tagger


@pytest.fixture(scope="module")
def tagger() -> Iterator[Tagger]:
    with threadpool_limits(limits=1):  # as scrubbing has it
        yield Tagger(MODEL)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Made up, of a few words to a few lines."""
    faker = Faker(["en_US", "de_DE", "fr_FR"])
    faker.seed_instance(7)
    generator = random.Random(7)
    made = []
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
        made.append(" ".join(generator.choice(parts) for _ in range(generator.randrange(1, 30))))
    return made


def test_entities_are_those_of_spacy(tagger: Tagger, texts: list[str]) -> None:
    texts = ["", " ", "\n\n \n", "a", "Paris", "Mr. Smith", "\u00e9\u00e9 \u0130", "(", "Ann\nLee", *texts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = spacy.load(MODEL)
    expected = [
        [Entity(item.start_char, item.end_char, item.label_) for item in document.ents]
        for document in model.pipe(texts)
    ]
    assert sum(map(len, expected)) > 1000
    assert tagger.entities(texts) == expected
    assert tagger.entities(texts[:3]) == [[], [], []]
    assert tagger.entities([]) == []


def test_the_company_of_other_texts_changes_nothing(
    tagger: Tagger, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rounding would, only by so much that it shows: what a text is seen as depends on the others of its batch."""
    texts, noise = texts[:60], np.random.default_rng(7)
    alone = [tagger.entities([text])[0] for text in texts]
    exact = tagging._Encoder.vectors

    def rounded(self: tagging._Encoder, documents: list[object]) -> np.ndarray:
        found = exact(self, documents)
        return found + noise.uniform(-0.01, 0.01, found.shape).astype(np.float32) * (len(documents) > 1)

    monkeypatch.setattr(tagging._Encoder, "vectors", rounded)
    monkeypatch.setattr(tagging, "_CLOSE", 0.0)
    assert tagger.entities(texts) != alone
    monkeypatch.setattr(tagging, "_CLOSE", 0.5)
    assert tagger.entities(texts) == alone


def test_close_decisions_are_few_and_rounding_is_far_below(tagger: Tagger, texts: list[str]) -> None:
    documents = list(tagger._tokenizer.pipe(texts))
    together = tagger._encoder.vectors(documents)
    alone = np.concatenate([tagger._encoder.vectors([item]) for item in documents])
    assert np.abs(together - alone).max() < tagging._CLOSE / 20
    assert len(tagger._together(documents)[1]) < 10


def test_pieces_are_the_whole_text_and_end_at_blanks() -> None:
    text = ("word " * 50 + "\n") * 40 + "x" * 3000
    pieces = list(pieces_of(text, 700))
    assert "".join(piece for _, piece in pieces) == text
    assert [start for start, _ in pieces] == [
        sum(len(piece) for _, piece in pieces[:number]) for number in range(len(pieces))
    ]
    assert max(len(piece) for _, piece in pieces) <= 700
    assert all(following[1][0] in " \nx" for following in pieces[1:])
