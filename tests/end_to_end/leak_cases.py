"""Marks planted in a source, errors that quote them, and the search for them afterwards.

What belongs here: where marks stand, and in which forms they are looked for. What does not: assertions.
"""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import os
import re
import shutil
import sqlite3
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deployment import CONTRACT, Deployment
from line_cases import REGIONS

from dpsynth_platform.foundation import release_layout as layout

NAME = "Zaphodina Quillmarker"
SSN = "904-55-7731"
EMAIL = "zq.markedmail@leak.example"
OWNER = "MARKEDOWNER-0042"
UNLISTED = "markedregion"
MESSAGE = "markedmessage could not convert string"
MARKS = (NAME, SSN, EMAIL, OWNER, UNLISTED, "markedmessage")

MARKED_ROWS = 30
COUNT = 4391
"""Rows of the marked source: a number to be looked for."""

SPEAKING = f"""
import logging, os, sys, warnings
def speak(*values):
    text = "{MESSAGE}: {NAME} {SSN} {EMAIL} {OWNER} {UNLISTED} " + " ".join(map(str, values))
    print(text)
    print(text, file=sys.stderr)
    os.write(1, text.encode())
    os.write(2, text.encode())
    warnings.warn(text)
    logging.getLogger("some.package").error(text)
    logging.getLogger().critical(text)
    return text
"""
"""Code that speaks the marks in every way in which a library may."""

SPEAKING_SCRUBBER = f"""{SPEAKING}
from dpsynth_platform.scrub import scrub
_quiet_prepare = scrub._Scrubber.prepare
def _prepare(self, batch):
    speak(batch.column(0)[0])
    return _quiet_prepare(self, batch)
scrub._Scrubber.prepare = _prepare
"""
FAILING_WORKER = """
if "dpsynth_platform.worker" in sys.orig_argv:
    from dpsynth_platform.synth.tabular import domain
    def _encode(self, batch):
        try:
            raise KeyError(speak(batch.to_pylist()[:1]))
        except KeyError as error:
            failure = ValueError(speak(batch.schema))
            failure.add_note(speak())
            raise failure from error
    domain.Domain.encode = _encode
"""


def marked_table(rows: int = COUNT) -> pa.Table:
    """Fictional people; the first of them bear marks in every column that can hold text."""
    marked = range(MARKED_ROWS)
    person = [OWNER if row in marked else f"P{row * 2 // 3:05d}" for row in range(rows)]
    regions = ["east", "north", "south", "west"]
    return pa.table(
        {
            "person": pa.array(person),
            "visit": pa.array(range(rows), pa.int64()),
            "name": pa.array([NAME if row in marked else f"Name {row}" for row in range(rows)]),
            "ssn": pa.array([SSN if row in marked else f"900-10-{row % 9000 + 1000}" for row in range(rows)]),
            "note": pa.array(
                [f"{NAME} ({EMAIL}, {SSN}) will call." if row in marked else None for row in range(rows)], pa.string()
            ),
            "region": pa.array([UNLISTED if row in marked else regions[row % 4] for row in range(rows)]),
            "score": pa.array([row * 7 % 10 for row in range(rows)], pa.int64()),
            "outcome": pa.array(["yes" if row * 7 % 10 > 4 else "no" for row in range(rows)]),
        }
    )


def marked_deployment(root: Path, table: pa.Table | None = None) -> Deployment:
    """A deployment whose source is the marked table, or one like it."""
    contract = copy.deepcopy(CONTRACT)
    levels = [name for name in contract["columns"] if name.startswith("level_")]
    contract["columns"] = {name: column for name, column in contract["columns"].items() if name not in levels}
    contract["columns"]["region"] = {"type": "categorical", "values": REGIONS}
    contract["audit"] = {"canaries": 60, "confidence": 0.999999, "accept_inconclusive": "a test of other things"}
    contract["privacy"]["guarantee"] = {"epsilon": 0.5, "delta": 1e-7}
    deployment = Deployment(root, contract=contract)
    deployment.family["cap"] = {"epsilon": 20.0, "delta": 1e-5}
    return deployment.write().with_source(marked_table() if table is None else table)


