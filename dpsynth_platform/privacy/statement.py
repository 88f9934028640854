"""The privacy statement: what a release promises, in a form that a machine can check and in words for a lawyer.

What belongs here: a frozen value made of contract, family budget and sealed event alone, its JSON form and its
sentences. What does not: evidence of one run (`release` adds ledger head, audit and approvals beside it). The parts are
those that Ponomareva et al. 2023, "How to DP-fy ML", section 5.3.3, asks a report to have: setting, data accesses that
are and are not covered, final output, unit, adjacency, accounting with its assumptions, formal statement, tuning, and
how to verify.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.privacy.accounting import EPSILON_STEP, EpsilonResult, cost, epsilon
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    DiscreteGaussianCountsEvent,
    DpEvent,
    GaussianCountsEvent,
    GaussianVotesEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    ThresholdedCountsEvent,
    ThresholdedGaussianCountsEvent,
    counts_owners,
    event_from_json,
    event_to_json,
    leaves,
    matches_claim,
    twice,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS, group_guarantee


@dataclass(frozen=True)
class Assumption:
    """Something the guarantee rests on, whether it holds, and what makes it hold (or limits it)."""

    assumption: str
    holds: str
    because: str


@dataclass(frozen=True)
class MechanismWords:
    """How a mechanism names its accesses to the data, and what its randomness rests on.

    What a mechanism does not say of its choices, clipping, sampling and continuous noise is reported as not stated, and
    how it keeps parallel branches apart as declared.

    Attributes:
        counts: what is counted.
        choices: what is chosen by the exponential mechanism.
        result: what the mechanism leaves, from which all else is computed.
        selection: how choices are drawn.
        clipping: how gradients are kept apart and clipped.
        sampling: how samples of records or users are drawn.
        noise: how continuous Gaussian noise is drawn.
        branches: what keeps a unit in one parallel branch.
        votes: what records vote for.
        rounds_of_votes: whether there are votes in rounds, of which each decides what the next one is about.
    """

    counts: str
    choices: str
    result: str
    selection: Assumption = Assumption(
        "Choices are drawn from the exponential mechanism's distribution.",
        "not stated",
        "The mechanism does not say how it draws choices.",
    )
    clipping: Assumption = Assumption(
        "Every clipped gradient is of one record, or one user, alone: nothing is computed across them (batch "
        "statistics, packed sequences, balancing losses), and its norm is at most the clipping norm.",
        "not stated",
        "The mechanism does not say how it clips.",
    )
    sampling: Assumption = Assumption(
        "Every step's sample is Poisson: each member by its own coin of the stated probability, fresh in every step.",
        "not stated",
        "The mechanism does not say how it draws samples.",
    )
    noise: Assumption = Assumption(
        "Continuous noise is drawn from the Gaussian distribution, from unpredictable randomness.",
        "not stated",
        "The mechanism does not say how it draws noise. Floating point never gives the Gaussian distribution exactly.",
    )
    branches: Assumption = Assumption(
        "All records of one unit are in one parallel branch (a batch of a token selection, a part of the data), and "
        "nothing that the mechanism showed before decides in which.",
        "as declared",
        "The cost of parallel branches is that of the dearest one only if this holds.",
    )
    votes: str = "of votes"
    rounds_of_votes: bool = False


_SELECTION = Assumption(
    "Choices are drawn from the exponential mechanism's distribution.",
    "yes",
    "Scores are whole numbers with Gumbel noise; what double precision cannot tell apart is told apart by further "
    "random bits, so that neither rounding nor ties occur.",
)
_ROUNDED_GAUSSIAN = Assumption(
    "Noise is Gaussian, rounded to whole records, from unpredictable randomness.",
    "yes",
    "Each draw is the rounded value of one uniform number from the operating system's cryptographic randomness; what "
    "double precision cannot decide is decided by further bits of it. Rounding is post-processing. Timing is not "
    "hidden from the operator.",
)

MST_WORDS = MechanismWords(
    counts="tables of counts (one or two columns each)",
    choices="choices of which two columns to count together",
    result="the noisy measurements",
    selection=_SELECTION,
    noise=_ROUNDED_GAUSSIAN,
)

AIM_WORDS = MechanismWords(
    counts=(
        "set of tables of counts (one, two or more columns each, chosen in the light of those before; the precisions "
        "of their noise add up to that of the noise stated)"
    ),
    choices="choices, at most, of which columns to count together and how coarsely",
    result="the noisy measurements",
    selection=_SELECTION,
    noise=_ROUNDED_GAUSSIAN,
)

MWEM_WORDS = replace(AIM_WORDS, choices="choices of which columns to count together")
PRIVBAYES_WORDS = replace(
    MST_WORDS,
    counts=(
        "set of tables of counts (one column each, and each column with those that tell most of it; the precisions of "
        "their noise add up to that of the noise stated)"
    ),
    choices="choices, at most, of a column and of those that tell most of it",
)
INDEPENDENT_WORDS = replace(
    MST_WORDS,
    counts=(
        "set of tables of counts (one column each; the precisions of their noise add up to that of the noise stated)"
    ),
)

_OF_GRADIENTS = (
    "That of gradients comes from a keyed cryptographic stream that the operating system seeds. It is computed in "
    "floating point, which never gives the Gaussian distribution exactly, and rounded with the sum to whole steps of "
    "about 1/100,000 of its deviation, which are all that can be seen of it."
)
DP_FINETUNE_WORDS = replace(
    MST_WORDS,
    counts="tables of counts of the columns beside the text (one or two columns each)",
    result="the noisy measurements (votes included, where there are any) and the trained weights",
    votes="of votes of records for clusters of texts that the trained model wrote",
    clipping=replace(
        MechanismWords.clipping,
        holds="up to rounding",
        because=(
            "Models whose layers, losses or batches mix records are refused, by what is known of them and by trying on "
            "random texts whether one record's clipped gradient changes with another record. Norms are bounded from "
            "above, their rounding included. How the sum of clipped gradients is rounded does depend on all records in "
            "it, by some 1/100,000 of the clipping norm as measured; that is not counted."
        ),
    ),
    sampling=replace(
        MechanismWords.sampling,
        holds="yes",
        because="Coins come from a keyed cryptographic stream that the operating system seeds, afresh in every run.",
    ),
    noise=Assumption(
        "Noise is drawn from the Gaussian distribution, from unpredictable randomness.",
        "up to rounding",
        f"That of counts is rounded to whole records, exactly. {_OF_GRADIENTS}",
    ),
)

CTCL_WORDS = replace(
    DP_FINETUNE_WORDS,
    counts=(
        "tables of counts of the texts' public topics and, where any are modelled, of the columns beside the text (one "
        "or two columns each)"
    ),
)

_IN_A_CONTEXT = (
    "What is computed by one record is the same to the last bit whatever else is in the context, as tried on random "
    "tokens in the shapes that are used; from clipping on, numbers are whole, and sums are exact."
)


def _with_votes(votes: str) -> Assumption:
    """Noise of counts and of votes, which are rounded more finely."""
    return replace(
        _ROUNDED_GAUSSIAN,
        assumption=(
            f"Noise is Gaussian, rounded to whole records (that of {votes} to 1/{RECORD_PARTS} of one), from "
            "unpredictable randomness."
        ),
    )


DP_INFERENCE_WORDS = replace(
    MST_WORDS,
    counts="tables of counts of the columns beside the text (one or two columns each)",
    choices=(
        "choices (of columns to count together, and of next tokens: of all those of the one context that a unit is in)"
    ),
    result="the noisy measurements (votes included, where there are any) and the documents",
    votes="of votes of records for clusters of the documents",
    noise=_with_votes("votes, where there are any,"),
    branches=replace(
        MechanismWords.branches,
        holds="up to rounding",
        because=(
            "A unit's context is chosen by a fresh key, from this unit's records and the contexts' labels alone; all "
            f"contexts cost the same, so that it does not matter that labels follow from noisy counts. {_IN_A_CONTEXT}"
        ),
    ),
)

_EVOLVED = (
    "the noisy votes, and texts that a language model wrote from public words and, after the first votes, from texts "
    "of its own that these had chosen"
)
_VOTES_FOR_TEXTS = "of votes, one after the other, of each record for one text of a language model"
_NEAREST = "nearest to it, by itself or by the mean of some variations of it"
AUG_PE_WORDS = replace(
    MST_WORDS,
    counts="tables of counts of the columns beside the text (one or two columns each)",
    result=f"the noisy measurements, {_EVOLVED}",
    votes=f"{_VOTES_FOR_TEXTS}: among those that were written for the record's own label, the one that is {_NEAREST}",
    rounds_of_votes=True,
    noise=_with_votes("votes"),
)

WORDS = {
    "aim": AIM_WORDS,
    "mst": MST_WORDS,
    "mwem": MWEM_WORDS,
    "privbayes": PRIVBAYES_WORDS,
    "independent": INDEPENDENT_WORDS,
    "dp_finetune": DP_FINETUNE_WORDS,
    "ctcl": CTCL_WORDS,
    "dp_inference": DP_INFERENCE_WORDS,
    "aug_pe": AUG_PE_WORDS,
}
"""The words of every generator's mechanism, by the method's name."""


_COUNTS = (DiscreteGaussianCountsEvent, GaussianCountsEvent, ThresholdedCountsEvent, ThresholdedGaussianCountsEvent)
_TEXTS_ALONE = {
    "dp_finetune": replace(
        DP_FINETUNE_WORDS,
        result="the trained weights (and noisy votes, where there are any)",
        noise=replace(
            DP_FINETUNE_WORDS.noise,
            because=f"That of votes, where there are any, is rounded to 1/{RECORD_PARTS} of one. {_OF_GRADIENTS}",
        ),
    ),
    "dp_inference": replace(
        DP_INFERENCE_WORDS,
        choices="choices of next tokens (of all those of the one context that a unit is in)",
        result="the documents (and noisy votes, where there are any)",
        branches=replace(
            DP_INFERENCE_WORDS.branches,
            because=f"A unit's context is chosen by a fresh key, from the unit's id alone. {_IN_A_CONTEXT}",
        ),
    ),
    "aug_pe": replace(AUG_PE_WORDS, result=_EVOLVED, votes=f"{_VOTES_FOR_TEXTS}: the one that is {_NEAREST}"),
}
"""Those of methods whose plan may count no column, for such plans."""


def words_of(method: str, event: DpEvent | dict[str, Any]) -> MechanismWords:
    """The words of a generator's mechanism, of which the event says whether it counts columns beside its texts."""
    tree = event_from_json(event) if isinstance(event, dict) else event
    counted = any(isinstance(leaf, _COUNTS) for leaf, _ in leaves(tree))
    words = WORDS[method] if counted else _TEXTS_ALONE.get(method, WORDS[method])
    if words.rounds_of_votes and _votes_by_itself(tree):
        return replace(words, votes=f"{words.votes}; the last one of a mechanism, for a cluster of texts of any label")
    return words


