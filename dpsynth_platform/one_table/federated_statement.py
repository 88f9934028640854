"""The privacy statement of a synthetic table of several participants, as JSON and in Markdown.

What belongs here: what such a table promises, against whom, and what it rests on. What does not: the numbers
(`federated_plan`), and statements of tables of one place (`statement`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.evolution import EvolutionPlan
from dpsynth_platform.federation.gradients import GradientsPlan
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.foundation.markdown import cell
from dpsynth_platform.one_table.assumed import empty_in_words
from dpsynth_platform.one_table.federated_plan import (
    plan_shown,
    protections_in_words,
    public_texts,
    read_in_words,
    rounds_shown,
    terms_in_words,
)
from dpsynth_platform.one_table.statement import assumptions_section, missing_section, section
from dpsynth_platform.privacy import federated_words
from dpsynth_platform.privacy.accounting import EpsilonResult, epsilon
from dpsynth_platform.privacy.federated_words import ProtectionInWords
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import HIDDEN, Assumption, of_public_rows
from dpsynth_platform.synth.tabular.domain import filled_in_words
from dpsynth_platform.synth.tabular.restore import ReleaseSchema


def without(plan: FederatedPlan, took_part: TookPart) -> list[str]:
    """Who of the plan's participants never started, in words; nothing where all did."""
    names = sorted(set(plan.terms.participants) - set(took_part.started))
    return [f"Without {', '.join(names)}: no reply, or refused by a policy, a ledger or a person."] if names else []


_OPENED = {
    "distributed": "each with Skellam noise; only sums of all who finished were opened.",
    "central": "whose exact sums over all who finished were opened to the coordinator, and to nobody else.",
    "local": "of private reports; only sums over all who finished were opened.",
}
_SHOWN = {
    "distributed": "noisy sums",
    "central": "exact sums, to the coordinator alone,",
    "local": "sums of private reports",
}
_METHODS = {"pld": "privacy loss distributions", "renyi": "Renyi differential privacy"}


@dataclass(frozen=True)
class FederatedStatement:
    """The statement of one run. All of it is public.

    Attributes:
        rows: of the table beside it.
        mostly_missing: columns with hardly any usable value, by the noisy counts, in words.
    """

    plan: FederatedPlan
    run: str
    took_part: TookPart
    rows: int
    mostly_missing: tuple[str, ...] = ()

    @property
    def accounting(self) -> EpsilonResult:
        return epsilon(self.plan.event, self.plan.guarantee.delta)

    @property
    def guarantee(self) -> Guarantee:
        """With the accountant's epsilon, which is at most the plan's."""
        return replace(self.plan.guarantee, epsilon=self.accounting.epsilon)

    @property
    def assumptions(self) -> list[Assumption]:
        return [Assumption(**item) for item in federated_words.assumptions(terms_in_words(self.plan))]

    @property
    def not_covered(self) -> list[str]:
        public = public_texts(self.plan)
        texts = [] if public is None else [of_public_rows(public, candidates=True)]
        return [*federated_words.not_covered(terms_in_words(self.plan)), *texts]

    @property
    def covered(self) -> list[str]:
        sealed = self.plan.sealed
        rounds = rounds_shown(self.plan)
        filled, treatments = self.plan.domain.filled, ReleaseSchema.from_json(sealed.release).treatments
        empty = tuple(name for name, treatment in treatments.items() if treatment == "empty")
        vectors = sum(each.norm is not None for each in self.plan.sums)
        tables = f"{number_of(sum(item.tables for item in rounds) - vectors, 'table')} of counts"
        what = "vectors of pictures"
        if isinstance(self.plan, EvolutionPlan):
            what = "histograms of votes for candidates"
        elif isinstance(self.plan, GradientsPlan):
            what = "sums of gradients of a network, accounted for together,"
        parts = [*([tables] if self.plan.domain else []), *([f"{vectors} {what}"] if vectors else [])]
        return [
            f"Made by the method {sealed.method} for the dataset {sealed.dataset}: {' and '.join(parts)} in "
            f"{number_of(len(rounds), 'round')}, {_OPENED[self.plan.trust]}",
            *([] if self.plan.trust == "distributed" else [f"Of these: {self.plan.described()['event']}."]),
            *read_in_words(self.plan),
            "Everything computed from these: the fitted model, and all rows that are ever drawn from it.",
            f"This table: {number_of(self.rows, 'synthetic row')}.",
            *([filled_in_words(filled, self.plan.domain.nullable)] if filled else []),
            *([empty_in_words(empty)] if empty else []),
        ]

    def to_json(self) -> dict[str, Any]:
        guarantee, result = self.guarantee, self.accounting
        return {
            "guarantee": guarantee.to_json(),
            "tier": guarantee.tier,
            "run": self.run,
            "plan": plan_shown(self.plan),
            "took_part": asdict(self.took_part),
            "rows": self.rows,
            "covered": self.covered,
            "not_covered": self.not_covered,
            "assumptions": [asdict(item) for item in self.assumptions],
            "accounting": asdict(result) | {"type": _METHODS[result.method]},
            "event": self.plan.sealed.event,
            "mostly_missing": list(self.mostly_missing),
        }

    def to_markdown(self) -> str:
        guarantee, result = self.guarantee, self.accounting
        bounds = {_METHODS["pld"]: result.pld, _METHODS["renyi"]: result.renyi}
        shown = "; ".join(f"{name}: {value:.4g}" for name, value in bounds.items() if value is not None)
        lines = [
            f"The table beside this statement is ({upper_bound(guarantee.epsilon)}, {upper_bound(guarantee.delta)})"
            f"-differentially private: epsilon {upper_bound(guarantee.epsilon)}, delta {upper_bound(guarantee.delta)} "
            f"for one {guarantee.unit} with at most {number_of(guarantee.max_contributions, 'record')} over all "
            f"participants ({guarantee.adjacency}). That is a {guarantee.tier} guarantee. The rows stayed with "
            f"{len(self.took_part.started)} participants, of whom only {_SHOWN[self.plan.trust]} were opened.",
            *(
                ["", f"It is pure: delta is 0 at epsilon {upper_bound(self.plan.guarantee.epsilon)}."]
                if self.plan.trust == "local"
                else []
            ),
            *section(
                "Whom it protects",
                [*federated_words.units(terms_in_words(self.plan)), f"Hidden is {HIDDEN[guarantee.adjacency]}."],
            ),
            "",
            "## Against whom",
            "",
            *_protections_table(protections_in_words(self.plan)),
            *section("What it covers", self.covered),
            *missing_section(self.mostly_missing),
            *section("What it does not cover", self.not_covered),
            *assumptions_section([asdict(item) for item in self.assumptions]),
            *section("Who took part", [*self.took_part.lines(), *without(self.plan, self.took_part)]),
            *section("Accounting", [f"Epsilon by {_METHODS[result.method]}, the smaller of proven bounds ({shown})."]),
            *section(
                "The budget",
                [
                    f"Run {self.run} of plan {self.plan.digest}. Its ledger entries are at the participants, each in "
                    "the participant's own ledger. What was started is spent, also where a participant dropped out."
                ],
            ),
        ]
        return "\n".join(["# Privacy statement", "", *lines]) + "\n"


def _protections_table(found: list[ProtectionInWords]) -> list[str]:
    rows = [(item.party, *item.numbers, item.rests_on) for item in found]
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return ["| party | epsilon | delta | rests on |", "| --- | --- | --- | --- |", *lines]
