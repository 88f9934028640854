"""Every example of the public functions, of the package and of its page gives what it shows."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from python_examples import of_page, run_examples, run_text

import dpsynth

PAGE = Path(__file__).parents[2] / "docs/reference/python.md"
ELSEWHERE = {"Contract", "load_release", "verify"}
"""Their examples run where contracts and releases are."""
IN_ORDER = ("plan", "synthesize", "Result", "sample", "query", "Synthesizer", "evaluate", "compare", "scrub")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def people(count: int) -> pd.DataFrame:
    random = np.random.default_rng(1)
    columns = {"person id": random.integers(0, count, count), "age": random.integers(18, 91, count)}
    return pd.DataFrame(columns | {"city": random.choice(["Aix", "Ulm"], count)})


def test_the_examples_of_functions_and_classes() -> None:
    public = {name for name in dpsynth.__all__ if inspect.isfunction(getattr(dpsynth, name))}
    assert public <= {*IN_ORDER, *ELSEWHERE}
    run_examples(IN_ORDER, {"people": people(1500), "holdout": people(500)})


@pytest.mark.parametrize("text", [str(dpsynth.__doc__), of_page(PAGE.read_text(encoding="utf-8"))], ids=["doc", "page"])
def test_the_examples_of_package_and_page(text: str) -> None:
    run_text(text, {"people": people(1500)})