def _votes_by_itself(event: DpEvent) -> bool:
    """Whether there is a histogram of votes beside those of the rounds, which are composed with themselves."""
    parts = event.events if isinstance(event, dp_event.ComposedDpEvent) else ()
    return isinstance(event, GaussianVotesEvent) or any(_votes_by_itself(part) for part in parts)


@dataclass(frozen=True)
class Tuning:
    """Other runs of mechanisms on the dataset, in whose light the parameters of this one may have been chosen.

    Attributes:
        runs: how many started, whatever became of them.
        covered: whether their events are parts of this statement's event, so that the guarantee holds for the choice.
    """

    runs: int = 0
    covered: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.runs, bool) or not isinstance(self.runs, int) or self.runs < 0:
            raise AccountingError(f"{self.runs!r} tuning runs; accepted: a whole number from 0")

    @property
    def words(self) -> str:
        """In a sentence or two."""
        charged = (
            "Every attempt whose mechanism started is in the ledger and charged to the account, also if it failed."
        )
        others = f"{number_of(self.runs, 'other run')} of mechanisms on this dataset"
        if self.runs == 0:
            return (
                "As declared, no hyper-parameter was chosen by looking at the data: the ledger holds no other run of a "
                f"mechanism on this dataset, and what people saw elsewhere it cannot know. {charged}"
            )
        if self.covered:
            return (
                f"Hyper-parameters were chosen by {others}, whose cost is part of the event: the guarantee holds for "
                f"all of them together. {charged}"
            )
        return (
            f"Hyper-parameters may have been chosen in the light of {others}, all charged to the same account: what "
            "they and this release show together is covered by the account's cap, and not by this release's epsilon. "
            f"{charged}"
        )


