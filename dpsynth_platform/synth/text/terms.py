"""The terms by which texts are drawn from a trained model: sampling, rules, and the number of texts of each label.

What belongs here: the public settings as one value, and the counts of texts drawn by them. What does not: drawing
(`sampling`) and filtering texts (`filtering`). All of it is post-processing, so other terms are no new spend. Private
votes (`resampling`) do not use a contract's terms but the defaults here: a vote is paid for once, and the run's key
does not include the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dpsynth_platform.contracts.constraints import Scalar
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.text.filtering import Kept, Rules
from dpsynth_platform.synth.text.sampling import Sampling


@dataclass(frozen=True)
class Counts:
    """How many rows each value of one column gets. Public: declared, not counted.

    Attributes:
        column: a modelled conditioning column.
        rows: by value, in the column's own type; other values get none.
    """

    column: str
    rows: tuple[tuple[Scalar, int], ...]


@dataclass(frozen=True)
class TextTerms:
    """How texts are drawn and kept. Public.

    Attributes:
        counts: how many rows each label gets; None: in proportion to the noisy counts of the columns.
    """

    sampling: Sampling = field(default_factory=Sampling)
    rules: Rules = field(default_factory=Rules)
    counts: Counts | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TextTerms:
        """Reads `asdict` back."""
        counts = document["counts"]
        rows = None if counts is None else Counts(counts["column"], tuple(map(tuple, counts["rows"])))
        return cls(Sampling(**document["sampling"]), Rules(**document["rules"]), rows)

    @property
    def digest(self) -> str:
        """Names the terms; without rules and counts, as in versions that had sampling only."""
        more = {
            **({} if self.rules == Rules() else {"rules": asdict(self.rules)}),
            **({} if self.counts is None else {"counts": asdict(self.counts)}),
        }
        return canonical_digest(asdict(self.sampling) | more)


@dataclass(frozen=True)
class TextsDrawn:
    """Counts of the texts that were drawn. Synthetic texts only: public.

    Attributes:
        left_out: how many texts broke a rule, by the first reason (`filtering`).
        rows_without: rows that are missing because there was no text for them.
    """

    drawn: int
    left_out: Mapping[str, int]
    rows_without: int

    @classmethod
    def of(cls, kept: Kept, *, requested: int, made: int) -> TextsDrawn:
        """The counts of filtered texts, with the numbers of requested rows and of rows with a text."""
        return cls(kept.drawn, dict(sorted(kept.dropped.items())), requested - made)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"in_words": self.in_words}

    @property
    def in_words(self) -> str:
        """One sentence for the operator and for readers of a release."""
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.left_out.items())
        counts = f"{self.drawn:,} synthetic texts were drawn; left out: {reasons or 'none'}"
        missing = f"; {self.rows_without:,} rows are missing, since too few texts were left for them"
        return counts + (missing if self.rows_without else "")


def terms_of(contract: DataContract) -> TextTerms:
    """How a contract's texts are drawn and kept. Raises `ContractError` if it writes none."""
    text = contract.generate.text
    if text is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written")
    counts = None
    if text.counts is not None:
        ((name, rows),) = text.counts.items()
        kind = contract.columns[name].type
        counts = Counts(name, tuple((_scalar(value, kind), number) for value, number in rows.items() if number))
    return TextTerms(
        sampling=Sampling(
            temperature=text.temperature,
            top_k=text.top_k,
            top_p=text.top_p,
            min_tokens=text.min_tokens,
            max_tokens=text.most_tokens,
        ),
        rules=Rules(**text.keep.model_dump()),
        counts=counts,
    )


def _scalar(value: str, kind: str) -> Scalar:
    """A declared value from its text (`layout.text_of`), in its column's type."""
    if kind == "integer":
        return int(value)
    return value == "true" if kind == "boolean" else value
