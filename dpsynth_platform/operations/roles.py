"""The roles of a run's mechanisms: one model for the release and, where canaries would hurt it, one for the audit.

What belongs here: the ledger entry, rows and place of each role. What does not: training (`model`), and the keys of
their entries (`planning.mechanism_keys`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.storage import AUDITED
from dpsynth_platform.synth.planning import audited_key


@dataclass(frozen=True)
class Role:
    """One mechanism of a run.

    Attributes:
        step: the step whose output is its model.
        entry: the fact of `clearance` that names its ledger entry.
        table: its rows, in the output of `bounded`.
        canaries: whether its rows contain them.
    """

    step: str
    entry: str
    table: str
    canaries: bool

    def key(self, run_key: str) -> str:
        """Its key in the ledger."""
        return audited_key(run_key) if self.step == AUDITED else run_key


ONLY = Role("model", "entry_id", "table", canaries=True)
RELEASED = Role("model", "entry_id", "table", canaries=False)
ATTACKED = Role(AUDITED, "audited_entry_id", AUDITED, canaries=True)


def roles_of(contract: DataContract) -> tuple[Role, ...]:
    """The mechanisms of a run in their order; the release is drawn from the last one's model.

    The attacked model comes first: if it fails, the second one costs nothing, and no model exists that could be
    released without its audit. A started mechanism stays paid in any order.
    """
    return (ATTACKED, RELEASED) if contract.separate_audit_model else (ONLY,)


def released_role(contract: DataContract) -> Role:
    """The mechanism of the release."""
    return roles_of(contract)[-1]


def attacked_role(contract: DataContract) -> Role:
    """The mechanism of the audit: the one that reads the canaries."""
    return roles_of(contract)[0]