UNTUNED = Tuning()

HIDDEN = {
    "add-or-remove": "what their records say, and whether they are in the data at all",
    "zero-out": "what their records say, but not how many people there are",
    "replace-one": "what their records say, but not how many people there are",
    "fixed-graph": "what their records say, but not whose records they are",
}
"""What neighbours by each adjacency differ in, so that a guarantee hides it."""


@dataclass(frozen=True)
class Elsewhere:
    """What is known of mechanisms that may be about the same people and are no part of a release. Public facts only.

    Attributes:
        families: other families in which the same people may be.
        base_model: whether training started from a checkpoint. Its names may be other people's words: they stand in
            the dossier's clearance, and in no sentence.
        declared: who declared what of that checkpoint's lineage public, and why, in sentences without their ends.
        upstream: how many mechanisms that checkpoint was made with.
        claims: how many more are claimed for it, and not borne out by the ledger.
        hearsay: how many models above it have an origin that only other producers tell.
        promises: what follows for one unit from all of them together, in sentences.
    """

    families: tuple[str, ...] = ()
    base_model: bool = False
    declared: tuple[str, ...] = ()
    upstream: int = 0
    claims: int = 0
    hearsay: int = 0
    promises: tuple[str, ...] = ()

    def accesses(self) -> Iterator[str]:
        """What a release's guarantee does not cover of them, a sentence each."""
        if self.families:
            names = ", ".join(self.families)
            yield (
                f"Releases of other families that may be about the same people ({names}): each is charged to its own "
                "account, and no part of this release's epsilon."
            )
        if self.base_model:
            claimed = f" and {number_of(self.claims, 'claimed one')}" if self.claims else ""
            yield (
                "What the base model knew before training: "
                f"{number_of(self.upstream, 'mechanism')}{claimed} made it; no part of this release's epsilon."
            )
        if self.hearsay:
            yield (
                f"What {number_of(self.hearsay, 'model')} upstream, the base model included, had been trained on: that "
                "is the word of other producers alone, and nobody here vouches for it."
            )
        for said in self.declared:
            yield f"What no mechanism stands before, since somebody vouches for it: {said}."


NOWHERE = Elsewhere()


