"""A run that is killed between its steps, by the kernel and as a process of its own, and what the next one does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from killed_runs import Runs
from synthesis_cases import Make

from dpsynth_platform.foundation.errors import SpendRepeated
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import rows
from dpsynth_platform.synth.tabular.mst import Mst

SCRIPT = """
import importlib, os, signal, sys
from dpsynth_platform.one_table import Options, synthesize

module, owner, name, table, out, schema = sys.argv[1:]
holder = importlib.import_module(module)
holder = getattr(holder, owner) if owner else holder
setattr(holder, name, lambda *arguments, **others: os.kill(os.getpid(), signal.SIGKILL))
options = Options(
    epsilon=4.0, delta=1e-5, schema=schema, method="mst", owners="person", contributions=2, cap_epsilon=6.5
)
synthesize(table, out, options)
"""


def killed_at(runs: Runs, module: str, owner: str, name: str, tables: Path, out: Path) -> None:
    """Runs the same as `make(cap_epsilon=6.5)` in a process that is killed when it calls a function."""
    arguments = [module, owner, name, str(tables / "people.parquet"), str(out), str(tables / "people.yaml")]
    ended = runs.run(SCRIPT, arguments)
    assert ended.returncode == -signal.SIGKILL, ended.said


def states(out: Path) -> list[str]:
    return [entry.state for entry in Ledger(f"sqlite:///{out / 'restricted' / 'ledger' / 'ledger.db'}").entries()]


PACKAGE = "dpsynth_platform."


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ((PACKAGE + "bounding.single_owner", "", "write_bounded"), []),
        ((PACKAGE + "ledger.store", "Ledger", "start"), ["reserved"]),
    ],
)
def test_killed_before_the_start_nothing_is_spent(
    make: Make, killed_runs: Runs, tables: Path, tmp_path: Path, at: tuple[str, str, str], left: list[str]
) -> None:
    killed_at(killed_runs, *at, tables, tmp_path / "out")
    assert states(tmp_path / "out") == left
    assert list((tmp_path / "out" / "restricted").glob("work-*"))
    assert make(cap_epsilon=6.5).spent
    assert states(tmp_path / "out") == ["spent"]
    assert not list((tmp_path / "out" / "restricted").glob("work-*"))


@pytest.mark.parametrize(
    "at",
    [
        (PACKAGE + "synth.tabular.counting", "Records", "cliques"),
        (PACKAGE + "synth.tabular.measurements", "MeasurementLog", "complete"),
    ],
)
def test_killed_in_the_mechanism_stays_spent(
    make: Make, killed_runs: Runs, tables: Path, tmp_path: Path, at: tuple[str, str, str]
) -> None:
    killed_at(killed_runs, *at, tables, tmp_path / "out")
    assert states(tmp_path / "out") == ["started"]
    with pytest.raises(SpendRepeated) as caught:
        make(cap_epsilon=6.5)
    assert states(tmp_path / "out") == ["started"]
    made = make(cap_epsilon=6.5, spend_again=str(caught.value).split()[-1])
    assert states(tmp_path / "out") == ["started", "spent"]
    words = made.statement.read_text()
    assert "it was started 2 times" in words
    assert "What 1 earlier attempt at this run did" in words


@pytest.mark.parametrize(
    "at",
    [
        (PACKAGE + "synth.tabular.mst", "Mst", "estimate"),
        (PACKAGE + "ledger.store", "Ledger", "complete"),
    ],
)
def test_killed_after_the_mechanism_nothing_more_is_spent(
    make: Make,
    killed_runs: Runs,
    tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: tuple[str, str, str],
) -> None:
    killed_at(killed_runs, *at, tables, tmp_path / "out")
    assert states(tmp_path / "out") in (["started"], ["spent"])
    monkeypatch.setattr(rows, "bounded_rows", lambda *_: pytest.fail("rows were read again"))
    monkeypatch.setattr(Mst, "measure", lambda *_: pytest.fail("it was measured again"))
    made = make(cap_epsilon=6.5)
    assert made.spent is False
    assert made.synthetic.is_file()
    assert states(tmp_path / "out") == ["spent"]
    assert "it was started 1 time," in made.statement.read_text()
