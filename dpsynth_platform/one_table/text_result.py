"""The result of a comparison of methods on public texts: as tables for people, and as files.

What belongs here: the cells and their names, tables, legend, JSON and CSV. What does not: making the cells
(`text_comparison`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.figures import rounded
from dpsynth_platform.foundation.markdown import cell, plain
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.one_table.text_figures import GROUPS
from dpsynth_platform.quality.report import markdown_row

NAME = "text-comparison"
REAL = "real texts"
NOTICE = (
    "The figures are of texts that are declared public; no mechanism protects them. Models are not SynBench's, so that "
    "figures cannot be compared with its; of the membership attack, only the sentence encoder is another. There is no "
    "run without noise, since no option turns noise off."
)
LEGEND = (
    "F1: of classifiers that learn from synthetic texts and are tested on held-out real ones; majority and random "
    "guess by the real labels alone. MAUVE, next token: higher is better; entities, lengths, runs_2 (pairs of words), "
    "topics: divergences in bits, lower is better; the others, under texts alone: nearer to real texts is better. "
    "perplexity: under the base model as it is; sentiment: -1 to 1, by an English lexicon. verbatim: share of texts "
    "with ten words in a row of a training text."
)
ATTACKED = ("releases", "AUC", "AUC, one score each", "above the bound by", "proved epsilon", "provable", "claim")


@dataclass(frozen=True)
class TextTry:
    """What one method wrote at one epsilon.

    Attributes:
        seconds: of the processor, for writing.
        megabytes: the most memory of its process.
        measures, real: figures of its texts, and of real texts in their place.
        membership: `synbench.Evaluation` as JSON, or a reason without one as `refused`.
        refused: why there are no figures; None if there are.
    """

    method: str
    epsilon: float
    seconds: float = 0.0
    megabytes: float = 0.0
    measures: Mapping[str, float] | None = None
    real: Mapping[str, float] = field(default_factory=dict)
    membership: Mapping[str, Any] | None = None
    refused: str | None = None


@dataclass(frozen=True)
class TextComparison:
    """Methods on the texts of one public table.

    Attributes:
        public: the table, and why it is public.
        left_out: rows without a text or a label.
        labels: number of different sets of labels.
        delta: of each run on all texts.
        baselines: utility of real texts and of guessing.
        real: other figures of real texts.
        pretraining: of `pretraining.OrderTest`; None: not tested.
        remarks: sentences about the texts.
    """

    public: str
    why: str
    texts: int
    held_out: int
    left_out: int
    labels: int
    delta: float
    baselines: Mapping[str, Mapping[str, float]]
    real: Mapping[str, float]
    tries: tuple[TextTry, ...]
    pretraining: Mapping[str, Any] | None = None
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"notice": NOTICE}

    @property
    def refused(self) -> list[str]:
        """A line for each cell without figures, or without a requested attack."""
        lines = []
        for item in self.tries:
            why = item.refused or (item.membership or {}).get("refused")
            if why is not None:
                lines.append(f"{item.method}, epsilon {item.epsilon:g}: {why}")
        return lines

    @property
    def about(self) -> str:
        return " ".join(
            [
                f"{self.public}, public: {self.why}. {self.texts:,} texts were learned, {self.held_out:,} held out, "
                f"{self.left_out:,} rows had no text or label; {self.labels:,} sets of labels; each text is its own "
                f"unit; delta {self.delta:.3g}.",
                *self.remarks,
                *([] if self.pretraining is None else [self.pretraining["words"]]),
            ]
        )

    def tables(self) -> dict[str, list[tuple[str, ...]]]:
        """Rows of each group of figures with their header first, by the group's name."""
        found = {}
        for group, names in GROUPS.items():
            others = {name: figures for name, figures in self.baselines.items() if name != REAL}
            real = {**self.real, **self.baselines.get(REAL, {})}
            rows = [(f"{item.epsilon:g}", item.method, *_shown(item.measures, names)) for item in self._made]
            if group == "utility":
                rows += [("", name, *_shown(figures, names)) for name, figures in others.items()]
            found[group] = [("epsilon", "method", *names), *rows, ("", REAL, *_shown(real, names))]
        if attacked := [item for item in self.tries if item.membership and "refused" not in item.membership]:
            rows = [(f"{item.epsilon:g}", item.method, *_attack(item.membership or {})) for item in attacked]
            found["SynBench's membership attack"] = [("epsilon", "method", *ATTACKED), *rows]
        seconds = [(f"{i.epsilon:g}", i.method, rounded(i.seconds), rounded(i.megabytes)) for i in self._made]
        found["work"] = [("epsilon", "method", "seconds", "MB"), *seconds]
        return found

    @property
    def _made(self) -> list[TextTry]:
        return sorted(
            (item for item in self.tries if item.measures is not None), key=lambda item: (item.epsilon, item.method)
        )

    def markdown(self) -> str:
        """The whole comparison."""
        parts = ["# Methods that write texts, compared", "", plain(self.about), "", plain(NOTICE), ""]
        for group, (header, *rows) in self.tables().items():
            parts += [f"## {group}", "", markdown_row(header), markdown_row(["---"] * len(header))]
            parts += [*(markdown_row([cell(text) for text in row]) for row in rows), ""]
        parts += [plain(LEGEND), "", *(f"- {plain(line)}" for line in self.refused)]
        return "\n".join(parts).rstrip() + "\n"

    def csv(self) -> str:
        """All figures, a line each: epsilon, method, figure, value."""
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows([("epsilon", "method", "figure", "value"), *self._lines()])
        return written.getvalue()

    def _lines(self) -> Iterator[tuple[str, str, str, float]]:
        for item in self._made:
            yield from ((f"{item.epsilon:g}", item.method, *pair) for pair in (item.measures or {}).items())
            for name in ("bound", "highest"):
                if name in (item.membership or {}):
                    yield f"{item.epsilon:g}", item.method, f"membership {name}", (item.membership or {})[name]
        for name, figures in {**self.baselines, REAL: {**self.real, **self.baselines.get(REAL, {})}}.items():
            yield from (("", name, *pair) for pair in figures.items())

    def write(self, place: Path) -> None:
        """Writes JSON, CSV, Markdown, and a curve of each attack to a directory."""
        from dpsynth_platform.audit.plots import synbench_plot
        from dpsynth_platform.audit.texts.synbench import Evaluation

        write_durably(place / f"{NAME}.json", json.dumps(self.to_json(), indent=1))
        write_durably(place / f"{NAME}.csv", self.csv())
        write_durably(place / f"{NAME}.md", self.markdown())
        for item in self.tries:
            if item.membership and "refused" not in item.membership:
                plot = synbench_plot(Evaluation.from_json(item.membership))
                write_durably(place / f"membership-{item.method}-epsilon-{item.epsilon:g}.svg", plot)


def _shown(figures: Mapping[str, float] | None, names: Iterable[str]) -> Iterator[str]:
    found = figures or {}
    yield from (f"{found[name]:.3f}" if name in found and found[name] == found[name] else "" for name in names)


def _attack(found: Mapping[str, Any]) -> Sequence[str]:
    curve = found["curve"]
    return (
        str(found["runs"]),
        "{value:.3f} ({low:.3f} to {high:.3f})".format(**curve["area"]),
        "{value:.3f} ({low:.3f} to {high:.3f})".format(**found["area"]),
        f"{max(0.0, curve['excess']):.3f}",
        f"{found['bound']:.3f}",
        f"{found['highest']:.3f}",
        "refuted" if found["refuted"] else "not refuted",
    )
