"""What single owners have left: class by class, against sums taken owner by owner."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpsynth_platform.ledger.filter import RenyiFilter, add_up
from dpsynth_platform.ledger.owners import from_blob
from dpsynth_platform.ledger.spending import owner_spending
from dpsynth_platform.ledger.standing import Standing
from dpsynth_platform.privacy.renyi import zcdp_curve

SEALED = RenyiFilter.seal(4.0, 1e-6)
COST = SEALED.cost(zcdp_curve(0.02))


def people(*numbers: int) -> np.ndarray:
    return from_blob(b"".join(number.to_bytes(16, "big") for number in sorted(numbers)))


def test_each_class_has_left_what_its_members_have_left() -> None:
    standing = Standing.empty(SEALED.nothing)
    for members in (people(1, 2, 3, 4), people(3, 4), people(4, 5)):
        standing = standing.charged(members, COST)
    times = {1: 1, 2: 1, 3: 2, 4: 3, 5: 1}

    def left(number: int) -> float:
        total = SEALED.nothing
        for _ in range(times[number]):
            total = add_up(total, COST)
        return SEALED.left_beside(total, SEALED.delta)

    report = owner_spending("people", SEALED, standing)
    assert report.owners == 5
    assert [(part["owners"], part["epsilon_left"]) for part in report.classes] == [
        (1, left(4)),
        (1, left(3)),
        (3, left(1)),
    ]
    assert report.worst_epsilon_left == left(4) < left(3) < left(1) < report.epsilon_left_unspent
    assert report.epsilon_left_quantiles["0"] == left(1)
    assert report.epsilon_left_quantiles["1"] == left(4)
    assert report.exhausted == 0
    json.dumps(report.to_json(), allow_nan=False)


def test_exhausted_owners_are_counted() -> None:
    dear = SEALED.cost(zcdp_curve(100.0))
    report = owner_spending("people", SEALED, Standing.empty(SEALED.nothing).charged(people(1, 2), dear))
    assert (report.exhausted, report.worst_epsilon_left) == (2, 0.0)


def test_where_nobody_was_charged_nobody_is_worst() -> None:
    report = owner_spending("people", SEALED, None)
    assert (report.owners, report.worst_epsilon_left, report.classes) == (0, None, ())
    assert report.epsilon_left_unspent == pytest.approx(SEALED.left_beside(SEALED.nothing, SEALED.delta))
