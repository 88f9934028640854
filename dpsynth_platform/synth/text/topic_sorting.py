"""Records with the public topic of each text, for the methods that sort texts by topics.

What belongs here: the sorted table, the same for rows of an audit, and the words about it. What does not: topics
themselves (`topics`), their number (`sealing`), and what a method does with them (`ctcl`, `inference`).

A topic is one more modelled column, whose values are the keywords of the topics: it is counted with the other columns,
by the method that suits them, so that topics and labels stay together, and it is a prompt's first line. Its cost is
that of counts with `topics.noise`. Drawn rows have no such column.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.storage import HANDED, read_table, table_schema, write_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.sealing import PlanParameters
from dpsynth_platform.synth.text.topics import TopicChoice, with_topics

STAGE = "topics"


@contextmanager
def sorted_records(parameters: PlanParameters, run: MechanismRun) -> Iterator[Path]:
    """The bounded table with a column of keywords, deleted at the end; without topics, the bounded table itself.

    It is as sensitive as the bounded table. Each of its records depends on one bounded record only, so that one record
    more or less changes no other.
    """
    if parameters.topics is None:
        yield run.bounded
        return
    # With the suffix of handed tables: the next sweep deletes what a crash leaves there.
    place = run.directory.with_name(f"{run.directory.name}-topics{HANDED}")
    shutil.rmtree(place, ignore_errors=True)
    try:
        run.progress(STAGE, 0, 1)
        with private_files():
            _sort(run.bounded, place, parameters.topics, parameters.layout)
        run.progress(STAGE, 1, 1)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _sort(bounded: Path, place: Path, choice: TopicChoice, layout: TextLayout) -> None:
    schema = table_schema(bounded).append(pa.field(KEYWORDS_COLUMN, pa.string()))
    topics, encoder = choice.load(), SentenceEncoder("cpu")

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in read_table(bounded):
            sorted_by = with_topics(pa.Table.from_batches([batch]), layout.fields[0], topics, encoder)
            yield from sorted_by.cast(schema).to_batches()

    write_table(place, schema, batches())


def as_learned(plan: SealedPlan, records: pa.Table) -> pa.Table:
    """Records with all columns that the mechanism used: with a topic where texts are sorted by topics.

    Args:
        records: with the text column; milliseconds each where topics are added.
    """
    choice = plan.parameters.get("topics")
    if choice is None or KEYWORDS_COLUMN in records.column_names:
        return records
    layout = TextLayout.from_json(plan.parameters["layout"])
    return with_topics(records, layout.fields[0], TopicChoice(**choice).load(), SentenceEncoder("cpu"))


def topics_in_words(parameters: PlanParameters, delta: float) -> str:
    """The topics that a model is given, and what they cost; empty without topics."""
    counts = counted.event_of(parameters.columns)
    if parameters.topics is None or counts is None:
        return ""
    return (
        f". {KEYWORDS_COLUMN} are those of the one of {parameters.topics.level} public topics that a record's text is "
        "nearest to, if it is near to any; counting all columns including them costs epsilon "
        f"{upper_bound(epsilon(counts, delta).epsilon, 3)} alone"
    )
