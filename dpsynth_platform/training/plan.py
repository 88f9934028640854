"""The sealed numbers of one DP training: sampling, clipping, noise and steps; and their privacy event.

What belongs here: `TrainingPlan`, its JSON form, its event and its calibration. What does not: examples and models (the
plan has public numbers only), and the training itself (`loop`). Sampler, clipping, noise and accountant read one frozen
object, so none of them can change without the others (invariant 3 of the platform). Planning does not need torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy import calibration
from dpsynth_platform.privacy.events import DpEvent, Sampled, dp_sgd_event
from dpsynth_platform.privacy.guarantee import Guarantee

Clipping = Literal["flat", "automatic"]
Optimizer = Literal["adamw", "sgd"]
Decay = Literal["constant", "linear", "cosine"]

MAX_NORM = 1e6


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter on all linear layers of the blocks (LoRA, Hu et al. 2021), with frozen base weights.

    Its output is scaled by alpha / rank.
    """

    rank: int = 16
    alpha: int = 32

    def __post_init__(self) -> None:
        _whole("adapter.rank", self.rank, 1)
        _whole("adapter.alpha", self.alpha, 1)


@dataclass(frozen=True)
class TrainingPlan:
    """All numbers that decide how DP training uses the data, fixed before any record is read. All are public.

    A separate coin of probability q = batch_size / units samples each record (`record`: DP-SGD, with b above 1
    DP-SGD-ELS) or all records of each owner (`user`: DP-SGD-ULS, Charles et al. 2024); their mean gradient is clipped
    to `clipping_norm`. The sum gets Gaussian noise of deviation noise_multiplier * clipping_norm and is divided by
    `batch_size`, for any size of the sample.

    With `user`, one user's presence moves the sum of a step by at most C, however many records it has: the user's
    part is one vector, the mean of its k records' gradients times min(1, C / norm), or nothing if its coin says so.
    All other parts are functions of other users' records and coins alone, and cancel. So b plays no role in the cost,
    under `add-or-remove` and `zero-out`; under `replace-one` two such vectors differ by 2C at most. Each record has the
    weight 1/k, so that a user's records weigh one record together: that is the weighting `owners` of counts.

    Attributes:
        units: the public, expected number of sampled units; never the actual one.
        batch_size: the expected size of a logical batch.
        max_contributions: b, the most records of one owner.
        replay_allowance: number of additional steps that may be executed, since after a crash the last ones are
            executed again, with a fresh batch and fresh noise. They are paid for even if unused.
        clipping_norm: C, the largest norm of a clipped gradient.
        clipping: `flat`, min(1, C / |g|) (Abadi et al. 2016), or `automatic`, C / (|g| + 0.01) (Bu et al. 2023).
        learning_rate: the highest one, after warm-up.
        warmup_steps: steps in which the learning rate rises linearly from 0.
        decay: of the learning rate afterwards, until the last step.
        weight_decay: decoupled from the gradient (Loshchilov & Hutter 2019).
        adapter: None trains all weights.

    Raises:
        AccountingError: a value is impossible; the message names the field, the value and the accepted ones.
    """

    units: int
    batch_size: int
    steps: int
    noise_multiplier: float
    adjacency: str = "add-or-remove"
    max_contributions: int = 1
    sampled: Sampled = "record"
    replay_allowance: int = 0
    clipping_norm: float = 1.0
    clipping: Clipping = "flat"
    optimizer: Optimizer = "adamw"
    learning_rate: float = 1e-3
    warmup_steps: int = 0
    decay: Decay = "constant"
    weight_decay: float = 0.0
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        for name, least in (("units", 1), ("batch_size", 1), ("steps", 1), ("replay_allowance", 0)):
            _whole(name, getattr(self, name), least)
        _whole("warmup_steps", self.warmup_steps, 0)
        for name in ("noise_multiplier", "clipping_norm", "learning_rate"):
            _number(name, getattr(self, name))
        _number("weight_decay", self.weight_decay, zero=True)
        _choice("clipping", self.clipping, get_args(Clipping))
        _choice("optimizer", self.optimizer, get_args(Optimizer))
        _choice("decay", self.decay, get_args(Decay))
        _ = self.event  # checks the rest

    @property
    def sampling_probability(self) -> float:
        """q, with which each unit is in a logical batch, independently of all others."""
        return self.batch_size / self.units

    @property
    def noise_deviation(self) -> float:
        """Deviation of the noise on each coordinate of the sum of clipped gradients."""
        return self.noise_multiplier * self.clipping_norm

    @property
    def paid_steps(self) -> int:
        """The most steps that may be executed, in all attempts."""
        return self.steps + self.replay_allowance

    @property
    def event(self) -> DpEvent:
        """The cost of all paid steps, executed or not."""
        return self.event_of(self.paid_steps)

    def event_of(self, steps: int) -> DpEvent:
        """The cost of so many executed steps: for the epsilon so far, which is public."""
        return dp_sgd_event(
            records=self.units,
            batch_size=self.batch_size,
            noise_multiplier=self.noise_multiplier,
            steps=steps,
            adjacency=self.adjacency,
            max_contributions=self.max_contributions,
            sampled=self.sampled,
        )

    @classmethod
    def calibrated(
        cls, guarantee: Guarantee, *, beside: Callable[[DpEvent], DpEvent] | None = None, **parameters: Any
    ) -> TrainingPlan:
        """The plan with the least noise multiplier that meets a guarantee, and with other `parameters`.

        `beside` maps the training's event to the whole event that must meet the guarantee, for example with a histogram
        from the same budget; by default the training alone.

        Raises:
            AccountingError: a field is impossible or unknown, the guarantee weighs owners where records are sampled, or
                no noise meets it.
        """
        if guarantee.weighting != "rows" and parameters.get("sampled") != "user":
            raise AccountingError(
                f"weighting {guarantee.weighting} in training that samples records; accepted: rows, or sampled: user, "
                "which gives users equal weight"
            )
        accepted = {field.name for field in fields(cls)} - {"noise_multiplier", "adjacency", "max_contributions"}
        if unknown := parameters.keys() - accepted:
            raise AccountingError(
                f"training plan: {', '.join(sorted(unknown))}; accepted: {', '.join(sorted(accepted))}"
            )
        plan = cls(
            noise_multiplier=1.0,
            adjacency=guarantee.adjacency,
            max_contributions=guarantee.max_contributions,
            **parameters,
        )

        def event_of(noise: float) -> DpEvent:
            # A search may begin above what a plan may have: less noise costs no less.
            event = replace(plan, noise_multiplier=min(noise, MAX_NORM)).event
            return event if beside is None else beside(event)

        found = calibration.noise_for(event_of, guarantee.epsilon, guarantee.delta)
        return replace(plan, noise_multiplier=found.value)

    @property
    def digest(self) -> str:
        """SHA-256 of the plan in canonical JSON, which identifies it in checkpoints."""
        return canonical_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> TrainingPlan:
        """Reads the output of `to_json`.

        Raises:
            AccountingError: a key is missing or unknown, or a value is impossible.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(document, dict) or document.keys() != names:
            raise AccountingError(f"a training plan's document has the keys {', '.join(sorted(names))}, all of them")
        adapter = document["adapter"]
        try:
            return cls(**(document | {"adapter": None if adapter is None else Adapter(**adapter)}))
        except TypeError:
            raise AccountingError(
                "the training plan's adapter has missing or unknown keys; accepted: rank, alpha"
            ) from None


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AccountingError(f"training plan: {name} {value!r}; accepted: a whole number from {least}")


def _number(name: str, value: Any, *, zero: bool = False) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= MAX_NORM or (value == 0 and not zero):
        least = "from 0" if zero else "above 0"
        raise AccountingError(f"training plan: {name} {value!r}; accepted: a number {least}, at most {MAX_NORM:g}")


def _choice(name: str, value: Any, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise AccountingError(f"training plan: {name} {value!r}; accepted: {', '.join(accepted)}")
