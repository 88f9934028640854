"""The budget of a table outside of the asset line: a ledger with one account.

What belongs here: the ledger with its cap, and the errors of runs that do not fit. What does not: decisions (`ledger`),
and detecting an outdated ledger (`witnesses`).

The account is in `family` mode, so that no fingerprint is stored. By default, its cap is the cost of the first run. The
first reservation seals cap and owners, after all rows were read and bounded: a run that fails before seals nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts.base import MOST_CAP
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import Cap, FamilyBudget
from dpsynth_platform.foundation.errors import BudgetExceeded, LedgerError
from dpsynth_platform.foundation.settings import embedded_ledger
from dpsynth_platform.ledger.chain import BOUND
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger, Opening
from dpsynth_platform.one_table.place import Place
from dpsynth_platform.one_table.witnesses import intact_ledger, note_head
from dpsynth_platform.synth.undeployed import FAMILY

_STEP = 0.005
_LEAST_CAP = 1e-12
"""Start of the search for a cap, for smaller epsilons."""
_OWNERS = f"owners of {FAMILY}"


@dataclass(frozen=True)
class Budget:
    """A ledger with its one account.

    Attributes:
        family: the account's terms, sealed by the first reservation.
        owners: the owner columns, sealed likewise; empty: each row is its own unit.
    """

    directory: Path
    ledger: Ledger
    family: FamilyBudget
    owners: tuple[str, ...]

    def admit(self, request: CostRequest, key: str, replaces: str | None, *, dry_run: bool = False) -> None:
        """Refuses a run that does not fit, before a record is read. Raises `BudgetExceeded`.

        Args:
            dry_run: the ledger does not record a refusal.
        """
        if not self.ledger.accounts():
            return  # nothing is sealed yet, and the cap will be large enough (`open_budget`)
        latest = self.ledger.entry_for_key(key)
        if latest is not None and latest.state == "reserved":
            replaces = None  # the run's reservation is counted already
        with self._in_words(request):
            self.ledger.admit(FAMILY, request, keys=[key], replaces=replaces, dry_run=dry_run)

    def start(self, request: CostRequest, key: str, replaces: str | None) -> Entry:
        """A started entry, durable on return; from then on its cost is spent.

        Raises `BudgetExceeded`, `SpendRepeated` for a started one, `LedgerError` if another run has sealed other terms.
        """
        _check_account(self.ledger, self.directory, self.family, self.owners)
        opening = Opening(self.family, (), _OWNERS, self.owners)
        with self._in_words(request):
            entry = self.ledger.reserve(FAMILY, key, request, None, "compose", replaces=replaces, opening=opening)
        note_head(self.directory, self.ledger)
        return self.ledger.start(entry.entry_id)

    def complete(self, entry_id: str, model_digest: str) -> Entry:
        entry = self.ledger.complete(entry_id, model_digest)
        note_head(self.directory, self.ledger)
        return entry

    @contextmanager
    def _in_words(self, request: CostRequest) -> Iterator[None]:
        """Rewords a refusal: the ledger's own message is about families and contracts."""
        try:
            yield
            return
        except BudgetExceeded:
            asked, cap = request.guarantee, self.family.cap
            left = self.ledger.left(FAMILY, min(asked.delta, cap.delta))
        raise BudgetExceeded(
            f"epsilon {asked.epsilon:g}, delta {asked.delta:.3g} takes epsilon {least_cap(request):g} of a cap and "
            f"does not fit under that of the ledger in {self.directory} (epsilon {cap.epsilon:g}, delta "
            f"{cap.delta:.3g}; left: epsilon {left:.3g}). Nothing was spent. Accepted: a smaller epsilon; or the "
            "table, options and declarations of a paid run, which cost nothing; or a larger cap, by two people: "
            f"DPSYNTH_LEDGER_URL={embedded_ledger(self.directory.resolve())} dpsynth ledger raise {FAMILY} --help"
        )


