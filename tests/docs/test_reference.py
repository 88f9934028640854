"""The generated pages of `docs/reference/` are what the code says; each key of a file is described."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dpsynth_platform.foundation import settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_what_the_code_says(generate: ModuleType) -> None:
    differ = [path for path, text in generate.pages().items() if (ROOT / "docs" / path).read_text("utf-8") != text]
    assert differ == [], f"run: {generate.COMMAND}"


def test_every_key_is_described_and_nothing_else_is(generate: ModuleType) -> None:
    unfit: list[str] = []
    words = generate.descriptions()
    generate.contract_page(words, unfit)
    generate.configuration_page(words, unfit)
    assert unfit == [], "correct docs/descriptions.yaml, or describe the key in its model"


def test_every_variable_that_is_read_is_described() -> None:
    """The table in the module's docstring is the page's."""
    source = Path(settings.__file__).read_text(encoding="utf-8").partition("from __future__")[2]
    described = set(re.findall(r"^\| (DPSYNTH_\w+) \|", settings.__doc__ or "", re.MULTILINE))
    assert described == set(re.findall(r"\bDPSYNTH_[A-Z_]+", source))
