"""The contract's `source.federation`: rows that stay with participants, of which only sums are opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import FamilyName, Part, refuse, text_like

AUDITOR = "auditor"
"""The participant that the coordinator adds: its rows are the audit's canaries, which are fictional."""
FEDERATED_METHODS = ("independent", "mst", "aim", "arn", "image_moments", "image_pe", "aug_pe")
"""Methods that such a contract may have."""
METHODS_BY_TRUST = {
    "distributed": FEDERATED_METHODS,
    "central": ("independent", "mst", "aim"),
    "local": ("independent",),
}
"""The same, by who adds the noise."""
TrustName = Literal["distributed", "central", "local"]
FEDERATED_COLUMN = r"[A-Za-z][A-Za-z0-9_-]*"
"""Names of columns, which are the same at all participants whatever their tables are stored as."""
HEEDED_OF_GENERATE = ("method", "rows", "image", "network")
HEEDED_OF_NETWORK = ("width", "fixed_order", "clipping_norm")
HEEDED_WITH_TEXTS = (*HEEDED_OF_GENERATE, "text", "base_model", "public")
HEEDED_OF_PRIVACY = (
    *("unit", "owner_columns", "namespace", "adjacency", "max_contributions", "guarantee", "expected_units"),
    "accept_weak_guarantee",
)
HEEDED_OF_AUDIT = (
    *("canaries", "canary_rows", "confidence", "max_epsilon_lower_bound", "accept_inconclusive", "gates"),
    *("rate_limits", "cumulative"),
)
HEEDED_OF_RELEASE = ("uri", "approvals", "license", "publish", "max_missing", "time_zone")
"""Keys of other parts of a contract that a federated run heeds."""
SCHEME = "federation://"
MOST_PARTICIPANTS = 1000

PublicKey = Annotated[str, text_like(r"^[0-9a-f]{64}$", "64 hexadecimal digits, as `dpsynth node key` prints them")]


class Federation(Part):
    """Whose rows are counted, and how many of these participants are trusted.

    `minimum` and `colluders` are numbers of participants with rows. The plan counts the auditor besides in both: as one
    that finishes, and whose share of the noise the coordinator knows. So it adds none, and as much noise protects a
    record as without it.
    """

    participants: dict[FamilyName, PublicKey] = Field(
        min_length=2, max_length=MOST_PARTICIPANTS, description="The public key of each participant, by its name."
    )
    minimum: int = Field(
        ge=2, description="The fewest participants that finish a round: more than half. The others may drop out."
    )
    colluders: int = Field(
        default=1, ge=1, description="So many participants may be curious together, also with the coordinator."
    )
    trust: TrustName = Field(
        default="distributed",
        exclude_if=lambda trust: trust == "distributed",
        description="Who adds the noise. distributed: each participant a share. central: the coordinator, which sees "
        "exact sums, so that there is no guarantee against it. local: each unit's report, before anything is summed.",
    )
    silos: int = Field(
        default=1, ge=1, description="In so many participants' rows one person may be: the guarantee is for all."
    )
    most_records: int = Field(
        ge=1, description="The most records of a participant that are counted in one cell; more are clipped."
    )

    @model_validator(mode="after")
    def _possible(self) -> Federation:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        number = len(self.participants)
        if AUDITOR in self.participants:
            yield f"participants: {AUDITOR} is the coordinator's own; accepted: another name"
        if len(set(self.participants.values())) < number:
            yield "participants: two have the same key; accepted: a key of its own for each"
        least = (number + self.colluders) // 2 + 1
        if not least <= self.minimum <= number:
            # Two sets of participants could otherwise be opened, whose difference is few participants' counts.
            accepted = (
                f"{least} to {number}" if least < number else f"{number}{', with fewer colluders' * (least > number)}"
            )
            yield f"minimum: {self.minimum} of {number} with colluders: {self.colluders}; accepted: {accepted}"
        if self.silos > number:
            yield f"silos: {self.silos}; accepted: up to {number}, the number of participants"

    @property
    def all_names(self) -> list[str]:
        """All who take part, the auditor among them, ascending."""
        return sorted([*self.participants, AUDITOR])
