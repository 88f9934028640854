"""A trial of how records become batches, on made-up records, before any real one is read.

What belongs here: made-up records on the very way of real ones (`examples`), and what should come of them, worked out
by itself. What does not: judging batches (`training.validators`), and the model. One row must be one example, and what
is sampled together must be what one record or one owner has; where records were packed into rows, or a record's pieces
drawn one by one, the noise would be scaled for something else.
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
    """Makes examples and batches of made-up records, and holds them against what they should be.

    Args:
        encoder: the layout in the model's tokens.

    Raises:
        TrainingRefused: names every fault.
    """
    records = list(_made_up(encoder.layout))
    schema = pa.schema([(name, pa.string()) for name in (*encoder.layout.columns, OWNER_COLUMN)])
    with tempfile.TemporaryDirectory(prefix="dpsynth-trial-") as place:
        write_table(Path(place) / "table", schema, pa.Table.from_pylist(records, schema).to_batches())
        write_examples(Path(place) / "table", Path(place) / "examples", encoder)
        faults = _faults(Examples(Path(place) / "examples"), [list(_pieces(record, encoder)) for record in records])
    validators.refuse(faults)


def _made_up(layout: TextLayout) -> Iterator[dict[str, str | None]]:
    """Short records and one that is too long, with every condition's first values, some of them one owner's."""
    longer = "word " * (layout.max_tokens * min(layout.chunks_per_record, 2) + 5)
    for number, text in enumerate((*_WORDS, longer.strip())):
        given = {part.column: part.values[number % len(part.values)] for part in layout.conditions}
        written = dict.fromkeys(layout.fields, text)
        yield given | written | {OWNER_COLUMN: f"{number // _RECORDS_PER_OWNER:032x}"}


def _pieces(record: dict[str, str | None], encoder: Encoder) -> Iterator[list[int]]:
    """The tokens of each example that a record should become."""
    layout = encoder.layout
    given, body = layout.given(record), layout.body(record)
    assert given is not None and body is not None  # noqa: S101  (they are made up so)
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
        faults.append("batches: what is drawn and clipped as one is not one record; keep all pieces of it together")
    if examples.units("user") != owners:
        faults.append("batches: what is drawn and clipped as one is not one owner; keep all records of one together")
    return faults
