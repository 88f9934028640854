"""Every benchmark loads, as its command would: modules that it shares with tests may have moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# One process, since each would import the same libraries for seconds; what a benchmark finds by a path of its own
# is forgotten before the next one.
LOAD = """
import runpy, sys
from pathlib import Path

paths = list(sys.path)
for benchmark in sorted(Path("tests/benchmarks").glob("bench_*.py")):
    sys.path[:] = [str(benchmark.parent.resolve()), *paths[1:]]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if not file.startswith(sys.prefix) and "/tests/" in file or name.partition(".")[0] in ("assets", "sensors"):
            del sys.modules[name]
    try:
        runpy.run_path(str(benchmark), run_name="loaded")
    except ImportError as error:
        print(f"{benchmark.name}: {error}")
"""


@pytest.mark.slow
def test_every_benchmark_loads() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
