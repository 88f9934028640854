"""Public topics: the universal model, making one, and sorting texts by them."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info, threadpool_limits

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN, TOPIC_LEVELS
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.embeddings import FEATURES, SentenceEncoder
from dpsynth_platform.synth.text.topic_building import (
    UNIVERSAL_MATERIAL,
    topics_of_documents,
    topics_of_phrases,
    universal_phrases,
)
from dpsynth_platform.synth.text.topics import (
    KEYWORDS,
    UNCLASSIFIED,
    load_topics,
    topic_levels,
    topics_content,
    with_topics,
    write_topics,
)

PHRASES = [f"{what} {thing}" for what in ("red", "old", "cheap") for thing in ("car", "boat", "song", "soup", "river")]
SUBJECTS = {
    "football": ("The goalkeeper and the striker of the team played a match", "They won the football game."),
    "cooking": ("The soup with onions and carrots was cooked in a pot", "Boil the vegetables for dinner."),
    "money": ("The bank raised the interest on loans and savings", "Shares fell after the credit crisis."),
}
DOCUMENTS = [
    f"{start} today, {detail}, people said." for start, _ in SUBJECTS.values()
    for detail in ("in the morning", "in the rain", "with friends", "once more")
]  # fmt: skip


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
    content = topics_of_phrases(PHRASES, material="things", levels=(4,))
    assert content == topics_of_phrases([*PHRASES[::-1], " ", PHRASES[0]], material="things", levels=(4,))
    (tmp_path / "a").write_bytes(content)
    topics = load_topics(str(tmp_path / "a"), 4)
    assert {phrase for words in topics.keywords for phrase in words.split(", ")} <= set(PHRASES)


def test_a_topic_of_documents_is_told_by_the_words_that_set_them_apart(tmp_path, encoder):
    content = topics_of_documents(DOCUMENTS, material="little documents", levels=(3,))
    assert content == topics_of_documents(
        [" ", *DOCUMENTS[::-1], DOCUMENTS[0]], material="little documents", levels=(3,)
    )
    (tmp_path / "a").write_bytes(content)
    topics = load_topics(str(tmp_path / "a"), 3)
    assert topics.digest == hashlib.sha256(content).hexdigest()
    for said, text in SUBJECTS.values():
        first = topics.label(text, encoder).split(", ")[:4]  # of the words of their own, some begin alike
        assert set(first) <= set(said.lower().split()), first


def test_a_repeated_word_of_one_document_is_no_keyword_before_those_of_many(tmp_path):
    documents = [*DOCUMENTS, "The soup had salt. " + "pepper " * 300]
    (tmp_path / "a").write_bytes(topics_of_documents(documents, material="documents", levels=(3,)))
    (of_soup,) = [words for words in load_topics(str(tmp_path / "a"), 3).keywords if "soup" in words.split(", ")]
    assert of_soup.split(", ").index("soup") < [*of_soup.split(", "), "pepper"].index("pepper")


def test_documents_without_words_are_left_out_and_counted_out():
    documents = ["12 34", "", "the and of", "мы не знаем", *DOCUMENTS[:7]]
    with pytest.raises(ConfigurationError, match=r"7 different documents with words .*; accepted: at least 8, for 4"):
        topics_of_documents(documents, material="documents", levels=(2, 4))
    topics_of_documents(documents, material="documents", levels=(2, 3))
    with pytest.raises(ConfigurationError, match="0 different documents"):
        topics_of_documents(documents[:4], material="documents", levels=(2,))


@pytest.mark.parametrize("make", [topics_of_documents, topics_of_phrases])
def test_texts_that_the_encoder_does_not_tell_apart_are_refused(make):
    """It reads no case: of these four there is one cluster, and no words for a second topic."""
    with pytest.warns(ConvergenceWarning), pytest.raises(ConfigurationError, match="has no words of its own"):
        make(["A car", "a Car", "a car", "A CAR"], material="cars", levels=(2,))


def test_one_thread_finds_the_clusters(monkeypatch):
    """Several add the same numbers in any order, so that the last bits of centers would differ from run to run."""
    seen = []
    fit = KMeans.fit
    monkeypatch.setattr(
        KMeans, "fit", lambda self, x: seen.append({pool["num_threads"] for pool in threadpool_info()}) or fit(self, x)
    )
    with threadpool_limits(limits=3):
        topics_of_phrases(PHRASES, material="things", levels=(4,))
    assert seen == [{1}]


def test_too_few_phrases_are_refused():
    with pytest.raises(ConfigurationError, match="15 different phrases; accepted: at least 1024"):
        topics_of_phrases(PHRASES, material="things")


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
    with pytest.raises(ConfigurationError, match="is no topic model; accepted"):
        load_topics(str(tmp_path / "file"), 16)


def test_a_level_without_its_keywords_is_refused(tmp_path):
    write_topics(tmp_path / "file", {16: (np.ones((16, FEATURES), np.float32), ["the same"] * 16)}, "nothing")
    with pytest.raises(ConfigurationError, match="is no topic model; accepted"):
        load_topics(str(tmp_path / "file"), 16)


def test_a_number_of_topics_that_a_model_lacks_is_refused_with_those_it_has(tmp_path):
    half = {
        level: (np.eye(level, FEATURES, dtype=np.float32), [str(topic) for topic in range(level)]) for level in (16, 32)
    }
    write_topics(tmp_path / "file", half, "numbers")
    assert topic_levels(str(tmp_path / "file")) == (16, 32)
    assert topic_levels("universal") == TOPIC_LEVELS
    with pytest.raises(ConfigurationError, match=r"topics\.count: 64; accepted: 16, 32, which '.*' has, or another"):
        load_topics(str(tmp_path / "file"), 64)
    (tmp_path / "none").write_bytes(topics_content({}, "nothing"))
    with pytest.raises(ConfigurationError, match="is no topic model"):
        topic_levels(str(tmp_path / "none"))


def test_a_changed_or_missing_topic_model_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="is not the file of the plan"):
        load_topics("universal", 16, "0" * 64)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_topics(str(tmp_path / "missing"), 16)
