"""The threat model and the pages about operations name tests for what they claim; each must be there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.text_generation import Topics
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.training.stream import SecureStream

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    for file, name in NAMED.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"


def test_every_claim_of_the_threat_model_names_one() -> None:
    text = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) >= 8
    for section in sections:
        title = section.partition("\n")[0]
        claims = [line for line in section.splitlines() if re.match(r"\| (?!what stops|---)", line)]
        assert claims, title
        assert "**Not stopped:**" in section, title
        for claim in claims:
            assert any(name for _, name in NAMED.findall(claim)), claim


def keys_in(schema: Any) -> Iterator[str]:
    """The keys that a file of a JSON schema may have, at any depth."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
    for part in parts:
        yield from keys_in(part)


def test_nothing_that_is_configured_speaks_of_noise_or_seeds() -> None:
    """No switch fixes randomness or takes noise away; the one key about noise says how much a count of topics gets."""
    keys = {key for model in (DataContract, FamilyBudget) for key in keys_in(model.model_json_schema())}
    assert len(keys) > 90
    names = keys | {field.name for field in fields(Settings)}
    assert {name for name in names if re.search("noise|seed|random|determin", name)} == {"noise", "determines"}
    assert Topics.model_json_schema()["properties"]["noise"]["exclusiveMinimum"] == 0
    assert not inspect.signature(SecureStream).parameters


def is_drawn(seed: ast.expr) -> bool:
    """Whether a seed is a fresh one of the operating system, or comes of a generator, whose own seed is looked at."""
    calls = (node.func for node in ast.walk(seed) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr in ("randbits", "integers") for call in calls)


@pytest.mark.parametrize(("seed", "drawn"), [("1", 0), ("plan.seed", 0), ("secrets.randbits(63)", 1), ("hash(x)", 0)])
def test_what_is_drawn_is_told_from_what_is_fixed(seed: str, drawn: int) -> None:
    assert is_drawn(ast.parse(seed, mode="eval").body) == bool(drawn)


@pytest.mark.parametrize("package", ["synth", "training", "worker", "bounding"])
def test_nothing_on_the_way_of_a_mechanism_fixes_a_seed(package: str) -> None:
    fixed = []
    for path in sorted((ROOT / "dpsynth_platform" / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                given = [*node.args, *(word.value for word in node.keywords)]
                constant = bool(given) and all(isinstance(item, ast.Constant) for item in given)
                seeded = called in ("manual_seed", "seed_all", "set_seed", "RandomState")
                if (seeded and not any(map(is_drawn, given))) or (
                    called in ("default_rng", "seed", "Random", "Philox") and constant
                ):
                    fixed.append(f"{path.name}:{node.lineno}")
    assert fixed == []
