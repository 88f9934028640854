"""The method of a contract: the one that it names, or the one that `auto` selects, with the reason.

What belongs here: the choice, from public facts only, before any data are read. What does not: the methods.

The first of these rules that applies decides (for contracts with a text to write, the rules of `text.choice`):

1. One column: `independent`, since there are no relations to keep.
2. Noise hides the relations of two columns: `independent`, which spends all of the budget on single columns; the reason
   says how many records, and which epsilon, would do. It was the best method on adult while a typical combination of
   two columns' values held less than about 2.5 times the noise of its count (14 columns, delta 1e-9; mean total
   variation of all pairs):

   | rows | epsilon | held / noise | `independent` | `mst` | `aim` |
   | --- | --- | --- | --- | --- | --- |
   | 1,000 | 1 | 0.9 | .238 | .263 | .260 |
   | 48,842 | 0.05 | 2.5 | .134 | .152 | .142 |
   | 3,000 | 1 | 2.8 | .155 | .160 | .160 |
   | 10,000 | 0.3 | 2.9 | .136 | .144 | .138 |
   | 48,842 | 0.1 | 4.9 | .115 | .112 | .102 |
   | 48,842 | 1 | 45 | .080 | .048 | .034 |

3. The pairs of columns have too many cells to count: `privbayes`, which counts only combinations above the noise.
4. The time limit is too short even for `mst`, which counts each pair once: `independent`, which counts none.
5. Too many pairs for rounds, or a time limit with fewer rounds than links between all columns: `mst`.
6. Else `aim`, which kept most wherever counts of two columns are above the noise, or nearly so. Of seven tables,
   another method was clearly ahead in pairs on two: `grem` where all of 100 columns share scales, and `appgm` on a
   grid. Neither can be told from public facts, and `grem` is far behind where few columns are related
   (`docs/explanation/measurements/tables.md`, All methods).
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, replace

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import TUNED
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.figures import rounded, upper_bound
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import DECLARED
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.resolution import COARSE_GROUPS
from dpsynth_platform.synth.tabular.workload import workload_of

AUTO = "auto"
LEAST_OVER_NOISE = 2.5
JOINT_SHARE = 2 / 3
"""Approximate part of the precision that all methods except `independent` spend on joint counts."""
MOST_PAIRS = 20_000
STEPS = 4
"""By which an epsilon is found: noise falls about as epsilon rises, so that each step takes most of what is left."""
_ERROR_OF_CHOICE = "its count is off by about"
"""In reasons of this and earlier versions, followed by a number."""


@dataclass(frozen=True)
class Choice:
    """A method, and the reason as a clause that fits after a colon."""

    method: str
    why: str


@dataclass(frozen=True)
class Facts:
    """The public facts that the choice depends on.

    Attributes:
        pair_cells: upper bound on the cells of all pairs of columns; `countable` if so many may be counted.
        records: upper bound on the expected number of `counted`, which are `records` or `owners`.
        held: their mean number in a combination of two columns' values, for a typical pair.
        error: mean absolute noise of the count of such a combination, if a tree of pairs is measured.
        enough: about the least epsilon with which noise would not hide such combinations, or `WEAK_EPSILON`.
        limit: seconds that a run may take; with it, `aim` has `rounds`, and `mst` takes `tree_seconds`.
    """

    columns: int
    pair_cells: int
    countable: bool
    counted: str
    records: int
    held: float
    target: bool
    error: float
    enough: float
    limit: float | None
    rounds: int
    tree_seconds: float


def method_for(contract: DataContract, period: str | None = None) -> Choice:
    """The contract's method, or the one that `auto` selects.

    Raises `ContractError` for a period outside of the declared range, or a workload with an unmodelled column, and
    `AccountingError` if no noise scale meets the guarantee.
    """
    if contract.generate.tune is not None:
        return Choice(TUNED, f"it chooses one of {len(contract.generate.settings)} declared settings")
    if contract.generate.method != AUTO:
        return Choice(contract.generate.method, contract.generate.why or DECLARED)
    if contract.tables:
        return Choice("aim", "of each of linked tables, the measurements that improve its model most")
    if contract.generate.method_unresolved:
        raise ContractError(f"{contract.dataset}: generate.method: auto, with texts, must be resolved before planning")
    return choose(facts_of(contract, period))


def facts_of(contract: DataContract, period: str | None) -> Facts:
    """Arguments and errors as for `method_for`."""
    from dpsynth_platform.privacy.selection import calibrate_selection
    from dpsynth_platform.synth.tabular.aim import work_of
    from dpsynth_platform.synth.tabular.marginals import MAX_CELLS, expected_error, pair_cells
    from dpsynth_platform.synth.tabular.mst import work_of as tree_work
    from dpsynth_platform.synth.tabular.paid import partitions_of

    guarantee, domain = Guarantee.target(contract), planned_domain(contract, period)
    sizes = domain.most_states
    workload, limit = workload_of(contract, domain.names, domain.parts), contract.generate.seconds
    privacy = contract.privacy
    owners = privacy.weighting == "owners"
    records = privacy.expected_units * (1 if owners else privacy.max_contributions)
    # A pair of many combinations is measured coarsely, or its rare values are merged.
    pairs = [a * b for a, b in itertools.combinations([min(size, COARSE_GROUPS) for size in sizes], 2)]
    held, beside = records / statistics.median(pairs or [1]), partitions_of(contract, domain)

    def error(epsilon: float) -> float:
        total = calibrate_selection(replace(guarantee, epsilon=epsilon), 0, 0.0, beside).sigma_total
        return expected_error(total * math.sqrt(max(1, len(sizes) - 1) / JOINT_SHARE))

    enough, noise = guarantee.epsilon, [error(guarantee.epsilon)]
    for _ in range(STEPS if held < LEAST_OVER_NOISE * noise[0] else 0):
        enough = min(WEAK_EPSILON, enough * LEAST_OVER_NOISE * noise[-1] / held)
        noise.append(error(enough))
    return Facts(
        columns=len(sizes),
        pair_cells=pair_cells(sizes),
        countable=pair_cells(sizes) <= MAX_CELLS,
        counted="owners" if owners else "records",
        records=records,
        held=held,
        target=workload.target is not None,
        error=noise[0],
        enough=enough,
        limit=limit,
        rounds=work_of(contract, len(sizes), len(workload.weights)).within(limit).rounds,
        tree_seconds=tree_work(contract, domain).seconds(limit),
    )


def why_in_words(why: str, where: str) -> str:
    """A choice's reason for people: its estimate of noise is not the plan's, which stands elsewhere on the page."""
    if _ERROR_OF_CHOICE not in why:
        return why
    return f"{why}; that error is an estimate by which methods are compared, and the noise of this plan is {where}"


def choose(facts: Facts) -> Choice:
    """The method for these facts, by the rules above. The reason is in a plan, and not in its digest."""
    above = (
        f"a typical combination of two columns' values holds {rounded(facts.held)} of the up to {facts.records:,} "
        f"{facts.counted} expected, and {_ERROR_OF_CHOICE} {rounded(facts.error)}"
    )
    aimless = "; the target gets no links of its own" if facts.target else ""
    if facts.columns == 1:
        return Choice("independent", "there is one column")
    if facts.held < (least := LEAST_OVER_NOISE * facts.error):
        times = rounded(float(upper_bound(least / facts.held, 2)))
        larger = f", or an epsilon of about {upper_bound(facts.enough, 2)}," if facts.enough < WEAK_EPSILON else ""
        return Choice(
            "independent",
            f"noise would drown what columns have in common: {above}; about {times} times as many {facts.counted}"
            f"{larger} would do{aimless}",
        )
    if not facts.countable:
        return Choice(
            "privbayes",
            f"all pairs of columns have up to {facts.pair_cells:,} cells, too many to count, and it counts only what "
            f"rises above the noise ({above}){aimless}",
        )
    if facts.limit is not None and facts.tree_seconds > facts.limit:
        return Choice(
            "independent",
            f"within {facts.limit:g} seconds there is no time for the pairs of {facts.columns} columns "
            f"({above}){aimless}",
        )
    if math.comb(facts.columns, 2) > MOST_PAIRS:
        return Choice("mst", f"{facts.columns} columns have too many pairs for rounds of choosing ({above}){aimless}")
    if facts.limit is not None and facts.rounds < facts.columns - 1:
        return Choice(
            "mst",
            f"within {facts.limit:g} seconds, aim would have {facts.rounds} rounds, fewer than it takes to link "
            f"{facts.columns} columns ({above}){aimless}",
        )
    return Choice("aim", f"it keeps most where counts of two columns are above the noise: {above}")