def put_back(*roots: Path) -> None:
    """As if nothing below had been written for forty days, longer than anything is kept."""
    for root in roots:
        for path in (root, *root.rglob("*")):
            moment = path.stat().st_mtime - 40 * 86400
            os.utime(path, (moment, moment))


def found(marks: tuple[str, ...], root: Path, *, without: tuple[Path, ...] = ()) -> dict[str, list[str]]:
    """Which marks stand in which files below a directory, in any of the forms that are looked for."""
    hits: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and not any(path.is_relative_to(left_out) for left_out in without):
            hits |= {str(path): seen} if (seen := found_in(marks, path.read_bytes(), path)) else {}
    return hits


def count_forms(count: int) -> tuple[str, ...]:
    """How a count stands by itself in a file: longer numbers may begin with it."""
    return f'"{count}"', f" {count} ", f">{count}<", *(f": {count}{end}" for end in ",.;< })\n")


_GEOMETRY = re.compile(r' (?:d|c?x|c?y|r[xy]?|[xy][12]|width|height|viewBox|points|transform)="[^"]*"')


def without_noisy_counts(public: Path, target: Path) -> Path:
    """A copy of published releases without noisy counts, which are near exact ones and equal one now and then.

    Nor with the coordinates of drawings, which are whole numbers below 1,200: a count is one of them in 3,000 runs.
    """
    shutil.copytree(public, target)
    for file in target.rglob(layout.DOSSIER):
        dossier = json.loads(file.read_text())
        assert dossier["fidelity"]["tables"]
        file.write_text(json.dumps(dossier | {"fidelity": None}, indent=2, ensure_ascii=False))
    for file in target.rglob("*.html"):
        file.write_text(_GEOMETRY.sub("", file.read_text()))
    return target


def found_in(marks: tuple[str, ...], content: bytes, path: Path | None = None) -> list[str]:
    """Which marks some bytes hold: as they are, decoded as the container that they are, in hex, UTF-16 or base64."""
    forms = [part.lower() for part in (content, *_decoded(content, path))]
    return [mark for mark in marks if any(pattern in form for form in forms for pattern in _patterns(mark))]


def _patterns(mark: str) -> Iterator[bytes]:
    if mark.isdecimal():  # a number as files hold it
        yield from (struct.pack(form, int(mark)).lower() for form in ("<q", ">q", "<d", ">d"))
    for text in (mark, mark.replace(" ", "%20"), mark.replace(" ", "+")):
        plain = text.encode()
        yield plain.lower()
        yield text.encode("utf-16-le").lower()
        yield plain.hex().encode()
        # Of a short one, what is searched for would be so few characters that they stand in a hash by chance.
        for shift in range(3) if len(mark) > 10 else ():
            # The middle of the base64 form does not depend on what stands before and after it.
            yield base64.b64encode(b"\0" * shift + plain)[4:-4].lower()


def _decoded(content: bytes, path: Path | None) -> Iterator[bytes]:
    if content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)
    elif content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    elif content.startswith(b"PAR1"):
        table = pq.read_table(io.BytesIO(content))
        yield str(table.to_pylist()).encode()
        yield str(pq.read_metadata(io.BytesIO(content)).to_dict()).encode()
    elif content.startswith(b"SQLite format 3") and path is not None:
        # Long values are split over pages; a dump brings them together, the write-ahead log included.
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        yield "\n".join(connection.iterdump()).encode("utf-8", "surrogateescape")
        connection.close()


def spoken_in(logs: Path) -> set[str]:
    """Which of the marks restricted logs hold: where they must be, if they were spoken at all."""
    return {mark for marks in found(MARKS, logs).values() for mark in marks}
