"""Visible verdicts: whether an account's terms still apply, and whether a request fits under its cap.

What belongs here: decisions and messages that depend on public facts only (contract, family file, plan, number and kind
of entries), and the record of a refusal. What does not: anything that knows participants (`store`, `owners`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from dpsynth_platform.foundation.errors import AccountingError, BudgetExceeded, LedgerError
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.filter import Cost, RenyiFilter, add_up
from dpsynth_platform.ledger.records import Account, CostRequest

if TYPE_CHECKING:
    from dpsynth_platform.contracts.family import FamilyBudget


def terms_of(family: FamilyBudget, key_ids: Sequence[str]) -> dict[str, Any]:
    """What an account for this budget is sealed with."""
    return {
        "unit": family.unit,
        "adjacency": family.adjacency,
        "namespace": family.namespace,
        "owner_normalization": list(family.owner_normalization),
        "mode": family.mode,
        "cap": {"epsilon": family.cap.epsilon, "delta": family.cap.delta},
        "filter": RenyiFilter.seal(family.cap.epsilon, family.cap.delta).to_json(),
        "key_ids": list(key_ids),
    }


def declared_account(connection: Connection, family: FamilyBudget) -> Account | None:
    """See `store.Ledger.check_declared`."""
    account = rows.find_account(connection, family.family)
    if account is not None:
        check_declared(connection, account, terms_of(family, account.key_ids))
    return account


def check_declared(connection: Connection, account: Account, terms: dict[str, Any]) -> None:
    """Raises `LedgerError` if a family's terms differ from its account; keys are for `check_keys`."""
    declared = {
        "unit": (account.unit, terms["unit"]),
        "adjacency": (account.adjacency, terms["adjacency"]),
        "namespace": (account.namespace, terms["namespace"]),
        "owner_normalization": (list(account.owner_normalization), terms["owner_normalization"]),
        "mode": (account.mode, terms["mode"]),
        "cap.epsilon": (account.epsilon, terms["cap"]["epsilon"]),
        "cap.delta": (account.delta, terms["cap"]["delta"]),
    }
    for name, (is_sealed, now) in declared.items():
        if is_sealed == now:
            continue
        raised = chain.events(connection, kinds=[chain.RAISED], subject=account.family)
        if raised and name.startswith("cap."):
            raise LedgerError(
                f"family {account.family}: the account's cap was raised to epsilon {account.epsilon:g}, delta "
                f"{account.delta:g} (event {raised[-1].sequence}); declare {name}: {is_sealed!r} in "
                f"families/{account.family}.yaml, where it is {now!r}"
            )
        raise LedgerError(
            f"family {account.family}: {name}: {now!r}, but the account holds {is_sealed!r}, sealed for life; "
            "restore the file, or have a raise of the cap approved"
        )


def check_keys(account: Account, key_ids: Sequence[str]) -> None:
    """Raises `LedgerError` if fingerprint keys are not the account's present ones."""
    if list(account.key_ids) != list(key_ids):
        raise LedgerError(
            f"family {account.family}: the fingerprint keys are not the account's, so known owners would count as new. "
            "If the fingerprints are older than a rotation of the keys, materialize scrubbed again. Otherwise the "
            "account is frozen until the vault is restored from its backup"
        )


def check_request(account: Account, request: CostRequest) -> None:
    """Refuses a request that its account could not be charged with, or that could not be verified later.

    Raises:
        LedgerError: it is for another unit or adjacency than the account's.
        AccountingError: its event is of an unknown kind, impossible, or not of its guarantee's adjacency and bound; or
            its slack is not below the guarantee's delta, or too small to be added up.
    """
    from dpsynth_platform.privacy.events import event_from_json, matches_claim

    mine = request.guarantee
    for name, asked, sealed in (("unit", mine.unit, account.unit), ("adjacency", mine.adjacency, account.adjacency)):
        if asked != sealed:
            raise LedgerError(
                f"{request.place}: {name} {asked!r} differs from family {account.family}'s {sealed!r}; guarantees of "
                "different kinds are not converted"
            )
    if not matches_claim(event_from_json(request.event), mine):
        raise AccountingError(
            f"{request.place}: event and guarantee differ in adjacency, contribution bound or weighting"
        )
    # Below the least normal number floats lose digits, and a rounded-up value need not be above the exact one.
    least = sys.float_info.min
    if not (request.delta_slack == 0 or least <= request.delta_slack < mine.delta):
        raise AccountingError(
            f"{request.place}: delta_slack {request.delta_slack!r}; accepted: 0, or from {least:.3g} to below the "
            f"guarantee's delta {mine.delta:.3g}"
        )


def counted(connection: Connection, account: Account) -> Cost:
    """The sum of costs that a visible verdict counts: all entries' in `family` mode, none otherwise."""
    if account.mode == "per-owner":
        return account.filter.nothing
    total = rows.settled(connection, account.family)
    for cost in rows.reserved_costs(connection, account.family):
        total = add_up(total, cost)
    return total


def epsilon_left(connection: Connection, account: Account, delta: float) -> float:
    """The public part of what is left at `delta` for a Gaussian-like mechanism."""
    return account.filter.left_beside(counted(connection, account), delta)


