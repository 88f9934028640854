"""The demonstration of a year for real, with few aircraft and two months: what each overlap policy makes of it."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
import yaml
from inside import InProcessAccelerator
from line_cases import NO_CHANCE

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.demo import year as demonstration_year
from dpsynth_platform.demo.tables import keep_table, source_path
from dpsynth_platform.demo.year import run_year
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.reviewing import releases

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
AIRCRAFT = 600


def few_flights() -> pa.Table:
    """Two months; two thirds of the aircraft fly in both, three times a month."""
    random = np.random.default_rng(13)
    rows = []
    for month, first in ((1, 0), (2, AIRCRAFT // 3)):
        for number in range(first, first + AIRCRAFT):
            rows += [(f"N{number:05d}", dt.date(2013, month, day)) for day in (3, 11, 22)]
    owners, days = zip(*rows, strict=True)
    return pa.table(
        {
            "flight": [f"UA{number}" for number in range(len(rows))],
            "flight_date": pa.array(days, pa.date32()),
            "tailnum": owners,
            "origin": random.choice(["EWR", "JFK", "LGA"], len(rows)).tolist(),
            "carrier": random.choice(["AA", "B6", "UA"], len(rows)).tolist(),
            "hour": random.integers(5, 23, len(rows)),
            "distance": random.integers(100, 3000, len(rows)),
            "dep_delay": random.integers(-20, 200, len(rows)),
        }
    )


def deployment_with_room_for_one(tmp_path: Path) -> Settings:
    """The demonstration's deployment with a cap under which one month fits for each aircraft, two do not."""
    deploy = tmp_path / "deploy"
    for part in ("contracts/flights.yaml", "families/new-york-aircraft.yaml", "dagster.yaml"):
        (deploy / part).parent.mkdir(parents=True, exist_ok=True)
        (deploy / part).write_bytes((PACKAGE_ROOT / "deploy" / part).read_bytes())
    file = deploy / "contracts" / "flights.yaml"
    contract = yaml.safe_load(file.read_text())
    contract["audit"] |= NO_CHANCE
    file.write_text(yaml.safe_dump(contract))
    file = deploy / "families" / "new-york-aircraft.yaml"
    family = yaml.safe_load(file.read_text())
    family["cap"]["epsilon"] = 2.75
    file.write_text(yaml.safe_dump(family))
    environment = {"DPSYNTH_HOME": tmp_path / "home", "DPSYNTH_DEPLOY": deploy, "DPSYNTH_USER": "runner"}
    return Settings.from_environment({name: str(value) for name, value in environment.items()})


def beside(settings: Settings, policy: str) -> Settings:
    """The deployment in which another policy was tried."""
    home = settings.home / "demonstrations" / f"flights-{policy}" / "home"
    return Settings.from_environment({"DPSYNTH_HOME": str(home)})


def participants(settings: Settings) -> list[np.ndarray]:
    ledger = Ledger(settings.ledger_url)
    return [ledger.participants(entry.entry_id) for entry in ledger.entries()]


class Heard:
    """Takes down what people would see."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def print(self, text: str) -> None:
        self.words.append(text)

    def heading(self, text: str) -> None:
        self.print(text)

    def table(self, header, rows) -> None:
        self.words += [" ".join(row) for row in rows]


def test_two_months_under_each_policy(tmp_path, monkeypatch):
    settings = deployment_with_room_for_one(tmp_path)
    path = source_path(settings.home, "flights")
    keep_table(path, few_flights(), key=("flight",), description="Few flights.")
    monkeypatch.setattr(demonstration_year, "make_source", lambda *_: path)

    def code_location(used: Settings) -> dg.Definitions:
        accelerator = InProcessAccelerator(device="cpu", logs=str(used.restricted / "logs"))
        return build_definitions(used, accelerator=accelerator)

    for name in ("DPSYNTH_HOME", "DPSYNTH_DEPLOY", "DPSYNTH_LEDGER_URL", "DPSYNTH_USER", "DAGSTER_HOME"):
        monkeypatch.setenv(name, "")  # so that what the runs export is taken back

    heard = Heard()
    summary = run_year(settings, code_location, 2, heard)

    assert [bool(month["release"]) for month in summary["months"]] == [True, True]
    assert all(month["spent"] for month in summary["months"])
    assert len(releases.listing(settings)) == 2
    assert summary["left_out_from"] == "2013-02"
    assert [item["fits"] for item in summary["paid"]] == [False]
    exclude, block = beside(settings, "exclude"), beside(settings, "block")
    assert [bool(month["release"]) for month in summary["policies"]["exclude"]] == [True, True]
    for used in (settings, exclude):  # who came back is left out: for want of budget here, by the policy there
        january, february = participants(used)
        assert min(len(january), len(february)) > AIRCRAFT / 5
        assert len(np.intersect1d(january, february)) == 0

    first, second = summary["policies"]["block"]
    assert first["release"] is not None
    assert second["release"] is None
    assert "This verdict looks at the data" in second["refused"]
    assert len(participants(block)) == 1
    assert "N00" not in "\n".join(heard.words) + json.dumps(summary)
    assert all(Ledger(used.ledger_url).verify().ok for used in (settings, exclude, block))