@dataclass(frozen=True)
class PrivacyStatement:
    """All parts of the statement. Public throughout.

    Attributes:
        guarantee: what is claimed: the accountant's epsilon at the contract's delta, for one mechanism never above what
            was asked; where a second one made the model that was audited, for both together.
        target_epsilon: what the contract asked for, of one mechanism.
        tier: strong, reasonable or weak.
        setting: who holds the data and who sees what.
        covered: the accesses to the data that the guarantee covers.
        not_covered: accesses that it does not cover, with who sees their results.
        output: what the guarantee is about.
        unit: whom it protects, in words.
        adjacency: what is compared with what, in words.
        accounting: which bound is claimed, and the other.
        assumptions: what it rests on.
        formal: the definition, written out, and the Renyi curve that it was derived from or checked against.
        groups: what follows for several units together.
        account: what may be said of all releases of the family together.
        event: the mechanism's event tree.
        renyi: its Renyi curve, from which epsilon follows at any other delta.
        tuning: which other runs chose its parameters, whether the guarantee covers them, and what that means.
        verification: how anyone can check.
        weak_reason: why a weak guarantee was accepted, where it is weak.
    """

    guarantee: Guarantee
    target_epsilon: float
    tier: str
    setting: str
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    output: str
    unit: str
    adjacency: str
    accounting: dict[str, Any]
    assumptions: tuple[Assumption, ...]
    formal: str
    groups: str
    account: str
    event: dict[str, Any]
    renyi: dict[str, Any]
    tuning: dict[str, Any]
    verification: str
    weak_reason: str | None

    def to_json(self) -> dict[str, Any]:
        """All parts as a JSON value."""
        document = asdict(self)
        for name in ("covered", "not_covered"):
            document[name] = list(document[name])
        return document | {"assumptions": list(document["assumptions"]), "guarantee": self.guarantee.to_json()}

    def plain_words(self) -> tuple[str, ...]:
        """The statement in sentences for readers who are no experts, the most important first."""
        promise = self.guarantee
        records = "record" if promise.max_contributions == 1 else "records"
        return (
            _PROMISE_WORDS[self.tier].format(unit=promise.unit, otherwise=_OTHERWISE_WORDS[promise.adjacency]),
            f"In numbers: epsilon {upper_bound(promise.epsilon)} and delta {upper_bound(promise.delta)} for each "
            f"{promise.unit}, with at most {promise.max_contributions} {records} of each used. "
            f"{_TIER_WORDS[self.tier]}",
            f"The chance of any conclusion about one {promise.unit} can change by a factor of at most "
            f"{upper_bound(math.exp(promise.epsilon))} because of their data, apart from an allowance of "
            f"{upper_bound(promise.delta)} in probability.",
            "This holds against anyone, whatever else they know, and it cannot be undone by analysing the release "
            "further.",
            *([COUNTED_ONCE] if promise.weighting == "owners" else []),
            *([TWO_MODELS] if TWO_MODELS in self.covered else []),
            "It does not promise that nothing can be inferred from general patterns: what is true of people in general "
            "can be learned, and then applied to anyone.",
            *_UNPROTECTED_WORDS.get(promise.adjacency, ()),
            "The guarantee covers the published rows and the audit. It does not cover what the data's own staff see "
            "inside: " + "; ".join(_first_words(text) for text in self.not_covered) + ".",
            *([] if self.tuning["covered"] else [self.tuning["words"]]),
            "It rests on assumptions. What the platform does not establish by itself: "
            + " ".join(item.assumption for item in self.assumptions if item.holds != "yes"),
            self.account,
        )


def privacy_statement(
    contract: DataContract,
    family: FamilyBudget,
    event: DpEvent | dict[str, Any],
    words: MechanismWords,
    tuning: Tuning = UNTUNED,
    attempts: int = 1,
    elsewhere: Elsewhere = NOWHERE,
) -> PrivacyStatement:
    """The statement for a release of a dataset, computed from public inputs only.

    Where the contract wants a second model for the audit, everything is of both mechanisms together: the audit's
    results are published, too, and they come from the second one.

    Args:
        contract: the sealed snapshot.
        family: the budget of the contract's family.
        event: the sealed plan's event, as a tree or as JSON: that of one mechanism.
        words: the mechanism's own; of a generator's, those of the sealed plan's method (`words_of`).
        tuning: the runs that its parameters may have been chosen by.
        attempts: how often the mechanism of this very run was started, the last time included; of two mechanisms, one
            less than how often both were.
        elsewhere: what clearance found of mechanisms on the same people that are no part of this release.

    Raises:
        AccountingError: the event is for another adjacency or contribution bound than the contract, or costs more
            than the contract asks for; two mechanisms together are a weak guarantee without a reason; or fewer attempts
            than one.
    """
    if attempts < 1:
        raise AccountingError(f"{contract.dataset}: {attempts!r} attempts; accepted: from 1")
    tree = event_from_json(event) if isinstance(event, dict) else event
    target = Guarantee.target(contract)
    if not matches_claim(tree, target):
        raise AccountingError(
            f"{contract.dataset}: the plan's event is not for the contract's adjacency, bound and weighting"
        )
    result = epsilon(tree, target.delta)
    if result.epsilon > target.epsilon:
        raise AccountingError(
            f"{contract.dataset}: the plan costs epsilon {result.epsilon:.4g}, above the {target.epsilon:g} asked for"
        )
    if contract.separate_audit_model:
        tree = twice(tree)
        result = epsilon(tree, target.delta)
    claimed = replace(target, epsilon=max(result.epsilon, EPSILON_STEP))
    if claimed.tier == "weak" and not contract.privacy.accept_weak_guarantee:
        raise AccountingError(
            f"{contract.dataset}: the release costs epsilon {result.epsilon:.4g}, a weak guarantee, and its contract "
            "gives no reason for one"
        )
    return PrivacyStatement(
        guarantee=claimed,
        target_epsilon=target.epsilon,
        tier=claimed.tier,
        setting=(
            "Central model: a trusted organisation holds the data, runs the mechanism and publishes only its "
            "differentially private output."
        ),
        covered=(*_covered(tree, words), *([TWO_MODELS] if contract.separate_audit_model else [])),
        not_covered=_not_covered(contract, tuning, attempts, elsewhere),
        output=_output(contract, words),
        unit=_unit(contract),
        adjacency=_ADJACENCY_WORDS[target.adjacency],
        accounting=_accounting(tree, result),
        assumptions=_assumptions(contract, tree, words, attempts),
        formal=_formal(claimed, cost(tree).delta_slack),
        groups=_groups(claimed),
        account=" ".join((_account(family), *elsewhere.promises)),
        event=event_to_json(tree),
        renyi=cost(tree).curve.to_json(),
        tuning={"runs": tuning.runs, "covered": tuning.covered or not tuning.runs, "words": tuning.words},
        verification=_verification(tree),
        weak_reason=contract.privacy.accept_weak_guarantee if claimed.tier == "weak" else None,
    )


