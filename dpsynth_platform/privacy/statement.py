"""The privacy statement: what a release promises, in a form that a machine can check and in words for a lawyer.

What belongs here: a frozen value made of contract, family budget and sealed event alone, and its JSON form. What does
not: its sentences (`statement.yaml`), and evidence of one run (`release` adds ledger head, audit and approvals). The
parts are those that Ponomareva et al. 2023, "How to DP-fy ML", section 5.3.3, asks a report to have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.image_generation import PictureEndpoint, WarmUpPictures
from dpsynth_platform.contracts.methods import EVOLVED_METHODS
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.text_generation import published_name
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.privacy import federated_words
from dpsynth_platform.privacy.accounting import EPSILON_STEP, EpsilonResult, cost, epsilon
from dpsynth_platform.privacy.events import (
    LEAF_KINDS,
    BestRunEvent,
    BoundedRangeSelectionEvent,
    DiscreteGaussianCountsEvent,
    DpEvent,
    GaussianCountsEvent,
    GaussianMeasuresEvent,
    GaussianSumsEvent,
    GaussianVotesEvent,
    LocalReportsEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    SkellamCountsEvent,
    SkellamSumsEvent,
    ThresholdedCountsEvent,
    ThresholdedGaussianCountsEvent,
    atoms,
    counts_owners,
    event_from_json,
    event_to_json,
    leaves,
    matches_claim,
    twice,
)
from dpsynth_platform.privacy.federated_words import FederatedTerms, ProtectionInWords
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS, group_guarantee

_TEXTS = read_yaml(Path(__file__).with_name("statement.yaml"))


@dataclass(frozen=True)
class Assumption:
    """Something the guarantee rests on, whether it holds, and what makes it hold (or limits it)."""

    assumption: str
    holds: str
    because: str


def _assumption(*keys: str, **values: object) -> Assumption:
    return Assumption(**{part: _text(*keys, part, **values) for part in ("assumption", "holds", "because")})


def _text(*keys: str, **values: object) -> str:
    part: Any = _TEXTS
    for key in keys:
        part = part[key]
    return str(part.format(record_parts=RECORD_PARTS, **values))


OF_INTERVALS = _text("of_intervals")
"""What the interval of an answer says, and what it does not."""
_UNSTATED = {part: _assumption("unstated", part) for part in _TEXTS["unstated"]}


@dataclass(frozen=True)
class MechanismWords:
    """How a mechanism names its accesses to the data, and what its randomness rests on.

    Attributes:
        counts: what is counted.
        choices: what is chosen by the exponential mechanism.
        result: what the mechanism leaves, from which all else is computed.
        selection: how choices are drawn.
        clipping: how gradients are separated and clipped.
        sampling: how samples of records or users are drawn.
        noise: how continuous Gaussian noise is drawn.
        branches: what keeps a unit in one parallel branch.
        votes: what records vote for.
        computed: what is computed from the result.
        rounds_of_votes: whether there are votes in rounds, of which each decides what the next one is about.
    """

    counts: str
    choices: str
    result: str
    selection: Assumption = _UNSTATED["selection"]
    clipping: Assumption = _UNSTATED["clipping"]
    sampling: Assumption = _UNSTATED["sampling"]
    noise: Assumption = _UNSTATED["noise"]
    branches: Assumption = _UNSTATED["branches"]
    votes: str = "of votes"
    computed: str = _text("computed_from_these")
    rounds_of_votes: bool = False


def _words(table: str, method: str) -> MechanismWords:
    parts: dict[str, Any] = {
        name: _assumption(table, method, name) if isinstance(part, dict) else part
        for name, part in _TEXTS[table][method].items()
    }
    return MechanismWords(**parts)


WORDS = {method: _words("methods", method) for method in _TEXTS["methods"]}
"""The words of every generator's mechanism, by the method's name."""
_ON_TEXTS_ALONE = "methods_on_texts_alone"
_TRAINED = "methods_trained"
_WORDS_TRAINED = {method: _words(_TRAINED, method) for method in _TEXTS[_TRAINED]}
_FEDERATED = "methods_federated"
_WORDS_FEDERATED = {method: _words(_FEDERATED, method) for method in _TEXTS[_FEDERATED]}
_WORDS_ON_TEXTS_ALONE = {method: _words(_ON_TEXTS_ALONE, method) for method in _TEXTS[_ON_TEXTS_ALONE]}

_COUNTS = (
    DiscreteGaussianCountsEvent,
    GaussianCountsEvent,
    SkellamCountsEvent,
    LocalReportsEvent,
    ThresholdedCountsEvent,
    ThresholdedGaussianCountsEvent,
)
_CONTINUOUS = (
    GaussianCountsEvent,
    GaussianMeasuresEvent,
    GaussianSumsEvent,
    GaussianVotesEvent,
    SampledGaussianEvent,
    ThresholdedGaussianCountsEvent,
)


def words_of(method: str, event: DpEvent | dict[str, Any]) -> MechanismWords:
    """The words of a generator's mechanism, whose event (a tree or JSON) says if it counts columns beside its texts."""
    tree = event_from_json(event) if isinstance(event, dict) else event
    counted = any(isinstance(leaf, _COUNTS) for leaf, _ in leaves(tree))
    words = WORDS[method] if counted else _WORDS_ON_TEXTS_ALONE.get(method, WORDS[method])
    if any(isinstance(leaf, SampledGaussianEvent) for leaf, _ in leaves(tree)):
        words = _WORDS_TRAINED.get(method, words)
    if any(isinstance(leaf, SkellamCountsEvent | SkellamSumsEvent | LocalReportsEvent) for leaf, _ in leaves(tree)):
        words = _WORDS_FEDERATED.get(method, words)
    if words.rounds_of_votes and _has_single_histogram(tree):
        return replace(words, votes=_text("votes_and_last_histogram", votes=words.votes))
    return words


