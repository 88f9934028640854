"""The quality step of linked tables in the line, and what reviewers read of its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clinic import clinic
from line_cases import PEOPLE, run_here, storage_of
from linked_line_cases import clinic_deployment

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates
from dpsynth_platform.foundation.storage import count_rows
from dpsynth_platform.quality.report_rows import LINKED_LEGEND
from dpsynth_platform.reviewing.decisions import review

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

STEPS = ["raw", "scrubbed", "canaries", "clearance", "bounded", "model", "synthetic", "audit", "quality"]
QUERY = 'SELECT sex, count(*) FROM patients JOIN stays USING ("patient id") GROUP BY sex'


def test_the_report_of_linked_tables(tmp_path: Path) -> None:
    deployment = clinic_deployment(
        tmp_path, quality={"holdout": 0.2, "target": "patients.sex", "queries": {"stays": QUERY}}
    )
    ran = run_here(deployment, steps=STEPS)
    assert ran.success, ran.failures
    storage = storage_of(deployment)
    directory = storage.require(PEOPLE, "quality").directory
    assert sorted(path.name for path in directory.iterdir()) == [
        "classifiers.svg",
        "links.svg",
        "marginals.svg",
        "queries.svg",
        "report.json",
        "rows.json",
    ]
    report = json.loads((directory / "report.json").read_text())
    source, private = clinic(600), ("patients", "stays", "diagnoses")
    assert report["rows"]["real"] + report["rows"]["held_out"] == sum(source[name].num_rows for name in private)
    synthetic = storage.require(PEOPLE, "synthetic").directory / "table"
    assert report["rows"]["synthetic"] == sum(count_rows(synthetic / name) for name in private)
    # Public tables are the same; no canary is among the real rows, so that all join.
    assert report["linked"]["edges"]["stays"]["references"] == 1
    assert report["linked"]["tables"]["diagnoses"]["lookups"] == {"code": 1}
    assert report["utility"]["holdout_rows"] > 50
    assert report["linked"]["queries"]["stays"]["numbers"] == 2
    shown = ran.materializations["quality"]
    assert isinstance(shown["distance of numbers of children, mean"], float)
    assert isinstance(shown["error of queries, mean"], float)
    assert "data:image/svg+xml" in shown["links"]
    (check,) = (each for each in ran.result.get_asset_check_evaluations() if each.check_name == "quality_report")
    assert (check.passed, check.description) == (True, "Compares all that the contract asks for.")

    found = review(deployment.settings, PEOPLE)
    assert found.quality_legend == LINKED_LEGEND and len(found.quality_rows) > 20
    allowed = frozenset({Action.READ, Action.READ_QUALITY})
    page = candidates.candidate(deployment.settings, allowed, PEOPLE.dataset).quality
    assert page is not None and page.legend == LINKED_LEGEND
    assert "Links between tables" in page.plots and "Errors of queries" in page.plots
    assert [item.key for item in page.measures] == ["columns", "pairs", "f1", "auc", "accuracy"]

    assert run_here(deployment, steps=["quality"]).materializations["quality"]["reused"]
