"""A clinic's tables in files, and one run over them for all tests that only look at its result."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from clinic import clinic, written

from dpsynth_platform.linked_tables import SyntheticTables, TablesOptions, synthesize_tables
from dpsynth_platform.secrets import vault
from dpsynth_platform.synth.tabular import drawing


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the deployment's settings finds an empty one."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_USER", "tester")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("data") / "clinic", clinic())


def fix(patch: pytest.MonkeyPatch) -> None:
    """Keys, noise, choices and drawing are the same each time: tests of what is drawn have no chance in them."""
    noise, plain = np.random.default_rng(1), np.random.default_rng

    def rounded(counts: np.ndarray, sigma: Fraction) -> np.ndarray:
        return np.rint(counts + noise.normal(0, float(sigma), np.shape(counts))).astype(np.int64)

    patch.setattr(vault.secrets, "token_bytes", np.random.default_rng(2).bytes)
    patch.setattr(drawing, "sample_rounded_gaussian", rounded)
    patch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, *_: int(np.argmax(scores)))
    patch.setattr(np.random, "default_rng", lambda seed=0: plain(seed))


@pytest.fixture(scope="session")
def made(files: Path, tmp_path_factory: pytest.TempPathFactory) -> SyntheticTables:
    """The result of a run at epsilon 8, the same each time, not to be changed."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        patch.setenv("DPSYNTH_HOME", str(place / "home"))
        patch.setenv("DPSYNTH_USER", "tester")
        options = TablesOptions(epsilon=8, delta=1e-6, schema=files.with_suffix(".yaml"))
        return synthesize_tables(files, place / "out", options)
