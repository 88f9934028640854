"""Training a language model on rows: batches, the loss, clipped sums, the gate, and the first stage without records.

What belongs here: these parts. What does not: tokens (`row_tokens`), the order of a training's parts
(`network_training`), and drawing (`row_reading`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.synth.neural.columnwise_network import OrderedRows
from dpsynth_platform.synth.neural.language_plan import FirstSteps, LanguageParameters
from dpsynth_platform.synth.neural.row_distances import NumberDistances
from dpsynth_platform.synth.neural.row_tokens import RowTokens
from dpsynth_platform.training import validators
from dpsynth_platform.training.attention import ShortCausalAttention
from dpsynth_platform.training.clipping import ClippedSums, example_losses
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.physical import MOST_TOKENS
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.precision import EXACT
from dpsynth_platform.training.soundness import refuse_unsound
from dpsynth_platform.training.trial import Losses
from dpsynth_platform.training.unit_probe import faults_of_unit_sums, unit_sums

FIRST_STAGE = "learning the form of rows"
_BOUND = 1.0
"""Of a gradient's norm in the first stage."""

Ranks = Sequence[Sequence[int | None]]
"""Of each column's states, None where a state is no range of numbers (`row_words.ranks_of`)."""
States = Callable[[int], Tensor]
"""So many rows of states, [rows, columns], that read no private record."""


class RowSums(ClippedSums):
    """The clipped sums of a language model for the weighted loss of rows, `network_training.Prepared.sums`.

    Layers compute in single precision on every device, in which other rows change nothing but rounding that is covered.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan, losses: Losses) -> None:
        super().__init__(model, plan)
        self._losses = losses

    def _backward(self, batch: Batch, weights: Tensor) -> None:
        """By the loss itself where it has more than cross-entropies, for which a frozen head has a shorter way."""
        if "edges" not in batch:
            super()._backward(batch, weights)
            return
        self._restore_head()
        with ShortCausalAttention():
            (self._losses(self._model, batch) * weights.flatten()).sum().backward()  # type: ignore[no-untyped-call]


class LanguageBatches(OrderedRows):
    """Rows of records as tokens, in the order in which rows are drawn or in a random one."""

    def __init__(self, tokens: RowTokens, parameters: LanguageParameters, device: torch.device, ranks: Ranks) -> None:
        super().__init__(tokens.sizes, parameters, device)
        self._tokens, self._value_weight = tokens, parameters.value_weight
        self.most_rows = max(1, MOST_TOKENS["cpu"] // tokens.longest)
        self._far = parameters.number_distance
        self._distances = NumberDistances.of(tokens, ranks, device) if self._far else None

    @property
    def ranks(self) -> Tensor:
        return torch.tensor(self._tokens.order, device=self.device).argsort()

    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        edges = None if self._distances is None else self._distances.edges
        return self._tokens.rows(states, places.argsort(1), self._value_weight, edges)

    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        if self._distances is None:
            return losses(network, rows)
        scores = _scores(network, rows)
        return _weighted(scores, rows) + self._far * self._distances.losses(scores, rows["edges"])


def losses(model: nn.Module, rows: Batch) -> Tensor:
    """The weighted loss of each row (DP-2Stage, equation 6), [rows]."""
    return _weighted(_scores(model, rows), rows)


def _weighted(scores: Tensor, rows: Batch) -> Tensor:
    return example_losses(scores, rows["labels"], rows["token_weights"])


def _scores(model: nn.Module, rows: Batch) -> Tensor:
    found: Tensor = model(input_ids=rows["input_ids"], position_ids=rows["position_ids"], use_cache=False).logits
    return found


def refuse_unsound_rows(model: Any, plan: TrainingPlan, rows: LanguageBatches, vocabulary: int, longest: int) -> None:
    """The gate: checks the model on random tokens, then the weighted loss and its sums on random rows.

    Raises:
        TrainingRefused: training would not be differentially private; names all faults.
    """
    refuse_unsound(model, plan, vocabulary=vocabulary, longest=longest, precision=EXACT)
    validators.refuse(faults_of_unit_sums(model, unit_sums(rows.losses, RowSums), rows.losses, rows.made_up, plan))


def learn_form(
    model: Any, tokens: RowTokens, states: States, first: FirstSteps, device: torch.device, progress: Progress
) -> None:
    """The first stage: trains the model's trainable weights, without privacy, on rows that are not private.

    All tokens weigh the same. Each batch of rows is new, in the order in which rows are drawn.

    Raises:
        MechanismFailed: the weights are no longer finite; no step is spent on them.
    """
    weights = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=first.learning_rate, weight_decay=0.0)
    order = torch.tensor(tokens.order, device=device)
    progress(FIRST_STAGE, 0, first.steps)
    for step in range(first.steps):
        for group in optimizer.param_groups:
            group["lr"] = first.learning_rate * (1 - step / first.steps)
        drawn = states(first.batch_size).to(device)
        losses(model, tokens.rows(drawn, order.expand(len(drawn), -1), 0.5)).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, _BOUND)
        optimizer.step()
        optimizer.zero_grad()
        progress(FIRST_STAGE, step + 1, first.steps)
    if not all(bool(value.isfinite().all()) for value in weights):
        raise MechanismFailed(
            "the first stage made weights that are not finite; accepted: a smaller "
            "generate.language.first.learning_rate"
        )


def drawn_of(shares: list[Tensor]) -> States:
    """States of independent columns with these shares."""
    source = torch.Generator().manual_seed(secrets.randbits(63))

    def states(rows: int) -> Tensor:
        return torch.stack([share.multinomial(rows, replacement=True, generator=source) for share in shares], 1)

    return states


def among(codes: Tensor) -> States:
    """Random rows of these, [rows, columns]."""
    source = torch.Generator().manual_seed(secrets.randbits(63))
    return lambda rows: codes[torch.randint(len(codes), (rows,), generator=source)]