def _of_candidates(words: MechanismWords, contract: DataContract, event: DpEvent) -> MechanismWords:
    """The words of an evolution of texts, with public texts among the candidates and shared votes where declared."""
    evolution = None if contract.generate.text is None else contract.generate.text.evolution
    if evolution is None:
        return words
    if contract.generate.asks_no_model:
        words = replace(words, **_TEXTS["public_candidates"]["no_model"])
        if _has_single_histogram(event):
            words = replace(words, votes=_text("votes_and_last_histogram", votes=words.votes))
    elif contract.generate.public is not None:
        first = _TEXTS["public_candidates"]["first"]
        words = replace(words, result=words.result + first["result"], votes=words.votes + first["votes"])
    if evolution.nearest > 1:
        words = replace(words, votes=words.votes + _text("shared_votes", nearest=evolution.nearest))
    return words


def _has_single_histogram(event: DpEvent) -> bool:
    """Whether there is a histogram of votes beside those of the rounds, which are composed with themselves."""
    parts = event.events if isinstance(event, dp_event.ComposedDpEvent) else ()
    return isinstance(event, GaussianVotesEvent) or any(_has_single_histogram(part) for part in parts)


@dataclass(frozen=True)
class Tuning:
    """Other runs of mechanisms on the dataset, whose results may have decided the parameters of this one.

    Attributes:
        runs: how many started, whatever their outcome.
        covered: whether their events are parts of this statement's event, so that the guarantee holds for the choice.
        within: whether the mechanism itself chose among settings (`generate.tune`), which its event covers.
    """

    runs: int = 0
    covered: bool = False
    within: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.runs, bool) or not isinstance(self.runs, int) or self.runs < 0:
            raise AccountingError(f"{self.runs!r} tuning runs; accepted: a whole number from 0")

    @property
    def words(self) -> str:
        kind = ("covered" if self.covered else "not_covered") if self.runs else "only_within" if self.within else "none"
        words = _text("tuning", kind, runs=number_of(self.runs, "other run"), charged=_text("tuning", "charged"))
        return f"{_text('tuning', 'within')} {words}" if self.within else words


UNTUNED = Tuning()

HIDDEN: dict[str, str] = _TEXTS["hidden"]
"""What a guarantee hides, by adjacency: what neighbours differ in."""


