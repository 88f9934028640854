"""Measures of texts alone, without real ones: perplexity, Zipf's exponent, coherence and tone (after SynBench, appendix
A).

What belongs here: how likely a fixed public language model finds texts, how their words' frequencies fall, how alike
consecutive sentences are, and how friendly the words. What does not: repetition (`diversity`), comparisons with real
ones (`divergences`).

Real texts have such figures, too, and nearer to theirs is better. SynBench's perplexity is that of GPT-2, its coherence
that of another encoder, and its tone that of a trained classifier: figures of other models are not comparable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.text.mauve import Features
from dpsynth_platform.quality.text.words import Codes

Floats = npt.NDArray[np.float64]

MOST_TOKENS = 256
"""From the beginning of a text; more would mostly take time."""
LEAST_WORDS = 10
"""Fewest different words for an exponent."""
_AT_ONCE = 8
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\S)")


def token_log_likelihoods(model: Any, tokenizer: Any, texts: Sequence[str], tokens: int = MOST_TOKENS) -> list[Floats]:
    """Log-likelihoods of each text's first tokens, `tokens` at most, given those before, as a causal model sees them.

    The model is in evaluation mode; a text without tokens has none.
    """
    import torch

    from dpsynth_platform.synth.text.base_models import context_length

    most = min(tokens, context_length(model) - 1)
    start = int(tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    read = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    rows = [[start, *own[:most]] for own in read]
    found: list[Floats] = [np.zeros(0) for _ in rows]
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    for first in range(0, len(order), _AT_ONCE):
        part = order[first : first + _AT_ONCE]
        width = max(len(rows[at]) for at in part)
        read_at_once = torch.full((len(part), width), start)
        mask = torch.zeros_like(read_at_once)
        for row, at in enumerate(part):
            read_at_once[row, : len(rows[at])] = torch.tensor(rows[at])
            mask[row, : len(rows[at])] = 1
        with torch.inference_mode():
            logits = model(input_ids=read_at_once, attention_mask=mask).logits[:, :-1].float()
        likely = torch.log_softmax(logits, dim=-1).gather(-1, read_at_once[:, 1:, None])[..., 0]
        for row, at in enumerate(part):
            found[at] = likely[row, : len(rows[at]) - 1].double().numpy()
    return found


def perplexity(likely: Sequence[Floats]) -> float:
    """Perplexity a token over all texts of `token_log_likelihoods`; NaN without a token."""
    together = np.concatenate([np.zeros(0), *likely])
    return float(np.exp(-together.mean())) if together.size else float("nan")


def zipf_exponent(texts: Sequence[Codes]) -> float:
    """Minus the slope of the logarithms of word frequencies over those of their ranks, by least squares.

    Words that occur once are left out, since their ranks are arbitrary. About 1 in natural language; NaN for fewer than
    `LEAST_WORDS` different others. It depends on the number of words, so compare it for equal numbers of texts.
    """
    _, counts = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *texts]), return_counts=True)
    frequent = np.sort(counts[counts > 1])[::-1]
    if len(frequent) < LEAST_WORDS:
        return float("nan")
    return -float(np.polyfit(np.log(np.arange(1, len(frequent) + 1)), np.log(frequent), 1)[0])


def sentiment(texts: Sequence[str]) -> float:
    """Mean tone from -1, hostile, to 1, friendly, by a lexicon of English and rules (VADER, Hutto and Gilbert 2014)."""
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    analyzer = SentimentIntensityAnalyzer()
    return float(np.mean([analyzer.polarity_scores(text)["compound"] for text in texts]))


def sentences(text: str) -> list[str]:
    """The sentences of a text, by their closing marks; an abbreviation may divide one."""
    return [part for part in _SENTENCE.split(text.strip()) if part]


def coherence(parts: Sequence[int], features: Features) -> float:
    """Mean cosine of consecutive sentences of a text, over all texts with two; NaN if there is none.

    Args:
        parts: number of sentences of each text.
        features: of all sentences in order, each of length one.
    """
    likeness = np.sum(features[:-1] * features[1:], axis=1)
    ends = np.cumsum(parts)
    inside = np.ones(len(likeness), dtype=bool)
    inside[ends[:-1] - 1] = False
    return float(likeness[inside].mean()) if inside.any() else float("nan")
