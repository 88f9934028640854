"""From a contract to a sealed plan and the key that names a run.

What belongs here: the public inputs of a mechanism put together. What does not: the mechanism (`synth`), the budget
(`ledger`). Nothing here reads a record; a source is known by its version and its schema.

What plans and costs are made with is imported where they are made: who only asks what is declared needs none of it.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.columns import modelled_columns
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.cross_checks import Parts
from dpsynth_platform.contracts.family import FamilyBudget, family_faults
from dpsynth_platform.contracts.loading import (
    NONE_YET,
    check_with_family,
    draft_contract,
    family_of,
    fault_of,
    load_contract,
    names_of,
)
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, file_problem, printable
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import AUDITED, Place, StepRecord
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.periods import MONTH, has_ended, local_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.ledger.records import CostRequest, Entry
    from dpsynth_platform.sources.source import PinnedSource
    from dpsynth_platform.synth.interface import SealedPlan

_LONGEST_NAME = 255
_LONGEST_PATH = 3500
"""Bytes that Linux takes, less those of what a release is made of."""
_SHOWN = 40


def plan_release(contract: DataContract, schema: pa.Schema, period: str | None) -> SealedPlan:
    """Calibrates the contract's method to its guarantee, or the one that `auto` stands for, and seals the result.

    Raises:
        ContractError: the method cannot do what the contract asks for, or may need more memory than there is for it.
        AccountingError: no noise scale meets the guarantee.
    """
    from dpsynth_platform.synth.automatic import method_for
    from dpsynth_platform.synth.interface import generator

    contract = resolve_method(contract, Settings.from_environment())
    guarantee, chosen = Guarantee.target(contract), method_for(contract, period)
    schema = local_schema(schema, contract.source.period_column, contract.release.time_zone)
    plan = generator(chosen.method).plan(contract, schema, guarantee, period=period, why=chosen.why)
    needed, limit = plan.describe()["predicted_memory_bytes"], Settings.from_environment().memory
    if limit is not None and needed > limit:
        raise ContractError(
            f"{contract.dataset}: generate: method {chosen.method} may need {needed / 1e6:,.0f} MB for these columns, "
            f"above DPSYNTH_MEMORY ({limit / 1e6:,.0f} MB); accepted: more memory, fewer bins or shorter lists of "
            "values, fewer ways, or the method independent"
        )
    if contract.separate_audit_model:
        _check_twice(contract, plan)
    return plan


def _check_twice(contract: DataContract, plan: SealedPlan) -> None:
    """Refuses a mechanism of which two together promise nothing, or too little to go without a reason.

    Raises:
        ContractError: says what can be declared instead.
    """
    from dpsynth_platform.privacy.accounting import delta_slack, epsilon
    from dpsynth_platform.privacy.events import event_from_json, twice

    where = f"{contract.dataset}: audit.model: 'separate'"
    event, delta = event_from_json(plan.event), contract.privacy.delta
    if 2 * delta_slack(event) >= delta:
        raise ContractError(
            f"{where}: the thresholds of two mechanisms take all of delta {delta:.3g}; accepted: shared, or the values "
            "of all columns declared"
        )
    both = epsilon(twice(event), delta).epsilon
    if both > WEAK_EPSILON and not contract.privacy.accept_weak_guarantee:
        raise ContractError(
            f"{where}: both models together cost epsilon {both:.4g}, a weak guarantee (above {WEAK_EPSILON:g}); "
            "accepted: shared, a smaller privacy.guarantee.epsilon, or a reason in privacy.accept_weak_guarantee"
        )


def cost_request(plan: SealedPlan, runner: str) -> CostRequest:
    """What the ledger is asked for a plan."""
    from dpsynth_platform.ledger.records import CostRequest
    from dpsynth_platform.privacy.events import event_from_json

    return CostRequest.of(
        event_from_json(plan.event),
        dataset=plan.dataset,
        period=plan.period,
        guarantee=Guarantee.from_json(plan.guarantee),
        plan_digest=plan.digest,
        runner=runner,
    )


def run_key(contract: DataContract, source: PinnedSource, period: str | None, plan: SealedPlan) -> str:
    """Names a run: the same contract, source version, period and plan are the same run, and one spend.

    Only what the mechanism depends on counts, so that a new description or a new approver is no new run. A plain hash,
    which the ledger exports: it is of public facts and of the source's name, a random id with a count of its versions,
    and not of what the source holds.
    """
    # Named only where it says which rows a period has, so that other runs keep their keys.
    zone = contract.release.time_zone
    by_zone = local_schema(source.schema, contract.source.period_column, zone) is not source.schema
    return canonical_digest(
        {
            "mechanism": contract.mechanism_snapshot(),
            "source": source.name,
            "period": period,
            "plan": plan.digest,
            **({"time_zone": zone} if by_zone else {}),
        }
    )[:32]


def in_zone(raw: StepRecord, zone: str) -> bool:
    """Whether a run's months were those of a time zone."""
    return bool(raw.facts["contract"]["release"].get("time_zone", "UTC") == zone)