_PROMISE_WORDS = {
    "strong": (
        "Whoever sees this release learns very little about any one {unit} that they could not have learned "
        "{otherwise}."
    ),
    "reasonable": (
        "What anyone can learn from this release about any one {unit}, beyond what they could have learned "
        "{otherwise}, is limited."
    ),
    "weak": (
        "What anyone can learn from this release about any one {unit}, beyond what they could have learned "
        "{otherwise}, has a limit, but a high one: it may be a lot."
    ),
}

_OTHERWISE_WORDS = {
    "add-or-remove": "had their data not been there at all",
    "zero-out": "had their data been blank",
    "replace-one": "had their data been any other",
    "fixed-graph": "had the records that name them said anything else",
}

COUNTED_ONCE = (
    "Each owner counts once, whatever the number of rows; the released rows describe the average owner, not the "
    "average row."
)
"""What `weighting: owners` means for readers."""
WEIGHTED = (
    "In these tables and choices owners are counted: each of an owner's k used rows weighs 1/k, in whole parts of "
    f"1/{RECORD_PARTS} record and rounded down, so that one owner weighs one record at most."
)
"""And how it is done."""
WEIGHTS = Assumption(
    "An owner's rows weigh one record together at most, and what they weigh depends on that owner's rows alone.",
    "yes",
    "Weights are whole numbers, from the number of the owner's rows in the very table that is counted.",
)
"""And what it rests on."""

VOTES = Assumption(
    "All votes of one owner together have the length (L2 norm) of one vote at most, and depend on that owner's records "
    "and on what was already public alone.",
    "yes",
    "A record votes for the candidate nearest to it, which is computed from that record by itself; an owner's votes "
    "are scaled down in whole numbers, and rounded down.",
)
"""What the cost of votes rests on."""
VOTES_OF_MANY = Assumption(
    "A record has one vote, which depends on that record and on what was already public alone.",
    "yes",
    "A record votes for the candidate nearest to it, which is computed from that record by itself. Records have "
    "several owners, so that votes are not scaled to an owner's length: each of an owner's records counts in full.",
)
"""The same where records have several owners."""

_GRAPH_WORDS = (
    "who owns which record and together with whom, how many records there are, who was left out and which records were "
    "used, with whatever decides that (record ids, an order by a declared column)"
)

_UNPROTECTED_WORDS = {
    "fixed-graph": (
        f"It protects what the records say, not the links between people and records: {_GRAPH_WORDS} may all become "
        "known.",
    ),
}

_TIER_WORDS = {
    "strong": "This is a strong guarantee (epsilon up to 1).",
    "reasonable": "This is a reasonable guarantee (epsilon above 1, up to 10).",
    "weak": "This is a weak guarantee (epsilon above 10): it was accepted for a stated reason.",
}

_ADJACENCY_WORDS = {
    "add-or-remove": "Two datasets are neighbours if one is the other with all records of one unit added or removed.",
    "zero-out": (
        "Two datasets are neighbours if one is the other with all records of one unit replaced by records that count "
        "nowhere; the number of units may be known."
    ),
    "replace-one": (
        "Two datasets are neighbours if one is the other with all records of one unit replaced by other records; the "
        "number of units may be known."
    ),
    "fixed-graph": (
        "Two datasets are neighbours if they have the same records with the same owners, and differ only in what the "
        "records of one unit say. The ownership graph is fixed and known to whoever analyses the release (Ganesh et "
        "al. 2025)."
    ),
}


TWO_MODELS = (
    "All of this is of two mechanisms by one plan: the table comes from one model, and the audit's results from an "
    "equal one that was trained apart, with fictional canaries, and is never released. Both read the same people's "
    "data, unless one of them was reserved anew in between. Their cost is stated together."
)
"""What `audit.model: separate` means for readers."""


def _output(contract: DataContract, words: MechanismWords) -> str:
    """What the guarantee is about."""
    published = f"The published table of {_rows(contract)}, and the audit's results on fictional canaries."
    if contract.separate_audit_model:
        return (
            f"{published} Each is computed from {words.result} of one mechanism alone (post-processing); both models "
            "stay restricted."
        )
    return (
        f"{published} Both are computed from {words.result} alone (post-processing). The model itself stays restricted."
    )


