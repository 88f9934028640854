"""The privacy statement of a synthetic table outside of the asset line, as JSON and in Markdown.

What belongs here: what is specific to such a table: protected units, accesses without a guarantee, its ledger. What
does not: what follows from the event alone (`privacy.statement`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.methods import INFERENCE_METHODS, TUNED
from dpsynth_platform.contracts.text_generation import published_name
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.one_table.assumed import empty_in_words
from dpsynth_platform.one_table.task import Task
from dpsynth_platform.privacy.statement import (
    OF_INTERVALS,
    WEIGHTS,
    Assumption,
    PrivacyStatement,
    Tuning,
    of_public_rows,
    privacy_statement,
    randomness_of,
    words_of,
)
from dpsynth_platform.synth.tabular.domain import filled_in_words

KNOWS_ONLY = (
    "A ledger knows only what is spent through it: it does not count other synthetic tables of the same people with "
    "another ledger, or without one."
)
_EARLIER = (
    "What {attempts} at this run did before a failure: charged to the ledger in addition to this table's epsilon, and "
    "no part of the table."
)

KEPT = Assumption(
    "The given values and constraints of these rows are public, or were chosen after seeing synthetic rows.",
    "as declared",
    "They select among the rows that the model can draw; only the user knows whether real rows influenced them.",
)


@dataclass(frozen=True)
class Statement:
    """The common parts of a statement with those of such a table. All of it is public.

    Attributes:
        ledger_head: the chain's last link then, which the ledger must always contain.
        table: the number of rows, which is different for other tables from the same model.
        covered: holds for all tables from the same model.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
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
    subject: ClassVar[str] = "The table beside this statement is"
    drawn: ClassVar[str] = "This table"

    def to_json(self) -> dict[str, Any]:
        common = self.common.to_json()
        kept = ("guarantee", "tier", "unit", "adjacency", "accounting", "formal", "groups", "event", "renyi", "tuning")
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "common"}
        structured = {
            "ledger_head": asdict(self.ledger_head),
            "assumptions": [asdict(item) for item in self.assumptions],
        }
        return {name: common[name] for name in (*kept, "weak_reason")} | own | structured

    def to_markdown(self) -> str:
        promise, common = self.common.guarantee, self.common
        unprotected = "" if promise.unit != "example" else " Rows are protected, not people with several rows."
        lines = [
            f"{self.subject} ({upper_bound(promise.epsilon)}, {upper_bound(promise.delta)})"
            f"-differentially private: epsilon {upper_bound(promise.epsilon)}, delta {upper_bound(promise.delta)} for "
            f"{_whom(promise.unit, promise.max_contributions)} ({promise.adjacency}). That is a "
            f"{common.tier} guarantee.{unprotected}",
            *(["", f"Accepted although it is weak: {common.weak_reason}"] if common.weak_reason else []),
            *section("Whom it protects", [common.unit, common.adjacency]),
            *section(
                "What it covers",
                [f"Made by the method {self.method}: {self.why_method}.", *self.covered, f"{self.drawn}: {self.table}"],
            ),
            *missing_section(self.mostly_missing),
            *section("What it does not cover", self.not_covered),
            *assumptions_section([asdict(item) for item in self.assumptions]),
            *section("Accounting", [_accounting(common.accounting), common.formal, common.groups]),
            *section(
                "The budget",
                [
                    f"Paid by ledger entry {self.ledger_entry}. The ledger's last event was then number "
                    f"{self.ledger_head.sequence} ({self.ledger_head.hash}).",
                    f"{self.account} {common.tuning['words']}",
                    KNOWS_ONLY,
                ],
            ),
        ]
        return "\n".join(["# Privacy statement", "", *lines]) + "\n"


@dataclass(frozen=True)
class Further:
    """The statement of more rows from a model: post-processing of the same ledger entry.

    Attributes:
        earlier: the model's statement in JSON form.
        given: values that all rows have, in words.
        constraints: number of constraints of the rows.
        others: number of other runs that the ledger has paid for by now.
    """

    earlier: Mapping[str, Any]
    rows: int
    given: tuple[str, ...]
    constraints: int
    others: int

    @property
    def words(self) -> str:
        given = f", given {' and '.join(self.given)}" if self.given else ""
        kept = f", under {number_of(self.constraints, 'declared constraint')}" if self.constraints else ""
        return (
            f"{number_of(self.rows, 'synthetic row')}{given}{kept}: drawn from the model that ledger entry "
            f"{self.earlier['ledger_entry']} paid for. That is post-processing: no row of the data was read and "
            "nothing was spent. One guarantee covers these rows together with all others from the same model."
        )

    @property
    def assumptions(self) -> list[dict[str, str]]:
        """The model's, and that given values and constraints were not chosen by the data."""
        kept = list(self.earlier["assumptions"])
        return [*kept, asdict(KEPT)] if self.given or self.constraints else kept

    @property
    def tuning(self) -> Tuning:
        return Tuning(self.others, within=self.earlier["method"] == TUNED)

    def to_json(self) -> dict[str, Any]:
        """The model's statement, with the description of these rows."""
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
        promise = self.earlier["guarantee"]
        lines = [
            f"The rows beside this statement are ({upper_bound(promise['epsilon'])}, {upper_bound(promise['delta'])})"
            f"-differentially private for {_whom(promise['unit'], promise['max_contributions'])} "
            f"({promise['adjacency']}), together with everything else from the same model.",
            *section("These rows", [self.words]),
            *missing_section(self.earlier.get("mostly_missing", ())),
            *section("What the guarantee covers", self.earlier["covered"]),
            *section("What it does not cover", self.earlier["not_covered"]),
            *assumptions_section(self.assumptions),
            *section("The budget", [f"{self.earlier['account']} {self.tuning.words}", KNOWS_ONLY]),
        ]
        return "\n".join(["# Privacy statement", "", *lines]) + "\n"


