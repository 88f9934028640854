"""Public topics: the universal model, making one, and sorting texts by them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN, TOPIC_LEVELS
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.embeddings import FEATURES, SentenceEncoder
from dpsynth_platform.synth.text.topic_building import UNIVERSAL_MATERIAL, build_topics, universal_phrases
from dpsynth_platform.synth.text.topics import KEYWORDS, UNCLASSIFIED, load_topics, with_topics, write_topics

PHRASES = [f"{what} {thing}" for what in ("red", "old", "cheap") for thing in ("car", "boat", "song", "soup", "river")]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder("cpu")


@pytest.mark.parametrize("level", TOPIC_LEVELS)
def test_the_universal_model_has_ten_keywords_for_each_topic(level):
    topics = load_topics("universal", level)
    assert topics.centers.shape == (level, FEATURES)
    assert np.allclose(np.linalg.norm(topics.centers, axis=1), 1, atol=1e-5)
    assert len(set(topics.labels)) == level + 1
    assert all(len(words.split(", ")) >= KEYWORDS for words in topics.keywords)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The goalkeeper saved twice, and the team won the championship.", "championship"),
        ("Take two tablets a day until the fever has gone.", "illness"),
        ("Operating profit rose to EUR 13.1 mn from EUR 8.7 mn.", "revenue"),
    ],
)
def test_a_text_is_told_by_words_about_it(text, word, encoder):
    assert word in load_topics("universal", 64).label(text, encoder)


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_a_text_that_is_not_there_has_no_topic(text, encoder):
    assert load_topics("universal", 16).label(text, encoder) == UNCLASSIFIED


def test_a_text_that_is_close_to_no_topic_is_unclassified(encoder):
    topics = load_topics("universal", 16)
    features = encoder.encode(["the car"])[0]
    apart = topics.centers - np.outer(topics.centers @ features + 0.1, features)  # all point away from it
    far = type(topics)(topics.name, topics.digest, apart, topics.keywords)
    assert far.label("the car", encoder) == UNCLASSIFIED


def test_other_texts_do_not_change_a_text_s_topic(encoder, monkeypatch):
    topics = load_topics("universal", 512)
    seen = []
    whole = SentenceEncoder.encode
    monkeypatch.setattr(SentenceEncoder, "encode", lambda self, texts: seen.append(len(texts)) or whole(self, texts))
    assert [topics.label(text, encoder) for text in PHRASES[:3]] == [
        topics.label(text, encoder) for text in PHRASES[:3]
    ]
    assert set(seen) == {1}  # in a batch, the last bits of its features would hang on the others'


def test_a_text_that_many_records_have_is_sorted_once(encoder, monkeypatch):
    asked = []
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts: asked.append(list(texts)) or encode(texts))
    texts = ["The car needs new brakes.", None, "A goal in the last minute.", "The car needs new brakes."]
    found = with_topics(pa.table({"text": texts}), "text", load_topics("universal", 16), encoder)
    assert asked == [[texts[0]], [texts[2]]]
    labels = found.column(KEYWORDS_COLUMN).to_pylist()
    assert labels[0] == labels[3] != labels[2]


def test_the_universal_material_holds_words_and_phrases_and_no_names():
    phrases = universal_phrases()
    assert {"revenue", "baseball", "civil engineer"} <= {" ".join(phrase.split()[:2]) for phrase in phrases}
    assert not {"jennifer", "and"} & set(phrases)
    assert len(phrases) > 10_000 and phrases == sorted(set(phrases))
    assert "names" in UNIVERSAL_MATERIAL


def test_a_model_of_one_s_own_phrases_is_the_same_whenever_it_is_made(tmp_path):
    for name in ("a", "b"):
        build_topics(PHRASES, tmp_path / name, material="things", levels=(4,))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    topics = load_topics(str(tmp_path / "a"), 4)
    assert {phrase for words in topics.keywords for phrase in words.split(", ")} <= set(PHRASES)


def test_too_few_phrases_or_a_file_that_is_there_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="15 different phrases; accepted: at least 1024"):
        build_topics(PHRASES, tmp_path / "new", material="things")
    (tmp_path / "old").write_text("old")
    with pytest.raises(ConfigurationError, match="exists"):
        build_topics(PHRASES, tmp_path / "old", material="things", levels=(4,))
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 64,
        b"\x80\x04cos\nsystem\n",
        save({"centers_16": np.zeros((16, FEATURES), np.int8)}, metadata={"about": '{"format": "another"}'}),
    ],
)
def test_another_file_is_no_topic_model(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigurationError, match="is no topic model with 16 topics"):
        load_topics(str(tmp_path / "file"), 16)


def test_a_level_without_its_keywords_is_refused(tmp_path):
    write_topics(tmp_path / "file", {16: (np.ones((16, FEATURES), np.float32), ["the same"] * 16)}, "nothing")
    with pytest.raises(ConfigurationError, match="is no topic model with 16 topics"):
        load_topics(str(tmp_path / "file"), 16)


def test_a_changed_or_missing_topic_model_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="is not the file of the plan"):
        load_topics("universal", 16, "0" * 64)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_topics(str(tmp_path / "missing"), 16)