def _rows(contract: DataContract) -> str:
    """How many rows are published, in words."""
    rows, text = contract.generate.rows, contract.generate.text
    if rows == "auto" and text is not None and text.inference is not None:
        many = "as many as documents were paid for and written"
        if text.resample is not None:
            many = f"one for every {text.resample.pool:g} documents that were paid for and written, chosen by votes"
        return f"synthetic rows, {many}"
    if rows == "auto":
        counted = "owners took part" if contract.privacy.weighting == "owners" else "the mechanism read"
        return f"synthetic rows, as many as the noisy counts say that {counted}"
    return f"{rows} synthetic rows"


def _unit(contract: DataContract) -> str:
    privacy = contract.privacy
    if privacy.unit == "example":
        return "One record, which its key tells from others. Whoever has several is protected for each of them apart."
    owners = " or ".join(privacy.owner_columns)
    whose = (
        f"all records that name it in {owners}, whoever else they name,"
        if privacy.adjacency == "fixed-graph"
        else f"all records with the same {owners},"
    )
    together = " Everybody in the group is protected together." if privacy.unit == "group" else ""
    once = f" {COUNTED_ONCE}" if privacy.weighting == "owners" else ""
    return f"One {privacy.unit}: {whose} of which at most {privacy.max_contributions} are used.{together}{once}"


def covered_accesses(event: dict[str, Any], method: str) -> tuple[str, ...]:
    """The accesses to the data that a generator's sealed event (as JSON) covers, in its method's words."""
    return _covered(event_from_json(event), words_of(method, event))


def _covered(event: DpEvent, words: MechanismWords) -> tuple[str, ...]:
    total: Counter[type[DpEvent]] = Counter()
    for leaf, times in leaves(event):
        total[type(leaf)] += times
    histograms = "histogram" if total[GaussianVotesEvent] == 1 else "histograms"
    covered = [
        said.format(number=total[kind])
        for kind, said in (
            (DiscreteGaussianCountsEvent, f"{{number}} {words.counts}, every cell with discrete Gaussian noise."),
            (GaussianCountsEvent, f"{{number}} {words.counts}, every cell with Gaussian noise."),
            (GaussianVotesEvent, f"{{number}} {histograms} {words.votes}, every cell with Gaussian noise."),
            (
                ThresholdedCountsEvent,
                f"{{number}} {words.counts} over cells that the data has, every cell with discrete Gaussian noise and "
                "shown only from a threshold up.",
            ),
            (
                ThresholdedGaussianCountsEvent,
                "Which values the columns have that declare none ({number}): of those that occur, every count with "
                "Gaussian noise, and a value shown only if its noisy count reaches a threshold.",
            ),
            (BoundedRangeSelectionEvent, f"{{number}} {words.choices}, by the exponential mechanism."),
        )
        if total[kind]
    ]
    return (
        *covered,
        *([WEIGHTED] if counts_owners(event) else []),
        *_training(event),
        "Everything computed from these: the fitted model, the synthetic rows, the audit on canaries.",
    )


def _training(event: DpEvent) -> Iterator[str]:
    """A sentence for each kind of training step."""
    steps: Counter[DpEvent] = Counter()
    for leaf, times in leaves(event):
        if isinstance(leaf, SampledGaussianEvent):
            steps[leaf] += times
    for leaf, times in steps.items():
        yield (
            f"{times} training steps ({_analysis(leaf)}), each the sum of clipped gradients of {leaf.sampled}s, with "
            f"Gaussian noise of {leaf.noise_multiplier:g} times the clipping norm."
        )


def _analysis(leaf: SampledGaussianEvent) -> str:
    """The name of a step's analysis."""
    if leaf.sampled == "user":
        return "DP-SGD-ULS"
    return "DP-SGD" if leaf.max_contributions == 1 else "DP-SGD-ELS"


_ANALYSES = {
    "DP-SGD": "A step is the Gaussian mechanism on a Poisson sample of records.",
    "DP-SGD-ELS": (
        "A step is a mixture of Gaussians on 0 to b clipping norms (doubled where records are replaced), with the "
        "weights of the binomial distribution of b and the sampling probability."
    ),
    "DP-SGD-ULS": "A step is the Gaussian mechanism on a Poisson sample of users, whose gradients are clipped as one.",
}


def _verification(event: DpEvent) -> str:
    steps = {_analysis(leaf) for leaf, _ in leaves(event) if isinstance(leaf, SampledGaussianEvent)}
    slack = " (with the slack taken off first)" if cost(event).delta_slack else ""
    return " ".join(
        [
            "The release is signed as a whole; `dpsynth release verify` checks it offline. The event above states the "
            "noise: epsilon follows from it with any accountant, and from the Renyi curve at any delta" + slack + ".",
            *(_ANALYSES[name] for name in sorted(steps)),
            "The mechanism, its samplers and this accountant are open source.",
        ]
    )


