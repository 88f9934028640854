"""Settings among which the mechanism of one table chooses: the result, its statement, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthesis_cases import Make

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import more_rows
from dpsynth_platform.privacy.events import BestRunEvent, event_from_json
from dpsynth_platform.synth.tabular import paid

TWO = [{"method": "mst"}, {"method": "independent"}]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paid, "ROWS", 500)


def test_it_is_paid_once_and_said(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("tune:\n  candidates: [{method: mst}, {method: independent}]\n  runs: 3\n")
    made = make(tune=file)
    assert (made.method, made.why_method) == ("tuned", "it chooses one of 2 declared settings")
    stated = json.loads(made.statement.with_suffix(".json").read_text())
    assert isinstance(event_from_json(stated["event"]), BestRunEvent)
    assert (stated["tuning"]["runs"], stated["tuning"]["covered"]) == (0, True)
    assert stated["tuning"]["words"].startswith("The mechanism chose its setting itself")
    assert any("about how many runs the choice of a setting made" in line for line in stated["not_covered"])
    (kept,) = [line for line in stated["covered"] if line.startswith("Which setting was kept")]
    assert kept in ("Which setting was kept: 1 (mst).", "Which setting was kept: 2 (independent).")
    again = make(tune={"candidates": TWO, "runs": 3})
    assert not again.spent and again.entry_id == made.entry_id
    (entry,) = Ledger(f"sqlite:///{made.ledger / 'ledger.db'}").entries()
    assert entry.state == "spent"
    further = more_rows(tmp_path / "out", 5, given={"city": "Aix"})
    assert further.rows == 5
    words = json.loads((tmp_path / "out" / "rows.statement.json").read_text())["tuning"]["words"]
    assert words == stated["tuning"]["words"]


def test_settings_of_networks_and_targets(make: Make) -> None:
    """Columns have the table's own names, and nothing is paid for repeats that no run of one table makes."""
    candidates = [{"network": {"steps": 5}}, {"method": "aim"}, {"method": "aim", "workload": {"weights": {"age": 2}}}]
    made = make(tune={"candidates": candidates}, method="arn", target="rich")
    plan = json.loads(made.statement.with_suffix(".json").read_text())["event"]
    assert [part["kind"] for part in plan["events"]] == ["composed"] * 3
    trained = plan["events"][0]["events"][0]["events"][1]
    assert (trained["kind"], trained["count"]) == ("repeated", 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tune": {"candidates": TWO[:1]}}, "tune.candidates: .*at least 2"),
        ({"tune": {"candidates": [{}, {"method": "aim"}]}, "method": "auto"}, "candidates.0.method: missing"),
        ({"tune": {"candidates": TWO, "often": 3}}, "tune.often: unknown key"),
        ({"tune": {"candidates": TWO}, "time_limit": "5m"}, "--time-limit: with tune"),
        ({"tune": {"candidates": TWO}, "target": "rich"}, "--target 'rich': no candidate of --tune has it"),
        ({"tune": {"candidates": TWO}, "queries": {"n": "SELECT COUNT(*) FROM t"}}, "--tune: beside queries"),
        (
            {"tune": {"candidates": [{"method": "aim", "workload": {"target": "height"}}, *TWO]}},
            "--tune.candidates.0.workload.target: 'height' is no modelled column",
        ),
        ({"tune": {"candidates": TWO, "score": {"measure": "accuracy"}}}, "--tune.score.measure: accuracy, which"),
    ],
)
def test_what_is_refused(make: Make, options: dict[str, Any], words: str) -> None:
    method = {} if "method" in options or "queries" not in options else {"method": "auto"}
    with pytest.raises(ContractError, match=words):
        make(**options | method)


def test_learned_values_are_learned_once_in_each_run(make: Make, tables: Path, tmp_path: Path) -> None:
    lines = (tables / "people.yaml").read_text().splitlines()
    schema = tmp_path / "without-city.yaml"
    schema.write_text("\n".join(line for line in lines if "city" not in line))
    with pytest.raises(ContractError, match=r"--tune\.runs: 3, but the values of city are learned"):
        make(tune={"candidates": TWO, "runs": 3}, schema=schema, learn_values=True)
    assert make(tune={"candidates": TWO}, schema=schema, learn_values=True).spent
