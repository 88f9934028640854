"""Private values stop trainings that learn nothing; live ones continue, with any noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from training_cases import Records, batch, model, plan

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.health import WATCHED, Watch, live_square, steps_to_judge
from dpsynth_platform.training.loop import train
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.trial import NoJournal

CHOSEN = {"units": 100_000, "batch_size": 10_000, "steps": 400, "clipping": "automatic", "noise_multiplier": 0.7}


def followed(
    chosen: TrainingPlan,
    parameters: dict[str, Tensor],
    *,
    signal: Callable[[int], Tensor] | float = 0.0,
    noise: float = 1.0,
    moving: bool = True,
    start: int = 1,
    steps: int | None = None,
) -> int:
    """Shows the watch noise, and a signal in the sum on one coordinate of each parameter; returns the steps taken."""
    watch = Watch(chosen, parameters)
    last = steps or chosen.steps
    for step in range(start, last + 1):
        gradients = {}
        for name, parameter in parameters.items():
            total = noise * chosen.noise_deviation * torch.randn(parameter.shape)
            total.view(-1)[0] += signal  # type: ignore[operator]
            gradients[name] = total / chosen.batch_size
        watch.step(step, gradients)
        if moving:
            for name, parameter in parameters.items():
                parameter.sub_(0.01 * gradients[name])
    return last


def weights(*sizes: int) -> dict[str, Tensor]:
    return {f"layer{number}.weight": torch.randn(size) for number, size in enumerate(sizes or (300, 200))}


def stopped(chosen: TrainingPlan, parameters: dict[str, Tensor], **given: Any) -> str:
    with pytest.raises(MechanismFailed) as raised:
        followed(chosen, parameters, **given)
    return str(raised.value)


def test_a_live_training_is_left_alone() -> None:
    chosen = plan(**CHOSEN)
    least = chosen.noise_deviation * math.sqrt(live_square(chosen) / 2)  # on each of two parameters
    assert Watch(chosen, weights()).judged_at is not None
    for factor in (1.0, 3.0, 100.0):
        assert followed(chosen, weights(), signal=factor * least) == 400


def test_pure_noise_is_stopped_where_the_plan_can_tell_it() -> None:
    chosen = plan(**CHOSEN)
    judged_at = Watch(chosen, weights()).judged_at
    assert judged_at is not None
    assert stopped(chosen, weights()).startswith(
        f"training: {judged_at} steps of noised gradients contain noise without a signal; check labels, adapter"
    )


@pytest.mark.parametrize(
    "weaker", [{"batch_size": 10}, {"clipping": "flat"}, {"noise_multiplier": 20.0}], ids=lambda given: str(given)
)
def test_where_the_plan_cannot_tell_nothing_is_said(weaker: dict[str, Any]) -> None:
    chosen = plan(**(CHOSEN | weaker))
    parameters = weights(20_000)
    assert Watch(chosen, parameters).judged_at is None
    assert followed(chosen, parameters, steps=50) == 50


def test_the_step_to_judge_is_the_first_that_suffices() -> None:
    chosen, coordinates = plan(**(CHOSEN | {"batch_size": 500})), 100_000
    live, x, y = live_square(chosen), math.log(1e9), math.log(1e6)

    def suffices(k: int) -> bool:
        noise = k * coordinates + 2 * math.sqrt(k * coordinates * y) + 2 * y
        return noise <= k * (coordinates + live) - 2 * math.sqrt(k * (coordinates + 2 * live) * x)

    k = steps_to_judge(chosen, coordinates)
    assert k > 1 and suffices(k) and not suffices(k - 1)


def test_the_bounds_hold_for_the_distributions_themselves() -> None:
    """By scipy's noncentral chi-squared, the threshold's false alarm and power are no worse than documented."""
    from scipy import stats

    for coordinates in (50, 500, 5000):
        chosen = plan(**(CHOSEN | {"batch_size": 1000}))
        k = steps_to_judge(chosen, coordinates)
        live, freedom = k * live_square(chosen), k * coordinates
        threshold = freedom + live - 2 * math.sqrt((freedom + 2 * live) * math.log(1e9))
        assert stats.ncx2.cdf(threshold, freedom, live) <= 1e-9
        assert stats.chi2.sf(threshold, freedom) <= 1e-6
        least = coordinates - 2 * math.sqrt(coordinates * math.log(1e9))
        assert least < 0 or stats.chi2.cdf(least, coordinates) <= 1e-9


def test_too_little_noise() -> None:
    chosen = plan(**CHOSEN)
    words = "training: a noised gradient has less noise than planned; do not release this model"
    assert stopped(chosen, weights(2000), noise=0.5, steps=1).startswith(words)
    assert stopped(chosen, weights(2000), noise=0.0, steps=1).startswith(words)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite(value: float) -> None:
    chosen, parameters = plan(**CHOSEN), weights()
    assert stopped(chosen, parameters, signal=value) == (
        "training: layer0.weight: its noised gradient is not finite; lower learning_rate"
    )
    parameters["layer1.weight"][7] = value
    assert stopped(chosen, parameters) == "training: layer1.weight: its value is not finite; lower learning_rate"


def test_nothing_moves() -> None:
    chosen = plan(**(CHOSEN | {"noise_multiplier": 20.0}))
    words = "steps no parameter has moved, not even by the noise; raise learning_rate"
    assert f"after {WATCHED} {words}" in stopped(chosen, weights(), moving=False)
    warming = plan(**(CHOSEN | {"noise_multiplier": 20.0, "warmup_steps": 9}))
    assert f"after 9 {words}" in stopped(warming, weights(), moving=False)
    # At the end of a training the learning rate is next to nothing.
    assert followed(chosen, weights(), moving=False, start=390) == 400


def test_one_parameter_that_moves_is_enough() -> None:
    parameters = weights()
    watch = Watch(plan(**(CHOSEN | {"noise_multiplier": 20.0})), parameters)
    for step in range(1, 20):
        watch.step(step, {name: 1e-2 * torch.randn(value.shape) for name, value in parameters.items()})
        parameters["layer1.weight"].add_(1e-3)


def test_a_real_training_is_healthy() -> None:
    chosen = plan(steps=8, warmup_steps=2)
    made = model()
    watch = Watch(chosen, dict(made.named_parameters()))
    assert train(made, chosen, Records(batch([7] * 40)), journal=NoJournal(), health=watch).steps == 8


def test_a_real_training_without_labels_is_stopped() -> None:
    chosen = plan(units=100_000, batch_size=100_000, steps=9, clipping="automatic", noise_multiplier=0.5)
    made, rows = model(), batch([7] * 40)
    rows["labels"].fill_(-100)
    watch = Watch(chosen, dict(made.named_parameters()))
    assert watch.judged_at is not None
    with pytest.raises(MechanismFailed, match=f"{watch.judged_at} steps of noised gradients contain noise without"):
        train(made, chosen, Records(rows), journal=NoJournal(), health=watch)