def _not_covered(contract: DataContract, tuning: Tuning, attempts: int, elsewhere: Elsewhere) -> tuple[str, ...]:
    listed = [
        "Admission checks of the source (present, readable, not empty, with an owner, of the declared types): seen by "
        "the operator, as whether the run went on and how long it took.",
        "Exact totals such as row counts of intermediate tables: seen by the operator in the orchestration tool, "
        "never published.",
        "The report of personal data found and replaced in text: best effort, restricted to operators. "
        + (
            "No column of text is published."
            if contract.text_column is None
            else f"Of the texts, {contract.text_column} is published as a language model writes it."
        ),
        "Whether a column that the contract declares as ordinary values looks like personal data, has no or hardly any "
        "value that is listed, or has values that are listed but for blanks or quotes around them, which stops a run: "
        "seen by the operator.",
        "Whether one of the contract's own patterns takes too long on a text, which is then masked as a whole, or on "
        "texts of many owners, which stops a run: counted for the operator.",
        "Exact numbers that somebody looked at outside of runs to choose the contract's parameters: the platform "
        "cannot know of them.",
        "When steps ran, how long, and whether they ended well: seen by the operator, and wherever lineage events are "
        "sent.",
        "The quality report, which compares with real rows: seen by reviewers only. Beside it they see exact counts, "
        "and what the account's owners have spent and whom clearance left out, counted and not named.",
    ]
    endpoint = contract.generate.endpoint
    if endpoint is not None:
        listed += [
            f"When requests reached the endpoint {urlsplit(endpoint.url).hostname}, which wrote texts from public "
            "words and from texts of its own that noisy votes had chosen: how long the votes took, which grows with "
            "the number of records, is seen there. No request holds words of a record.",
            f"What the endpoint {urlsplit(endpoint.url).hostname} keeps: in every round it is shown which of its texts "
            "noisy votes chose, and so a good part of the synthetic texts, before anybody has approved of a release, "
            "and also where none follows. The guarantee holds for these, too; an approval does not reach there.",
        ]
    if contract.privacy.adjacency == "fixed-graph":
        listed.append(f"The ownership graph: {_GRAPH_WORDS}{_graph_columns(contract)}.")
    if tuning.runs and not tuning.covered:
        listed.append(
            f"What {number_of(tuning.runs, 'other run')} of mechanisms on this dataset showed to whoever chose the "
            "hyper-parameters: each is charged to the account, whose cap covers them and this release together."
        )
    if attempts > 1:
        listed.append(
            f"What {number_of(attempts - 1, 'earlier attempt')} at this run did before it failed: charged to the "
            "account, and no part of the release."
        )
    if contract.release.approvals:
        listed.append(
            "The decision of a human reviewer who saw the quality report: that this candidate was published, and not "
            "another one, may depend on the data."
        )
    if contract.privacy.on_overlap == "block":
        listed.append(
            "The refusal of a release because some of its people took part in an earlier mechanism of the family, or "
            "of another family of their namespace (on_overlap: block): seen by the operator."
        )
    listed += elsewhere.accesses()
    return tuple(listed)


def _graph_columns(contract: DataContract) -> str:
    """Columns whose values are part of the ownership graph, beside those of owners and record keys."""
    weight, period = contract.privacy.weight, contract.source.period_column
    named = [f"; the column {weight}, by which records are chosen"] if weight else []
    named += [f"; of the column {period}, in which period a record falls"] if period else []
    return "".join(named)


def _accounting(event: DpEvent, result: EpsilonResult) -> dict[str, Any]:
    names = {"pld": "privacy loss distributions", "renyi": "Renyi differential privacy"}
    parallel = ", and parallel over disjoint participants where the event says so" if _has_parallel(event) else ""
    slack, sampled = cost(event).delta_slack, _sampled(event)
    return {
        "type": names[result.method],
        "epsilon": result.epsilon,
        "delta": result.delta,
        "epsilon_by_pld": result.pld,
        "epsilon_by_renyi": result.renyi,
        "composition": f"fully adaptive, of the mechanisms listed in the event{parallel}",
        "amplification": f"by Poisson sampling of {' and of '.join(sampled)}" if sampled else "none is used",
    } | ({"delta_slack": slack} if slack else {})


def _sampled(event: DpEvent) -> list[str]:
    """What is sampled: records, users."""
    return sorted(
        {
            f"{leaf.sampled}s"
            for leaf, _ in leaves(event)
            if isinstance(leaf, SampledGaussianEvent) and leaf.sampling_probability < 1
        }
    )


def _has_parallel(event: DpEvent) -> bool:
    if isinstance(event, ParallelDpEvent):
        return True
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return _has_parallel(event.event)
    return isinstance(event, dp_event.ComposedDpEvent) and any(_has_parallel(part) for part in event.events)


def _assumptions(
    contract: DataContract, event: DpEvent, words: MechanismWords, attempts: int
) -> tuple[Assumption, ...]:
    return (
        *_randomness(event, words),
        *_around(contract),
        _ran(attempts, separate_audit_model=contract.separate_audit_model),
    )


def _randomness(event: DpEvent, words: MechanismWords) -> Iterator[Assumption]:
    kinds = {type(leaf) for leaf, _ in leaves(event)}
    if kinds & {DiscreteGaussianCountsEvent, ThresholdedCountsEvent}:
        yield Assumption(
            "Noise is drawn exactly from the discrete Gaussian distribution, from unpredictable randomness.",
            "not stated",
            "The mechanism does not say how it draws noise.",
        )
    if BoundedRangeSelectionEvent in kinds:
        yield words.selection
    if kinds & {GaussianCountsEvent, GaussianVotesEvent, SampledGaussianEvent, ThresholdedGaussianCountsEvent}:
        yield words.noise
    if GaussianVotesEvent in kinds:
        yield VOTES if any(leaf.adjacency != "fixed-graph" for leaf, _ in leaves(event)) else VOTES_OF_MANY
    if SampledGaussianEvent in kinds:
        yield words.clipping
    if _sampled(event):
        yield words.sampling
        yield Assumption(
            "The number of expected members, by which the sampling probability is set, is public and not read off the "
            "data; empty samples add noise and count as steps.",
            "as declared",
            "The sampling probability stands in the event.",
        )
    if _has_parallel(event):
        yield words.branches


