"""What a synthetic table outside of the asset line promises: the parts of a privacy statement, as JSON and in Markdown.

What belongs here: what is particular to such a table: whom it protects, which accesses nothing covers, what its ledger
knows. What does not: what follows from the event alone (`privacy.statement`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.privacy.statement import (
    WEIGHTS,
    Assumption,
    PrivacyStatement,
    Tuning,
    privacy_statement,
    words_of,
)
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.domain import filled_in_words

KNOWS_ONLY = (
    "A ledger knows only what is spent through it: whoever makes another synthetic table of the same people with "
    "another ledger, or without one, spends what this one does not count."
)
_EARLIER = (
    "What {attempts} at this run did before it failed: charged to the ledger beside this table's epsilon, and no part "
    "of the table."
)

_KEPT = Assumption(
    "The values that these rows were given, and the constraints that they keep, are public, or were chosen in the "
    "light of synthetic rows.",
    "as declared",
    "They choose among what the model can draw; what somebody saw of the data is theirs to say.",
)


@dataclass(frozen=True)
class Run:
    """What happened, as far as it is public.

    Attributes:
        entry_id: of the ledger entry that paid.
        others: other runs that this ledger has paid for.
        attempts: how often this run's mechanism was started.
        rows: number of synthetic rows.
        rows_given: whether that number was given, or is the model's estimate.
        filled: columns that lack no value, whatever the data lack.
        nullable: the other modelled columns.
        assumed: columns whose domains were read off the data (`assumed.not_covered`), in words; empty: none.
        ignored: columns that are declared to be left out.
        read_as: the dialect of a CSV file, in words; empty: the table is none.
        head: the last link of the ledger's chain.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
    """

    entry_id: str
    head: Head
    others: int
    attempts: int
    rows: int
    rows_given: bool
    filled: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    assumed: str = ""
    ignored: tuple[str, ...] = ()
    read_as: str = ""
    mostly_missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """The statement: common parts beside those of such a table. Public throughout.

    Attributes:
        ledger_head: the chain's last link then, which the ledger must have for ever.
        table: how many rows it has; of others from the same model that is another number.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
        covered: what holds of all of them.
    """

    common: PrivacyStatement
    method: str
    why_method: str
    ledger_entry: str
    ledger_head: Head
    table: str
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    account: str
    mostly_missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All parts as a JSON value."""
        common = self.common.to_json()
        kept = ("guarantee", "tier", "unit", "adjacency", "accounting", "formal", "groups", "event", "renyi", "tuning")
        return {name: common[name] for name in (*kept, "weak_reason")} | {
            "method": self.method,
            "why_method": self.why_method,
            "ledger_entry": self.ledger_entry,
            "ledger_head": asdict(self.ledger_head),
            "table": self.table,
            "covered": list(self.covered),
            "not_covered": list(self.not_covered),
            "assumptions": [asdict(item) for item in self.assumptions],
            "account": self.account,
            "mostly_missing": list(self.mostly_missing),
        }

    def to_markdown(self) -> str:
        """All parts for people."""
        promise, common = self.common.guarantee, self.common
        unprotected = "" if promise.unit != "example" else " Rows are protected, not the people who have several."
        lines = [
            "# Privacy statement",
            "",
            f"The table beside this statement is ({upper_bound(promise.epsilon)}, {upper_bound(promise.delta)})"
            f"-differentially private: epsilon {upper_bound(promise.epsilon)}, delta {upper_bound(promise.delta)} for "
            f"{_whom(promise.unit, promise.max_contributions)} ({promise.adjacency}). That is a "
            f"{common.tier} guarantee.{unprotected}",
            *(["", f"Accepted although it is weak: {common.weak_reason}"] if common.weak_reason else []),
            *_section("Whom it protects", [common.unit, common.adjacency]),
            *_section(
                "What it covers",
                [f"Made by the method {self.method}: {self.why_method}.", *self.covered, f"This table: {self.table}"],
            ),
            *_missing_section(self.mostly_missing),
            *_section("What it does not cover", self.not_covered),
            *_section(
                "What it rests on",
                [f"{item.assumption} **{item.holds}**: {item.because}" for item in self.assumptions],
            ),
            *_section("Accounting", [_accounting(common.accounting), common.formal, common.groups]),
            *_section(
                "The budget",
                [
                    f"Paid by ledger entry {self.ledger_entry}. The ledger's last event was then number "
                    f"{self.ledger_head.sequence} ({self.ledger_head.hash}).",
                    f"{self.account} {common.tuning['words']}",
                    KNOWS_ONLY,
                ],
            ),
        ]
        return "\n".join(lines) + "\n"