@dataclass(frozen=True)
class RelatedMechanisms:
    """Mechanisms that may be about the same people and are no part of a release. Public facts only.

    Attributes:
        families: other families in which the same people may be.
        base_model: whether training started from a checkpoint. Its names may be other people's words: they are in the
            dossier's clearance, and in no sentence.
        other_bases: whether it starts from other public bases, such as pictures.
        declared: who declared what of the bases' lineage public, and why, in sentences without their ends.
        upstream: how many mechanisms the bases were made with.
        claims: how many more are claimed for them without proof in the ledger.
        unverified_models: how many models above it have an origin that only other producers report.
        promises: what follows for one unit from all of them together, in sentences.
    """

    families: tuple[str, ...] = ()
    base_model: bool = False
    other_bases: bool = False
    declared: tuple[str, ...] = ()
    upstream: int = 0
    claims: int = 0
    unverified_models: int = 0
    promises: tuple[str, ...] = ()

    def accesses(self) -> Iterator[str]:
        """What a release's guarantee does not cover of them, a sentence each."""
        if self.families:
            yield _text("not_covered", "families", families=", ".join(self.families))
        if self.base_model or self.other_bases:
            claimed = f" and {number_of(self.claims, 'claimed one')}" if self.claims else ""
            mechanisms = number_of(self.upstream, "mechanism")
            key = "bases" if self.other_bases else "base_model"
            yield _text("not_covered", key, mechanisms=mechanisms, claimed=claimed)
        if self.unverified_models:
            yield _text("not_covered", "unverified_models", models=number_of(self.unverified_models, "model"))
        for declaration in self.declared:
            yield _text("not_covered", "declared", declaration=declaration)


NO_RELATED_MECHANISMS = RelatedMechanisms()