def _around(contract: DataContract) -> tuple[Assumption, ...]:
    privacy = contract.privacy
    return (
        _bounded(contract),
        *([WEIGHTS] if privacy.weighting == "owners" else []),
        Assumption(
            f"One person has one id, the same wherever it stands in {' or '.join(privacy.owner_columns)}.",
            "as declared",
            "Ids are normalized as the contract says; two ids of one person are two owners.",
        ),
        Assumption(
            "The contract (domains, bins, constraints, number of expected units, contribution bound, hyper-parameters) "
            "is public knowledge, or follows from runs that are in the ledger, and was not read off the data "
            "otherwise.",
            "as declared",
            "No step of a run measures anything without noise for it; values outside are clamped or counted as "
            "missing, and those of columns that declare none are learned by the mechanism itself. What people looked "
            "at outside of runs (`dpsynth bound evaluate` shows some) is theirs to say.",
        ),
    )


def _ran(attempts: int, *, separate_audit_model: bool) -> Assumption:
    """That the mechanism did what the event says, and how often it was started."""
    because = (
        "Sampler and accountant read the same sealed plan; a ledger entry is started once, before the mechanism reads "
        "its first record."
    )
    if attempts == 1:
        which = "Each of the two mechanisms" if separate_audit_model else "The mechanism"
        return Assumption(f"{which} ran as planned, once, after its cost was recorded.", "yes", because)
    lost = f"{because} What the earlier attempts cost stays in the account, and is not part of this release's epsilon."
    if separate_audit_model:
        return Assumption(
            f"The two mechanisms were started {attempts + 1} times in all, each after its cost was recorded anew. The "
            "last time each ran as planned, and what is published comes from these times alone.",
            "yes",
            lost,
        )
    return Assumption(
        f"The mechanism was started {attempts} times, each after its cost was recorded anew. The last time it ran as "
        "planned, and the release comes from that time alone.",
        "yes",
        lost,
    )


def _bounded(contract: DataContract) -> Assumption:
    """That nobody has more than b records, and on what it depends which ones."""
    most = contract.privacy.max_contributions
    if contract.privacy.adjacency == "fixed-graph":
        return Assumption(
            f"No owner owns more than {most} of the records that are used, and which ones are used depends on the "
            "ownership graph alone.",
            "yes",
            "Records are chosen along the graph by a keyed hash or a declared order, and the worker counts again "
            "before it reads.",
        )
    return Assumption(
        f"No owner contributes more than {most} records, and an owner's records depend on that owner's data alone.",
        "yes",
        f"Records are chosen by {_chosen_by(contract)}, owner by owner, and the worker counts again before it reads.",
    )


def _chosen_by(contract: DataContract) -> str:
    weight = contract.privacy.weight
    return f"the column {weight} and then a keyed hash" if weight else "a keyed hash"


def _formal(claimed: Guarantee, slack: float) -> str:
    apart = f", apart from outcomes of probability at most {upper_bound(slack, 6)}" if slack else ""
    return (
        f"For all neighbouring datasets D, D' (differing in one {claimed.unit} with at most "
        f"{claimed.max_contributions} records, {claimed.adjacency}) and every set S of outputs: "
        f"Pr[M(D) in S] <= e^{upper_bound(claimed.epsilon, 6)} * Pr[M(D') in S] + {upper_bound(claimed.delta, 6)}. The "
        f"intermediate curve: at each order alpha of its grid, the Renyi divergence of M(D) from M(D') is at most "
        f"rho(alpha){apart}."
    )


def _groups(claimed: Guarantee) -> str:
    """What follows for a couple and for a household of five, as examples of the rule."""

    def example(size: int) -> str:
        epsilon_of_all, delta_of_all = group_guarantee(claimed.epsilon, claimed.delta, size)
        if delta_of_all >= 1:
            return f"for {size} of them nothing is promised"
        return f"for {size} of them epsilon {upper_bound(epsilon_of_all)} and delta {upper_bound(delta_of_all)}"

    return (
        "For k units together, epsilon becomes k times as large and delta is multiplied by (e^(k epsilon) - 1) / "
        f"(e^epsilon - 1): {example(2)}, {example(5)}. This bound is loose."
    )


def _account(family: FamilyBudget) -> str:
    whom = (
        f"Each {family.unit} is charged for the releases that they took part in"
        if family.mode == "per-owner"
        else f"Every release is charged to each {family.unit} of the family"
    )
    return (
        f"Of all releases of the family {family.family} together, what may be claimed is the cap: epsilon "
        f"{upper_bound(family.cap.epsilon, 6)}, delta {upper_bound(family.cap.delta)}, unless two people together "
        "raise it; then it is the raised cap, for all of them, if the raise was not decided in the light of what "
        f"releases showed. {whom}, and the ledger lets none beyond the cap."
    )


def _first_words(text: str) -> str:
    head = text.split(":")[0].split(",")[0].split(" (")[0].rstrip(".")
    return head[0].lower() + head[1:]