def open_budget(
    place: Place,
    directory: Path,
    contract: DataContract,
    owner: str | None,
    request: CostRequest,
    cap_epsilon: float | None,
) -> Budget:
    """The ledger in a directory and the terms of its account, which the first reservation seals.

    Args:
        place: the output, for the check of the ledger against its files.
        owner: the owners' column by its name in the table: other columns may have the same name in the contract.
        cap_epsilon: None: that of the account, or the cost of this request. The cap's delta is the first run's.

    Raises:
        BudgetExceeded: the first run does not fit under its own cap; then nothing is sealed.
        LedgerError: the account has another unit, owners or cap, or the ledger is unusable, missing or outdated.
        ConfigurationError: others can access the directory, and this user cannot close it.
    """
    ledger = intact_ledger(place, directory)
    privacy = contract.privacy
    owners = () if owner is None else (owner,)
    account = next(iter(ledger.accounts()), None)
    if account is None:
        if cap_epsilon is not None and cap_epsilon < least_cap(request):
            raise BudgetExceeded(
                f"--cap-epsilon {cap_epsilon:g}: this run takes epsilon {least_cap(request):g} of a cap. Nothing was "
                "spent, and no ledger was opened. Accepted: that value or more, or no --cap-epsilon"
            )
        cap = Cap(epsilon=cap_epsilon or least_cap(request), delta=privacy.delta)
    else:
        cap = Cap(epsilon=account.epsilon, delta=account.delta)
        if cap_epsilon not in (None, cap.epsilon):
            raise LedgerError(
                f"--cap-epsilon {cap_epsilon:g}: the cap of the ledger in {directory} is sealed at {cap.epsilon:g}; "
                "accepted: that value, or no --cap-epsilon"
                + ("" if ledger.entries() else "; nothing was spent through it, so that it can be deleted")
            )
    family = FamilyBudget(
        family=FAMILY, unit=privacy.unit, adjacency=privacy.adjacency, namespace=FAMILY, mode="family", cap=cap
    )
    _check_account(ledger, directory, family, owners)
    return Budget(directory, ledger, family, owners)


def _check_account(ledger: Ledger, directory: Path, family: FamilyBudget, owners: Sequence[str]) -> None:
    """Raises `LedgerError` if there is an account of another unit, owner column or cap."""
    account = next(iter(ledger.accounts()), None)
    if account is None:
        return
    if account.family != FAMILY or account.unit != family.unit:
        raise LedgerError(
            f"the ledger in {directory} is kept for one {account.unit} ({account.family}), and this run is for one "
            f"{family.unit}; guarantees of different units are not added up. Accepted: the same unit (with or "
            "without --owners), or a separate --ledger"
        )
    if (account.epsilon, account.delta) != (family.cap.epsilon, family.cap.delta):
        raise LedgerError(
            f"the ledger in {directory} was sealed meanwhile by another run, at epsilon {account.epsilon:g}, delta "
            f"{account.delta:.3g}. Nothing was spent; run again"
        )
    bound = next(iter(ledger.history(kinds=[BOUND], subject=_OWNERS)), None)
    if bound is not None and bound.payload["owner_columns"] != list(owners):
        (kept,), (asked,) = bound.payload["owner_columns"], owners
        raise LedgerError(
            f"the ledger in {directory} is kept for the owners in column {kept!r}, and this run is for those in "
            f"{asked!r}; guarantees of different owners are not added up. Accepted: the same column, or a separate "
            "--ledger"
        )


def cap_and_left(out: Path, directory: Path) -> tuple[float, float]:
    """The epsilon of the cap of an output's ledger, and what is left of it.

    Raises `LedgerError` if the ledger is missing, outdated or has no account.
    """
    ledger = intact_ledger(Place(out), directory)
    for account in ledger.accounts():
        return account.epsilon, ledger.left(FAMILY, account.delta)
    raise LedgerError(f"the ledger in {directory} has no account yet; accepted: one that has paid for a run")


def runs_beside(ledger: Ledger, entry_id: str) -> tuple[int, int]:
    """The number of other runs that a ledger has paid for, and of starts of the entry's own run."""
    key = ledger.entry(entry_id).key
    started = [item.key for item in ledger.entries() if item.started_at is not None]
    return len(started) - started.count(key), started.count(key)


def least_cap(request: CostRequest) -> float:
    """The least epsilon of a cap, to half a percent, under which a request fits alone, or `BudgetExceeded`.

    A ledger adds Renyi curves and spreads delta over orders, so that sums are valid for adaptive choices; the claim of
    a single run is a tenth less.
    """
    first = max(request.guarantee.epsilon, _LEAST_CAP)

    def cap(step: int) -> float:
        return float(f"{first * (1 + _STEP * step):.4g}")

    # Fitting is monotone in the cap, so bisection finds the first step that fits.
    low, high = -1, 0
    while not _fits(request, min(cap(high), MOST_CAP)):
        if cap(high) >= MOST_CAP:
            raise BudgetExceeded(
                f"epsilon {request.guarantee.epsilon:g}, delta {request.guarantee.delta:.3g} takes more than the "
                f"largest cap of a ledger (epsilon {MOST_CAP:g}). Nothing was spent. Accepted: a smaller epsilon"
            )
        low, high = high, 2 * high + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(request, cap(middle)) else (middle, high)
    return min(cap(high), MOST_CAP)


def _fits(request: CostRequest, cap: float) -> bool:
    sealed = RenyiFilter.seal(cap, request.guarantee.delta)
    return sealed.fits([(request.curve, request.delta_slack)])
