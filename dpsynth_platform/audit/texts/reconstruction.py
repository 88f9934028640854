"""Reconstruction: told how a text begins, does a language model go on with it?

What belongs here: greedy continuation of prefixes, and how much of what follows came back. What does not: likelihoods
(`synth.text.trained`), loading models.

Carlini, Ippolito, Jagielski, Lee, Tramer & Zhang, "Quantifying Memorization Across Neural Language Models" (ICLR 2023):
a text is extractable if its prefix, with greedy decoding, gives the suffix. Word for word is too narrow a measure
(Ippolito et al., "Preventing Verbatim Memorization in Language Models Gives a False Sense of Privacy", INLG 2023), so
what nearly comes back is counted, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from dpsynth_platform.audit.attacks import Attack, Floats
from dpsynth_platform.audit.bounds import Coins
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
"""Of a prefix, and of a suffix, as in the paper."""
EXACT, NEAR = 1.0, 0.75
"""Likeness from which on a suffix counts as come back: to the token, or nearly."""
_AT_ONCE = 32

Tokens = Sequence[int]


@dataclass(frozen=True)
class Reconstructed:
    """Texts of which the suffix came back.

    Attributes:
        likeness: from which on it counts; 1 for every token.
        members: how many of the members.
        of_members: how many members there are.
        held_out: how many of the held-out texts: what can be guessed from the prefix alone.
        of_held_out: how many held-out texts there are.
        p_value: probability of so many among the members, or more, if there were no difference (`excess_p_value`).
    """

    likeness: float
    members: int
    of_members: int
    held_out: int
    of_held_out: int
    p_value: float

    @property
    def words(self) -> str:
        """One sentence."""
        kind = "word for word" if self.likeness == EXACT else f"with at least {self.likeness:.0%} alike"
        return (
            f"Told the first half of a text, the model went on {kind} for {self.members} of {self.of_members} who were "
            f"in, and for {self.held_out} of {self.of_held_out} others (one-sided p-value of the difference "
            f"{self.p_value:.2g})."
        )


def reconstruct(model: Any, texts: Sequence[Tokens], prompts: Sequence[Tokens]) -> Floats:
    """The share of each text's suffix that comes back after its prefix, shape (texts,); 1 is all of it, in place.

    A text is cut in the middle; of both halves, the tokens nearest to the cut count.

    Args:
        model: a language model of transformers in evaluation mode.
        texts: their tokens; one of fewer than two tokens has no suffix, and gets 0.
        prompts: what the model reads before each text, at least a token; it is told all of it.

    Raises:
        ConfigurationError: the model cannot be asked token by token (`rows.check_rows`).
    """
    middles = [len(tokens) // 2 for tokens in texts]
    prefixes = [list(tokens[:middle][-MOST_TOKENS:]) for middle, tokens in zip(middles, texts, strict=True)]
    suffixes = [
        list(tokens[middle : middle + MOST_TOKENS]) if middle else []
        for middle, tokens in zip(middles, texts, strict=True)
    ]
    found = continuations(model, prompts, [len(suffix) for suffix in suffixes], prefixes)
    return np.array([_likeness(own, suffix) for own, suffix in zip(found, suffixes, strict=True)], dtype=np.float64)


def continuations(
    model: Any, prompts: Sequence[Tokens], lengths: Sequence[int], begun: Sequence[Tokens] | None = None
) -> list[list[int]]:
    """The tokens that the model finds likeliest after each prompt and beginning, one by one.

    Args:
        model: as in `reconstruct`.
        prompts: tokens, at least one each.
        lengths: how many tokens are asked for after each.
        begun: how each text begins; nothing by default. A causal model reads it with the prompt; a decoder is led over
            it token by token, since its encoder would not take it for the text.
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
    """So many tokens after each prompt: how it is to begin, then the likeliest."""
    import torch

    from dpsynth_platform.synth.text.rows import rows_for

    # Rows go on until the longest one is done; each has room for that.
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
    """Rows that go on together. None of them gets longer than the longest row is: the model may not see any further."""
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
    """How many suffixes came back among those who were in, and among the others: exactly, and nearly.

    Args:
        likeness: what `reconstruct` gives.
        included: who was in, same shape.

    Raises:
        AccountingError: one of the groups is empty.
    """
    if included.all() or not included.any():
        raise AccountingError("audit: what comes back is compared with held-out texts; accepted: some of either")
    of_members, of_held_out = int(included.sum()), int((~included).sum())
    counted = []
    for least in (EXACT, NEAR):
        back = likeness >= least
        members, held_out = int(back[included].sum()), int(back[~included].sum())
        p_value = excess_p_value(members, of_members, held_out, of_held_out)
        counted.append(Reconstructed(least, members, of_members, held_out, of_held_out, p_value))
    return tuple(counted)


def _likeness(found: Sequence[int], suffix: Sequence[int]) -> float:
    """Share of the tokens that both have in the same order: 0 to 1; 1 only if they are the same."""
    return SequenceMatcher(None, found, suffix, autojunk=False).ratio() if suffix else 0.0
