"""The next token of a context: what one owner may say of it, and the draw.

What belongs here: clipping, adding up, which tokens can come, and the exponential mechanism over the sums. What does
not: where logits come from (`inference_model`), and the cost (`inference_plan`).

Everything from clipping on is in whole numbers, `PARTS` of them for the clipping norm: so sums are exact, in whatever
order owners are added, one owner changes each by at most `PARTS`, and the draw is of exactly the distribution that is
accounted for (`tabular.noise`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dpsynth_platform.synth.tabular.noise import select_by_exponential_mechanism

PARTS = 2**20
"""Of the clipping norm; the most that one owner changes a sum by."""
DIFFERENCE, LOGITS = "difference", "logits"
_LEAST = -1e3
"""Public log-probabilities below this count as this: e^-1000 is no chance at all."""


def said_by_owner(logits: torch.Tensor, public: torch.Tensor, *, clip: str, clipping_norm: float) -> torch.Tensor:
    """What one owner's records say of the next token, clipped.

    Args:
        logits: of each record of the owner, shape (records, vocabulary). Sensitive.
        public: `log_probabilities` without any record, shape (vocabulary,).
        clip: `difference`, of the mean log-probabilities from the public ones; or `logits`, by how far the mean ones
            are behind the largest, which is c itself (Amin et al. 2024).
        clipping_norm: c.

    Returns:
        Whole numbers from -PARTS to PARTS, int64, shape (vocabulary,), whatever the logits are: where they are no
        numbers, 0 for differences, else -PARTS.
    """
    mean = log_probabilities(logits).mean(dim=0)
    if clip == DIFFERENCE:
        moved = torch.nan_to_num(mean - public, nan=0.0, posinf=clipping_norm, neginf=-clipping_norm)
    else:
        moved = torch.nan_to_num(mean - mean.max() + clipping_norm, nan=-clipping_norm)
    parts: torch.Tensor = (moved.clamp(-clipping_norm, clipping_norm) * (PARTS / clipping_norm)).round()
    return parts.to(torch.int64).clamp(-PARTS, PARTS)


def scores(
    said: torch.Tensor, public: torch.Tensor, *, clip: str, clipping_norm: float, batch_size: int
) -> torch.Tensor:
    """What tokens are drawn by: the sum of what the context's owners say, and s times the public part of it.

    Args:
        said: sum over the owners, int64, shape (vocabulary,). Sensitive.
        public: as for `said_by_owner`.
        clip: likewise.
        clipping_norm: likewise.
        batch_size: s.
    """
    if clip == LOGITS:
        return said
    finite = torch.nan_to_num(public, nan=_LEAST).clamp(_LEAST, 0)
    return said + batch_size * (finite * (PARTS / clipping_norm)).round().to(torch.int64)


def possible(public: torch.Tensor, *, top_k: int | None, clipping_norm: float) -> torch.Tensor:
    """Which tokens can come next, by public numbers alone (Vinod, Pillutla & Thakurta 2025, top-k+).

    Those whose public log-probability is at most 2 c below that of the k-th likeliest. Clipped to [-c, c], a mean over
    a context of at most s owners moves none by more than c, so that the k likeliest of it are among these.

    Returns:
        Positions, int64.
    """
    if top_k is None or top_k >= len(public):
        return torch.arange(len(public), device=public.device)
    least = public.topk(top_k).values[-1] - 2 * clipping_norm
    return (public >= least).nonzero()[:, 0]


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """In double precision; each row by itself."""
    return logits.double().log_softmax(dim=-1)


def drawn(scored: torch.Tensor, tokens: torch.Tensor, epsilon: float, *, barred: Sequence[int] = ()) -> int:
    """One token, with a probability in proportion to exp(epsilon score / (2 PARTS)).

    Args:
        scored: of `scores`. Sensitive.
        tokens: those that can come.
        epsilon: the range of the choice: 2 c / (s temperature).
        barred: tokens that cannot come after all.
    """
    there = tokens[~torch.isin(tokens, torch.tensor(barred, dtype=torch.int64, device=tokens.device))]
    choices = there if len(there) else tokens
    return int(choices[select_by_exponential_mechanism(scored[choices].cpu().numpy(), epsilon, PARTS)])