def remaining(connection: Connection, family: str, request: CostRequest, most: int) -> int:
    """See `store.Ledger.remaining`."""
    account = rows.get_account(connection, family)
    if request.guarantee.delta > account.delta:
        return 0
    total, cost = counted(connection, account), account.filter.cost(request.curve, request.delta_slack)
    for number in range(most):
        total = add_up(total, cost)
        if not account.filter.admits(total):
            return number
    return most


@dataclass(frozen=True)
class Refusal:
    """Why a request is blocked: a code for the chain and a message."""

    reason: str
    message: str


def refusal_of(connection: Connection, account: Account, request: CostRequest, times: int = 1) -> Refusal | None:
    """Why a request, `times` over, does not fit under its account's cap, or None if it does."""
    taken = counted(connection, account)
    total = taken
    for _ in range(times):
        total = add_up(total, account.filter.cost(request.curve, request.delta_slack))
    if account.filter.admits(total) and request.guarantee.delta <= account.delta:
        return None
    asked = request.guarantee
    if asked.delta > account.delta:
        return Refusal(
            "delta",
            f"{request.place}: delta {asked.delta:.3g} exceeds family {account.family}'s {account.delta:.3g} for life; "
            "declare a smaller privacy.guarantee.delta. Nothing was spent.",
        )
    if not account.filter.admits_slack(total):
        rest = account.filter.slack_left(taken)
        way_out = (
            "Raise the thresholds (a smaller delta does), or declare the values of columns that are learned"
            if rest > 0
            else "Use a mechanism without thresholds: declare the values of all columns"
        )
        message = (
            f"{request.place}: its thresholds take {times * request.delta_slack:.3g} of delta; of what family "
            f"{account.family} reserves for thresholds, {rest:.3g} is left. {way_out}. Nothing was spent."
        )
        return Refusal("slack", message)
    left = left_for(account.filter, taken, request, times)
    several = f", {times} times over" if times > 1 else ""
    way_out = (
        f"Lower {'--epsilon' if request.purpose == 'bound' else 'privacy.guarantee.epsilon'} to about {left:g}"
        if left >= 0.01
        else "Use a family of datasets about other people"
    )
    message = (
        f"{request.place}: the request (epsilon {asked.epsilon:.4g}, delta {asked.delta:.3g}{several}) does not fit "
        f"under the cap of family {account.family} (epsilon {account.epsilon:.4g}, delta {account.delta:.3g} for "
        f"life); epsilon left at this delta{' for each' if several else ''}: {left:g}. {way_out}. Nothing was spent."
    )
    return Refusal("cap", message)


def left_for(sealed: RenyiFilter, counted: Cost, request: CostRequest, times: int = 1) -> float:
    """What is left, beside what is counted, for each of `times` releases like the requested one: epsilon, rounded down.

    It is at the request's own delta and as such a release would claim it. The request's own cost is scaled until it
    just fits: the figure reaches what the request claims exactly where the request is granted. Further up it is that of
    more steps with the same noise; with less noise in as many steps, training on samples may reach less. A release
    claims the smaller of PLD and Renyi and the account adds Renyi curves, so the ratio is that of the request.
    """
    claim = request.guarantee
    if claim.delta > sealed.delta:
        return 0.0
    together = sealed.nothing
    for _ in range(times):
        together = add_up(together, sealed.cost(request.curve, request.delta_slack))
    own = claim.delta - request.delta_slack
    by_renyi = request.curve.epsilon(own)
    left = min(request.curve.scaled(sealed.room(counted, together)).epsilon(own), sealed.epsilon)
    ratio = min(1.0, claim.epsilon / by_renyi) if by_renyi > 0 else 1.0
    return math.floor(left * ratio * 1000) / 1000


def block(
    connection: Connection, account: Account, request: CostRequest, refusal: Refusal, key: str | None
) -> BudgetExceeded:
    """Records a blocked request of a run; the caller commits and then raises what this returns."""
    payload = {
        "dataset": request.dataset,
        "period": request.period,
        "epsilon": request.guarantee.epsilon,
        "delta": request.guarantee.delta,
        "plan_digest": request.plan_digest,
        "runner": request.runner,
        "reason": refusal.reason,
        "key": key,
    }
    chain.append(connection, rows.now_text(connection), chain.BLOCKED, account.family, payload)
    return BudgetExceeded(refusal.message)


def overlap(request: CostRequest) -> Refusal:
    """The refusal of `on_overlap: block` after an overlap."""
    return Refusal(
        "overlap",
        f"{request.place}: some of its owners took part in an earlier mechanism of the family, or of another family of "
        "its namespace, and the contract says on_overlap: block. This verdict looks at the data. Use 'exclude' or "
        "'compose' for one that does not. Nothing was spent.",
    )


def incomparable(request: CostRequest, policy: str, entries: Sequence[str]) -> Refusal:
    """The refusal of `exclude` and `block` where some kin's people cannot be compared; looks at no data."""
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    return Refusal(
        "incomparable",
        f"{request.place}: on_overlap: {policy} promises that nobody takes part twice, which cannot be checked: "
        f"{entries[0]}{more}. With 'compose' the guarantee of both together is stated. Nothing was spent.",
    )
