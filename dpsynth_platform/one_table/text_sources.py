"""Labelled public texts for a comparison of methods: SynBench's nine sets, or any file.

What belongs here: what is known of the sets, and reading texts with their labels. What does not: declaring a file
public (`comparison.faults`), and what is done with the texts (`text_comparison`).

A set is read from a file that you have: nothing is downloaded, and three sets need an agreement with their owners.
Numbers of texts and labels are those of SynBench's table 1, where files are as their authors prepared them. The paper
publishes neither columns nor splits: columns are named here where the public file has them, and must be named
otherwise; without a file of held-out texts, a fifth is held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text, plain_type
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.quality.text.labels import joined, label_sets, parted
from dpsynth_platform.sources.declared_types import is_bytes

TEXT, LABEL = "text", "label"
"""Columns of the tables that are compared; `labels.joined` gives several labels one value."""
SCHEMA = pa.schema([(LABEL, pa.string()), (TEXT, pa.string())])


@dataclass(frozen=True)
class TextSet:
    """One set of SynBench's table 1.

    Attributes:
        about: what the texts are, in public words.
        texts, labels: their numbers.
        several: whether a text may have several labels.
        access: how to get it.
        text, label: columns of the public file, where they are known.
    """

    about: str
    texts: int
    labels: int
    several: bool
    access: str
    text: str | None = None
    label: str | None = None


_HUB = "free, huggingface.co/datasets/"
SYNBENCH = {
    "hoc": TextSet(
        "Sentences of abstracts about cancer, with the hallmarks of cancer that they speak of.",
        10_301,
        10,
        True,
        "free on Hugging Face",
        "text",
        "label",
    ),
    "n2c2-08": TextSet(
        "Discharge summaries, with the comorbidities of obesity.", 620, 16, True, "data use agreement, by approval"
    ),
    "psytar": TextSet(
        "Sentences of patients' posts about psychiatric drugs, with what they report.",
        5_102,
        7,
        True,
        "data use agreement",
    ),
    "mimic": TextSet(
        "Discharge summaries, with the groups of their diagnoses.", 4_971, 21, True, "data use agreement, credentials"
    ),
    "dmsafn": TextSet(
        "Sentences of financial news, with their sentiment.",
        3_876,
        3,
        False,
        f"{_HUB}Daniel-ML/sentiment-analysis-for-financial-news-v2",
    ),
    "lc37fnd": TextSet("Financial news, with their sentiment.", 5_620, 3, False, "free on Hugging Face"),
    "zstfns": TextSet(
        "Tweets about finance, with their sentiment.",
        9_938,
        3,
        False,
        f"{_HUB}zeroshot/twitter-financial-news-sentiment",
        "text",
        "label",
    ),
    "asylex": TextSet("Decisions about asylum, with their outcome.", 7_999, 3, False, "free on Hugging Face"),
    "eurlex": TextSet("Laws of the European Union, with their concepts.", 4_942, 8, True, "free on Hugging Face"),
}
"""By the names that `dpsynth bench text --set` accepts."""


def named_set(name: str | None) -> TextSet | None:
    """The set of a name. Raises `SourceError` for an unknown one."""
    if name is not None and name not in SYNBENCH:
        raise SourceError(f"set {name!r}; accepted: {', '.join(SYNBENCH)}, or no set with --text and --label")
    return None if name is None else SYNBENCH[name]


def labelled_texts(path: Path, text: str, label: str, separator: str | None) -> tuple[pa.Table, int]:
    """The texts of a file with their labels (`SCHEMA`), and the number of rows that lack one of both.

    Args:
        label: a column of texts, numbers, or lists of them.
        separator: between several labels in one text.

    Raises `SourceError` if the file cannot be read or the columns are unsuitable.
    """
    table = read_file(path)
    for role, column in (("text", text), ("label", label)):
        if table.column_names.count(column) != 1:
            raise SourceError(
                f"{role}: no column {column!r} in {path}, or two; accepted: {', '.join(table.column_names)}"
            )
    if not is_text(table.schema.field(text).type):
        raise SourceError(f"text: column {text!r} of {path} holds no text; accepted: a column of texts")
    if not _names_labels(table.schema.field(label).type):
        raise SourceError(
            f"label: column {label!r} of {path} holds no labels; accepted: a column of texts, numbers, dates, or lists "
            "of them"
        )
    sets = label_sets(table[label].to_pylist(), separator)
    rows = [
        {LABEL: joined(own), TEXT: words}
        for own, words in zip(sets, table[text].to_pylist(), strict=True)
        if own is not None and words and not words.isspace()
    ]
    return pa.Table.from_pylist(rows, SCHEMA), table.num_rows - len(rows)


def _names_labels(type_: pa.DataType) -> bool:
    """Whether values of a type can be labels: neither bytes nor parts with names."""
    types = pa.types
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return _names_labels(type_.value_type)
    return not (types.is_nested(type_) or is_bytes(plain_type(type_)))


def unlearned(table: pa.Table, held_out: pa.Table) -> list[str]:
    """How many held-out texts have labels that no text to learn has, such as the same ones in other spellings."""
    learned = {label for value in pc.unique(table[LABEL]).to_pylist() for label in parted(value)}
    missed = sum(not parted(value) <= learned for value in held_out[LABEL].to_pylist())
    if not missed:
        return []
    return [f"{missed:,} of {held_out.num_rows:,} held-out texts have labels that no text to learn has."]


def remarks_on(known: TextSet | None, table: pa.Table, held_out: pa.Table) -> list[str]:
    """Where the texts differ in number from those of a set of SynBench."""
    if known is None:
        return []
    sets = pc.unique(pa.chunked_array([*table[LABEL].chunks, *held_out[LABEL].chunks])).to_pylist()
    found = {
        "texts": (table.num_rows + held_out.num_rows, known.texts),
        "labels": (len({label for value in sets for label in parted(value)}), known.labels),
    }
    return [
        f"{own:,} {what}, where SynBench has {published:,}: figures are of other data than its own."
        for what, (own, published) in found.items()
        if own != published
    ]
