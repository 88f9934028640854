"""Columns whose values are nearly all missing or unlisted: what the paid counts show, and how certainly."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import TABLE_METHODS, generator
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.missing import (
    FILE,
    SIGMAS,
    MissingShare,
    check_missing,
    missing_in_words,
    missing_shares,
    mostly_missing,
    read_missing,
    write_missing,
)
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

DOMAIN = Domain(
    (
        ColumnDomain("city", "categorical", False, values=("Aix", "Bern")),
        ColumnDomain("member", "boolean", True),
    )
)


def counted(*counts, sigma=10.0):
    return [NoisyCounts((index,), np.array(cells, dtype=np.int64), sigma) for index, cells in enumerate(counts)]


def test_a_column_without_listed_values_is_found_and_one_with_half_of_them_is_not():
    empty, half = missing_shares(DOMAIN, counted([2, 3, 9_995], [2_500, 2_500, 5_000]))
    assert (empty.column, empty.nullable, half.nullable) == ("city", False, True)
    assert empty.share == pytest.approx(0.9995, abs=1e-3)
    assert 0.98 < empty.at_least < empty.share
    assert half.share == 0.5
    assert half.at_least < 0.5
    assert mostly_missing([empty, half]) == [empty]
    (message,) = missing_in_words([empty, half], {"city": "City of birth"})
    assert message.startswith("Column City of birth: about 100.0% (by noisy counts; surely above 99.")
    assert "compare the declared values" in message
    assert "compare" not in missing_in_words([empty], advice=False)[0]


def test_what_noise_may_explain_is_never_said():
    # 60 records in all with noise of 40 a cell: the last cell holds 60%, which shows nothing.
    shares = missing_shares(DOMAIN, counted([10, 14, 36], [30, 30, 0], sigma=40.0))
    assert not mostly_missing(shares)
    assert missing_shares(DOMAIN, counted([-5, -9, 12], [3, 3, -9], sigma=40.0))[0].at_least == 0.0


def test_the_bound_is_too_high_as_seldom_as_it_says():
    """Of true share a half, `at_least` is above it where a normal variable exceeds SIGMAS: 9.7e-7 of the time.

    At SIGMAS the draws show nothing; at one standard deviation 15.87% are expected. Of 4,000 fixed draws the number is
    binomial with a standard deviation of 23, so that 635 give or take 150 covers more than six of them.
    """
    rng = np.random.default_rng(4)
    exact, sigma, above = np.array([[300, 300, 600], [400, 500, 300]]), 25.0, 0
    for _ in range(4_000):
        noisy = np.rint(exact + rng.normal(0, sigma, exact.shape)).astype(np.int64)
        item = missing_shares(DOMAIN, counted(*noisy, sigma=sigma))[0]
        assert item.at_least < 0.5
        above += (item.share - 0.5) > item.error
    assert abs(above - 635) < 150


def test_the_bound_solves_the_equation_that_it_is_derived_from():
    one_way = counted([100, 50, 900], [300, 700, 40], sigma=20.0)
    item, variance = missing_shares(DOMAIN, one_way)[0], one_way[0].variance
    # Both columns have three cells and the same noise, so each sum has half of the weight.
    total, of_total, own = (1050 + 1040) / 2, 3 * variance / 2, variance
    t = item.at_least
    spread = math.sqrt(own - 2 * t * own / 2 + t**2 * of_total)
    assert 900 - t * total == pytest.approx(SIGMAS * spread, rel=1e-9)


@pytest.mark.parametrize("method", TABLE_METHODS)
@pytest.mark.parametrize("nullable", [False, True])
def test_every_method_knows_the_column_that_has_no_listed_value(method, nullable, tmp_path):
    city = {"type": "categorical", "values": ["aix", "bern"], "nullable": nullable}
    contract = contract_with(columns__city=city, privacy__guarantee={"epsilon": 4.0, "delta": 1e-5})
    made = generator(method)
    plan = made.plan(contract, SCHEMA, Guarantee.target(contract))
    bounded = write_bounded(people(3000), tmp_path / "bounded")  # Aix, Bern: none is listed as it is spelt
    made.fit(plan, bounded, grant_for(plan), tmp_path)
    shares = made.draw(tmp_path, 10).missing
    assert [item.column for item in shares] == ["age", "score", "day", "city", "member"]
    assert [item.column for item in mostly_missing(shares)] == ["city"]
    (item,) = mostly_missing(shares)
    # By MST the noise of a cell is below 10 at this epsilon, of some 3,000 records.
    assert item.share > 0.95
    assert item.at_least > 0.8


def test_values_that_are_learned_count_as_missing_where_none_was(tmp_path):
    learned = {"type": "categorical", "values": "learned", "most": 5}
    contract = contract_with(columns__city=learned)
    plan = generator("independent").plan(contract, SCHEMA, Guarantee.target(contract))
    table = people(3000)
    each = pa.array([f"town {index}" for index in range(3000)])  # no value is shared: none can be learned
    table = table.set_column(table.schema.get_field_index("city"), "city", each)
    generator("independent").fit(plan, write_bounded(table, tmp_path / "bounded"), grant_for(plan), tmp_path)
    assert [item.column for item in mostly_missing(generator("independent").draw(tmp_path, 10).missing)] == ["city"]


SHARES = (MissingShare("city", 0.97, 0.95, 0.004, False), MissingShare("member", 0.62, 0.6, 0.004, True))


@pytest.mark.parametrize(
    ("limit", "named"),
    [(None, ()), (0.99, ()), (0.7, ("city",)), (0.5, ("city", "member")), ({"member": 0.5}, ("member",)), ({}, ())],
)
def test_a_limit_refuses_what_is_surely_above_it(limit, named):
    if not named:
        check_missing("people", SHARES, limit)
        return
    with pytest.raises(ReleaseRefused) as refused:
        check_missing("people", SHARES, limit)
    message = str(refused.value)
    for name in ("city", "member"):
        assert (f"{name}:" in message) == (name in named)
    assert "release.max_missing" in message
    assert "Accepted:" in message


def test_shares_come_back_from_their_file_and_garbage_is_refused(tmp_path):
    assert read_missing(tmp_path) is None
    write_missing(tmp_path, SHARES)
    assert read_missing(tmp_path) == SHARES
    for garbage in (b"", b"[1]", b"[{}]", b"{", b"\xff", json.dumps([{"column": 1}]).encode()):
        (tmp_path / FILE).write_bytes(garbage)
        with pytest.raises(ReleaseRefused, match="cannot be read"):
            read_missing(tmp_path)


def test_the_noise_is_that_of_the_mechanism():
    """By real draws: the reported error is the estimate's.

    The standard deviation of a sample deviation of 400 draws is 3.5% of it, so that a quarter is seven of them: less
    than once in 10^11 times.
    """
    exact, sigma = np.array([1_000, 3_000, 6_000]), 60.0
    shares = []
    for _ in range(400):
        noisy = [sample_rounded_gaussian(exact, sigma) for _ in range(2)]
        shares.append(missing_shares(DOMAIN, counted(*noisy, sigma=sigma))[0])
    assert float(np.std([item.share for item in shares])) == pytest.approx(shares[0].error, rel=0.25)
