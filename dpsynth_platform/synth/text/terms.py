"""The terms by which texts are drawn from a trained model: how, which are kept, and how many of each label.

What belongs here: the public settings as one value, and what became of the texts that were drawn by them. What does
not: drawing (`sampling`) and judging texts (`filtering`). All of it is post-processing, so other terms are no new
spend. Private votes for texts (`resampling`) know nothing of them: what is voted on are texts by the terms that stand
here by default, since a vote is paid for once and the run's key does not hold the contract's.
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
    """How many rows each value of one column gets. Public: declared, and nothing that was counted.

    Attributes:
        column: a modelled one that the language model is told.
        rows: by value, in the column's own type; other values get none.
    """

    column: str
    rows: tuple[tuple[Scalar, int], ...]


@dataclass(frozen=True)
class TextTerms:
    """How texts are drawn and kept. Public.

    Attributes:
        sampling: how tokens are drawn.
        rules: what a text must keep.
        counts: how many rows each label gets; None: as many as the noisy counts of the columns say.
    """

    sampling: Sampling = field(default_factory=Sampling)
    rules: Rules = field(default_factory=Rules)
    counts: Counts | None = None

    @property
    def digest(self) -> str:
        """Names the terms. Where only tokens are drawn otherwise, as before there was more to choose."""
        more = {
            **({} if self.rules == Rules() else {"rules": asdict(self.rules)}),
            **({} if self.counts is None else {"counts": asdict(self.counts)}),
        }
        return canonical_digest(asdict(self.sampling) | more)


@dataclass(frozen=True)
class TextsDrawn:
    """What became of the texts that were drawn. Synthetic texts only: public.

    Attributes:
        drawn: how many there were.
        left_out: how many kept some rule not, by the reason that was found first (`filtering`).
        rows_without: rows that are missing since no text was left for them.
    """

    drawn: int
    left_out: Mapping[str, int]
    rows_without: int

    @classmethod
    def of(cls, kept: Kept, *, asked: int, made: int) -> TextsDrawn:
        """Of texts that were judged, for so many rows that were asked for and so many that have one."""
        return cls(kept.drawn, dict(sorted(kept.dropped.items())), asked - made)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, with the words."""
        return asdict(self) | {"in_words": self.in_words}

    @property
    def in_words(self) -> str:
        """One sentence for the operator and for readers of a release."""
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.left_out.items())
        said = f"{self.drawn:,} synthetic texts were drawn; left out: {reasons or 'none'}"
        lacking = f"; {self.rows_without:,} rows are missing, since too few texts were left for them"
        return said + (lacking if self.rows_without else "")


def terms_of(contract: DataContract) -> TextTerms:
    """How a contract's texts are drawn and kept. Raises `ContractError` if it writes none."""
    text = contract.generate.text
    if text is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written")
    return TextTerms(
        sampling=Sampling(
            temperature=text.temperature,
            top_k=text.top_k,
            top_p=text.top_p,
            min_tokens=text.min_tokens,
            max_tokens=text.most_tokens,
        ),
        rules=Rules(
            least_characters=text.keep.least_characters,
            words=text.keep.words,
            most_repeated=text.keep.most_repeated,
            duplicates=text.keep.duplicates,
            whole=text.keep.whole,
        ),
        counts=_counts_of(contract),
    )


def _counts_of(contract: DataContract) -> Counts | None:
    text = contract.generate.text
    if text is None or text.counts is None:
        return None
    ((name, rows),) = text.counts.items()
    kind = contract.columns[name].type
    return Counts(name, tuple((_scalar(value, kind), number) for value, number in rows.items() if number))


def _scalar(value: str, kind: str) -> Scalar:
    """A declared value from its text (`layout.text_of`), in its column's type."""
    if kind == "integer":
        return int(value)
    return value == "true" if kind == "boolean" else value