@dataclass(frozen=True)
class PrivacyStatement:
    """All parts of the statement. Public throughout.

    Attributes:
        guarantee: what is claimed: the accountant's epsilon at the contract's delta. Of one mechanism it is never above
            the target; where a second mechanism made the audited model, it is for both together.
        target_epsilon: what the contract asked for, of one mechanism.
        setting: who holds the data and who sees what.
        covered: the accesses to the data that the guarantee covers.
        not_covered: the others, with who sees their results.
        output: what the guarantee is about.
        accounting: which bound is claimed, and the other.
        formal: the definition, and the Renyi curve that it was derived from or checked against.
        groups: what follows for several units together.
        account: what may be said of all releases of the family together.
        event: the mechanism's event tree.
        renyi: its Renyi curve, from which epsilon follows at any other delta.
        tuning: which other runs chose its parameters, whether the guarantee covers them, and what that means.
        verification: how anyone can check.
        weak_reason: why a weak guarantee was accepted, where it is weak.
        against: of a federated run, the guarantee against each party; empty of one by a trusted organisation.
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
    against: tuple[ProtectionInWords, ...] = ()

    def to_json(self) -> dict[str, Any]:
        document = asdict(self) | {
            "guarantee": self.guarantee.to_json(),
            "covered": list(self.covered),
            "not_covered": list(self.not_covered),
            "assumptions": [asdict(item) for item in self.assumptions],
            "against": [asdict(item) for item in self.against],
        }
        if not self.against:
            del document["against"]
        return document

    def plain_words(self) -> tuple[str, ...]:
        """The statement in sentences for readers who are no experts, the most important first."""
        promise = self.guarantee
        unit, epsilon, delta = promise.unit, upper_bound(promise.epsilon), upper_bound(promise.delta)
        records = number_of(promise.max_contributions, "record")
        not_established = [item.assumption for item in self.assumptions if item.holds != "yes"]
        return (
            _plain("promise", self.tier, unit=unit, otherwise=_plain("otherwise", promise.adjacency)),
            _plain("numbers", epsilon=epsilon, delta=delta, unit=unit, records=records, tier=_plain("tier", self.tier)),
            _plain("factor", unit=unit, factor=upper_bound(math.exp(promise.epsilon)), delta=delta),
            _plain("against_all_but_participants" if self.against else "against_anyone"),
            *([ONCE_OF_TABLES if KEYS_ANEW in self.covered else ONCE] if promise.weighting == "owners" else []),
            *([_plain("all_tables", unit=unit)] if KEYS_ANEW in self.covered else []),
            *([TWO_MODELS] if TWO_MODELS in self.covered else []),
            _plain("general_patterns"),
            *([_plain("unprotected_graph", graph=_text("graph"))] if promise.adjacency == "fixed-graph" else []),
            _plain(
                "not_covered_of_participants" if self.against else "not_covered",
                accesses="; ".join(map(_first_words, self.not_covered)),
            ),
            *([] if self.tuning["covered"] else [self.tuning["words"]]),
            _plain("assumptions", assumptions=" ".join(not_established)),
            self.account,
        )


def _plain(*keys: str, **values: object) -> str:
    return _text("plain", *keys, **values)


def privacy_statement(
    contract: DataContract,
    family: FamilyBudget,
    event: DpEvent | dict[str, Any],
    words: MechanismWords,
    tuning: Tuning = UNTUNED,
    attempts: int = 1,
    related: RelatedMechanisms = NO_RELATED_MECHANISMS,
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
        related: what clearance found of mechanisms on the same people that are no part of this release.

    Raises:
        AccountingError: the event is for another adjacency or contribution bound than the contract, or costs more
            than the contract asks for; two mechanisms together are a weak guarantee without a reason; or fewer attempts
            than one.
    """
    if attempts < 1:
        raise AccountingError(f"{contract.dataset}: {attempts!r} attempts; accepted: from 1")
    tree = event_from_json(event) if isinstance(event, dict) else event
    words = _of_candidates(words, contract, tree)
    target, tuning = Guarantee.target(contract), replace(tuning, within=contract.generate.tune is not None)
    federated = FederatedTerms.of(contract)
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
        setting=_text("setting") if federated is None else _setting_of(federated),
        covered=(
            *_covered(tree, words),
            *(covered_of_tables(contract.linked) if contract.tables else []),
            *([TWO_MODELS] if contract.separate_audit_model else []),
        ),
        not_covered=tuple(
            _not_covered(contract, tuning, attempts, related)
            if federated is None
            else _not_covered_of(contract, federated, tuning, attempts, related)
        ),
        output=_output(contract, words),
        unit=_unit(contract) if federated is None else " ".join(federated_words.units(federated)),
        adjacency=_text("adjacency", target.adjacency),
        accounting=_accounting(tree, result),
        assumptions=(
            *(
                (*_randomness(tree, words), *_about_contract(contract))
                if federated is None
                else (
                    *_randomness_of(tree, words, federated),
                    *(Assumption(**item) for item in federated_words.assumptions(federated)),
                )
            ),
            _started(attempts, separate_audit_model=contract.separate_audit_model, federated=federated is not None),
        ),
        formal=_formal(claimed, cost(tree).delta_slack),
        groups=_text("groups", examples=f"{_group(claimed, 2)}, {_group(claimed, 5)}"),
        account=" ".join((_account(family), *related.promises)),
        event=event_to_json(tree),
        renyi=cost(tree).curve.to_json(),
        tuning={"runs": tuning.runs, "covered": tuning.covered or not tuning.runs, "words": tuning.words},
        verification=_verification(tree),
        weak_reason=contract.privacy.accept_weak_guarantee if claimed.tier == "weak" else None,
        against=tuple(
            ()
            if federated is None
            else (item for item in _protections(tree, federated, claimed) if item.epsilon is not None)
        ),
    )


def _randomness_of(tree: DpEvent, words: MechanismWords, terms: FederatedTerms) -> Iterator[Assumption]:
    """Of noise that the coordinator draws, which is that of the central mechanism."""
    if terms.trust == "central":
        yield from _randomness(tree, words)


def _protections(tree: DpEvent, terms: FederatedTerms, claimed: Guarantee) -> list[ProtectionInWords]:
    """The guarantee against each party. That there is none against one is said by what is not covered, too."""
    reports = [leaf.epsilon for leaf, _ in leaves(tree) if isinstance(leaf, LocalReportsEvent)]
    if reports:
        return federated_words.protections(terms, sum(reports), 0.0)
    return federated_words.protections(terms, claimed.epsilon, claimed.delta)


def _setting_of(terms: FederatedTerms) -> str:
    number, names = number_of(len(terms.names), "participant"), ", ".join(terms.names)
    setting = {"central": "setting_of_trusted_coordinator", "local": "setting_of_reports"}
    return _text(setting.get(terms.trust, "setting_of_participants"), number=number, names=names, minimum=terms.minimum)