class Words(Protocol):
    """A statement for people and for programs."""

    def to_json(self) -> dict[str, Any]:
        """All parts as a JSON value."""

    def to_markdown(self) -> str:
        """All parts for people."""


@dataclass(frozen=True)
class Further:
    """The statement of more rows from a model of which there is one: post-processing of the same ledger entry.

    Attributes:
        earlier: the model's statement in JSON form.
        rows: number of rows.
        given: values that they all have, in words.
        constraints: number of constraints that they keep.
        others: other runs that the ledger has paid for by now.
    """

    earlier: Mapping[str, Any]
    rows: int
    given: tuple[str, ...]
    constraints: int
    others: int

    @property
    def words(self) -> str:
        """What these rows are."""
        given = f", given {' and '.join(self.given)}" if self.given else ""
        kept = f", which keep {number_of(self.constraints, 'declared constraint')}" if self.constraints else ""
        return (
            f"{number_of(self.rows, 'synthetic row')}{given}{kept}: drawn from the model that ledger entry "
            f"{self.earlier['ledger_entry']} paid for. That is post-processing: no row of the data was read and "
            "nothing was spent. Whoever has these rows and all others from the same model has what one guarantee "
            "covers, once."
        )

    @property
    def assumptions(self) -> list[dict[str, str]]:
        """The model's, and that nobody looked at the data to choose what these rows keep."""
        kept = list(self.earlier["assumptions"])
        return [*kept, asdict(_KEPT)] if self.given or self.constraints else kept

    @property
    def tuning(self) -> Tuning:
        """The runs in whose light these rows may have been asked for."""
        return Tuning(self.others)

    def to_json(self) -> dict[str, Any]:
        """The model's statement, with what these rows are."""
        tuning = {"runs": self.others, "covered": not self.others, "words": self.tuning.words}
        return dict(self.earlier) | {
            "table": f"{number_of(self.rows, 'synthetic row')}.",
            "assumptions": self.assumptions,
            "tuning": tuning,
            "post_processing": self.words,
            "covered": [*self.earlier["covered"], self.words],
            "rows": self.rows,
            "given": list(self.given),
        }

    def to_markdown(self) -> str:
        """All parts for people."""
        promise = self.earlier["guarantee"]
        lines = [
            "# Privacy statement",
            "",
            f"The rows beside this statement are ({upper_bound(promise['epsilon'])}, {upper_bound(promise['delta'])})"
            f"-differentially private for {_whom(promise['unit'], promise['max_contributions'])} "
            f"({promise['adjacency']}), together with everything else from the same model.",
            *_section("What they are", [self.words]),
            *_missing_section(self.earlier.get("mostly_missing", ())),
            *_section("What the guarantee covers", self.earlier["covered"]),
            *_section("What it does not cover", self.earlier["not_covered"]),
            *_section(
                "What it rests on",
                [f"{item['assumption']} **{item['holds']}**: {item['because']}" for item in self.assumptions],
            ),
            *_section("The budget", [f"{self.earlier['account']} {self.tuning.words}", KNOWS_ONLY]),
        ]
        return "\n".join(lines) + "\n"


def statement(contract: DataContract, family: FamilyBudget, plan: SealedPlan, run: Run) -> Statement:
    """The statement of a run, from public inputs."""
    tuning, words = Tuning(run.others), words_of(plan.method, plan.event)
    common = privacy_statement(contract, family, plan.event, words, tuning=tuning, attempts=run.attempts)
    owners = contract.privacy.weighting == "owners"
    counted = (
        "the number of owners"
        if owners
        else "their number, which estimates the rows that were read"
        + (f", at most {contract.privacy.max_contributions} of one user" if contract.privacy.unit == "user" else "")
    )
    event = plan.describe()["event"]
    number = "" if run.rows_given else f", {counted}"
    return Statement(
        common=common,
        method=plan.method,
        why_method=plan.why,
        ledger_entry=run.entry_id,
        ledger_head=run.head,
        covered=(
            f"{event[0].upper()}{event[1:]}.",
            "Everything computed from these: the fitted model, and all rows that are ever drawn from it.",
            *([filled_in_words(run.filled, run.nullable)] if run.filled else []),
            *(
                [f"Declared ignore: true, so that they were not used and are left out: {', '.join(run.ignored)}."]
                if run.ignored
                else []
            ),
            *([f"The data were read as {run.read_as}."] if run.read_as else []),
        ),
        table=f"{number_of(run.rows, 'synthetic row')}{number}.",
        not_covered=tuple(_not_covered(run)),
        assumptions=tuple(_assumptions(contract, run)),
        account=(
            f"Of everything that this ledger pays for together, what may be claimed is its cap: epsilon "
            f"{upper_bound(family.cap.epsilon, 6)}, delta {upper_bound(family.cap.delta)} for each {family.unit}, "
            "unless two people together raise it."
        ),
        mostly_missing=run.mostly_missing,
    )


