"""What README and tutorials show can be run: contracts are valid, and the Python of the tutorial makes a table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget, check_family

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for named, block in BLOCK.findall(text) if named == language]


def part_of(part: Any, whole: Any) -> bool:
    """Whether each key of a document has the same value in another one, which may have more."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and part_of(value, whole[key]) for key, value in part.items())
    return part == whole


def test_the_readme_quotes_the_contract_of_the_demonstration() -> None:
    census = yaml.safe_load((ROOT / "deploy/contracts/census.yaml").read_text(encoding="utf-8"))
    (quoted,) = [document for document in map(yaml.safe_load, blocks("README.md", "yaml")) if "dataset" in document]
    assert part_of(quoted, census)


def test_the_readme_and_the_tutorial_show_the_same() -> None:
    assert blocks("README.md", "python") == [blocks("docs/tutorials/one-table.md", "python")[1]]
    assert blocks("docs/tutorials/one-table.md", "yaml")[0] in blocks("README.md", "yaml")


def test_the_contract_of_the_tutorial_is_valid_and_its_family_can_pay() -> None:
    contract, family = map(yaml.safe_load, blocks("docs/tutorials/engineer.md", "yaml"))
    check_family(DataContract.model_validate(contract), FamilyBudget.model_validate(family))


@pytest.mark.slow
def test_the_python_of_the_tutorial_makes_a_table(tmp_path: Path) -> None:
    (declared,) = blocks("docs/tutorials/one-table.md", "yaml")
    (tmp_path / "people.yaml").write_text(declared)
    first, *others = blocks("docs/tutorials/one-table.md", "python")
    for number, code in enumerate((first, "".join(others))):
        script = tmp_path / f"step_{number}.py"
        script.write_text(code.replace("60_000", "6_000").replace("50_000", "5_000"))  # the same in less time
        ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert re.match(r"\(0\.9\d+, .*\)-DP for one user \(add-or-remove, at most 3 records\)\n", ran.stdout)
    assert "one-way distance, mean" in ran.stdout and ran.stdout.endswith("\n1000\n")
