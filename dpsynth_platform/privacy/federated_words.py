"""What the guarantee of a federated run rests on, against whom it holds, and what it does not cover, in words.

What belongs here: sentences that statements of commands and of releases have in common, from public terms alone. What
does not: numbers (`federation.trust`), and statements as a whole (`statement`, `one_table.federated_statement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import published_name
from dpsynth_platform.foundation.figures import number_of, upper_bound

ALWAYS_NOT_COVERED = (
    "Values that a participant claims: they cannot be checked, so that a participant that counts records it does not "
    "have, or leaves some out, changes the table. Integrity is not claimed.",
    "A participant's records against itself: its software, operators and logs hold them.",
    "Whether a participant has any rows, and listed values in each column: without them, its node does not come up.",
    "Who took part and who dropped out: that is published. When: visible to the coordinator and the network.",
    "Other tables of the same people: a participant's ledger knows only what is spent through it, and no ledger knows "
    "what other participants have spent on a person who is in several places.",
    "Other knowledge of the data that influenced the declarations, the policies or the plan.",
)
_OF_PICTURES = (
    "What pictures show: faces, plates and writing were not removed before they reached the sums, and each participant "
    "has declared that acceptable. The guarantee, and nothing else, bounds what the table can tell of one unit. People "
    "whom the pictures of several units show are no unit and have no guarantee of their own.",
    "Rows without a readable picture of the declared form: each participant leaves them out, and its node does not "
    "come up where hardly any row has one.",
)
_OF_TEXTS = (
    "What texts say: each participant replaces personal data in its own texts by rules of its own, best effort, before "
    "they vote. The guarantee does not rest on it, and nothing else bounds what the table can tell of one unit. People "
    "of whom the texts of several units tell are no unit and have no guarantee of their own.",
    "Whether a participant has any text: without one, its node does not come up.",
)
_OF_TRUST = {
    "central": (
        "A record against the coordinator: it opens the participants' exact sums and draws the noise. Until a run is "
        "complete, what it keeps on disk, restricted, opens them again. It is trusted with them.",
    ),
    "local": (
        "How many units a participant has, and how many of them report on each column: public, as neighbours differ in "
        "what a unit's record is and not in whether there is one.",
    ),
}
"""By who adds the noise (`federation.trust`), where that is not each participant."""
_OF_THE_AUDIT = (
    "What the audit does not try: it attacks what all see, sums with the noise of everybody who finished. Those who "
    "know shares of the noise see sums with less, as the guarantee counts them.",
)
_UNAUDITED = (
    "An audit and a review: no attack was run on the model, and no person looked at the {what} before they were "
    "written."
)
_OF_CANDIDATES = (
    "What made the candidates, at the coordinator (foundation: {kind}): it is public as the plan declares, and people "
    "whom it shows or names have no guarantee."
)


TRAINED = ("arn",)
"""Methods that train by sums of gradients."""


@dataclass(frozen=True)
class FederatedTerms:
    """The public terms of a run. Numbers of participants are of those with rows.

    Attributes:
        names: of the participants.
        minimum, colluders, silos, most_records, max_contributions: as in a plan.
        auditor: whether the coordinator has a participant of its own, whose rows are canaries.
        pictures, texts: whether any are read.
        foundation: what makes candidate pictures or texts; None where none evolve.
        trust: who adds the noise (`federation.trust`).
        trains: whether sums of gradients train a network.
    """

    names: Sequence[str]
    unit: str
    minimum: int
    colluders: int
    silos: int
    most_records: int
    max_contributions: int
    auditor: bool = False
    pictures: bool = False
    texts: bool = False
    foundation: str | None = None
    trust: str = "distributed"
    trains: bool = False

    @classmethod
    def of(cls, contract: DataContract) -> FederatedTerms | None:
        """Those of a contract with `source.federation`; None of another one."""
        federation = contract.source.federation
        if federation is None:
            return None
        image, text = contract.generate.image, contract.generate.text
        foundation: str | None = None if image is None or image.evolution is None else image.evolution.foundation
        if text is not None and text.evolution is not None:
            foundation = writer_in_words(
                str(contract.generate.base_model or ""),
                asks_model=not contract.generate.asks_no_model,
                public=contract.generate.public is not None,
            )
        return cls(
            names=sorted(federation.participants),
            unit=contract.privacy.unit,
            minimum=federation.minimum,
            colluders=federation.colluders,
            silos=federation.silos,
            most_records=federation.most_records,
            max_contributions=contract.privacy.max_contributions,
            auditor=True,
            pictures=image is not None,
            texts=text is not None,
            foundation=foundation,
            trust=federation.trust,
            trains=contract.generate.method in TRAINED,
        )

    @property
    def honest(self) -> int:
        return self.minimum - self.colluders

    @property
    def record(self) -> str:
        return "record" if self.unit == "example" else self.unit

    @property
    def each(self) -> str:
        return number_of(self.max_contributions, "record")


def writer_in_words(model: str, *, asks_model: bool, public: bool) -> str:
    """What makes candidate texts: a language model, texts of a public table, or both."""
    made = [f"the language model {published_name(model)}"] if asks_model else []
    return " and ".join([*made, *(["a public table of texts"] if public else [])])


@dataclass(frozen=True)
class ProtectionInWords:
    """The guarantee against a party; without numbers where the plan promises none."""

    party: str
    epsilon: float | None
    delta: float | None
    rests_on: str

    @property
    def numbers(self) -> tuple[str, str]:
        if self.epsilon is None or self.delta is None:
            return ("none", "none")
        return (upper_bound(self.epsilon), upper_bound(self.delta))


def protections(terms: FederatedTerms, epsilon: float, delta: float) -> list[ProtectionInWords]:
    """A line for each party that sees something of a run. No participant protects records from itself.

    Args:
        epsilon, delta: of the opened sums, against all who do not know more shares of noise than the plan says; of
            what the coordinator shows, where it adds the noise; or of a unit's report.
    """
    if terms.trust == "central":
        noise = "the coordinator's noise, which it adds once, before anything depends on a sum"
        shown = "the coordinator, which opens exact sums" + (", with its auditor" if terms.auditor else "")
        return [
            ProtectionInWords(shown, None, None, "nothing: it is trusted with exact sums of all who finish a round"),
            ProtectionInWords(
                "all other participants, together and without the coordinator",
                epsilon,
                delta,
                f"{noise}; that masks and signatures are not broken, now or later",
            ),
            ProtectionInWords("all who see the synthetic table", epsilon, delta, noise),
        ]
    if terms.trust == "local":
        report = "the noise of the unit's own report alone: not on masks, other reports or their order"
        parties = (
            "the coordinator, which opens the sums of reports" + (", with its auditor" if terms.auditor else ""),
            "all other participants, together and with the coordinator",
            "all who see the synthetic table",
        )
        return [ProtectionInWords(party, epsilon, delta, report) for party in parties]
    others = number_of(terms.colluders, "participant")
    rests = (
        f"the noise of at least {number_of(terms.honest, 'honest participant')} of the {terms.minimum} or more that "
        "finish a round"
    )
    masks = "; that masks and signatures are not broken, now or later, by somebody who has kept the messages"
    coordinator = "the coordinator, which opens the sums" + (", with its auditor" if terms.auditor else "")
    found = [
        ProtectionInWords(coordinator, epsilon, delta, rests + masks),
        ProtectionInWords(f"{others}, together and with the coordinator", epsilon, delta, rests + masks),
        ProtectionInWords("all who see the synthetic table", epsilon, delta, rests),
    ]
    if not terms.colluders:
        unknown = "nothing: a participant knows its own share of the noise, and the plan counts no share as known"
        found[1] = ProtectionInWords("a participant that is curious", None, None, unknown)
    return found


def units(terms: FederatedTerms) -> list[str]:
    """Whom the guarantee is about, and with how many records."""
    record, each = terms.record, terms.each
    lines = [
        "One record is protected. A person with several records is protected for each of them separately."
        if terms.unit == "example"
        else f"One {record} is protected: all records with the same owner, of which each participant uses at most "
        f"{each}."
    ]
    if terms.silos > 1:
        lines.append(
            f"One {record} may be in the rows of up to {terms.silos} participants, with at most {each} in each: the "
            f"guarantee is for these {terms.silos * terms.max_contributions} records together."
        )
    else:
        lines.append(f"One {record} is in the rows of one participant alone, as declared (silos 1).")
    lines.append(f"Someone in the rows of more than {number_of(terms.silos, 'participant')} has a weaker guarantee.")
    return lines


def not_covered(terms: FederatedTerms) -> list[str]:
    """What no noise of a run protects."""
    found = [*_OF_TRUST.get(terms.trust, ()), *ALWAYS_NOT_COVERED]
    found += [*(_OF_PICTURES if terms.pictures else ()), *(_OF_TEXTS if terms.texts else ())]
    if terms.auditor:
        found += _OF_THE_AUDIT if terms.trust == "distributed" else ()
    elif terms.pictures or terms.texts:
        found.append(_UNAUDITED.format(what="pictures" if terms.pictures else "texts"))
    if terms.foundation is not None:
        found.append(_OF_CANDIDATES.format(kind=terms.foundation))
    return found


def assumptions(terms: FederatedTerms) -> list[dict[str, str]]:
    """What the guarantee of a run rests on, as the fields of `statement.Assumption`."""
    auditor = (
        " The coordinator's auditor, whose rows are fictional, finishes besides, and adds no noise."
        if terms.auditor
        else ""
    )
    own = ", and clips what the pictures of one unit add to a sum." if terms.pictures else "."
    if terms.texts:
        own = ", and limits what the votes of one unit's texts add to a sum."
    if terms.trains:
        own = ", clips what one unit adds to a sum of gradients, and lets it into the planned rounds alone."
    noise: tuple[tuple[str, str, str], ...] = (
        (
            f"No more than {terms.colluders} of the participants are curious together, also with the coordinator. So "
            f"at least {number_of(terms.honest, 'participant')} of those that finish a round are honest: they keep to "
            "the protocol, draw their shares of the Skellam noise as planned, and show them to no other.",
            "as declared",
            f"The plan counts the noise of {terms.minimum} finishing participants (minimum) without that of "
            f"{terms.colluders} (colluders).{auditor} Each one draws its share by itself; no other can see whether it "
            "did.",
        ),
        (
            "Network and coordinator may read, lose, delay, repeat and make up messages.",
            "yes",
            "Messages are signed, and shares of secrets are encrypted for their receiver. Each participant checks plan "
            "and rounds by itself, opens each round once, and shows vectors under masks that go away in sums of at "
            f"least {terms.minimum} participants alone.",
        ),
        (
            "The cryptography of masks and signatures holds, now and as long as somebody keeps the messages.",
            "as declared",
            "X25519, HKDF-SHA256, AES-256 in counter mode, ChaCha20-Poly1305, Ed25519. Who breaks it sees each "
            "participant's sums with that participant's share of the noise alone. For all who see nothing but the "
            "table, the guarantee does not rest on it.",
        ),
    )
    if terms.trust == "central":
        noise = (
            (
                "The coordinator draws the noise of the plan once for each sum, and shows no sum without it.",
                "as declared",
                f"It opens exact sums of at least {terms.minimum} participants, which add no noise.{auditor} Noisy "
                "counts and choices are on its disk before anything depends on them, and a run that continues takes "
                "these in place of new draws. No participant can see whether it did.",
            ),
            ("The network may read, lose, delay, repeat and make up messages.", *noise[1][1:]),
            (
                noise[2][0],
                noise[2][1],
                "X25519, HKDF-SHA256, AES-256 in counter mode, ChaCha20-Poly1305, Ed25519. Who breaks it sees each "
                "participant's exact counts. For all who see nothing but the table, the guarantee does not rest on it.",
            ),
        )
    elif terms.trust == "local":
        noise = (
            (
                "The participant that has a unit's record draws its report as planned, once, and shows no other.",
                "as declared",
                "A report says of one column, chosen by a fair draw that does not depend on the record, what its kind "
                "says with the chances that the plan names. Nothing else of the record leaves the participant. No "
                "shuffling is assumed, and no amplification is claimed.",
            ),
            noise[1],
        )
    found = (
        *noise,
        (
            "Each participant has the public keys of the others and its policy from its own hands.",
            "as declared",
            "Of keys that the coordinator chose, all could be its own.",
        ),
        (
            f"No unit has more than {terms.each} in the rows that a participant counts.",
            "as declared",
            f"Each participant bounds its own rows{own}",
        ),
        (
            f"No unit is in the rows of more than {number_of(terms.silos, 'participant')}, and has one owner id in "
            "each of them.",
            "as declared",
            "Participants do not compare their owners.",
        ),
        (
            "Domains, bins, bounds and numbers of participants are public.",
            "as declared",
            "All participants declare the same. Values outside are clamped or counted as missing. One participant's "
            "count of a cell, sum of pictures or of gradients, or votes for a candidate are at most those of "
            f"{terms.most_records} records (most records); larger ones are clipped.",
        ),
        (
            "The run cost each honest participant what its plan says.",
            "as declared",
            "Each of these computes the cost anew from the sealed plan, and its ledger marks it as spent before the "
            "first sum.",
        ),
    )
    return [dict(zip(("assumption", "holds", "because"), each, strict=True)) for each in found]