def mechanism_keys(contract: DataContract, key: str) -> tuple[str, ...]:
    """The ledger's keys of a run's mechanisms, in the order in which they start; the run's own is last.

    Args:
        contract: as it was sealed.
        key: the run's (`run_key`).
    """
    return (audited_key(key), key) if contract.separate_audit_model else (key,)


def audited_key(key: str) -> str:
    """The ledger's key of the second mechanism of a run, whose model is audited and never released."""
    return canonical_digest({"run": key, "mechanism": AUDITED})[:32]


def check_choice(
    contract: DataContract, earlier: StepRecord | None, pinned: PinnedSource, charged: Iterable[Entry]
) -> None:
    """What `auto` stands for may change with what is free to change, and then would pay a second time without a word.

    Held against the last run alone: one that was sealed in between, with a method that the contract named, is a word.

    Args:
        contract: settled.
        earlier: what `raw` left of the last run, if any.
        pinned: the version that a run would be of.
        charged: what pays for releases of this dataset or period (`Ledger.charged_for`).

    Raises:
        ContractError: this version of the source is paid for by another method.
    """
    if contract.generate.why is None or earlier is None or earlier.facts["source"] != pinned.name:
        return
    now, then = contract.generate.method, earlier.facts["method"]
    paid = {entry.key for entry in charged}
    if now == then or paid.isdisjoint(mechanism_keys(contract, earlier.run_key)):
        return
    raise ContractError(
        f"{Place(contract.dataset, earlier.period).label}: generate.method: auto stands for {now!r} here "
        f"({contract.generate.why}), and this version of the source is paid for by {then!r}; accepted: method: {then} "
        f"to go on with what is paid for, or method: {now} for another spend"
    )


def check_period(contract: DataContract, period: str | None) -> None:
    """Refuses a period for a dataset without a cadence; for one with, all but a month that it has and that has ended.

    Raises:
        ConfigurationError: names the period and what is accepted.
    """
    if contract.release.cadence is None:
        if period is not None:
            raise ConfigurationError(f"{contract.dataset} has no cadence; leave --period out")
        return
    first = str(contract.release.start)
    if period is None:
        raise ConfigurationError(f"{contract.dataset} is released by month; say which: --period YYYY-MM, from {first}")
    # Text of this form sorts as time does.
    ended = MONTH.fullmatch(period) and has_ended(period, contract.release.time_zone, dt.datetime.now(dt.UTC))
    if not ended or period < first:
        raise ConfigurationError(
            f"{contract.dataset}: --period {period!r}; accepted: a month (YYYY-MM) from {first} that has ended"
        )