def _not_covered_of(
    contract: DataContract, terms: FederatedTerms, tuning: Tuning, attempts: int, related: RelatedMechanisms
) -> Iterator[str]:
    """As `_not_covered`, where rows stay with participants. A reviewer sees no row, and no comparison with one."""
    yield from federated_words.not_covered(terms)
    yield from _public_pictures_of(contract)
    if (rows := contract.generate.public) is not None:
        yield of_public_rows(rows, candidates=True)
    yield from _endpoint_of(contract)
    yield _text("not_covered", "times")
    yield from _other_runs(tuning, attempts)
    yield from related.accesses()


WEIGHTS = _assumption("assumptions", "weights")
"""What counts of owners (`weighting: owners`) rest on."""
ONCE, ONCE_OF_TABLES = _plain("counted_once"), _plain("counted_once_of_tables")
"""What counts of owners mean for the rows of one table, and of linked ones."""
TWO_MODELS = _text("two_models")
"""What `audit.model: separate` means for readers."""
KEYS_ANEW = _text("linked", "keys")
"""What is said of the keys of linked tables."""


def owners_of_tables(owner: str) -> str:
    """Whose records are an owner's where tables are linked, by the column that names the owner."""
    return _text("linked", "owners", owners=owner)


def covered_of_tables(tables: LinkedTables) -> tuple[str, ...]:
    """What a guarantee covers, and need not cover, of tables as a whole."""
    public = [f"{name}: {_within(tables.tables[name].public)}" for name in tables.lookups]
    return (
        KEYS_ANEW,
        *([_text("linked", "public", tables="; ".join(public))] if public else []),
    )


def not_covered_of_tables(tables: LinkedTables) -> tuple[str, ...]:
    """What no mechanism protects of tables."""
    parents = [name for name in tables.private if tables.children(name)]
    return (
        *([_text("not_covered", "public_tables", tables=", ".join(tables.lookups))] if tables.lookups else []),
        *([_text("not_covered", "keys", tables=", ".join(parents))] if parents else []),
    )


def bound_of_tables(tables: LinkedTables) -> Assumption:
    """What the bound on one owner's rows in all tables rests on."""
    bounds = ", ".join(f"{tables.bound(name)} of {name}" for name in tables.private)
    return _assumption("assumptions", "bound_of_tables", most=tables.rows_of_owner, bounds=bounds)


def ids_of_tables(owner: str, who: str = "person") -> Assumption:
    """What it rests on that rows belong to owners.

    Args:
        owner: the column that names the owner of a row of the root, as `table.column`.
    """
    return _assumption("assumptions", "ids_of_tables", owner=owner, who=who)


def _output(contract: DataContract, words: MechanismWords) -> str:
    published = _text("output", "published", rows=_rows(contract))
    if contract.tables and (others := contract.linked.private[1:]):
        named = {"root": contract.linked.root, "others": ", ".join(others)}
        published = _text("output", "published_tables", rows=_rows(contract), **named)
    kind = "two_models" if contract.separate_audit_model else "one_model"
    return _text("output", kind, published=published, result=words.result)


def _rows(contract: DataContract) -> str:
    """How many rows are published, in words."""
    rows, text = contract.generate.rows, contract.generate.text
    if contract.generate.answers:
        return _text("rows", "answers", of_intervals=OF_INTERVALS)
    if rows != "auto":
        return _text("rows", "given", rows=rows)
    if text is None or text.inference is None:
        return _text("rows", "counted", counted=_text("counted", contract.privacy.weighting))
    if text.resample is None:
        return _text("rows", "documents")
    return _text("rows", "resampled", pool=text.resample.pool, by=_text("resampled_by", text.resample.by))


