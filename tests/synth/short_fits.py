"""Fits of `rap`, `gem` and networks that take a few steps, for tests of all but how well they fit.

A conftest imports the fixture for all tests beside it. Plans, and with them events and digests, are the product's: what
is cut short is the optimization alone, and the trial of networks on random rows. `whole_fits` marks tests of what the
optimization reaches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpsynth_platform.synth import network_training
from dpsynth_platform.synth.neural import states_network
from dpsynth_platform.synth.tabular import gem, mixtures

STEPS = 5


@pytest.fixture(autouse=True)
def short_fits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """See above."""
    if request.node.get_closest_marker("whole_fits"):
        return
    fit = mixtures.MixtureEstimator.fit

    def few(self: mixtures.MixtureEstimator, iterations: int, *arguments: Any, **options: Any) -> None:
        steps = min(iterations, STEPS) if type(self) is mixtures.MixtureEstimator else iterations
        fit(self, steps, *arguments, **options)

    monkeypatch.setattr(mixtures.MixtureEstimator, "fit", few)
    train = network_training.train_once

    def briefly(ready: Any, training: Any, *arguments: Any, **options: Any) -> Any:
        over_columns = isinstance(ready.network, states_network.StatesNetwork)
        steps = min(training.steps, STEPS) if over_columns else training.steps
        return train(ready, replace(training, steps=steps), *arguments, **options)

    monkeypatch.setattr(network_training, "train_once", briefly)
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)
    monkeypatch.setattr(gem, "NOISE", 32)
    monkeypatch.setattr(gem, "WIDTH", 64)
