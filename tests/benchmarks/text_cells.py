"""What a cell of `bench_text_utility.py` is about: its source of real texts, who is asked to write, and how much work.

What belongs here: reading the sources, cells by their names, dividing units into those that are read and those held
out. What does not: writing texts (`text_methods`), judging them (`text_figures`).

`financial` are sentences of financial news with their sentiment, each a unit. `newsgroups` are posts to four groups of
newsgroups (comp, rec, sci, talk) without what they quote; a unit is an author with two posts at most (2.2 on average).
`enron` are e-mails of four genres without what they quote or forward, each a unit. So a claim protects a mail, not its
sender and recipients, who own nearly all of them together: of one mail an owner few would be left.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.quality.files import read_file
from dpsynth_platform.quality.text.corpora import LEAST_TEXTS
from dpsynth_platform.synth.text.base_models import DEFAULT
from dpsynth_platform.synth.text.layout import Encoder

Row = tuple[str, str, str]
"""Owner, label and text."""
SCHEMA = pa.schema([("record", pa.string()), ("owner", pa.string()), ("label", pa.string()), ("text", pa.string())])
PLAIN = "dp_finetune"
VOTES = "+votes"
"""Of a method whose texts are chosen among more, by private votes that the same plan pays for."""
PUBLIC, RETRIEVED, SHARED = "+public", "+retrieved", "+shared"
"""Of `aug_pe`: first candidates from a public table, also all variations and no model, and votes that three share."""
LABELS = "+labels"
"""Of a method whose texts are chosen among more, and get their labels, by private sums that the same plan pays for."""
UNCHOSEN = ", unchosen"
"""The same model's texts, or documents, at random: what votes or sums cost is spent, and they are not asked."""
NO_NOISE, UNTRAINED = "none", "untrained"
HELD_OUT = 4
"""One unit of so many."""
QUOTED = re.compile(r"^\s*[>|:}]|^In (article|<)|(writes|wrote|says):?\s*$")
ATTACHED = re.compile(
    r"^\s*-{2,}[^\n]*(?:Forwarded by|Original Message)"
    r"|^[^\n]*\n(?:\s*Sent by:[^\n]*\n)?\s*\d\d/\d\d/\d{4} \d\d:\d\d(?::\d\d)? [AP]M"
    r"|^\s*(?:From|Sent by|To):",
    re.IGNORECASE | re.MULTILINE,
)
"""Where a mail's own words end: what it answers or forwards, with the name and date above it."""
GROUPS = ("comp", "rec", "sci", "talk")
GENRES = {1: "business", 2: "personal", 3: "personal", 4: "logistics", 6: "documents"}
"""Of mails. Both kinds of personal ones are one; left out are genres of fewer than 100 mails: 5, 7 and 8."""
SHORT, LONG, MOST_OTHERS = 30, 200, 600
"""Characters of a public sentence, and the most of one origin."""
DOCUMENTED, MOST_FILES = ("sklearn", "scipy", "networkx", "dagster", "transformers"), 400


