"""The next token of a context: each owner's clipped score, and the draw.

What belongs here: clipping, adding up, the possible tokens, and the exponential mechanism over the sums. What does
not: where logits come from (`inference_model`), and the cost (`inference_plan`).

From clipping on, all numbers are integers, `PARTS` of them for the clipping norm: sums are exact in any order of the
owners, one owner changes each sum by at most `PARTS`, and the draw has exactly the distribution of the accounting
(`tabular.noise`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dpsynth_platform.synth.tabular.noise import select_by_exponential_mechanism

PARTS = 2**20
"""Parts of the clipping norm: the most that one owner changes a sum."""
DIFFERENCE, LOGITS = "difference", "logits"
_LEAST = -1e3
"""The least public log-probability; smaller ones are raised to it, and e^-1000 is practically 0."""


def owner_score(logits: torch.Tensor, public: torch.Tensor, *, clip: str, clipping_norm: float) -> torch.Tensor:
    """The clipped score of one owner's records for each next token.

    Args:
        logits: of each record of the owner, shape (records, vocabulary). Sensitive.
        public: `log_probabilities` without any record, shape (vocabulary,).
        clip: `difference` clips the difference of the mean log-probabilities from the public ones; `logits` shifts
            the mean ones so that the largest is c (Amin et al. 2024).
        clipping_norm: c.

    Returns:
        Integers from -PARTS to PARTS, int64, shape (vocabulary,), for all logits: NaN becomes 0 for differences, else
        -PARTS.
    """
    mean = log_probabilities(logits).mean(dim=0)
    if clip == DIFFERENCE:
        moved = torch.nan_to_num(mean - public, nan=0.0, posinf=clipping_norm, neginf=-clipping_norm)
    else:
        moved = torch.nan_to_num(mean - mean.max() + clipping_norm, nan=-clipping_norm)
    parts: torch.Tensor = (moved.clamp(-clipping_norm, clipping_norm) * (PARTS / clipping_norm)).round()
    return parts.to(torch.int64).clamp(-PARTS, PARTS)


def scores(
    total: torch.Tensor, public: torch.Tensor, *, clip: str, clipping_norm: float, batch_size: int
) -> torch.Tensor:
    """The scores of tokens in the draw: the sum of the owners' scores, and s times the public part.

    Args:
        total: sum of `owner_score` over the owners, int64, shape (vocabulary,). Sensitive.
        batch_size: s.
    """
    if clip == LOGITS:
        return total
    finite = torch.nan_to_num(public, nan=_LEAST).clamp(_LEAST, 0)
    return total + batch_size * (finite * (PARTS / clipping_norm)).round().to(torch.int64)


def possible(public: torch.Tensor, *, top_k: int | None, clipping_norm: float) -> torch.Tensor:
    """The possible next tokens, int64, by public numbers only (Vinod, Pillutla & Thakurta 2025, top-k+).

    These have a public log-probability at most 2 c below that of the k-th likeliest. Clipped to [-c, c], a mean over a
    context of at most s owners moves none by more than c, so that the k likeliest of the context are among them.
    """
    if top_k is None or top_k >= len(public):
        return torch.arange(len(public), device=public.device)
    least = public.topk(top_k).values[-1] - 2 * clipping_norm
    return (public >= least).nonzero()[:, 0]


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of each row, in double precision."""
    return logits.double().log_softmax(dim=-1)


def drawn(scored: torch.Tensor, tokens: torch.Tensor, epsilon: float, *, barred: Sequence[int] = ()) -> int:
    """One token, with a probability proportional to exp(epsilon score / (2 PARTS)).

    Args:
        scored: of `scores`. Sensitive.
        tokens: the possible ones.
        epsilon: the range of the choice: 2 c / (s temperature).
        barred: excluded from `tokens`, unless none remain.
    """
    there = tokens[~torch.isin(tokens, torch.tensor(barred, dtype=torch.int64, device=tokens.device))]
    choices = there if len(there) else tokens
    return int(choices[select_by_exponential_mechanism(scored[choices].cpu().numpy(), epsilon, PARTS)])
