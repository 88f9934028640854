"""What a run would cost, before it is made: nothing is reserved or spent.

What belongs here: comparing a run's cost with its ledger. What does not: the run (`run`).
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import BudgetExceeded, SpendRepeated
from dpsynth_platform.foundation.people import recorded_name
from dpsynth_platform.foundation.redaction import safely
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.one_table.budget import Budget, least_cap, open_budget
from dpsynth_platform.one_table.paying import known_key, paid_entry
from dpsynth_platform.one_table.place import Place
from dpsynth_platform.one_table.task import Options, Task, task_of
from dpsynth_platform.one_table.witnesses import is_missing
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.secrets.vault import SIGNING_KEY
from dpsynth_platform.sources.table_files import check_exists
from dpsynth_platform.synth.undeployed import FAMILY

NEW = "new"
"""The key of a run of an output without keys."""


@dataclass(frozen=True)
class Forecast:
    """A run as its options and the public facts of its table decide it.

    Attributes:
        guarantee: the largest loss that the run may claim.
        event: what it does to the data, in words.
        errors: expected errors of counts, by the plan's names for them.
        takes: the epsilon of a cap that it takes; 0 where it is paid for.
        paid: whether an earlier run has paid for it.
        cap: the ledger's; None: there is no ledger, and this run would seal its own.
        left: what is left of the cap.
        refusal: why the ledger would refuse it; None: it fits.
    """

    guarantee: Guarantee
    method: str
    why_method: str
    event: str
    errors: dict[str, float]
    takes: float
    paid: bool
    cap: float | None
    left: float | None
    refusal: str | None

    def __str__(self) -> str:
        cost = "paid for: it spends nothing" if self.paid else f"takes epsilon {self.takes:.3g} of a cap"
        budget = "no ledger yet" if self.cap is None else f"cap {self.cap:.3g}, left {self.left:.3g}"
        lines = [f"{self.guarantee}; {cost} ({budget})", f"{self.method}: {self.why_method}", self.event]
        return "\n".join([*lines, *([f"refused: {self.refusal}"] if self.refusal else [])])

    def _repr_html_(self) -> str:
        return "<br>".join(escape(line) for line in str(self).split("\n"))


def forecast(table: str | Path | pa.Table, out: str | Path, options: Options) -> Forecast:
    """Calibrates the run of these options and compares its cost with the ledger that would pay.

    Args:
        table, out, options: as for `synthesize`. The table's content is hashed, to find out whether it is paid for;
            rows are read only for domains that `assume_public_domain` takes from them.

    Raises:
        ContractError, SourceError, AccountingError: as `synthesize`.
        LedgerError: the ledger is missing or outdated.
        DpsynthError: any other failure, without any value of the data.
    """
    return safely(lambda: _forecast(table, Path(out), options))


def _forecast(table: str | Path | pa.Table, out: Path, options: Options) -> Forecast:
    if not isinstance(table, pa.Table):
        table = Path(table)
        check_exists(table)
    task, place = task_of(table, options), Place(out)
    request = task.request(recorded_name(options.runner or Settings.from_environment().user, "runner"))
    described, promise = task.plan.describe(), request.guarantee
    paid, budget, refusal = _standing(task, place, request)
    cap = None if budget is None else budget.family.cap
    return Forecast(
        guarantee=promise,
        method=task.plan.method,
        why_method=task.plan.why,
        event=described["event"],
        errors={name: value for name, value in described.items() if name.startswith("expected_error_per_")},
        takes=0.0 if paid else least_cap(request),
        paid=paid,
        cap=None if cap is None else cap.epsilon,
        left=None if budget is None or cap is None else budget.ledger.left(FAMILY, min(promise.delta, cap.delta)),
        refusal=refusal,
    )


def _standing(task: Task, place: Place, request: CostRequest) -> tuple[bool, Budget | None, str | None]:
    """Whether the run is paid for; the budget, where there is a ledger with an account; and the refusal."""
    options = task.options
    directory = Path(options.ledger) if options.ledger else place.ledger
    if is_missing(place, directory):
        return False, None, None
    budget = open_budget(place, directory, task.contract, options.owners, request, options.cap_epsilon)
    if not budget.ledger.accounts():
        return False, None, None
    key = NEW
    try:
        if any(path.exists() for path in place.vault.files):
            key = known_key(task.keys(place.vault.read(SIGNING_KEY)), budget.ledger)
            if paid_entry(budget.ledger, key, task.plan.method, place, options.spend_again) is not None:
                return True, budget, None
        budget.admit(request, key, options.spend_again, dry_run=True)
    except (BudgetExceeded, SpendRepeated) as error:
        return False, budget, str(error)
    return False, budget, None
