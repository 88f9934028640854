"""Cadences of contracts: which keys are accepted, and when a run of a period is due."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest
import yaml

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.periods import Cron
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT

VISITS = yaml.safe_load((PACKAGE_ROOT / "deploy/contracts/visits.yaml").read_text(encoding="utf-8"))


def visits(**release: Any) -> DataContract:
    document = copy.deepcopy(VISITS)
    document["release"] |= release
    return parse_contract(document, where="visits", variables={"DPSYNTH_HOME": "/home"})


def test_no_new_key_changes_a_mechanism_or_is_in_a_contract_without_it() -> None:
    before, other = visits(), visits(schedule="0 6 3 * *", overdue_after="12h")
    assert before.snapshot()["release"].keys() == VISITS["release"].keys() | {"license"}
    assert before.mechanism_snapshot() == other.mechanism_snapshot()
    assert (before.release.cron, other.release.cron) == ("0 0 1 * *", "0 6 3 * *")
    assert (before.release.grace, other.release.grace) == (dt.timedelta(days=3), dt.timedelta(hours=12))


@pytest.mark.parametrize(
    ("cadence", "start"), [("weekly", "2026-02-02-week"), ("monthly", "2026-02"), ("quarterly", "2026-04-quarter")]
)
def test_the_first_period_is_one_of_the_cadence(cadence: str, start: str) -> None:
    assert visits(cadence=cadence, start=start).release.start == start
    for other in {"weekly", "monthly", "quarterly"} - {cadence}:
        with pytest.raises(ContractError, match=rf"release\.start: '{start}'; accepted for the cadence {other}: YYYY"):
            visits(cadence=other, start=start)
    with pytest.raises(ContractError, match=r"release\.start: '2026-02-03-week'"):
        visits(cadence="weekly", start="2026-02-03-week")


@pytest.mark.parametrize(
    ("cron", "first"),
    [
        ("0 6 3 * *", "2026-03-03T06:00"),
        ("30 23 1,15 * *", "2026-03-01T23:30"),
        ("0 0 28 2 *", "2027-02-28T00:00"),
        ("5 4 * * 2", "2026-03-03T04:05"),
        ("5 4 * * 0", "2026-03-01T04:05"),
        ("0 12 * * *", "2026-03-01T12:00"),
    ],
)
def test_when_a_run_is_due(cron: str, first: str) -> None:
    assert visits(schedule=cron).release.schedule == cron
    assert Cron.parse(cron).first_from(dt.date(2026, 3, 1)) == dt.datetime.fromisoformat(first)


@pytest.mark.parametrize(
    "cron",
    [
        *("", "@daily", "* 6 3 * *", "0 * 3 * *", "0 6 31 * *", "0 6 3 * 1", "60 6 3 * *", "0 24 3 * *"),
        *("0,30 6 3 * *", "0 6 3 * * *", "0  6 3 * *", "0 6 */2 * *", "0 6 1-5 * *", "0 6 0 * *", "0 6 * 13 *"),
        *("0 6 * * 7", "0 6 , * *"),
    ],
)
def test_another_expression_is_refused(cron: str) -> None:
    with pytest.raises(ContractError, match=r"release\.schedule: .*accepted: cron with one minute, one hour"):
        visits(schedule=cron)