def statement(
    task: Task,
    family: FamilyBudget,
    *,
    entry_id: str,
    head: Head,
    others: int,
    attempts: int,
    rows: int,
    mostly_missing: tuple[str, ...],
    setting: str | None = None,
) -> Statement:
    """The statement of a run, from public inputs.

    Args:
        others: number of other runs that this ledger has paid for.
        attempts: number of starts of this run's mechanism.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
        setting: the one that the mechanism kept, where it chose.
    """
    contract, plan, source = task.contract, task.plan, task.source
    tuning, words = Tuning(others), words_of(plan.method, plan.event)
    common = privacy_statement(contract, family, plan.event, words, tuning=tuning, attempts=attempts)
    owners = contract.privacy.weighting == "owners"
    counted = (
        "the number of owners"
        if owners
        else "their number, which estimates the rows that were read"
        + (f", at most {contract.privacy.max_contributions} of one user" if contract.privacy.unit == "user" else "")
    )
    described = plan.describe()
    event, public = described["event"], described.get("public_in_words")
    number = f", {counted}"
    if task.options.rows is not None or plan.method in INFERENCE_METHODS:  # as many as were paid for
        number = ""
    return Statement(
        common=common,
        method=plan.method,
        why_method=plan.why,
        ledger_entry=entry_id,
        ledger_head=head,
        covered=(
            f"{event[0].upper()}{event[1:]}.",
            *_written(task, described),
            "Everything computed from these: the answers with their intervals."
            if task.answers
            else "Everything computed from these: the fitted model, and all rows that are ever drawn from it.",
            *([filled_in_words(task.filled, task.nullable)] if task.filled else []),
            *([empty_in_words(task.empty)] if task.empty else []),
            *(
                [
                    f"{'In no query' if task.answers else 'Declared ignore: true'}, thus neither used nor contained: "
                    f"{', '.join(task.ignored)}."
                ]
                if task.ignored
                else []
            ),
            *([f"The data were read as {source.dialect.in_words}."] if source.format == "csv" else []),
            *([f"The public table that helped: {public}."] if public is not None else []),
            *([f"Which setting was kept: {setting}."] if setting is not None else []),
        ),
        table=(
            f"{number_of(rows, 'answer')}; {OF_INTERVALS}."
            if task.answers
            else f"{number_of(rows, 'synthetic row')}{number}."
        ),
        not_covered=tuple(_not_covered(task, attempts)),
        assumptions=tuple(_assumptions(task, attempts)),
        account=account_in_words(family),
        mostly_missing=mostly_missing,
    )


def _written(task: Task, described: Mapping[str, Any]) -> Iterator[str]:
    """Where a language model writes a column: what it does, and which columns the mechanism reads."""
    if task.contract.text_column is None:
        return
    generate, words = task.contract.generate, str(described["training_in_words"])
    if (model := described.get("base_model")) is not None:
        words = words.replace(model, published_name(model))
    sources = [] if generate.public is None else ["the public table has it"]
    sources += [] if generate.asks_no_model else ["a language model writes it"]
    yield f"{words}."
    yield (
        f"Of a row, the mechanism reads {', '.join(task.given[name] for name in task.contract.read_by_mechanism)}. Of "
        f"the texts, {task.options.text} is published as {' or '.join(sources)}."
    )


def account_in_words(family: FamilyBudget) -> str:
    """What the ledger as a whole promises."""
    return (
        f"Everything that this ledger pays for has together the guarantee of its cap: epsilon "
        f"{upper_bound(family.cap.epsilon, 6)}, delta {upper_bound(family.cap.delta)} for each {family.unit}, "
        "unless two people together raise it."
    )


def earlier_attempts(attempts: int) -> tuple[str, ...]:
    """What failed attempts at a run did, if there were any."""
    return (_EARLIER.format(attempts=number_of(attempts - 1, "earlier attempt")),) if attempts > 1 else ()