def changes(before: DataContract, now: DataContract) -> list[str]:
    """Keys of a contract that differ and that the mechanism depends on, so that they make another run."""
    return differences(before.mechanism_snapshot(), now.mechanism_snapshot())


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Keys, as paths, of which two contracts or parts of them say different things."""
    return list(_differences(dict(before), dict(now), ""))


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*before, *now)):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield path


def load_dataset(
    settings: Settings, dataset: str, families: Mapping[str, FamilyBudget] | None = None
) -> tuple[DataContract, FamilyBudget]:
    """Contract and family budget of a dataset of this deployment, checked against each other.

    Args:
        settings: the deployment.
        dataset: its name.
        families: budgets whose files were read just before; others are read.

    Raises:
        ContractError: the dataset is unknown, or a file is not acceptable.
    """
    path = settings.contracts / f"{dataset}.yaml"
    if not os.path.lexists(path):
        known = ", ".join(names_of(settings.contracts)) or NONE_YET
        raise ContractError(
            f"dataset {printable(dataset)!r} has no contract in {settings.contracts}; accepted: {known}"
        )
    with fault_of(path):
        contract = load_contract(path, settings.variables)
        if contract.dataset != dataset:
            raise ContractError(f"{path}: dataset: {contract.dataset!r}; accepted: {dataset!r}, as the file is named")
        check_constraints(contract, str(path))
        for fault in _in_the_open(settings, contract):
            raise ContractError(f"{path}: {fault}")
        return resolve_method(contract, settings), check_with_family(settings, contract, families)


def check_contract(settings: Settings, file: Path) -> DataContract:
    """A contract file, held against itself, its name and its family's budget.

    Raises:
        ContractError: with all faults that can be seen at once, one line each. What a part says is held against other
            parts and against the family where that part is sound by itself.
    """
    with fault_of(file):
        return _checked(settings, file)


def _checked(settings: Settings, file: Path) -> DataContract:
    document = read_yaml(file)
    draft = draft_contract(document, settings.variables)
    faults = [f"{file}: {fault}" for fault in (*draft.faults, *constraint_faults(draft.parts))]
    dataset = document.get("dataset")
    if file.resolve().parent == settings.contracts and dataset != file.stem and isinstance(dataset, str):
        faults.append(f"{file}: dataset: {dataset!r}; accepted: {file.stem!r}, as the file is named")
    if draft.family is not None:
        try:
            family = family_of(settings, draft.family, str(file))
        except ContractError as error:
            faults.append(str(error))
        else:
            if draft.parts.privacy is not None:
                found = (
                    *family_faults(draft.family, draft.parts.privacy, family),
                    *_unaffordable(draft.parts.privacy, family),
                )
                faults += [f"{file}: {fault}" for fault in found]
    if draft.contract is not None:
        faults += [f"{file}: {fault}" for fault in _in_the_open(settings, draft.contract)]
        faults += [f"{file}: {fault}" for fault in (_without_effect(draft.contract),) if fault]
    if draft.contract is None or faults:
        raise ContractError("\n".join(faults))
    return resolve_method(draft.contract, settings)


def check_constraints(contract: DataContract, where: str) -> None:
    """Refuses constraints about columns or values that a contract does not have.

    Raises:
        ContractError: one line for each fault, which begins with `where`.
    """
    faults = list(constraint_faults(contract.parts))
    if faults:
        raise ContractError("\n".join(f"{where}: {fault}" for fault in faults))


def constraint_faults(parts: Parts) -> Iterator[str]:
    """Constraints about columns or values that do not exist, one line each; none where a column is not sound."""
    modelled = modelled_columns(parts.columns, parts.privacy)
    constraints = parts.generate.constraints if parts.generate else []
    if not constraints or not all(parts.columns.values()) or not modelled:
        return
    from dpsynth_platform.synth.tabular.constraints import Conditions
    from dpsynth_platform.synth.tabular.domain import declared_domain

    try:
        Conditions.of(declared_domain(parts.columns, modelled), constraints)
    except ContractError as error:
        yield from str(error).split("\n")


def _without_effect(contract: DataContract) -> str | None:
    from dpsynth_platform.synth.tabular.workload import without_effect

    return without_effect(contract)


def resolve_method(contract: DataContract, settings: Settings) -> DataContract:
    """A contract of which everything that follows knows the method for its texts, also where it says `auto`.

    What `auto` stands for is sealed with the contract and with the plan, and part of the run: with other public facts
    it may stand for another method, and then makes another run.

    Raises:
        ContractError: the method that it stands for cannot do what the contract asks for.
    """
    if not contract.generate.method_unresolved:
        return contract
    from dpsynth_platform.synth.text.choice import text_method_for

    chosen = text_method_for(contract, settings)
    try:
        return contract.with_method(chosen.method, chosen.why)
    except ContractError as error:
        problem = str(error)
    raise ContractError(
        f"{contract.dataset}: generate.method: auto stands for {chosen.method} here ({chosen.why}), which cannot be: "
        f"{problem}; accepted: what it says, or another method by its name"
    )


def _in_the_open(settings: Settings, contract: DataContract) -> Iterator[str]:
    """Why releases would lie among what must stay restricted, or could not be written once they are paid for.

    Who may read the one root would come to the other.
    """
    long = [part for part in Path(contract.release.uri).parts if len(os.fsencode(part)) > _LONGEST_NAME]
    if long or len(os.fsencode(contract.release.uri)) > _LONGEST_PATH:
        what = f"{long[0][:_SHOWN]}..." if long else f"{contract.release.uri[:_SHOWN]}..."
        yield (
            f"release.uri: {what!r} is too long to be written; accepted: at most {_LONGEST_NAME} bytes for each name "
            f"and {_LONGEST_PATH} for the whole"
        )
        return
    places = {"release.uri": Path(contract.release.uri), "source.uri": Path(contract.source.uri)}
    found = {}
    for key, place in places.items():
        try:
            found[key] = place.resolve()
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                found[key].lstat()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links is a `RuntimeError`
            why = file_problem(error) if isinstance(error, OSError) else type(error).__name__
            yield f"{key}: {str(place)[:200]!r} cannot be a path here ({why}); accepted: another one"
            return
    public = found["release.uri"]
    sensitive = {name: place.resolve() for name, place in settings.sensitive_places.items()}
    for name, kept in (sensitive | {"source": found["source.uri"]}).items():
        if public.is_relative_to(kept) or kept.is_relative_to(public):
            yield f"release.uri: {contract.release.uri!r} and the {name} lie in one another; accepted: a place apart"


def _unaffordable(privacy: Privacy, family: FamilyBudget) -> Iterator[str]:
    """Why not even one release fits under the family's cap."""
    if privacy.guarantee.epsilon > family.cap.epsilon:
        yield (
            f"privacy.guarantee.epsilon: {privacy.guarantee.epsilon:g} alone exceeds the cap of family "
            f"{family.family}; accepted: at most {family.cap.epsilon:g}"
        )


def load_all(settings: Settings) -> tuple[list[tuple[DataContract, FamilyBudget]], list[str]]:
    """Every sound contract of this deployment with its family, and what is wrong with the others.

    One bad file must not stop the releases, the retention or the review of all other datasets.
    """
    loaded, faults = [], []
    families: dict[str, FamilyBudget] = {}
    for path in sorted(settings.contracts.glob("*.yaml")):
        try:
            contract, family = load_dataset(settings, path.stem, families)
        except ContractError as error:
            faults.append(str(error))
        else:
            loaded.append((contract, family))
            families[family.family] = family
    return loaded, faults
