"""What a run's mechanisms are for: one model to draw from and, where canaries would hurt it, one to attack.

What belongs here: where each of them finds its ledger entry, its rows and its place. What does not: training (`model`),
and the order and the keys of their entries (`planning.mechanism_keys`).
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
        step: whose output its model is.
        entry: the fact of `clearance` that names its ledger entry.
        table: its rows, in the output of `bounded`.
        canaries: whether they are among these.
    """

    step: str
    entry: str
    table: str
    canaries: bool

    def key(self, run_key: str) -> str:
        """The ledger's key of it, in a run."""
        return audited_key(run_key) if self.step == AUDITED else run_key


ONLY = Role("model", "entry_id", "table", canaries=True)
RELEASED = Role("model", "entry_id", "table", canaries=False)
ATTACKED = Role(AUDITED, "audited_entry_id", AUDITED, canaries=True)


def roles_of(contract: DataContract) -> tuple[Role, ...]:
    """The mechanisms of a run, in the order in which they start; what is released is drawn from the last one's model.

    The one that is attacked comes first. What has started is paid for whatever follows, so that no order spends less;
    but a failure of the first leaves the second's cost free, and then nothing that could be released is there without
    an audit of its kind.
    """
    return (ATTACKED, RELEASED) if contract.separate_audit_model else (ONLY,)


def released_role(contract: DataContract) -> Role:
    """The mechanism whose model the release is drawn from."""
    return roles_of(contract)[-1]


def attacked_role(contract: DataContract) -> Role:
    """The mechanism whose model is audited: the one that has read the canaries."""
    return roles_of(contract)[0]
