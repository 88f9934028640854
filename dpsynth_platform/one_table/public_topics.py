"""Making a topic model of public phrases or documents, for `text.topics` of contracts.

What belongs here: the command's steps and options. What does not: that they are public, and lineage
(`public_material`), and the topics (`synth.text.topic_building`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts.text_generation import TOPIC_LEVELS
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.one_table.public_material import checked_public, read_texts, report_origin
from dpsynth_platform.synth.text.topic_building import (
    UNIVERSAL_MATERIAL,
    read_phrases,
    topics_of_documents,
    topics_of_phrases,
    universal_phrases,
)


@dataclass(frozen=True)
class MadeTopics:
    """A topic model, and what is known of it. Public.

    Attributes:
        of: `phrases` or `documents`.
        read: how many of them were read.
        levels: the numbers of topics that it has.
        warnings: of the emission of its lineage.
    """

    file: Path
    of: str
    read: int
    levels: tuple[int, ...]
    digest: str
    warnings: tuple[str, ...] = ()


def make_topics(
    out: Path,
    *,
    phrases: Path | None = None,
    table: Path | None = None,
    text: str | None = None,
    why: str | None = None,
    topics: int = TOPIC_LEVELS[-1],
    progress: Progress = silent,
) -> MadeTopics:
    """Makes a topic model of public phrases, of public documents, or else of the platform's own phrases.

    Args:
        out: a new file.
        phrases: a text file, one phrase a line.
        table: a table with documents in the column `text`.
        why: why they are public.
        topics: one of `contracts.TOPIC_LEVELS`: the model has that and all smaller ones.

    Raises:
        ContractError: the options do not belong together, or this deployment guards the table or file.
        SourceError: it cannot be read, or lacks a usable column.
        ConfigurationError: there are too few different texts, or `out` exists.
        LedgerError: the deployment's ledger is out of reach.
    """
    if topics not in TOPIC_LEVELS:
        raise ContractError(f"--topics: {topics}; accepted: {', '.join(map(str, TOPIC_LEVELS))}")
    _check_options(phrases, table, text, why)
    if out.exists():
        raise ConfigurationError(f"{out} exists; accepted: the name of a new file")
    settings = Settings.from_environment()
    levels = tuple(level for level in TOPIC_LEVELS if level <= topics)
    read: Sequence[str]
    if table is not None and text is not None and why is not None:
        public = checked_public(settings, table, why, "the public documents")
        documents = read_texts(table, public, text)
        read, material = documents.texts, f"{table.name}, {text}: {why}"
        content = topics_of_documents(read, material=material, levels=levels, progress=progress)
        origin = (public, str(documents.about["digest"]))
    elif phrases is not None and why is not None:
        public = checked_public(settings, phrases, why, "the public phrases")
        read, material = read_phrases(phrases), f"{phrases.name}: {why}"
        origin = (public, digest_file(phrases))
        content = topics_of_phrases(read, material=material, levels=levels, progress=progress)
    else:
        read, origin = universal_phrases(), None
        content = topics_of_phrases(read, material=UNIVERSAL_MATERIAL, levels=levels, progress=progress)
    digest = hashlib.sha256(content).hexdigest()
    # Before the file is there: none may exist whose origin the graph does not know.
    warnings = () if origin is None else report_origin(settings, "topics", (out, digest), origin)
    write_durably(out, content)
    return MadeTopics(out, "phrases" if table is None else "documents", len(read), levels, digest, warnings)


def _check_options(phrases: Path | None, table: Path | None, text: str | None, why: str | None) -> None:
    """Raises `ContractError` if options do not belong together."""
    if phrases is not None and table is not None:
        raise ContractError("--phrases and --public; accepted: one of them")
    if (table is None) != (text is None):
        raise ContractError("--public and --text go together: a table of documents, and their column")
    if (phrases is None and table is None) != (why is None):
        raise ContractError(
            "--public-why goes with --phrases or --public; accepted: both a file and why it is public, or neither"
        )
