"""Mixtures of product distributions, fitted to noisy marginals by gradients: the estimate of `rap` and `gem`.

What belongs here: the loss of a mixture, its gradient in bounded memory, and steps of Adam. What does not: where the
components' logits come from (`rap`, `gem`), and which marginals are measured (`rounds`). All of it is post-processing.

P(x) is the mean over K components k of product over columns i of P_k(x_i). The expected share of a cell (a, b) of two
columns is the mean of P_k(a) P_k(b): one product of matrices. No junction tree limits which marginals a mixture fits.
The loss is half the sum over all measured cells of (expected - noisy)^2 / variance, and a small share (`PULL`) of the
number of records times the mean over components of KL(P_k || independent columns). Without that term, which the papers
lack, components follow the noise, and pairs that were not measured seem related. With 80 of the 780 pairs of a table of
40 columns measured, the mean total variation of the others is .053 instead of .042; independent columns have .051.
"""

from __future__ import annotations

import heapq
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import as_measurement
from dpsynth_platform.synth.tabular.conditioning import conditioned
from dpsynth_platform.synth.tabular.constraints import Conditions
from dpsynth_platform.synth.tabular.cost import ESTIMATE_SHARE, MIX_SECONDS_PER_NUMBER, MixtureWork, memory_bytes
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.estimation import Array, Measurement, combined, estimate_total, log_shares
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import prepared, prior_of
from dpsynth_platform.synth.tabular.measurements import Measurements
from dpsynth_platform.synth.tabular.model import Model
from dpsynth_platform.synth.tabular.public_prior import PublicPrior
from dpsynth_platform.synth.tabular.resolution import Groups
from dpsynth_platform.synth.tabular.rounds import EvenParameters, EvenRounds
from dpsynth_platform.synth.tabular.workload import workload_of

if TYPE_CHECKING:
    import torch

RULED_OUT = 1e-2
"""Variance of counts that are zero by definition, relative to noisy ones: less would slow the fit of all others."""
PULL = 0.015
"""Of components to independent columns: more of it keeps measured pairs from their counts."""
CHUNK_NUMBERS = 2**22
"""Numbers of products of several columns' shares that are in memory at once."""
COMPONENTS, LEAST_COMPONENTS = 1000, 50
"""Of a mixture: as many as its states permit (`MIXTURE_CELLS`)."""
MIXTURE_CELLS = 2**22
ROUNDS_PER_COLUMN = 2
COLUMNS_PER_CHOICE = 4
"""Every so many columns allow one more choice between two fits."""
EMPTY = 1e-9
"""The least share of a state in a component."""


def fresh() -> np.random.Generator:
    """The randomness of an optimizer's start, from the operating system."""
    return np.random.default_rng()


@dataclass(frozen=True)
class Logits:
    """The logits of all components' states, shape (states of all columns, components), by parameters to be fitted."""

    parameters: Sequence[torch.Tensor]
    of: Callable[[], torch.Tensor]


Start = Callable[[Array, int, np.random.Generator], Logits]
"""Logits at the start, from those of independent columns (all columns' states), the number of components, and noise."""


@dataclass(frozen=True)
class MeasuredView:
    """A measured marginal of several columns: noisy shares and the weight of each cell, of its shape."""

    clique: Clique
    shares: torch.Tensor
    weights: torch.Tensor


