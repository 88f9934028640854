from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text import embeddings
from dpsynth_platform.synth.text.embeddings import FEATURES, SentenceEncoder


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder("cpu")


def test_like_meanings_are_near_whatever_the_order_and_the_company(encoder: SentenceEncoder) -> None:
    texts = ["The cat sat on the mat.", "x " * 900, "Profits rose in the third quarter.", "", "A kitten is on a rug."]
    found = encoder.encode(texts)
    assert found.shape == (5, FEATURES)
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    assert found[0] @ found[4] > 0.5 > 0.2 > found[0] @ found[2]
    for text, row in zip(texts, found, strict=True):
        assert encoder.encode([text])[0] == pytest.approx(row, abs=1e-5)


def test_features_are_those_of_the_model_card(encoder: SentenceEncoder) -> None:
    """Mean over the word pieces that are no padding, scaled to length 1, by plain means."""
    import torch

    text = "Mean pooling takes the attention mask into account."
    pieces = encoder._tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        mean = encoder._model(**pieces).last_hidden_state[0].mean(dim=0)
    expected = (mean / mean.norm()).numpy()
    assert encoder.encode(["a much longer text " * 20, text])[1] == pytest.approx(expected, abs=1e-5)


def test_no_texts_have_no_features(encoder: SentenceEncoder) -> None:
    assert encoder.encode([]).shape == (0, FEATURES)


def test_progress_is_in_percent(encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_batch_pieces", 6)
    seen: list[tuple[str, int, int]] = []
    encoder.encode(["word"] * 3 + ["several more words than six pieces"], lambda *step: seen.append(step))
    assert seen == [("sentence features", done, 100) for done in (25, 75, 100)]


def test_a_missing_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(ConfigurationError, match=r"no_such_package_at_all is not installed; .*models\.lock"):
        SentenceEncoder("cpu")
