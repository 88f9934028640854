"""The privacy statement of a synthetic table of several participants, as JSON and in Markdown.

What belongs here: what such a table promises, against whom, and what it rests on. What does not: the numbers
(`federated_plan`), and statements of tables of one place (`statement`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.evolution import EvolutionPlan
from dpsynth_platform.federation.picture_evolution import PictureEvolutionPlan
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.foundation.markdown import cell
from dpsynth_platform.one_table.assumed import empty_in_words
from dpsynth_platform.one_table.federated_plan import (
    ProtectionInWords,
    pictures_in_words,
    plan_shown,
    protections_in_words,
    rounds_shown,
    units_in_words,
)
from dpsynth_platform.one_table.statement import assumptions_section, missing_section, section
from dpsynth_platform.privacy.accounting import EpsilonResult, epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import HIDDEN, Assumption
from dpsynth_platform.synth.tabular.domain import filled_in_words
from dpsynth_platform.synth.tabular.restore import ReleaseSchema

_METHODS = {"pld": "privacy loss distributions", "renyi": "Renyi differential privacy"}
NOT_COVERED = (
    "Values that a participant claims: they cannot be checked, so that a participant that counts records it does not "
    "have, or leaves some out, changes the table. Integrity is not claimed.",
    "A participant's records against itself: its software, operators and logs hold them.",
    "Whether a participant has any rows, and listed values in each column: without them, its node does not come up.",
    "Who took part and who dropped out: this statement names them. When: visible to the coordinator and the network.",
    "Other tables of the same people: a participant's ledger knows only what is spent through it, and no ledger knows "
    "what other participants have spent on a person who is in several places.",
    "Other knowledge of the data that influenced the declarations, the policies or the plan.",
)
NOT_COVERED_OF_PICTURES = (
    "What pictures show: faces, plates and writing were not removed before they reached the sums, and each participant "
    "has declared that acceptable. The guarantee, and nothing else, bounds what the table can tell of one unit. People "
    "whom the pictures of several units show are no unit and have no guarantee of their own.",
    "Rows without a readable picture of the declared form: each participant leaves them out, and its node does not "
    "come up where hardly any row has one.",
    "An audit and a review: no attack was run on the model, and no person looked at the pictures before they were "
    "written.",
)
OF_CANDIDATES = (
    "What made the candidates, at the coordinator (foundation: {kind}): it is public as the plan declares, and whom it "
    "shows has no guarantee."
)


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
        return assumptions_of(self.plan)

    @property
    def not_covered(self) -> list[str]:
        found = [*NOT_COVERED, *(() if self.plan.pictures is None else NOT_COVERED_OF_PICTURES)]
        if isinstance(self.plan, PictureEvolutionPlan):
            found.append(OF_CANDIDATES.format(kind=self.plan.parameters.foundation.kind))
        return found

    @property
    def covered(self) -> list[str]:
        sealed = self.plan.sealed
        rounds = rounds_shown(self.plan)
        filled, treatments = self.plan.domain.filled, ReleaseSchema.from_json(sealed.release).treatments
        empty = tuple(name for name, treatment in treatments.items() if treatment == "empty")
        vectors = sum(each.norm is not None for each in self.plan.sums)
        tables = f"{number_of(sum(item.tables for item in rounds) - vectors, 'table')} of counts"
        what = "histograms of votes for candidates" if isinstance(self.plan, EvolutionPlan) else "vectors of pictures"
        parts = [*([tables] if self.plan.domain else []), *([f"{vectors} {what}"] if vectors else [])]
        return [
            f"Made by the method {sealed.method} for the dataset {sealed.dataset}: {' and '.join(parts)} in "
            f"{number_of(len(rounds), 'round')}, each with Skellam noise; only sums of all who finished were opened.",
            *pictures_in_words(self.plan),
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
            f"{len(self.took_part.started)} participants, of whom only noisy sums were opened.",
            *section("Whom it protects", [*units_in_words(self.plan), f"Hidden is {HIDDEN[guarantee.adjacency]}."]),
            "",
            "## Against whom",
            "",
            *_protections_table(protections_in_words(self.plan)),
            *section("What it covers", self.covered),
            *missing_section(self.mostly_missing),
            *section("What it does not cover", self.not_covered),
            *assumptions_section([asdict(item) for item in self.assumptions]),
            *section("Who took part", self.took_part.lines()),
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


def assumptions_of(plan: FederatedPlan) -> list[Assumption]:
    """What the guarantee of a run rests on."""
    terms = plan.terms
    honest = terms.minimum - terms.colluders
    bound = number_of(terms.max_contributions, "record")
    return [
        Assumption(
            f"No more than {terms.colluders} of the participants are curious together, also with the coordinator. So "
            f"at least {number_of(honest, 'participant')} of those that finish a round are honest: they keep to the "
            "protocol, draw their shares of the Skellam noise as planned, and show them to no other.",
            "as declared",
            f"The plan counts the noise of {terms.minimum} finishing participants (minimum) without that of "
            f"{terms.colluders} (colluders). Each one draws its share by itself; no other can see whether it did.",
        ),
        Assumption(
            "Network and coordinator may read, lose, delay, repeat and make up messages.",
            "yes",
            "Messages are signed, and shares of secrets are encrypted for their receiver. Each participant checks plan "
            "and rounds by itself, opens each round once, and shows vectors under masks that go away in sums of at "
            f"least {terms.minimum} participants alone.",
        ),
        Assumption(
            "The cryptography of masks and signatures holds, now and as long as somebody keeps the messages.",
            "as declared",
            "X25519, HKDF-SHA256, AES-256 in counter mode, ChaCha20-Poly1305, Ed25519. Who breaks it sees each "
            "participant's sums with that participant's share of the noise alone. For all who see nothing but the "
            "table, the guarantee does not rest on it.",
        ),
        Assumption(
            "Each participant has the public keys of the others and its policy from its own hands.",
            "as declared",
            "Of keys that the coordinator chose, all could be its own.",
        ),
        Assumption(
            f"No unit has more than {bound} in the rows that a participant counts.",
            "as declared",
            "Each participant bounds its own rows"
            + ("." if plan.pictures is None else ", and clips what the pictures of one unit add to a sum."),
        ),
        Assumption(
            f"No unit is in the rows of more than {number_of(terms.silos, 'participant')}, and has one owner id in "
            "each of them.",
            "as declared",
            "Participants do not compare their owners.",
        ),
        Assumption(
            "Domains, bins, bounds and numbers of participants are public.",
            "as declared",
            "All participants declare the same. Values outside are clamped or counted as missing. One participant's "
            f"count of a cell, or sum of pictures, is at most that of {terms.most_records} records (most records); "
            "larger ones are clipped.",
        ),
        Assumption(
            "The run cost each honest participant what its plan says.",
            "as declared",
            "Each of these computes the cost anew from the sealed plan, and its ledger marks it as spent before the "
            "first sum.",
        ),
    ]


def _protections_table(found: list[ProtectionInWords]) -> list[str]:
    rows = [(item.party, *item.numbers, item.rests_on) for item in found]
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return ["| party | epsilon | delta | rests on |", "| --- | --- | --- | --- |", *lines]