def _unit(contract: DataContract) -> str:
    privacy = contract.privacy
    pictured = contract.image_column is not None and contract.generate.drawn is None
    picture = _text("unit", "picture") if pictured else ""
    if privacy.unit == "example":
        return _text("unit", "example") + picture
    kind = "records_of_graph" if privacy.adjacency == "fixed-graph" else "records"
    return (
        _text(
            "unit",
            "others",
            unit=privacy.unit,
            records=_text("unit", kind, owners=_owners(contract)),
            most=privacy.max_contributions,
            group=_text("unit", "group") if privacy.unit == "group" else "",
            weighting=f" {ONCE_OF_TABLES if contract.tables else ONCE}" if privacy.weighting == "owners" else "",
        )
        + picture
    )


def _owners(contract: DataContract) -> str:
    named = " or ".join(contract.privacy.owner_columns)
    return owners_of_tables(named) if contract.tables else named


def covered_accesses(event: dict[str, Any], method: str) -> tuple[str, ...]:
    """The accesses to the data that a generator's sealed event (as JSON) covers, in its method's words."""
    return _covered(event_from_json(event), words_of(method, event))


def randomness_of(event: dict[str, Any], method: str) -> tuple[Assumption, ...]:
    """What the randomness of a generator's sealed event (as JSON) rests on, in its method's words."""
    return tuple(_randomness(event_from_json(event), words_of(method, event)))


def _covered(event: DpEvent, words: MechanismWords) -> tuple[str, ...]:
    total: Counter[type[DpEvent]] = Counter()
    steps: Counter[SampledGaussianEvent] = Counter()
    for leaf, times in leaves(event):
        total[type(leaf)] += times
        if isinstance(leaf, SampledGaussianEvent):
            steps[leaf] += times
    return (
        *(
            template.format(
                number=total[LEAF_KINDS[kind]],
                counts=words.counts,
                choices=words.choices,
                votes=words.votes,
                histograms="histogram" if total[GaussianVotesEvent] == 1 else "histograms",
            )
            for kind, template in _TEXTS["covered"].items()
            if total[LEAF_KINDS[kind]]
        ),
        *([_text("weighted")] if counts_owners(event) else []),
        *(
            _text(
                "best_run",
                choices=number_of(times, "choice"),
                mean=best.mean,
                shape=best.shape,
                settings=number_of(len(best.events), "setting"),
            )
            for best, times in _best_runs(event).items()
        ),
        *(
            _text(
                "training_steps",
                times=times,
                analysis=_analysis(leaf),
                sampled=leaf.sampled,
                noise=leaf.noise_multiplier,
            )
            for leaf, times in steps.items()
        ),
        words.computed,
    )


def _analysis(leaf: SampledGaussianEvent) -> str:
    if leaf.sampled == "user":
        return "DP-SGD-ULS"
    return "DP-SGD" if leaf.max_contributions == 1 else "DP-SGD-ELS"


def _best_runs(event: DpEvent) -> Counter[BestRunEvent]:
    """Those in the event, also inside of the runs of others, and how often each is made in one run of these."""
    found: Counter[BestRunEvent] = Counter()
    for atom, times in atoms(event):
        if isinstance(atom, BestRunEvent):
            found[atom] += times
            for part in atom.events:
                for inner, inside in _best_runs(part).items():
                    found[inner] += times * inside
    return found


def _verification(event: DpEvent) -> str:
    steps = {_analysis(leaf) for leaf, _ in leaves(event) if isinstance(leaf, SampledGaussianEvent)}
    steps |= {"best-run"} if _best_runs(event) else set()
    return _text(
        "verification",
        slack=_text("verification_slack") if cost(event).delta_slack else "",
        analyses="".join(f" {_text('analyses', name)}" for name in sorted(steps)),
    )


def _within(reason: str | None) -> str:
    """A contract's sentence inside of another, which has a full stop of its own."""
    return (reason or "").strip().removesuffix(".")


def of_public_rows(rows: PublicRows, *, candidates: bool = False) -> str:
    """What no mechanism protects of a public table, whose texts may be `candidates` for a release."""
    use = "public_texts" if candidates else "public_rows"
    return _text("not_covered", use, table=PurePath(rows.uri).name, public=_within(rows.why))


