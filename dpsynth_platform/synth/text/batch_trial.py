"""A trial of how records become batches, with made-up records, before any real record is read.

What belongs here: made-up records, processed like real ones (`examples`), and an independent computation of the
expected result. What does not: judging batches (`training.validators`), and the model. One row must be one example, and
each sampled unit must be one record or one owner. If records were packed into rows, or the pieces of a record sampled
one by one, the noise would be scaled for another unit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.text.examples import Examples, write_examples
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.training import validators

_WORDS = ("a", "b c", "the parcel came late", "d\ne", "one two three four five six seven", "f")
_RECORDS_PER_OWNER = 2


def refuse_batches(encoder: Encoder) -> None:
    """Makes examples and batches of made-up records. Raises `TrainingRefused` with every difference to the expected."""
    records = list(_made_up(encoder.layout))
    schema = pa.schema([(name, pa.string()) for name in (*encoder.layout.columns, OWNER_COLUMN)])
    with tempfile.TemporaryDirectory(prefix="dpsynth-trial-") as place:
        write_table(Path(place) / "table", schema, pa.Table.from_pylist(records, schema).to_batches())
        write_examples(Path(place) / "table", Path(place) / "examples", encoder)
        faults = _faults(Examples(Path(place) / "examples"), [list(_pieces(record, encoder)) for record in records])
    validators.refuse(faults)


def _made_up(layout: TextLayout) -> Iterator[dict[str, str | None]]:
    """Short records and one that is too long, with every condition's first values; owners have several records."""
    longer = "word " * (layout.max_tokens * min(layout.chunks_per_record, 2) + 5)
    for number, text in enumerate((*_WORDS, longer.strip())):
        given = {part.column: part.values[number % len(part.values)] for part in layout.conditions}
        written = dict.fromkeys(layout.fields, text)
        yield given | written | {OWNER_COLUMN: f"{number // _RECORDS_PER_OWNER:032x}"}


def _pieces(record: dict[str, str | None], encoder: Encoder) -> Iterator[list[int]]:
    """The expected tokens of each example of a record."""
    layout = encoder.layout
    given, body = layout.given(record), layout.body(record)
    assert given is not None and body is not None  # noqa: S101  (`_made_up` ensures it)
    left = [*encoder.bodies([body])[0], encoder.eos]
    for number in range(layout.chunks_per_record):
        prompt = encoder.prompt(given, continued=number > 0)
        room = layout.max_tokens - len(prompt)
        yield [*prompt, *left[:room]]
        left = left[room:]
        if not left:
            return


def _faults(examples: Examples, pieces: list[list[list[int]]]) -> list[str]:
    tokens = [piece for of_record in pieces for piece in of_record]
    if len(examples) != len(tokens):
        return [
            f"batches: {len(pieces)} records became {len(examples)} examples, not {len(tokens)}; one example must be "
            "one record, or one piece of it: turn packing and splitting off"
        ]
    faults = validators.faults_of_batches(examples.batch, tokens)
    numbers = iter(range(len(tokens)))
    records = [[next(numbers) for _ in of_record] for of_record in pieces]
    owners = [
        [position for record in records[start : start + _RECORDS_PER_OWNER] for position in record]
        for start in range(0, len(records), _RECORDS_PER_OWNER)
    ]
    if (examples.units("record") or [[number] for number in range(len(tokens))]) != records:
        faults.append("batches: a sampled and clipped unit is not one record; keep all pieces of a record together")
    if examples.units("user") != owners:
        faults.append("batches: a sampled and clipped unit is not one owner; keep all records of an owner together")
    return faults
