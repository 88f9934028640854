"""Reconstruction: does a language model continue a text from its beginning?

What belongs here: greedy continuation of prefixes, and its similarity to the suffixes. What does not: likelihoods
(`synth.text.trained`), loading models.

Carlini, Ippolito, Jagielski, Lee, Tramer & Zhang, "Quantifying Memorization Across Neural Language Models" (ICLR 2023):
a text is extractable if its prefix, with greedy decoding, gives the suffix. Word for word is too narrow a measure
(Ippolito et al., "Preventing Verbatim Memorization in Language Models Gives a False Sense of Privacy", INLG 2023), so
near matches count, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from dpsynth_platform.audit.attacks import Attack, Floats
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.risk import EXACT, NEAR, Reconstructed
from dpsynth_platform.audit.tables.copies import excess_p_value
from dpsynth_platform.foundation.errors import AccountingError

RECONSTRUCTION = Attack(
    "reconstruction",
    "model",
    "how much of a text comes back when the model is told its first half",
    0.125,
    0.125,
)
MOST_TOKENS = 50
"""In a prefix, and in a suffix, as in the paper."""
_AT_ONCE = 32

Tokens = Sequence[int]


def reconstruct(model: Any, texts: Sequence[Tokens], prompts: Sequence[Tokens]) -> Floats:
    """The share of each text's suffix that the model reconstructs from its prefix, shape (texts,).

    A text is cut in the middle; of both halves, the tokens nearest to the cut count. A text of fewer than two tokens
    has no suffix, and gets 0. The model, of transformers in evaluation mode, reads a prompt of at least one token
    first. Raises `ConfigurationError` if it cannot run token by token (`rows.check_rows`).
    """
    middles = [len(tokens) // 2 for tokens in texts]
    halves = [
        (tokens[:middle], tokens[middle:] if middle else []) for middle, tokens in zip(middles, texts, strict=True)
    ]
    prefixes = [list(first[-MOST_TOKENS:]) for first, _ in halves]
    suffixes = [list(second[:MOST_TOKENS]) for _, second in halves]
    found = continuations(model, prompts, [len(suffix) for suffix in suffixes], prefixes)
    return np.array([_likeness(own, suffix) for own, suffix in zip(found, suffixes, strict=True)], dtype=np.float64)


def continuations(
    model: Any, prompts: Sequence[Tokens], lengths: Sequence[int], begun: Sequence[Tokens] | None = None
) -> list[list[int]]:
    """The likeliest tokens, in the given `lengths`, after each prompt and beginning.

    `begun` is the beginning, empty by default. A causal model reads it with the prompt. A decoder gets it token by
    token, since its encoder would read it as part of the prompt.
    """
    from dpsynth_platform.synth.text.rows import check_rows
    from dpsynth_platform.training.families import has_encoder

    begun = begun or [()] * len(prompts)
    if not has_encoder(model):
        prompts = [[*prompt, *beginning] for prompt, beginning in zip(prompts, begun, strict=True)]
        begun = [()] * len(prompts)
    lengths = [len(beginning) + length for beginning, length in zip(begun, lengths, strict=True)]
    most = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
    check_rows(model, most)
    found: list[list[int]] = [[] for _ in prompts]
    for rows in _batches(prompts, lengths, most):
        wanted = [lengths[row] for row in rows]
        written = _written(model, [prompts[row] for row in rows], max(wanted), [begun[row] for row in rows])
        for row, tokens, length in zip(rows, written, wanted, strict=True):
            found[row] = tokens[len(begun[row]) : length]
    return found


def _written(model: Any, prompts: Sequence[Tokens], length: int, begun: Sequence[Tokens]) -> list[list[int]]:
    """`length` tokens after each prompt: the given beginning, then the likeliest."""
    import torch

    from dpsynth_platform.synth.text.rows import rows_for

    # Rows continue until the longest one is done; each has room for that.
    slots = rows_for(model, len(prompts), max(map(len, prompts)) + length + 1)
    read = slots.read(prompts)
    for row, prompt in enumerate(read):
        slots.put(prompt, row)
    logits = torch.stack([prompt.logits for prompt in read])
    columns: list[torch.Tensor] = []
    while True:
        likeliest = logits.argmax(dim=1)
        for row, beginning in enumerate(begun):
            if len(columns) < len(beginning):
                likeliest[row] = beginning[len(columns)]
        columns.append(likeliest)
        if len(columns) >= length:
            return torch.stack(columns, dim=1).tolist()
        logits = slots.step(likeliest)


def _batches(prompts: Sequence[Tokens], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows that are continued together; none becomes longer than `most`, which the model may not support."""
    rows: list[int] = []
    longest = 0
    for row in sorted(range(len(prompts)), key=lambda at: -lengths[at]):
        together = max(longest, len(prompts[row]))
        if rows and (len(rows) == _AT_ONCE or together + lengths[rows[0]] > most):
            yield rows
            rows, together = [], len(prompts[row])
        rows.append(row)
        longest = together
    if rows:
        yield rows


def count_reconstructed(likeness: Floats, included: Coins) -> tuple[Reconstructed, ...]:
    """Number of suffixes reconstructed (`reconstruct`) exactly, and nearly, among members and others.

    Raises `AccountingError` if one of the groups is empty.
    """
    if included.all() or not included.any():
        raise AccountingError(
            f"audit: {int(included.sum())} of {included.size} texts are members; accepted: members and held-out texts, "
            "which are compared"
        )
    of_members, of_held_out = int(included.sum()), int((~included).sum())
    counted = []
    for least in (EXACT, NEAR):
        back = likeness >= least
        members, held_out = int(back[included].sum()), int(back[~included].sum())
        p_value = excess_p_value(members, of_members, held_out, of_held_out)
        counted.append(Reconstructed(least, members, of_members, held_out, of_held_out, p_value))
    return tuple(counted)


def _likeness(found: Sequence[int], suffix: Sequence[int]) -> float:
    """Share of the tokens that both have in the same order, 0 to 1; 1 only if they are equal."""
    return SequenceMatcher(None, found, suffix, autojunk=False).ratio() if suffix else 0.0