def _not_covered(contract: DataContract, tuning: Tuning, attempts: int, related: RelatedMechanisms) -> Iterator[str]:
    texts, column = _TEXTS["not_covered"], contract.text_column
    by_votes = column is not None and contract.generate.public is not None
    kind = "none" if column is None else "of_public_table" if by_votes else "one"
    published = _text("published_text", kind, column=column)
    yield from (text.format(published_text=published) for text in texts["always"])
    if contract.image_column is not None:
        said: dict[str, str | None] = {
            "column": contract.image_column,
            "unscrubbed": _within(contract.image.accept_unscrubbed),
        }
        if (drawn := contract.generate.drawn) is not None:
            named, host = published_name(drawn.endpoint.model), urlsplit(drawn.endpoint.url).hostname
            said |= {"text": column, "model": named, "host": host}
        key = "pictures" if drawn is None else "drawn_pictures"
        unit = "record" if contract.privacy.unit == "example" else contract.privacy.unit
        yield from (text.format(**said, unit=unit) for text in texts[key])
        yield from _public_pictures_of(contract)
    if (rows := contract.generate.public) is not None:
        yield of_public_rows(rows, candidates=contract.generate.method in EVOLVED_METHODS)
    if contract.tables:
        yield from not_covered_of_tables(contract.linked)
    yield from _endpoint_of(contract)
    if contract.privacy.adjacency == "fixed-graph":
        yield _text("not_covered", "graph", graph=_text("graph"), columns=_graph_columns(contract))
    if contract.generate.tune is not None and contract.generate.tune.runs != "each":
        yield texts["time_of_runs"]
    yield from _other_runs(tuning, attempts)
    if contract.release.approvals:
        yield texts["approval"]
    if contract.privacy.on_overlap == "block":
        yield texts["overlap"]
    yield from related.accesses()


def _public_pictures_of(contract: DataContract) -> Iterator[str]:
    """What no mechanism protects of public pictures and of a public diffusion model, where there are any."""
    if (table := contract.public_pictures) is not None:
        use = "public_warm_up" if isinstance(table, WarmUpPictures) else "public_pictures"
        yield _text("not_covered", use, directory=PurePath(table.directory).name, public=_within(table.public))
    if (model := contract.public_model) is not None:
        named = PurePath(model.checkpoint).name
        yield _text("not_covered", "public_checkpoint", directory=named, public=_within(model.public))


def _endpoint_of(contract: DataContract) -> Iterator[str]:
    """What an endpoint that makes samples sees and keeps, where there is one."""
    endpoint = contract.generate.endpoint
    if endpoint is not None:
        words = _TEXTS["endpoint_makes"]["texts" if contract.generate.image is None else "pictures"]
        texts = _TEXTS["not_covered"]["endpoint"]
        yield from (text.format(host=urlsplit(endpoint.url).hostname, **words) for text in texts)
        named = endpoint.model if isinstance(endpoint, PictureEndpoint) else str(contract.generate.base_model)
        yield _text("not_covered", "endpoint_model", model=published_name(named), host=urlsplit(endpoint.url).hostname)


def _other_runs(tuning: Tuning, attempts: int) -> Iterator[str]:
    """Mechanisms on the dataset that are no part of a release."""
    if tuning.runs and not tuning.covered:
        yield _text("not_covered", "tuning", runs=number_of(tuning.runs, "other run"))
    if attempts > 1:
        yield _text("not_covered", "attempts", attempts=number_of(attempts - 1, "earlier attempt"))


def _graph_columns(contract: DataContract) -> str:
    """Columns whose values are part of the ownership graph, beside those of owners and record keys."""
    columns = {"weight": contract.privacy.weight, "period": contract.source.period_column}
    return "".join(_text("graph_columns", name, column=column) for name, column in columns.items() if column)


