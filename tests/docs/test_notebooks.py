"""The notebooks of the tutorials run from top to bottom, each in its own kernel, and are stored without outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"
IN_ORDER = ("one-table.ipynb", "line.ipynb", "read-release.ipynb")
"""The last one reads the release of the one before."""


def test_notebooks_are_stored_without_outputs() -> None:
    assert {path.name for path in TUTORIALS.glob("*.ipynb")} == set(IN_ORDER)
    for name in IN_ORDER:
        for cell in nbformat.read(TUTORIALS / name, as_version=4).cells:
            assert cell.cell_type == "markdown" or (cell.outputs, cell.execution_count) == ([], None), cell.source


# The audit of `line.ipynb` has 150 canaries, of which each joins with probability 1/2, and power enough with 30 on each
# side; a side has fewer once in 10^13 runs. To fail, it has to bound epsilon by 2 from below, where it is 1: of 75 that
# joined, 35 would have to score above the 75 others, which the best test of a Gaussian mechanism does once in 10^14.
@pytest.mark.slow
def test_notebooks_run_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "jupyter"))
    shown = {}
    for name in IN_ORDER:
        book = nbformat.read(TUTORIALS / name, as_version=4)
        NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
        shown[name] = "\n".join(str(output) for cell in book.cells for output in cell.get("outputs", ()))
    assert (
        "application/vnd.plotly.v1+json" in shown["one-table.ipynb"] and "Nothing was spent" in shown["one-table.ipynb"]
    )
    assert "received: verified" in shown["line.ipynb"]
    assert "not what was signed" in shown["read-release.ipynb"]
