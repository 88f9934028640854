"""The generator `ctcl`: fine-tuning as in `dp_finetune`, with each text's public topic in the prompt.

What belongs here: the bounded table with each record's topic. What does not: topics themselves (`topics`), the plan's
other parts (`sealing`), and all that `dp_finetune` does.

CTCL (Tan et al. 2025, section 3): a public topic model sorts the records; a noisy histogram gives the number of texts
of each topic; a small language model learns, with privacy, to write a text from a topic's keywords. Here the topic is
one more modelled column, whose values are the keywords of the topics: it is counted with the other columns, by the
method that suits them, so that topics and labels stay together, and it is the prompt's first line. Its cost is that of
counts with `topics.noise`; the training is calibrated in the same plan. Drawn rows have no such column.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.storage import HANDED, read_table, table_schema, write_table
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.synth.text.dp_finetune import DpFinetune
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.sealing import TextParameters
from dpsynth_platform.synth.text.topics import with_topics

STAGE = "topics"


class Ctcl(DpFinetune):
    """The generator `ctcl`."""

    method = "ctcl"

    @contextmanager
    def training_table(self, parameters: TextParameters, run: MechanismRun) -> Iterator[Path]:
        """The bounded table with a column of keywords, deleted at the end. It is as sensitive as the bounded table."""
        # With the suffix of handed tables: the next sweep deletes what a crash leaves there.
        place = run.directory.with_name(f"{run.directory.name}-topics{HANDED}")
        shutil.rmtree(place, ignore_errors=True)
        try:
            run.progress(STAGE, 0, 1)
            with private_files():
                _sort(run.bounded, place, parameters)
            run.progress(STAGE, 1, 1)
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _sort(bounded: Path, place: Path, parameters: TextParameters) -> None:
    assert parameters.topics is not None  # noqa: S101  (the contract fills them for this method)
    schema = table_schema(bounded).append(pa.field(KEYWORDS_COLUMN, pa.string()))
    topics, encoder = parameters.topics.load(), SentenceEncoder("cpu")

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in read_table(bounded):
            sorted_by = with_topics(pa.Table.from_batches([batch]), parameters.layout.fields[0], topics, encoder)
            yield from sorted_by.cast(schema).to_batches()

    write_table(place, schema, batches())
