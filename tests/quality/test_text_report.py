"""The report of synthetic texts as a whole, on real models and few, short texts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.text.classification import by_features, by_words
from dpsynth_platform.quality.text.corpora import Corpus, check_apart, check_labels, corpus_of, halves
from dpsynth_platform.quality.text.entities import TYPES, entity_counts
from dpsynth_platform.quality.text.report import MEASURES, TextQualityReport, measure_texts

SECRET = "Zaphodina Quillmarker"
SUBJECTS = {
    "sport": ("the striker", "our goalkeeper", "the home team", "a young runner", "the coach"),
    "food": ("the fresh bread", "this tomato soup", "a warm apple pie", "the baker", "our cook"),
}
VERBS = {
    "sport": ("won the final match", "ran the marathon", "scored a late goal", "lost the second set", "left the pitch"),
    "food": (
        "tastes of butter",
        "needs a pinch of salt",
        "came out of the oven",
        "goes with cheese",
        "smells of thyme",
    ),
}
ENDS = ("today", "on Monday", "in the rain", "as the crowd had hoped", "again", "for once", "in Lisbon", "at noon")


def sentences(name: str, count: int, seed: int, owners: int = 20) -> Corpus:
    rng = np.random.default_rng(seed)
    labels = rng.choice(["sport", "food"], count).tolist()
    texts = [f"{rng.choice(SUBJECTS[kind])} {rng.choice(VERBS[kind])} {rng.choice(ENDS)}." for kind in labels]
    return Corpus(name, tuple(texts), tuple(labels), tuple(f"{number % owners}" for number in range(count)), 0)


@pytest.fixture(scope="module")
def report() -> TextQualityReport:
    real, held_out, made = (sentences(name, 60, seed) for seed, name in enumerate(("real", "held-out", "synthetic")))
    rng = np.random.default_rng(9)
    mixed = tuple(" ".join(rng.permutation([*text.split()[:-1] * 2, "lorem", "ipsum"])) for text in made.texts)
    known = (f"{SECRET} tells nothing of what all the others of us tell each day.",)
    with_run = replace(real, texts=known + real.texts[1:])
    return measure_texts(with_run, held_out, replace(made, texts=known + mixed[1:]), trials=2, remarks=("A remark.",))


def test_every_figure_is_there_with_its_real_one(report: TextQualityReport) -> None:
    assert [figure.key for figure in report.figures] == list(MEASURES)
    for figure in report.figures:
        for side in (figure.synthetic, figure.real):
            assert math.isfinite(side.mean), figure
            assert math.isfinite(side.standard_error), figure


def test_worse_texts_have_worse_figures(report: TextQualityReport) -> None:
    found = {figure.key: (figure.synthetic.mean, figure.real.mean) for figure in report.figures}
    for key in ("mauve", "next_token", "frontier_3"):
        assert found[key][0] < found[key][1], key
    for key in ("lengths", "runs_3"):
        assert found[key][0] > found[key][1], key
    assert found["accuracy_words"][0] > 0.9  # the words are right, in whatever order
    assert 0 < found["verbatim"][0] <= 1 / 48 < found["verbatim"][1]
    assert report.drawn == 48
    assert report.majority_accuracy is not None


def test_the_report_says_what_it_is_and_quotes_nothing(report: TextQualityReport) -> None:
    text = report.markdown()
    assert text.startswith(f"**{NOTICE}**")
    for words in ("| MAUVE | higher |", "60 real, 60 held-out, 60 synthetic", "MAUVE clusters 5", "A remark."):
        assert words in text
    found = json.dumps(report.to_json(), allow_nan=False)
    assert json.loads(found)["restricted"] is True
    for shown in (text, found):
        assert SECRET not in shown
        assert "striker" not in shown


def test_one_trial_has_no_error_and_no_labels_no_classifier() -> None:
    bare = [replace(sentences(name, 50, 1), labels=()) for name in ("real", "held-out", "synthetic")]
    report = measure_texts(bare[0], bare[1], bare[2], trials=1, clusters=2)
    keys = {figure.key for figure in report.figures}
    assert "mauve" in keys
    assert "f1_words" not in keys
    mauve = report.to_json()["figures"][0]
    assert mauve["synthetic"]["standard_error"] is None
    assert mauve["synthetic"]["mean"] == pytest.approx(1, abs=0.2)
    assert "±" not in report.table()[0][2]
    with pytest.raises(SourceError, match="clusters: 41; accepted: 2 to 40"):
        measure_texts(*bare, clusters=41)


def test_classifiers_learn_and_one_class_teaches_nothing_else() -> None:
    train, test = sentences("real", 80, 1), sentences("held-out", 80, 2)
    assert by_words(train.texts, train.labels, test.texts, test.labels).f1 == 1
    features = np.array([[label == "sport", 1] for label in train.labels], dtype=np.float32)
    tested = np.array([[label == "sport", 1] for label in test.labels], dtype=np.float32)
    assert by_features(features, train.labels, tested, test.labels).accuracy == 1
    alone = by_words(train.texts, ["sport"] * 80, test.texts, test.labels)
    share = test.labels.count("sport") / 80
    assert alone.accuracy == pytest.approx(share)
    assert alone.f1 == pytest.approx(2 * share / (1 + share) / 2)


def test_entities_are_counted_by_type() -> None:
    steps: list[tuple[str, int, int]] = []
    counts = entity_counts(["Write to a.b@example.org or c@example.org.", "nothing"] * 2, lambda *s: steps.append(s))
    assert counts[:, TYPES.index("EMAIL_ADDRESS")].tolist() == [2, 0, 2, 0]
    assert steps[-1][1] == steps[-1][2]


def test_texts_of_a_table() -> None:
    table = pa.table({"t": ["a b", None, "  ", *["x"] * 50], "k": [1, 2, 3, None, *[4] * 49], "o": ["p"] * 53})
    found = corpus_of("real", table, "t", "k", "o")
    assert found.blank == 2
    assert found.texts == ("a b", *["x"] * 50)
    assert found.labels == ("1", None, *["4"] * 49)
    coded = table.set_column(0, "t", table["t"].dictionary_encode())
    assert corpus_of("real", coded, "t").texts == found.texts


@pytest.mark.parametrize(
    ("table", "arguments", "said"),
    [
        ({"x": ["a"] * 60}, ("t",), "text: no column 't' in real"),
        ({"t": ["a"] * 60}, ("t", "k"), "label: no column 'k' in real"),
        ({"t": ["a"] * 60}, ("t", None, "o"), "owner: no column 'o' in real"),
        ({"t": [1] * 60}, ("t",), "text: column 't' of real holds int64; accepted: texts"),
        ({"t": ["a"] * 60, "k": [1.5] * 60}, ("t", "k"), "label: column 'k' of real holds double"),
        ({"t": ["a"] * 49 + [" "] * 20}, ("t",), "real: 49 texts that are not blank; accepted: at least 50"),
    ],
)
def test_what_is_wrong_with_a_table(table: dict[str, list], arguments: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        corpus_of("real", pa.table(table), *arguments)


def test_halves_share_no_owner() -> None:
    whole = sentences("real", 203, 1, owners=11)
    whole = replace(whole, owners=(None, None, None, *whole.owners[3:]))
    first, second = halves(whole)
    assert (first.name, second.name) == ("real", "held-out")
    assert not set(first.owners) & set(second.owners)
    assert len(first.texts) + len(second.texts) == 200
    assert min(len(first.texts), len(second.texts)) > 60
    check_apart(first, second)
    with pytest.raises(SourceError, match="owner: some owners have texts in real and in held-out"):
        check_apart(first, replace(second, owners=(*second.owners[1:], first.owners[0])))
    with pytest.raises(SourceError, match="held-out: 0 texts"):
        halves(sentences("real", 200, 1, owners=1))


def test_halves_without_owners() -> None:
    first, second = halves(replace(sentences("real", 101, 1), owners=()))
    assert sorted((len(first.texts), len(second.texts))) == [50, 51]


def test_labels_that_cannot_be_compared() -> None:
    real, made = sentences("real", 60, 1), sentences("synthetic", 60, 2)
    check_labels(real, real, replace(made, labels=("sport",) * 60))
    with pytest.raises(SourceError, match="label: all texts of real are of one class"):
        check_labels(replace(real, labels=("sport",) * 60), real, made)
    with pytest.raises(SourceError, match="label: synthetic has no class of held-out"):
        check_labels(real, replace(real, name="held-out"), replace(made, labels=("1",) * 60))
    with pytest.raises(SourceError, match="label: no text of synthetic has one"):
        check_labels(real, real, replace(made, labels=(None,) * 60))