RANDOMNESS = Assumption(
    "Noise and choices are drawn from their distributions, from unpredictable randomness.",
    "yes",
    "They come from the operating system's randomness; comparisons that floating point cannot decide use more digits "
    "of the same draw.",
)


SCRUBBED = (
    "What scrubbing found in the texts before the mechanism read them, and whether patterns of the schema took too "
    "long on texts of many owners, which stops a run. Scrubbing is best effort, and the guarantee does not rest on it: "
    "what it overlooks is protected as all else in a row. Names and phrases that texts of many owners share can come "
    "out as they are."
)


def started_in_words(attempts: int) -> Assumption:
    """That the mechanism ran as planned."""
    return Assumption(
        "The mechanism ran as planned after its cost was recorded; it was started "
        f"{number_of(attempts, 'time')}, and the result comes from the last start.",
        "yes",
        "Sampler and accountant read the same sealed plan; an entry is started once, before the first record is read "
        "by the mechanism, and never refunded.",
    )


def _not_covered(task: Task, attempts: int) -> list[str]:
    tune, texts = task.contract.generate.tune, task.contract.text_column is not None
    return [
        *([task.not_covered] if task.not_covered else []),
        *([of_public_rows(public, candidates=texts)] if (public := task.contract.generate.public) is not None else []),
        *(
            [f"What the base model {published_name(named)} was trained on before: no ledger here knows it."]
            if (named := task.contract.generate.base_model) is not None
            else []
        ),
        "Whether the table can be read as declared (present, readable, with a header, not empty, of these types, with "
        f"an owner{' and a text' if texts else ''} in some row), whether a column of ordinary values looks like "
        "personal data, whether none or hardly any of a column's values is listed, and whether values are listed "
        "except for blanks or quotes around them, which stop a run: visible to the user who runs it.",
        *([SCRUBBED] if texts else []),
        "When the run took place and how long its steps took: visible to the user who runs it."
        + (" That shows about how many runs the choice of a setting made." if tune and tune.runs != "each" else ""),
        "Whether the table has the same content as in an earlier run with these options, and so whether the run was "
        "paid for again or refused: visible to the user who runs it, and in the statement's number of runs.",
        "Other knowledge of the data that influenced the options (domains, bound, epsilon, the choice among several "
        "tables).",
        *earlier_attempts(attempts),
    ]


def _assumptions(task: Task, attempts: int) -> list[Assumption]:
    contract, privacy = task.contract, task.contract.privacy
    written = contract.text_column is not None
    of_noise = randomness_of(task.plan.event, task.plan.method) if written else (RANDOMNESS,)
    if privacy.unit == "example":
        unit_assumptions = [
            Assumption(
                "Each row belongs to another unit.",
                "as declared",
                "No owners were declared. A person with several rows is protected for each row separately.",
            )
        ]
    else:
        (owner,) = privacy.owner_columns
        unit_assumptions = [
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
        *of_noise,
        *unit_assumptions,
        Assumption(
            "Domains, bins, the contribution bound and the number of expected units are public"
            f"{', and so are the words about the texts' if written else ''}.",
            "not established" if task.not_covered else "as declared",
            "Some domains were read from the data; see what is not covered."
            if task.not_covered
            else "Values outside are clamped or counted as missing; the mechanism pays for learned values.",
        ),
        *(
            [
                Assumption(
                    f"The {number_of(len(contract.generate.constraints), 'declared constraint')} on rows are public.",
                    "as declared",
                    "They apply to computations from the noisy counts, at no cost, and not to the mechanism"
                    + (", except for orders of moments, whose gaps it counts." if contract.gaps else "."),
                )
            ]
            if contract.generate.constraints
            else []
        ),
        started_in_words(attempts),
    ]


def _whom(unit: str, rows: int) -> str:
    return "one row" if unit == "example" else f"one {unit} with at most {number_of(rows, 'row')}"


def _accounting(accounting: dict[str, Any]) -> str:
    bounds = {"privacy loss distributions": "epsilon_by_pld", "Renyi differential privacy": "epsilon_by_renyi"}
    shown = [f"{name}: {accounting[key]:.4g}" for name, key in bounds.items() if accounting.get(key) is not None]
    return f"Epsilon by {accounting['type']}, the smaller of proven bounds ({'; '.join(shown)})."


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A part of a statement in Markdown."""
    return ["", f"## {title}", "", *(f"- {line}" for line in lines)]


def assumptions_section(assumptions: Sequence[Mapping[str, str]]) -> list[str]:
    """The part on what a guarantee rests on."""
    lines = [f"{item['assumption']} **{item['holds']}**: {item['because']}" for item in assumptions]
    return section("Assumptions", lines)


def missing_section(lines: Sequence[str]) -> list[str]:
    """The part on columns that are mostly missing; nothing without any."""
    return section("Columns with hardly any usable value", lines) if lines else []