class MixtureEstimator:
    """A mixture of `components` fitted to measurements at all states, which may be added during its use.

    Attributes:
        total: estimated number of records.
    """

    def __init__(
        self,
        one_way: Sequence[Measurement],
        start: Start,
        *,
        components: int,
        rate: float,
        device: str = "cpu",
        prior: PublicPrior | None = None,
        pull: float = PULL,
    ) -> None:
        import torch

        self._prior = prior
        self._sizes = [measurement.counts.size for measurement in one_way]
        self._known = {measurement.view: measurement for measurement in one_way}
        self._components, self._device, self._rate, self._pull = components, device, rate, pull
        self.total = estimate_total(one_way)
        alone = np.concatenate([log_shares(measurement, self.total) for measurement in one_way])
        with torch.device(device):
            self._logits = start(alone, components, fresh())
        self._alone = torch.as_tensor(alone, dtype=torch.float32, device=device).unsqueeze(1)
        self._optimizer = torch.optim.Adam(list(self._logits.parameters), lr=rate)

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Adds measurements for the next `fit`. Repeated ones are combined by inverse variance."""
        for new in measurements:
            self._known[new.view] = combined(self._known.get(new.view), new)
        self.total = estimate_total([item for item in self._known.values() if np.isfinite(item.variance).all()])

    def fit(self, iterations: int, progress: Progress = silent, *, seconds: float | None = None) -> None:
        """So many steps of Adam, whose rate falls to zero, or those of so many seconds.

        Never limit seconds inside of a mechanism, where time would reveal sensitive information (`cost`).
        """
        began, views = time.monotonic(), self._views()
        done = 0.0
        for iteration in range(iterations):
            self._optimizer.param_groups[0]["lr"] = self._rate * (1 + math.cos(math.pi * done)) / 2
            shares = self._shares()
            self._optimizer.zero_grad()
            shares.backward(self._slope(shares.detach(), views))  # type: ignore[no-untyped-call]
            self._optimizer.step()
            done = (iteration + 1) / iterations
            if seconds is not None:
                done = max(done, (time.monotonic() - began) / seconds)
            progress("estimating", iteration + 1, iterations)
            if done >= 1:
                break
        progress("estimating", iterations, iterations)

    def expected_counts(self, cliques: Sequence[Clique]) -> dict[Clique, Array]:
        """The expected counts of each clique's cells, of the shape of its sizes, in records."""
        columns = self._shares().detach().split_with_sizes(self._sizes)
        return {
            clique: self.total * self._expected([columns[index] for index in clique]).cpu().double().numpy()
            for clique in cliques
        }

    @property
    def potentials(self) -> dict[Clique, Array]:
        """The mixture as potentials of a model (`Model.components`)."""
        hidden, shares = len(self._sizes), self._shares().detach().cpu().double().split_with_sizes(self._sizes)
        found = {(hidden,): np.full(self._components, -math.log(self._components))}
        return found | {(index, hidden): share.log().numpy() for index, share in enumerate(shares)}

    def _shares(self) -> torch.Tensor:
        """P_k(a) of every state and component, shape (states of all columns, components)."""
        import torch

        logits = self._logits.of().split_with_sizes(self._sizes)
        return torch.cat([torch.softmax(part, 0) * (1 - EMPTY * len(part)) + EMPTY for part in logits])

    def _views(self) -> list[MeasuredView]:
        import torch

        def tensor(values: Array) -> torch.Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=self._device)

        scale, known = self.total**2, dict(self._known)
        if self._prior is not None:
            finite = {view: item for view, item in known.items() if np.isfinite(item.variance).all()}
            trust = self._prior.trust(finite.values(), self.total)
            for item in self._prior.measurements(self._prior.strongest, trust, finite, self.total):
                known[item.view] = combined(known.get(item.view), item)
        return [
            MeasuredView(view.clique, tensor(item.counts / self.total), tensor(scale / item.variance))
            for view, item in known.items()
        ]

    def _slope(self, shares: torch.Tensor, views: Sequence[MeasuredView]) -> torch.Tensor:
        """The loss's gradient by the shares, times the number of components."""
        slope = (shares.log() - self._alone) * (self._pull * self.total)
        columns, slopes = shares.split_with_sizes(self._sizes), slope.split_with_sizes(self._sizes)
        for view in views:
            parts, steps = ([own[index] for index in view.clique] for own in (columns, slopes))
            off = (self._expected(parts) - view.shares) * view.weights
            if len(parts) == 1:
                steps[0].add_(off.unsqueeze(1))
                continue
            off = off.view(-1, len(parts[-1]))
            for some, product in _products(parts[:-1]):
                last = parts[-1][:, some]
                steps[-1][:, some].addmm_(off.T, product)
                through = (off @ last).view(*map(len, parts[:-1]), -1)
                for place, step in enumerate(steps[:-1]):
                    step[:, some].add_(_without(through, [part[:, some] for part in parts[:-1]], place))
        return slope

    def _expected(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The mixture's share of each cell of some columns, by their components' shares."""
        if len(parts) == 1:
            return parts[0].mean(1)
        found = sum(product @ parts[-1][:, some].T for some, product in _products(parts[:-1]))
        return (found / self._components).view([len(part) for part in parts])  # type: ignore[union-attr]


def ruled_out(domain: Domain, states: Sequence[ColumnStates], groups: Groups, variance: float) -> list[Measurement]:
    """The combinations that no record has (`possible_combinations`), as nearly exact counts of zero."""
    under, found = conditioned(domain, states, Conditions(), [], groups), []
    for clique, factor in under.factors.items():
        possible = np.zeros([states[index].size for index in clique], dtype=bool)
        np.logical_or.at(possible, np.ix_(*(under.parents[index] for index in clique)), np.isfinite(factor))
        if not possible.all():
            zeros = np.zeros(possible.shape)
            found.append(Measurement(clique, zeros, np.where(possible, np.inf, variance)))
    return found


def _products(parts: Sequence[torch.Tensor]) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some components at a time, and the product of their columns' shares, shape (cells of the columns, components)."""
    components, cells = parts[0].shape[1], math.prod(map(len, parts))
    step = components if len(parts) == 1 else max(1, CHUNK_NUMBERS // cells)
    for first in range(0, components, step):
        some = slice(first, first + step)
        product = parts[0][:, some]
        for part in parts[1:]:
            product = (product.unsqueeze(1) * part[:, some]).flatten(0, 1)
        yield some, product


def _without(values: torch.Tensor, parts: Sequence[torch.Tensor], place: int) -> torch.Tensor:
    """The sums of values (cells of each column, components) times all columns' shares except one's, over the others."""
    for index in reversed(range(len(parts))):
        if index != place:
            shape = [len(parts[index]) if axis == index else 1 for axis in range(len(parts))]
            values = (values * parts[index].view(*shape, -1)).sum(index, keepdim=True)
    return values.flatten(0, -2)


@dataclass(frozen=True)
class MixtureParameters(EvenParameters):
    """The parameters of rounds with a mixture, sealed in the plan.

    Attributes:
        components: K.
        choices_per_fit: marginals that are chosen and measured before the mixture is fitted again.
        steps: of each fit between rounds; the last fit has `last_steps`.
    """

    components: int
    choices_per_fit: int
    steps: int
    last_steps: int


class MixtureGenerator(EvenRounds[MixtureParameters, MixtureEstimator]):
    """Rounds with a mixture, of which several choices share a fit; `rate` is Adam's."""

    parameters_type = MixtureParameters
    steps = 40
    last_steps = 150
    rate = 0.1
    per_number = MIX_SECONDS_PER_NUMBER
    in_words: str

    @abstractmethod
    def start(self, alone: Array, components: int, rng: np.random.Generator) -> Logits:
        """See `Start`."""

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        states, named = domain.most_states, workload_of(contract, domain.names, domain.parts).named
        work = self._work(
            domain,
            list(named),
            records=contract.privacy.expected_units * contract.privacy.max_contributions,
            rounds=min(ROUNDS_PER_COLUMN * len(domain), len(named)),
            choices_per_fit=max(1, len(domain) // COLUMNS_PER_CHOICE),
            components=max(LEAST_COMPONENTS, min(COMPONENTS, MIXTURE_CELLS // sum(states))),
        ).within(contract.generate.seconds, LEAST_COMPONENTS)
        return self.even(contract, domain, guarantee, work.rounds, work.components * sum(states)) | {
            "components": work.components,
            "choices_per_fit": work.choices_per_fit,
            "steps": work.steps,
            "last_steps": work.last_steps,
        }

    def _work(self, domain: Domain, cliques: Sequence[Clique], *, rounds: int, **sizes: int) -> MixtureWork:
        cells = [math.prod(domain.most_states[index] for index in clique) for clique in cliques]
        return MixtureWork(
            columns=len(domain),
            states=sum(domain.most_states),
            cliques=len(cliques),
            cells=sum(heapq.nlargest(rounds, cells)),
            rounds=rounds,
            steps=self.steps,
            last_steps=self.last_steps,
            per_number=self.per_number,
            **sizes,
        )

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        sizes = {"choices_per_fit": sealed.choices_per_fit, "components": sealed.components}
        fitting = self._work(domain, list(sealed.weights), records=0, rounds=sealed.rounds, **sizes)

        def memory(cells: Sequence[int]) -> int:
            return memory_bytes(counted=sum(cells), views=len(cells), model_cells=sealed.model_cells)

        event = (
            f"{sealed.rounds} choices of columns by the exponential mechanism, each with their joint marginal with "
            f"rounded Gaussian noise; {self.in_words} is fitted after every {sealed.choices_per_fit}"
        )
        return self.even_described(sealed, domain, event, memory) | {"predicted_fit_seconds": fitting.seconds}

    def started(
        self,
        sealed: MixtureParameters,
        groups: Groups,
        one_way: Sequence[Measurement],
        prior: PublicPrior | None = None,
        device: str = "cpu",
    ) -> MixtureEstimator:
        return MixtureEstimator(
            one_way, self.start, components=sealed.components, rate=self.rate, device=device, prior=prior
        )

    def refit(self, model: MixtureEstimator, sealed: MixtureParameters) -> None:
        model.fit(sealed.steps)

    def choices_per_fit(self, sealed: MixtureParameters) -> int:
        return sealed.choices_per_fit

    def model(self, plan: SealedPlan, stored: Measurements, device: str, progress: Progress) -> Model:
        sealed, domain = self.sealed(plan.parameters), Domain.from_json(plan.columns).with_values(stored.learned)
        states, groups, one_way = prepared(domain, stored.one_way, stored.public)
        prior = prior_of(stored.public, groups, one_way)
        estimator = self.started(sealed, groups, one_way, prior, device)
        estimator.add([as_measurement(noisy) for noisy in stored.joint])
        estimator.add(ruled_out(domain, states, groups, RULED_OUT * min(item.variance.min() for item in one_way)))
        limit = None if plan.time_limit is None else ESTIMATE_SHARE * plan.time_limit
        estimator.fit(sealed.last_steps, progress, seconds=limit)
        potentials, total = estimator.potentials, estimator.total
        return Model(plan, states, groups, potentials, total, stored, components=sealed.components)
