"""The budget of a table outside of the asset line: one account in a ledger of its own.

What belongs here: the ledger with its cap, and what is said where a run does not fit. What does not: decisions
(`ledger`), and noticing a ledger that is not the latest (`witnesses`). The account is in `family` mode: every entry is
charged to everybody, so that no fingerprint is kept.

A ledger knows only what is spent through it. By default it stands in the output's directory, and its cap is what the
first run takes, so that nothing else fits; who means to spend more says so beforehand (`--cap-epsilon`), or two people
raise the cap afterwards. Cap and owners are sealed in the transaction that makes the first reservation, after all rows
were read and bounded: a run that fails before it can spend seals nothing.
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
from dpsynth_platform.one_table.declaration import FAMILY
from dpsynth_platform.one_table.place import Place
from dpsynth_platform.one_table.witnesses import intact_ledger, note_head

_STEP = 0.005
_LEAST_CAP = 1e-12
"""Where the search for a cap begins for smaller epsilons."""
_OWNERS = f"owners of {FAMILY}"


@dataclass(frozen=True)
class Budget:
    """A ledger with its one account.

    Attributes:
        directory: where the ledger is.
        family: the account's terms, as they are sealed, or will be by the first reservation.
        owners: the columns that name whose rows are counted together, sealed likewise; empty: each row by itself.
    """

    directory: Path
    ledger: Ledger
    family: FamilyBudget
    owners: tuple[str, ...]

    def admit(self, request: CostRequest, key: str, replaces: str | None) -> None:
        """Refuses a run that does not fit, before a record is read. Raises `BudgetExceeded`."""
        if not self.ledger.accounts():
            return  # nothing is sealed, and the cap to come is large enough (`open_budget`)
        latest = self.ledger.entry_for_key(key)
        if latest is not None and latest.state == "reserved":
            replaces = None  # what is reserved for the run is counted already
        with self._in_words(request):
            self.ledger.admit(FAMILY, request, keys=[key], replaces=replaces)

    def start(self, request: CostRequest, key: str, replaces: str | None) -> Entry:
        """A started entry, durable on return; from here on its cost is spent.

        Raises:
            BudgetExceeded: it does not fit any more.
            SpendRepeated: it was started before.
            LedgerError: another run has sealed other terms since.
        """
        _check_account(self.ledger, self.directory, self.family, self.owners)
        opening = Opening(self.family, (), _OWNERS, self.owners)
        with self._in_words(request):
            entry = self.ledger.reserve(FAMILY, key, request, None, "compose", replaces=replaces, opening=opening)
        note_head(self.directory, self.ledger)
        return self.ledger.start(entry.entry_id)

    def complete(self, entry_id: str, model_digest: str) -> Entry:
        """The entry, which has paid for a complete model."""
        entry = self.ledger.complete(entry_id, model_digest)
        note_head(self.directory, self.ledger)
        return entry

    @contextmanager
    def _in_words(self, request: CostRequest) -> Iterator[None]:
        """A refusal in this command's words; the ledger's own speak of families and contracts."""
        try:
            yield
            return
        except BudgetExceeded:
            asked, cap = request.guarantee, self.family.cap
            left = self.ledger.left(FAMILY, min(asked.delta, cap.delta))
        raise BudgetExceeded(
            f"epsilon {asked.epsilon:g}, delta {asked.delta:.3g} takes epsilon {least_cap(request):g} of a cap and "
            f"does not fit under that of the ledger in {self.directory} (epsilon {cap.epsilon:g}, delta "
            f"{cap.delta:.3g}; left: epsilon {left:.3g}). Nothing was spent. Accepted: less; or the table, options and "
            "declarations of a run that it has paid for, which are free; or a larger cap: this one is sealed, and two "
            "people raise it: "
            f"DPSYNTH_LEDGER_URL={_url(self.directory)} dpsynth ledger raise {FAMILY} --help"
        )


def open_budget(
    place: Place, directory: Path, contract: DataContract, request: CostRequest, cap_epsilon: float | None
) -> Budget:
    """The ledger in a directory and the terms of its account, which the first reservation seals.

    Args:
        place: the output, whose files the ledger is held against.
        cap_epsilon: of the cap; None: as it stands, or what this request takes. The cap's delta is the first run's.

    Raises:
        BudgetExceeded: the first run does not fit under its own cap; then nothing is sealed.
        LedgerError: the account has another unit, owners or cap, or the ledger cannot be used, is gone or is older than
            what it has paid for.
        ConfigurationError: the directory is open to others and not this user's to close.
    """
    ledger = intact_ledger(place, directory)
    privacy = contract.privacy
    owners = tuple(privacy.owner_columns) if privacy.unit == "user" else ()
    account = next(iter(ledger.accounts()), None)
    if account is None:
        if cap_epsilon is not None and cap_epsilon < least_cap(request):
            raise BudgetExceeded(
                f"--cap-epsilon {cap_epsilon:g}: this run takes epsilon {least_cap(request):g} of a cap. Nothing was "
                "spent, no ledger opened. Accepted: that or more, or none"
            )
        cap = Cap(epsilon=cap_epsilon or least_cap(request), delta=privacy.delta)
    else:
        cap = Cap(epsilon=account.epsilon, delta=account.delta)
        if cap_epsilon not in (None, cap.epsilon):
            raise LedgerError(
                f"--cap-epsilon {cap_epsilon:g}: the cap of the ledger in {directory} is sealed at {cap.epsilon:g}; "
                "accepted: that, or none"
                + ("" if ledger.entries() else "; nothing was spent through it, so that deleting it loses nothing")
            )
    family = FamilyBudget(
        family=FAMILY, unit=privacy.unit, adjacency=privacy.adjacency, namespace=FAMILY, mode="family", cap=cap
    )
    _check_account(ledger, directory, family, owners)
    return Budget(directory, ledger, family, owners)


def _check_account(ledger: Ledger, directory: Path, family: FamilyBudget, owners: Sequence[str]) -> None:
    """Whether a run may be charged to the account, if there is one: what is spent on patients is not spent on doctors.

    Raises:
        LedgerError: it is of another unit, or tied to another column of owners, or sealed at another cap.
    """
    account = next(iter(ledger.accounts()), None)
    if account is None:
        return
    if account.family != FAMILY or account.unit != family.unit:
        raise LedgerError(
            f"the ledger in {directory} is kept for one {account.unit} ({account.family}), and this run is for one "
            f"{family.unit}; guarantees of different units are not added up. Accepted: the same unit (with or "
            "without --owners), or a ledger of its own"
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
            f"{asked!r}; guarantees of different owners are not added up. Accepted: the same column, or a ledger of "
            "its own"
        )


def runs_beside(ledger: Ledger, entry_id: str) -> tuple[int, int]:
    """How many other runs a ledger has paid for, and how often the mechanism of an entry's own run was started."""
    key = ledger.entry(entry_id).key
    started = [item.key for item in ledger.entries() if item.started_at is not None]
    return len(started) - started.count(key), started.count(key)


def least_cap(request: CostRequest) -> float:
    """The least epsilon of a cap, to half a percent, under which a request fits alone.

    A ledger adds Renyi curves and spreads delta over orders, so that sums stay valid whatever is decided later; what a
    single run claims by itself is a tenth less.

    Raises:
        BudgetExceeded: no account may have a cap as large.
    """
    first = max(request.guarantee.epsilon, _LEAST_CAP)

    def cap(step: int) -> float:
        return float(f"{first * (1 + _STEP * step):.4g}")

    # Whatever fits under a cap fits under a larger one, so halving finds the first of these steps that fits.
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


def _url(directory: Path) -> str:
    return embedded_ledger(directory.resolve())
