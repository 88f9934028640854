"""Fixtures over `synth_cases`."""

import zlib

import numpy as np
import pytest
import torch
from short_fits import short_fits  # noqa: F401  (a fixture)
from synth_cases import SCHEMA, contract_with, people, write_bounded

from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator


@pytest.fixture(autouse=True)
def same_weights(request):
    """What torch draws, such as first weights, is the same in every run: tests allow for rounding by fixed bounds.

    Each test has numbers of its own: a model that it makes has other weights than one that an earlier test has made for
    all. Noise and samples of training come from the operating system's randomness all the same.
    """
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def contract():
    return contract_with()


@pytest.fixture(scope="session")
def plan(contract):
    return generator("mst").plan(contract, SCHEMA, Guarantee.target(contract))


@pytest.fixture(scope="session")
def bounded(tmp_path_factory):
    return write_bounded(people(3000), tmp_path_factory.mktemp("bounded") / "table")


@pytest.fixture
def no_noise(monkeypatch):
    """Counts as they are and always the best pair: for tests of everything but the noise."""
    module = "dpsynth_platform.synth.tabular.drawing"
    monkeypatch.setattr(f"{module}.sample_rounded_gaussian", lambda counts, sigma: counts)
    monkeypatch.setattr(
        f"{module}.select_by_exponential_mechanism", lambda scores, epsilon, sensitivity: int(np.argmax(scores))
    )