@dataclass(frozen=True)
class Source:
    """One table of labelled texts.

    Attributes:
        rows: reads all records.
        labels: the public list of labels.
        about: what the texts are, in public words.
        units, records: public, rounded numbers of units that are not held out, and of their records.
        most: records of a unit that are used.
        max_tokens: of an example that is told a label.
        document_tokens: of a document of DP inference.
    """

    rows: Callable[[Path], list[Row]]
    labels: tuple[str, ...]
    about: str
    units: int
    records: int
    most: int
    max_tokens: int
    document_tokens: int

    def smaller(self, units: int) -> Source:
        """So many units and shorter texts, to see whether all runs."""
        records = self.records * units // self.units

        def some(data: Path) -> list[Row]:
            rows = self.rows(data)
            owners = set(sorted({owner for owner, _, _ in rows})[: units * HELD_OUT // (HELD_OUT - 1)])
            return [row for row in rows if row[0] in owners]

        return replace(self, rows=some, units=units, records=records, max_tokens=24, document_tokens=8)


@dataclass(frozen=True)
class Effort:
    """How much is computed in a cell. Those who do not train know of `texts` alone.

    Attributes:
        batch: records expected in a step.
        texts: that are drawn.
        likelihoods: held-out texts of which the likelihood is told.
    """

    batch: int = 384
    steps: int = 14
    texts: int = 240
    likelihoods: int = 64
    rank: int = 4
    learning_rate: float = 1e-2

    @property
    def population(self) -> int:
        """Texts that live on in private evolution, and clusters that records vote for where texts are chosen."""
        return self.texts // 6

    @property
    def contexts(self) -> int:
        """Of DP inference, at most: each writes one document. A few more than a report needs (`LEAST_TEXTS`)."""
        return max(LEAST_TEXTS + 10, self.texts // 3)


@dataclass(frozen=True)
class Cell:
    """What one line of the results is about.

    Attributes:
        base: the base model; tables do not distinguish it, so that another's results need a file of their own.
    """

    source: str
    sampled: str
    epsilon: str
    seed: int
    method: str = PLAIN
    base: str = DEFAULT

    @classmethod
    def of(cls, written: str, base: str = DEFAULT) -> Cell:
        """From `source/sampled/epsilon/seed`, and `/method` where it is not `dp_finetune`."""
        source, sampled, epsilon, seed, *method = written.split("/")
        return cls(source, sampled, epsilon, int(seed), *method, base=base)

    @property
    def generator(self) -> str:
        """The product's name of the method."""
        return self.method.partition("+")[0]

    @property
    def chooses(self) -> bool:
        """Whether texts are chosen among more by a noisy result."""
        return self.method.endswith((VOTES, LABELS))

    @property
    def trains(self) -> bool:
        """Whether the method leaves a model of its own."""
        return self.generator in (PLAIN, "ctcl")

    @property
    def claim(self) -> float | None:
        """The epsilon that is claimed, if any."""
        return None if self.epsilon in (NO_NOISE, UNTRAINED) else float(self.epsilon)


def sentences(data: Path) -> list[Row]:
    """Financial PhraseBank; a sentence belongs to nobody but itself."""
    table = read_file(data / "financial_phrasebank/financial_phrasebank.parquet").to_pylist()
    return [(str(number), row["label_name"], row["text"]) for number, row in enumerate(table)]


def posts(data: Path) -> list[Row]:
    """Posts to the groups, once each, without quoted lines and in one line."""
    table = read_file(data / "newsgroups20/newsgroups20.parquet").to_pylist()
    groups = [(row, row["newsgroup"].split(".")[0]) for row in table if not row["is_crosspost_dup"]]
    kept = [(row["author_id"], group, unquoted(row["text"])) for row, group in groups if group in GROUPS]
    return [row for row in kept if row[2]]


def mails(data: Path) -> list[Row]:
    """E-mails of the genres, their own words alone, once each where several are the same."""
    table = read_file(data / "enron_categories/enron_categories.parquet").to_pylist()
    own = {
        unquoted(ATTACHED.split(row["text"] or "", maxsplit=1)[0]): (row["doc_id"], GENRES[row["coarse_genre"]])
        for row in table
        if row["coarse_genre"] in GENRES
    }
    return [(record, genre, text) for text, (record, genre) in own.items() if text]


def others(source: str, data: Path) -> list[str]:
    """Public texts of other kinds than a source's: sentences of the other tables here and of installed manuals.

    Sentences made from templates (`pii_presidio`), Python's packages (their docstrings' first sentences), and of work
    e-mails (`enron_categories`), financial news and posts those that are not the source.
    """
    whole = read_file(data / "enron_categories/enron_categories.parquet")["text"].to_pylist()
    found = {
        "enron": [sentence for mail in whole for sentence in split(unquoted(mail or ""))],
        "templates": read_file(data / "pii_presidio/generated_large.parquet")["text"].to_pylist(),
        "manuals": [sentence for words in docstrings() for sentence in split(words)],
        "financial": [text for _, _, text in sentences(data)],
        "newsgroups": [sentence for _, _, text in posts(data) for sentence in split(text)],
    }
    rng = np.random.default_rng(0)
    texts: list[str] = []
    for name, own in found.items():
        if name != source:
            kept = [" ".join(text.split()) for text in dict.fromkeys(own) if SHORT <= len(text) <= LONG]
            texts += [kept[at] for at in rng.permutation(len(kept))[:MOST_OTHERS]]
    return texts


def split(text: str) -> list[str]:
    """Sentences, roughly."""
    return re.split(r"(?<=[a-z0-9][.!?])\s+(?=[A-Z])", " ".join(text.split()))


def docstrings() -> Iterator[str]:
    """First paragraphs of the docstrings of some installed packages (BSD, Apache)."""
    for package in DOCUMENTED:
        root = Path(str(importlib.util.find_spec(package).submodule_search_locations[0]))  # type: ignore[union-attr,index]
        for file in sorted(root.rglob("*.py"))[:MOST_FILES]:
            with suppress(SyntaxError, UnicodeDecodeError):
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                        yield (ast.get_docstring(node) or "").partition("\n\n")[0]


def unquoted(text: str) -> str:
    """The words of the lines that are the author's own."""
    return " ".join(word for line in text.split("\n") if not QUOTED.search(line) for word in line.split())


SOURCES = {
    "financial": Source(
        sentences,
        ("negative", "neutral", "positive"),
        "Sentences of news about companies and their finances, with the sentiment of an investor.",
        units=3_600,
        records=3_600,
        most=1,
        max_tokens=48,
        document_tokens=40,
    ),
    "newsgroups": Source(
        posts,
        GROUPS,
        "Posts to newsgroups about computers, recreation, science and talk.",
        units=5_600,
        records=7_500,
        most=2,
        max_tokens=48,
        document_tokens=40,
    ),
    "enron": Source(
        mails,
        ("business", "documents", "logistics", "personal"),
        "E-mails at work about business, documents, arrangements and personal matters.",
        units=900,
        records=900,
        most=1,
        max_tokens=48,
        document_tokens=40,
    ),
}


def divided(rows: Sequence[Row], source: Source, seed: int) -> tuple[pa.Table, pa.Table]:
    """Records that may be read and records of other units, at most `source.most` of each unit."""
    rng = np.random.default_rng(seed)
    owners = sorted({owner for owner, _, _ in rows})
    held = set(rng.permutation(owners)[: len(owners) // HELD_OUT].tolist())
    taken: defaultdict[str, int] = defaultdict(int)
    sides: tuple[list[dict[str, str]], list[dict[str, str]]] = ([], [])
    for at in rng.permutation(len(rows)).tolist():
        owner, label, text = rows[at]
        taken[owner] += 1
        if taken[owner] <= source.most:
            row = {"record": f"{at:032x}", "owner": owner, "label": label, "text": text}
            sides[owner in held].append(row)
    return pa.Table.from_pylist(sides[0], SCHEMA), pa.Table.from_pylist(sides[1], SCHEMA)


def of_owners(table: pa.Table, first: int, last: int | None = None) -> pa.Table:
    """The records of some owners, in the order of their first records."""
    return table.filter(pc.is_in(table["owner"], pc.unique(table["owner"]).slice(first, last and last - first)))


def cut(rows: Sequence[Row], encoder: Encoder) -> list[Row]:
    """The records with so much of their texts as an example holds that is told a label."""
    bodies = encoder.bodies([f" {text}" for _, _, text in rows])
    kept = []
    for (owner, label, _), body in zip(rows, bodies, strict=True):
        room = encoder.layout.max_tokens - len(encoder.prompt((label,)))
        kept.append((owner, label, encoder.text(body[:room]).strip().rstrip("\N{REPLACEMENT CHARACTER}")))
    return kept