def _accounting(event: DpEvent, result: EpsilonResult) -> dict[str, Any]:
    slack, sampled = cost(event).delta_slack, _sampled(event)
    parallel = _text("accounting", "parallel") if _has_parallel(event) else ""
    amplification = _text("accounting", "sampled" if sampled else "not_sampled", sampled=" and of ".join(sampled))
    return {
        "type": _text("accounting", result.method),
        "epsilon": result.epsilon,
        "delta": result.delta,
        "epsilon_by_pld": result.pld,
        "epsilon_by_renyi": result.renyi,
        "composition": _text("accounting", "composition") + parallel,
        "amplification": amplification,
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
    parts = event.events if isinstance(event, dp_event.ComposedDpEvent | BestRunEvent) else ()
    return any(_has_parallel(part) for part in parts)


def _randomness(event: DpEvent, words: MechanismWords) -> Iterator[Assumption]:
    kinds = {type(leaf) for leaf, _ in leaves(event)}
    if kinds & {DiscreteGaussianCountsEvent, ThresholdedCountsEvent}:
        yield _assumption("assumptions", "discrete_noise")
    if kinds & {SkellamCountsEvent, SkellamSumsEvent}:
        yield _assumption("assumptions", "skellam_noise")
    if BoundedRangeSelectionEvent in kinds:
        yield words.selection
    if kinds & set(_CONTINUOUS):
        yield words.noise
    if GaussianVotesEvent in kinds:
        several_owners = all(leaf.adjacency == "fixed-graph" for leaf, _ in leaves(event))
        yield _assumption("assumptions", "votes_of_several_owners" if several_owners else "votes")
    if GaussianSumsEvent in kinds:
        several_owners = all(leaf.adjacency == "fixed-graph" for leaf, _ in leaves(event))
        yield _assumption("assumptions", "sums_of_several_owners" if several_owners else "sums")
    if SampledGaussianEvent in kinds:
        yield words.clipping
    if _sampled(event):
        yield words.sampling
        yield _assumption("assumptions", "sampling_probability")
    if _has_parallel(event):
        yield words.branches


def _about_contract(contract: DataContract) -> Iterator[Assumption]:
    privacy = contract.privacy
    chosen_by = _text("chosen_by", "weight" if privacy.weight else "hash", column=privacy.weight)
    bound = "bound_of_graph" if privacy.adjacency == "fixed-graph" else "bound"
    if contract.tables:
        yield bound_of_tables(contract.linked)
    else:
        yield _assumption("assumptions", bound, most=privacy.max_contributions, chosen_by=chosen_by)
    if privacy.weighting == "owners":
        yield WEIGHTS
    owners, who = " or ".join(privacy.owner_columns), "group" if privacy.unit == "group" else "person"
    if privacy.unit == "example":
        yield _assumption("assumptions", "ids_of_records", owners=owners)
    elif contract.tables:
        yield ids_of_tables(owners, who)
    else:
        yield _assumption("assumptions", "ids", owners=owners, who=who)
    yield _assumption("assumptions", "contract")


def _started(attempts: int, *, separate_audit_model: bool, federated: bool) -> Assumption:
    """That the mechanism did what the event says, and how often it was started."""
    if federated:
        return _assumption("assumptions", "opened_once" if attempts == 1 else "opened_again", starts=attempts)
    if attempts == 1:
        mechanism = _text("mechanisms", "two" if separate_audit_model else "one")
        return _assumption("assumptions", "ran_once", mechanism=mechanism)
    if separate_audit_model:
        return _assumption("assumptions", "two_ran_again", starts=attempts + 1)
    return _assumption("assumptions", "ran_again", starts=attempts)


def _formal(claimed: Guarantee, slack: float) -> str:
    return _text(
        "formal",
        unit=claimed.unit,
        most=claimed.max_contributions,
        adjacency=claimed.adjacency,
        epsilon=upper_bound(claimed.epsilon, 6),
        delta=upper_bound(claimed.delta, 6),
        slack=_text("formal_slack", slack=upper_bound(slack, 6)) if slack else "",
    )


def _group(claimed: Guarantee, size: int) -> str:
    epsilon_of_all, delta_of_all = group_guarantee(claimed.epsilon, claimed.delta, size)
    if delta_of_all >= 1:
        return _text("group", "nothing", size=size)
    return _text("group", "promised", size=size, epsilon=upper_bound(epsilon_of_all), delta=upper_bound(delta_of_all))


def _account(family: FamilyBudget) -> str:
    return _text(
        "account",
        family=family.family,
        epsilon=upper_bound(family.cap.epsilon, 6),
        delta=upper_bound(family.cap.delta),
        charged=_text("charged", family.mode, unit=family.unit),
    )


def _first_words(text: str) -> str:
    head = text.split(":")[0].split(",")[0].split(" (")[0].rstrip(".")
    return head[0].lower() + head[1:]