def _not_covered(run: Run) -> list[str]:
    return [
        *([run.assumed] if run.assumed else []),
        "Whether the table can be read as declared (present, readable, with a header, not empty, of these types, with "
        "an owner in some row), whether a column of ordinary values looks like personal data, whether none or hardly "
        "any of a column's values is listed, and whether values are listed but for blanks or quotes around them, which "
        "stop a run: seen by whoever runs it.",
        "When the run took place and how long its steps took: seen by whoever runs it.",
        "Whether the table holds the same as at an earlier run with these options, and so whether the run was paid for "
        "anew or refused: seen by whoever runs it, and in the number of runs below.",
        "What somebody saw elsewhere and chose the options by (domains, bound, epsilon, which of several tables was "
        "kept).",
        *([_EARLIER.format(attempts=number_of(run.attempts - 1, "earlier attempt"))] if run.attempts > 1 else []),
    ]


def _assumptions(contract: DataContract, run: Run) -> list[Assumption]:
    privacy = contract.privacy
    if privacy.unit == "example":
        whose = [
            Assumption(
                "Each row stands for another unit.",
                "as declared",
                "No owners were named. Whoever has several rows is protected for each of them apart.",
            )
        ]
    else:
        (owner,) = privacy.owner_columns
        whose = [
            Assumption(
                f"No owner contributes more than {number_of(privacy.max_contributions, 'row')}, and which ones depends "
                "on that owner's rows alone.",
                "yes",
                "Rows are chosen by a keyed hash, owner by owner, and counted again before the mechanism reads. Rows "
                "without an owner are left out.",
            ),
            *([WEIGHTS] if privacy.weighting == "owners" else []),
            Assumption(
                f"One person has one id in {owner}, written alike in all rows.",
                "as declared",
                "Two ids of one person are two owners.",
            ),
        ]
    return [
        Assumption(
            "Noise and choices are drawn from their distributions, from unpredictable randomness.",
            "yes",
            "They come from the operating system's randomness; what floating point cannot decide is decided by more "
            "digits of the same draw.",
        ),
        *whose,
        Assumption(
            "Domains, bins, the contribution bound and the number of expected units are public.",
            "not established" if run.assumed else "as declared",
            "Some domains were read off the data; see what is not covered."
            if run.assumed
            else "Values outside are clamped or counted as missing; those that are learned are the mechanism's.",
        ),
        *(
            [
                Assumption(
                    f"The {number_of(len(contract.generate.constraints), 'declared constraint')} on rows are public.",
                    "as declared",
                    "They shape what is computed from the noisy counts, at no cost, and no part of the mechanism"
                    + (", but for orders of moments, of which it counts the gaps." if contract.gaps else "."),
                )
            ]
            if contract.generate.constraints
            else []
        ),
        Assumption(
            "The mechanism ran as planned after its cost was recorded; it was started "
            f"{number_of(run.attempts, 'time')}, and the table comes from the last.",
            "yes",
            "Sampler and accountant read the same sealed plan; an entry is started once, before the first record is "
            "read by the mechanism, and never refunded.",
        ),
    ]


def _whom(unit: str, rows: int) -> str:
    return "one row" if unit == "example" else f"one {unit} with at most {number_of(rows, 'row')}"


def _accounting(accounting: dict[str, Any]) -> str:
    bounds = {"privacy loss distributions": "epsilon_by_pld", "Renyi differential privacy": "epsilon_by_renyi"}
    shown = [f"{name}: {accounting[key]:.4g}" for name, key in bounds.items() if accounting.get(key) is not None]
    return f"Epsilon by {accounting['type']}, the smaller of proven bounds ({'; '.join(shown)})."


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {line}" for line in lines)]


def _missing_section(lines: Sequence[str]) -> list[str]:
    return _section("Columns with hardly any usable value", lines) if lines else []
