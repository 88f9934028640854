"""The budget of a table outside of the asset line: one account in a ledger of its own.

What belongs here: opening the ledger with its cap, and what is said where a run does not fit. What does not: decisions
(`ledger`). The account is in `family` mode: every entry is charged to everybody, so that no fingerprint is kept.

A ledger knows only what is spent through it. By default it stands in the output's directory, and its cap is what the
first run takes, so that nothing else fits; who means to spend more says so beforehand (`--cap-epsilon`), or two people
raise the cap afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts import MOST_CAP, Cap, DataContract, FamilyBudget, Privacy
from dpsynth_platform.errors import BudgetExceeded, LedgerError
from dpsynth_platform.ledger.chain import BOUND
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.settings import embedded_ledger
from dpsynth_platform.synthesis.declaration import FAMILY

_STEP = 0.005
_LEAST_CAP = 1e-12
"""Where the search for a cap begins for smaller epsilons."""
_OWNERS = f"owners of {FAMILY}"


@dataclass(frozen=True)
class Budget:
    """An open ledger with its one account.

    Attributes:
        directory: where the ledger is.
        family: the account's terms, as they are sealed.
    """

    directory: Path
    ledger: Ledger
    family: FamilyBudget

    def admit(self, request: CostRequest, key: str, replaces: str | None) -> None:
        """Refuses a run that does not fit, before a record is read. Raises `BudgetExceeded`."""
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
        """
        with self._in_words(request):
            entry = self.ledger.reserve(FAMILY, key, request, None, "compose", replaces=replaces)
        return self.ledger.start(entry.entry_id)

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


def open_budget(directory: Path, contract: DataContract, request: CostRequest, cap_epsilon: float | None) -> Budget:
    """The ledger in a directory and its account, which the first run opens and seals.

    Args:
        cap_epsilon: of the cap; None: as it stands, or what this request takes. The cap's delta is the first run's.

    Raises:
        BudgetExceeded: the first run does not fit under its own cap; then nothing is sealed.
        LedgerError: the account has another unit, owners or cap, or the ledger cannot be used.
        ConfigurationError: the directory is open to others and not this user's to close.
    """
    ledger = Ledger(_url(directory))
    privacy = contract.privacy
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
        if account.family != FAMILY or account.unit != privacy.unit:
            raise LedgerError(
                f"the ledger in {directory} is kept for one {account.unit} ({account.family}), and this run is for one "
                f"{privacy.unit}; guarantees of different units are not added up. Accepted: the same unit (with or "
                "without --owners), or a ledger of its own"
            )
        if cap_epsilon not in (None, cap.epsilon):
            raise LedgerError(
                f"--cap-epsilon {cap_epsilon:g}: the cap of the ledger in {directory} is sealed at {cap.epsilon:g}; "
                "accepted: that, or none"
            )
    family = FamilyBudget(
        family=FAMILY, unit=privacy.unit, adjacency=privacy.adjacency, namespace=FAMILY, mode="family", cap=cap
    )
    ledger.open_account(family, key_ids=())
    _bind(ledger, directory, privacy)
    return Budget(directory, ledger, family)


def _bind(ledger: Ledger, directory: Path, privacy: Privacy) -> None:
    """Ties the account to the column that names owners: what is spent on patients is not spent on their doctors.

    Raises:
        LedgerError: it is tied to another one.
    """
    owners = list(privacy.owner_columns) if privacy.unit == "user" else []
    bound = next(iter(ledger.history(kinds=[BOUND], subject=_OWNERS)), None)
    if bound is not None and bound.payload["owner_columns"] != owners:
        (kept,), (asked,) = bound.payload["owner_columns"], owners
        raise LedgerError(
            f"the ledger in {directory} is kept for the owners in column {kept!r}, and this run is for those in "
            f"{asked!r}; guarantees of different owners are not added up. Accepted: the same column, or a ledger of "
            "its own"
        )
    ledger.bind(_OWNERS, FAMILY, owners)


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
