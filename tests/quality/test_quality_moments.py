"""Hours, weekdays and gaps in the quality report: what a histogram of days does not show."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.moments import measure_moments, of_tables
from dpsynth_platform.quality.report import measure_quality, measure_tables
from dpsynth_platform.quality.report_rows import moments_rows

HOUR, DAY = 3_600_000_000, 86_400_000_000
FIRST = (dt.datetime(2026, 1, 1) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
ROWS = 4000


def trips(seed: int, *, flat: bool = False, minutes: float = 11, apart: bool = False) -> pa.Table:
    """Trips of the rush hours, or of all hours alike; rides of so many minutes, or ends of other trips."""
    rng = np.random.default_rng(seed)
    hours = rng.integers(0, 24, ROWS) if flat else rng.choice([8, 17], ROWS)
    start = FIRST + rng.integers(0, 364, ROWS) * DAY + hours * HOUR + rng.integers(0, HOUR, ROWS)
    end = start + np.int64(1) * (rng.exponential(minutes, ROWS) * 60_000_000).astype(np.int64)
    end = rng.permutation(end) if apart else end
    kind = pa.timestamp("us")
    return pa.table(
        {
            "pickup": pa.array(start).cast(kind),
            "dropoff": pa.array(end).cast(kind),
            "paid": rng.choice(["cash", "card"], ROWS),
        }
    )


def contract() -> DataContract:
    moment = {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T23:59:59"}
    document = {
        "dataset": "trips",
        "description": "Trips that exist in tests only.",
        "owners": ["nobody@example.org"],
        "source": {"uri": "/nowhere", "key": ["trip"]},
        "family": "trips",
        "privacy": {
            "unit": "user",
            "owner_columns": ["trip"],
            "namespace": "trip",
            "max_contributions": 1,
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        },
        "columns": {
            "trip": {"type": "identifier"},
            "pickup": moment,
            "dropoff": moment | {"nullable": True},
            "paid": {"type": "categorical", "values": ["cash", "card"]},
        },
        "generate": {"rows": 100, "constraints": [{"ascending": ["pickup", "dropoff"]}]},
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="test", variables={})


def test_flat_hours_show_though_days_do_not() -> None:
    report = measure_quality(contract(), None, trips(1), trips(2, flat=True), trips(3))
    days = {item.column: item.synthetic for item in report.fidelity.columns}
    assert days["pickup"] < 0.1
    hours, weekdays, *_ = report.moments.parts
    assert (hours.column, hours.part, weekdays.part) == ("pickup", "hour of day", "weekday")
    # Two of 24 hours: 22/24 of the mass is elsewhere. Tables are fixed. What is resampled differs by .02 of 7 weekdays,
    # give or take .005: 12 deviations.
    assert hours.synthetic == pytest.approx(22 / 24, abs=0.03)
    assert hours.flat == pytest.approx(22 / 24, abs=0.01)
    assert max(hours.resampled, weekdays.synthetic, weekdays.resampled) < 0.08


def test_lost_gaps_show_and_kept_ones_too() -> None:
    kept = measure_quality(contract(), None, trips(1), trips(2), trips(3)).moments.gaps[0]
    lost = measure_quality(contract(), None, trips(1), trips(2, apart=True), trips(3)).moments.gaps[0]
    assert (kept.earlier, kept.later, kept.unit) == ("pickup", "dropoff", "s")
    # Of 4000 rows in 32 cells, two samples differ by 16 * 0.8 * sqrt(2 / 32 / 4000) = .05, give or take .006.
    assert kept.synthetic < 0.12
    assert kept.resampled < 0.12
    assert kept.independent > 0.9
    assert lost.synthetic > 0.9
    assert (kept.real_median, kept.median) == pytest.approx([11 * 60 * np.log(2)] * 2, rel=0.1)
    assert (kept.broken, kept.real_broken) == (0, 0)
    assert lost.broken == pytest.approx(0.5, abs=0.05)
    rows = {
        row[0]: row for row in moments_rows(measure_quality(contract(), None, trips(1), trips(2), trips(3)).moments)
    }
    assert rows["gap, pickup to dropoff: median"][1].endswith(" min")
    assert rows["hour of day distance, dropoff"][3] != ""


def test_the_report_shows_them_and_json_has_no_numbers_that_are_none() -> None:
    real = trips(1)
    nothing = real.set_column(1, "dropoff", pa.nulls(ROWS, pa.timestamp("us")))
    report = measure_quality(contract(), None, real, nothing, trips(3))
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["moments"]["gaps"][0]["median"] is None
    shown = {row[0]: row for row in report.table()}
    assert shown["gap, pickup to dropoff: median"][1:3] == ("not available", "7.8 min")
    assert "hour of day distance, pickup" in report.markdown()
    assert "hour of day distance, dropoff" not in shown


def test_days_times_and_numbers() -> None:
    days, rng = np.arange(1000, dtype=np.int32), np.random.default_rng(1)
    real = pa.table(
        {
            "day": pa.array(days // 7 * 7 + 4).cast(pa.date32()),  # Mondays
            "end": pa.array(days // 7 * 7 + 4 + days % 3).cast(pa.date32()),
            "opens": pa.array(rng.integers(8, 10, 1000) * HOUR).cast(pa.time64("us")),
            "least": days,
            "most": days + 5,
        }
    )
    synthetic = real.set_column(0, "day", pa.array(days).cast(pa.date32()))
    found = measure_moments(of_tables(real, synthetic), [["day", "end"], ["least", "most"]])
    parts = {(item.column, item.part): item for item in found.parts}
    assert parts["day", "weekday"].synthetic == pytest.approx(6 / 7, abs=0.01)
    assert parts["opens", "hour of day"].synthetic == 0
    of_days = {(name, part) for name in ("day", "end") for part in ("weekday", "calendar month", "month")}
    assert set(parts) == of_days | {("opens", "hour of day")}
    assert [(gap.unit, gap.real_median) for gap in found.gaps] == [("days", 1.0), ("", 5.0)]
    assert (found.gaps[0].broken, found.gaps[0].real_broken) == (pytest.approx(1 / 7, abs=0.001), 0)
    assert measure_moments(of_tables(real.select(["least"]), synthetic.select(["least"])), []) is None


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (["pickup", "paid"], "'paid' is not a column that has an order"),
        (["pickup"], "pickup .datetime.; accepted: two or more"),
        (["pickup", "pickup"], "accepted: two or more"),
        (["pickup", "nowhere"], "ascending: no column 'nowhere' in the real table"),
    ],
)
def test_orders_are_of_columns_that_have_one(order: list[str], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        measure_tables(trips(1), trips(2), "paid", orders=[order])


def test_the_command_takes_orders(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    for name, table in (("real", trips(1)), ("made", trips(2, apart=True))):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    asked = [
        "quality",
        "table",
        "--real",
        str(tmp_path / "real.parquet"),
        "--synthetic",
        str(tmp_path / "made.parquet"),
    ]
    result = CliRunner().invoke(app, [*asked, "--target", "paid", "--ascending", "pickup,dropoff"])
    output = result.output + "".join(capfd.readouterr())
    assert result.exit_code == 0, output
    for words in ("hour of day distance, pickup", "weekday distance, dropoff", "gap distance, pickup to dropoff"):
        assert words in output
    refused = CliRunner().invoke(app, [*asked, "--target", "paid", "--ascending", "pickup"])
    assert refused.exit_code == 1


def moments_of(values: np.ndarray) -> pa.Table:
    return pa.table({"at": pa.array(values).cast(pa.timestamp("us"))})


def test_months_of_the_year_and_months_of_all_years_are_two_things() -> None:
    """Synthetic rows of the next year: the calendar agrees, and no month does. By hand: one day in each month."""
    days = np.array([(dt.date(2025, month, 15) - dt.date(1970, 1, 1)).days for month in range(1, 13)] * 10)
    real, later = moments_of(days * DAY), moments_of((days + 365) * DAY)
    found = {item.part: item for item in measure_moments(of_tables(real, later), []).parts}
    assert found["calendar month"].synthetic == 0.0
    assert found["month"].synthetic == 1.0
    assert found["month"].flat == pytest.approx(0.5)  # twelve of 24 months
    half = {item.part: item for item in measure_moments(of_tables(real, moments_of(days[:120:12] * DAY)), []).parts}
    assert half["calendar month"].synthetic == pytest.approx(11 / 12)


def test_bursts_show_in_the_gaps_of_successive_rows_and_not_in_months() -> None:
    """A thousand visits of ten rows within a second each, against rows of their own moment. The states are fixed."""
    rng = np.random.default_rng(5)
    visits = FIRST + rng.integers(0, 365 * DAY, 1000)
    real = moments_of(np.repeat(visits, 10) + rng.integers(0, 1_000_000, 10_000))
    alone = moments_of(FIRST + rng.integers(0, 365 * DAY, 10_000))
    (found,) = measure_moments(of_tables(real, alone), []).arrivals
    # In a half of the rows, visits have five each: four of five gaps are below a second, where evenly spread ones are
    # about an hour and a half.
    assert found.synthetic == pytest.approx(0.8, abs=0.05)
    assert found.flat == pytest.approx(0.8, abs=0.05)
    assert found.real < 0.05
    (same,) = measure_moments(of_tables(real, real), []).arrivals
    assert same.synthetic < 0.05
    assert measure_moments(of_tables(real, alone), []).arrivals == (found,), "it is repeatable"
    few = measure_moments(of_tables(real.slice(0, 99), alone), [])
    assert few.arrivals == ()
