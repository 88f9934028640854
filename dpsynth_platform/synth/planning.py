"""From a contract to a sealed plan and the key that names a run.

What belongs here: combining a mechanism's public inputs; a source is known by its version and schema. What does not:
reading records, the mechanism (`synth`), the budget (`ledger`). Planning and costs are imported late, where needed.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dpsynth_platform.contracts.base import shown_value
from dpsynth_platform.contracts.bases import bases_of
from dpsynth_platform.contracts.columns import modelled_columns
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.cross_checks import Parts
from dpsynth_platform.contracts.family import FamilyBudget, family_faults
from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.linked_contract import linked_of
from dpsynth_platform.contracts.loading import (
    NONE_YET,
    VARIABLE,
    check_with_family,
    draft_contract,
    family_of,
    fault_of,
    load_contract,
    names_of,
)
from dpsynth_platform.contracts.methods import EVOLVED_METHODS
from dpsynth_platform.contracts.periods import CADENCES
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.contracts.release import Release
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.tables import context_name, previous_name
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractDraft,
    ContractError,
    SourceError,
    file_problem,
    printable,
)
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import AUDITED, Place, StepRecord, Storage, unusable_place
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.periods import has_ended, local_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from dpsynth_platform.ledger.records import CostRequest, Entry
    from dpsynth_platform.sources.source import PinnedSource
    from dpsynth_platform.synth.interface import SealedPlan
    from dpsynth_platform.synth.tabular.public_rows import SealedRows

RAW_VERSION = "1"
"""Of the code of the step `raw`; raised whenever it would seal another plan for the same contract and source."""
_LONGEST_NAME = 255
_LONGEST_PATH = 3500
"""The limit of Linux in bytes, less the paths inside of a release."""
_SHOWN = 40


def plan_release(contract: DataContract, schema: pa.Schema, period: str | None) -> SealedPlan:
    """Calibrates the contract's method, or the one that `auto` selects, to its guarantee and seals the result.

    Raises `ContractError` if the method cannot do what the contract asks for, may need more memory than there is, or
    the public table is guarded, `AccountingError` if no noise scale meets the guarantee, and `ConfigurationError` if
    the deployment does not list an endpoint.
    """
    from dpsynth_platform.synth.automatic import method_for
    from dpsynth_platform.synth.guarded_sources import check_public_table
    from dpsynth_platform.synth.interface import generator

    contract = resolve_method(contract, Settings.from_environment())
    check_public_table(Settings.from_environment(), contract)
    if contract.generate.drawn is not None:
        from dpsynth_platform.synth.images.captions import CaptionPainter

        CaptionPainter.of(contract)  # an endpoint that the deployment does not list is refused before any spend
    guarantee, chosen = Guarantee.target(contract), method_for(contract, period)
    schema = local_schema(schema, contract.source.period_column, contract.release.time_zone)
    plan = generator(chosen.method).plan(contract, schema, guarantee, period=period, why=chosen.why)
    check_plan(contract, plan, chosen.method)
    return plan


def check_plan(
    contract: DataContract, plan: SealedPlan, method: str, described: Mapping[str, Any] | None = None
) -> None:
    """Refuses a plan that may need more memory than there is, or whose two models have no guarantee together.

    Args:
        method: its name in messages.
        described: the plan's description; None: its own.

    Raises:
        ContractError: with the way out.
    """
    needed = (described or plan.describe())["predicted_memory_bytes"]
    limit = Settings.from_environment().memory
    if limit is not None and needed > limit:
        raise ContractError(
            f"{contract.dataset}: generate: method {method} may need {needed / 1e6:,.0f} MB for these columns, "
            f"above DPSYNTH_MEMORY ({limit / 1e6:,.0f} MB); accepted: more memory, fewer bins or shorter lists of "
            "values, fewer ways, or the method independent"
        )
    if contract.separate_audit_model:
        _check_separate_audit_model(contract, plan)


def _check_separate_audit_model(contract: DataContract, plan: SealedPlan) -> None:
    """Refuses a mechanism whose two runs together have no guarantee, or a weak one without a declared reason."""
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
    """The request to the ledger for a plan."""
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

    It depends only on what the mechanism depends on, so that a new description or approver makes no new run. The
    ledger exports this plain hash: its inputs are public facts and the source's name (a random id with a version).
    """
    # Included only where it decides which rows a period has, so that other runs keep their keys.
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
    """Whether a run used the periods of a time zone."""
    return bool(raw.facts["contract"]["release"].get("time_zone", "UTC") == zone)


def mechanism_keys(contract: DataContract, key: str) -> tuple[str, ...]:
    """The ledger's keys of a sealed run's mechanisms, in the order in which they start; the run's own key is last."""
    return (audited_key(key), key) if contract.separate_audit_model else (key,)


def audited_key(key: str) -> str:
    """The ledger's key of the second mechanism of a run, whose model is audited and never released."""
    return canonical_digest({"run": key, "mechanism": AUDITED})[:32]


def check_choice(
    contract: DataContract, earlier: StepRecord | None, pinned: PinnedSource, charged: Iterable[Entry]
) -> None:
    """Prevents that a changed choice of `auto` silently pays a second time for the same version of the source.

    Raises `ContractError` if another method of the last run (`earlier`, its record of `raw`) is among the `charged`
    entries (`Ledger.charged_for`). Runs before the last are not compared: a method named in between was explicit.
    """
    if contract.generate.why is None or earlier is None or earlier.facts["source"] != pinned.name:
        return
    now, then = contract.generate.method, earlier.facts["method"]
    paid = {entry.key for entry in charged}
    if now == then or paid.isdisjoint(mechanism_keys(contract, earlier.run_key)):
        return
    raise ContractError(
        f"{Place(contract.dataset, earlier.period).label}: generate.method: auto selects {now!r} here "
        f"({contract.generate.why}), but {then!r} is paid for with this version of the source; accepted: method: "
        f"{then} to continue with what is paid for, or method: {now} for another spend"
    )


def check_period(contract: DataContract, period: str | None) -> None:
    """Raises `ConfigurationError` unless the period is None without a cadence, or with one a period that has ended."""
    if contract.release.cadence is None:
        if period is not None:
            raise ConfigurationError(f"{contract.dataset} has no cadence; leave --period out")
        return
    first, cadence = str(contract.release.start), CADENCES[contract.release.cadence]
    if period is None:
        raise ConfigurationError(
            f"{contract.dataset} is released by {cadence.noun}; give --period {cadence.form}, from {first}"
        )
    # Text of this form sorts chronologically.
    ended = cadence.first_day(period) and has_ended(period, contract.release.time_zone, dt.datetime.now(dt.UTC))
    if not ended or period < first:
        raise ConfigurationError(
            f"{contract.dataset}: --period {period!r}; accepted: a {cadence.noun} ({cadence.form}) from {first} that "
            "has ended"
        )


_KEYS = {
    "target": "quality.target",
    "paid.target": "quality.target",
    "paid.constraints": "generate.constraints",
    "tune_target": "quality.target",
    "tune_constraints": "generate.constraints",
}
"""Keys of a contract, by the part of a snapshot that has them under another name."""


def changes(before: DataContract, now: DataContract) -> list[str]:
    """Keys that differ and that the mechanism depends on, so that they make another run."""
    snapshots = before.mechanism_snapshot(), now.mechanism_snapshot()
    if before.tables and now.tables:
        snapshots = _without_derived(snapshots[0]), _without_derived(snapshots[1])
    found = differences(*snapshots)
    named = (_KEYS.get(path, path) for path in found)
    return [re.sub("^paid", "quality.paid", re.sub("^tune", "generate.tune", path)) for path in named]


def _without_derived(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot with tables by the keys of a contract, without what follows from them."""
    linked = snapshot["tables"]
    owner = {key: value for key, value in snapshot["privacy"].items() if key not in ("max_contributions", "weighting")}
    source = {key: value for key, value in snapshot["source"].items() if key not in ("format", "key")}
    changed = {"tables": linked["tables"], "privacy": owner, "source": source}
    return {key: value for key, value in snapshot.items() if key != "columns"} | changed


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Keys, as paths, whose values differ between two contracts or parts of them."""
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

    Budgets in `families` are not read again. Raises `ContractError` for an unknown dataset or an unacceptable file;
    `ContractDraft` only where the dataset has no outputs yet: with outputs, its schedules have stopped and its present
    retention is unknown.
    """
    path = settings.contracts / f"{dataset}.yaml"
    if not os.path.lexists(path):
        known = ", ".join(names_of(settings.contracts)) or NONE_YET
        raise ContractError(
            f"dataset {printable(dataset)!r} has no contract in {settings.contracts}; accepted: {known}"
        )
    try:
        return _loaded(settings, path, families)
    except ContractDraft as error:
        if not Storage(settings.restricted).places(dataset):
            raise
        problem = str(error)
    raise ContractError(problem)


def _loaded(
    settings: Settings, path: Path, families: Mapping[str, FamilyBudget] | None
) -> tuple[DataContract, FamilyBudget]:
    dataset = path.stem
    with fault_of(path):
        contract = load_contract(path, settings.variables)
        if contract.dataset != dataset:
            raise ContractError(f"{path}: dataset: {contract.dataset!r}; accepted: {dataset!r}, as the file is named")
        check_constraints(contract, str(path))
        for fault in (
            *_dialect_faults(contract.source),
            *_own_faults(settings, "source.uri", contract.source.uri),
            *_base_faults(settings, contract.generate),
        ):
            raise ContractError(f"{path}: {fault}")
        for fault in _uri_faults(settings, contract.source.uri, contract.release):
            raise ContractError(f"{path}: {fault}")
        return resolve_method(contract, settings), check_with_family(settings, contract, families)


def check_contract(settings: Settings, file: Path) -> DataContract:
    """A contract file, checked for consistency with itself, its name and its family's budget.

    Raises `ContractError` with all faults that can be found at once, one line each. Only valid parts are compared.
    """
    with fault_of(file):
        document = read_yaml(file)
        draft = draft_contract(document, settings.variables)
        faults = [f"{file}: {fault}" for fault in (*draft.faults, *_faults_of_valid_parts(settings, draft.parts))]
        dataset = document.get("dataset")
        if file.resolve().parent == settings.contracts and dataset != file.stem and isinstance(dataset, str):
            faults.append(f"{file}: dataset: {shown_value(dataset)}; accepted: {file.stem!r}, as the file is named")
        if draft.family is not None:
            try:
                family = family_of(settings, draft.family, str(file))
            except ContractError as error:
                faults.append(str(error))
            else:
                if (privacy := draft.parts.privacy) is not None:
                    found = (
                        *family_faults(draft.family, privacy, family, draft.parts.source),
                        *_cap_faults(privacy, family),
                    )
                    faults += [f"{file}: {fault}" for fault in found]
        if draft.contract is None or faults:
            raise ContractError("\n".join(faults))
        return resolve_method(draft.contract, settings)


def check_source(contract: DataContract) -> str | None:
    """Compares the declared columns with the names and types of the source's, without reading a record.

    Returns:
        Why they could not be compared, such as that there is no source yet; None if they were, and fit.

    Raises:
        SourceError: columns of the source are not as the contract declares them; a line for each.
        ContractError: a type of the source cannot hold a column's declared values.
    """
    from dpsynth_platform.scrub.scrub import check_source_schema
    from dpsynth_platform.sources.source import schema_of
    from dpsynth_platform.synth.tabular.restore import release_schema

    if contract.source.federation is not None:
        return "the participants' tables are read by their own nodes, which compare them with their own declarations"
    if contract.source.format == "json":
        return "the keys of JSON lines are not read before a run, since they may be data"
    problem = None
    try:
        schema = schema_of(contract)
    except SourceError as error:
        problem = str(error)
    if problem is not None:
        if not can_be_read(contract.source):
            return problem
        raise SourceError(f"{contract.dataset}: source.uri: {contract.source.uri}: {problem}")
    check_source_schema(contract, schema)
    release_schema(contract, local_schema(schema, contract.source.period_column, contract.release.time_zone))
    return None


def public_table(contract: DataContract) -> SealedRows | None:
    """What a plan would seal of `generate.public`; None if the contract has none.

    Raises `ConfigurationError` if it cannot be read, or does not help, `ContractError` if it is guarded.
    """
    from dpsynth_platform.synth.guarded_sources import check_public_table
    from dpsynth_platform.synth.tabular.attributes import planned_domain
    from dpsynth_platform.synth.tabular.public_rows import SealedRows

    check_public_table(Settings.from_environment(), contract)
    declared = contract.generate.public
    if declared is not None and contract.generate.method in EVOLVED_METHODS:
        from dpsynth_platform.synth.text.public_texts import sealed_texts

        return sealed_texts(declared, contract)
    return None if declared is None else SealedRows.of(declared, contract, planned_domain(contract))


def can_be_read(source: Source) -> bool:
    """Whether the source is a file or directory on this machine that this user may read."""
    return _is_local(source) and os.access(local_path(source.uri), os.R_OK)


def is_missing(source: Source) -> bool:
    """Whether the source would be on this machine, and nothing is at its place."""
    return _is_local(source) and not local_path(source.uri).exists()


def _is_local(source: Source) -> bool:
    return "://" not in source.uri or source.uri.startswith("file://")


def _faults_of_valid_parts(settings: Settings, parts: Parts) -> Iterator[str]:
    """Faults that the planning of a run would find, one line each, as far as the parts are valid."""
    from dpsynth_platform.synth.tabular.workload import workload_faults

    yield from constraint_faults(parts)
    modelled = modelled_columns(parts.columns, parts.privacy)
    if parts.generate is not None and parts.generate.text is None and all(parts.columns.values()) and modelled:
        for path, each in parts.generate.settings:
            for fault in workload_faults(each, modelled):
                yield fault.replace("generate.", f"generate.{path}", 1)
    if parts.source is not None:
        yield from _dialect_faults(parts.source)
        yield from _format_faults(parts.source)
        yield from _own_faults(settings, "source.uri", parts.source.uri)
    if parts.generate is not None:
        yield from _base_faults(settings, parts.generate)
    if parts.source is not None and parts.release is not None:
        uris = parts.source.uri, parts.release.uri, *(target.uri for target in parts.release.publish)
        if not any(VARIABLE.search(uri) for uri in uris):  # one whose variable is unknown is a fault already
            yield from _uri_faults(settings, parts.source.uri, parts.release)


def _format_faults(source: Source) -> Iterator[str]:
    """A place on this machine that is named as a file of another format, and holds no Delta table."""
    named, path = source.format_by_name, Path(source.uri.removeprefix("file://"))
    if named is not None and not (path / "_delta_log").is_dir():
        yield (
            f"source.format: {source.format}, the format unless another one is declared; source.uri ends as a {named} "
            f"file does; accepted: format: {named}, or the directory of a Delta table"
        )


def _base_faults(settings: Settings, generate: Generate) -> Iterator[str]:
    """Public data among the platform's own restricted files: lineage knows nothing of a step that did not complete."""
    for base in bases_of(generate):
        if not base.is_writer and base.kind != "package":
            yield from _own_faults(settings, f"generate: public {base.kind}", base.name)


def _own_faults(settings: Settings, key: str, uri: str) -> Iterator[str]:
    """A source, a target or public data among the platform's own restricted files and databases.

    As a source it has rows of another dataset, whose budget would not pay.
    """
    scheme, remote, path = uri.partition("://")
    with suppress(ValueError):
        if settings.ledger_url_is_configured and remote and _database(uri) == _database(settings.ledger_url):
            yield f"{key}: it is the ledger's database; accepted: another one"
            return
    if remote and scheme.partition("+")[0] not in ("file", "sqlite"):
        return
    # SQLite's path follows a further slash, and may be a URI itself.
    path = unquote(path.partition("?")[0])[scheme != "file" :].removeprefix("file:") if remote else uri
    with suppress(OSError, RuntimeError, ValueError):  # a place that cannot be is another fault
        read = Path(path).resolve()
        for name, kept in settings.sensitive_places.items():
            if read.is_relative_to(kept.resolve()) or kept.resolve().is_relative_to(read):
                yield f"{key}: {uri!r} and the {name} overlap; accepted: a separate place"


def _database(url: str) -> tuple[str, ...]:
    """Kind, host, port and name of a database, without its user. Raises `ValueError` for no such URL."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    host, port = given.get("host") or parts.hostname or "", given.get("port") or parts.port or 5432
    return parts.scheme.partition("+")[0], host.lower(), str(port), unquote(parts.path).removeprefix("/file:")


def _dialect_faults(source: Source) -> Iterator[str]:
    if source.csv is None:
        return
    from dpsynth_platform.sources.plain_files import dialect_of, in_contract

    try:
        dialect_of(source)
    except ContractError as error:
        yield in_contract(str(error))


def check_constraints(contract: DataContract, where: str) -> None:
    """Raises `ContractError` for constraints on undeclared columns or values, a line each that begins with `where`."""
    faults = list(constraint_faults(contract.parts))
    if faults:
        raise ContractError("\n".join(f"{where}: {fault}" for fault in faults))


def constraint_faults(parts: Parts) -> Iterator[str]:
    """Faults of constraints on undeclared columns or values, one line each; none while a column is invalid."""
    if parts.tables:
        yield from _constraint_faults_of_tables(parts)
        return
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


def _constraint_faults_of_tables(parts: Parts) -> Iterator[str]:
    """`constraint_faults` of each table's view, but of constraints on lookups: their values are keys of public rows."""
    from dpsynth_platform.synth.tabular.constraints import Conditions
    from dpsynth_platform.synth.tabular.domain import declared_domain

    try:
        linked = linked_of(parts.tables, parts.privacy)
    except ContractError:
        return  # a fault of its own
    for name in linked.private:
        table = linked.tables[name]
        names = {column: given for given, column in linked.constraint_names(name).items() if column != given}
        of_keys = {context_name(other, each) for other in linked.private for each in linked.tables[other].lookups}
        of_keys |= {*table.lookups, *(previous_name(each, 1) for each in table.lookups)}
        columns = linked.view(name, {each: ["a", "b"] for each in linked.lookups})
        modelled = [column for column in columns if column not in of_keys]
        for number, constraint in enumerate(linked.view_constraints(name)[: len(table.constraints)]):
            if of_keys.intersection(constraint.columns):
                continue
            try:
                Conditions.of(declared_domain(columns, modelled), [constraint])
            except ContractError as error:
                for line in str(error).split("\n"):
                    of_table = line.replace("generate.constraints.0", f"tables.{name}.constraints.{number}")
                    yield _renamed(of_table, names)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with other names, longer ones first."""
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(pattern, lambda match: names[match[0]], text) if names else text


def resolve_method(contract: DataContract, settings: Settings) -> DataContract:
    """The contract with the method that `auto` selects for its texts or pictures.

    The choice is sealed with contract and plan, so that another choice, by other public facts, is another run. Raises
    `ContractError` if the selected method cannot do what the contract asks for.
    """
    if not contract.generate.method_unresolved:
        return contract
    if contract.generate.image is not None:
        from dpsynth_platform.synth.images.choice import image_method_for

        chosen = image_method_for(contract)
    else:
        from dpsynth_platform.synth.text.choice import text_method_for

        chosen = text_method_for(contract, settings)
    try:
        return contract.with_method(chosen.method, chosen.why)
    except ContractError as error:
        problem = str(error)
    raise ContractError(
        f"{contract.dataset}: generate.method: auto selects {chosen.method} here ({chosen.why}), which is not "
        f"possible: {problem}; accepted: a contract without that problem, or another method by its name"
    )


def _uri_faults(settings: Settings, source: str, declared: Release) -> Iterator[str]:
    """Why releases would overlap with restricted directories, or could not be written after they are paid for."""
    yield from _place_faults(settings, source, declared.uri)
    public = Path(declared.uri)
    for number, target in enumerate(declared.publish):
        key = f"release.publish.{number}.uri"
        if target.in_database:
            yield from _own_faults(settings, key, target.uri)
        elif target.is_local:
            yield from _place_faults(settings, source, target.uri, key, {"release.uri": public})


def _place_faults(
    settings: Settings, source: str, release: str, key: str = "release.uri", others: Mapping[str, Path] | None = None
) -> Iterator[str]:
    """Faults of one place; it may not overlap with `others` either."""
    long = [part for part in Path(release).parts if len(os.fsencode(part)) > _LONGEST_NAME]
    if long or len(os.fsencode(release)) > _LONGEST_PATH:
        what = f"{long[0][:_SHOWN]}..." if long else f"{release[:_SHOWN]}..."
        yield (
            f"{key}: {what!r} is too long to be written; accepted: at most {_LONGEST_NAME} bytes for each name "
            f"and {_LONGEST_PATH} for the whole"
        )
        return
    places = {key: Path(release), "source.uri": Path(source)}
    found = {}
    for name, place in places.items():
        try:
            found[name] = place.resolve()
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                found[name].lstat()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links is a `RuntimeError`
            why = file_problem(error) if isinstance(error, OSError) else type(error).__name__
            yield f"{name}: {str(place)[:200]!r} cannot be a path here ({why}); accepted: another one"
            return
    public = found[key]
    if (unusable := unusable_place(public)) is not None:
        yield f"{key}: {release!r}: {unusable}"
    apart = {name: place.resolve() for name, place in {**settings.sensitive_places, **(others or {})}.items()}
    for name, kept in (apart | {"source": found["source.uri"]}).items():
        if public.is_relative_to(kept) or kept.is_relative_to(public):
            yield f"{key}: {release!r} and the {name} overlap; accepted: a separate directory"


def _cap_faults(privacy: Privacy, family: FamilyBudget) -> Iterator[str]:
    if privacy.guarantee.epsilon > family.cap.epsilon:
        yield (
            f"privacy.guarantee.epsilon: {privacy.guarantee.epsilon:g} alone exceeds the cap of family "
            f"{family.family}; accepted: at most {family.cap.epsilon:g}"
        )


def load_all(settings: Settings) -> tuple[list[tuple[DataContract, FamilyBudget]], list[ContractError]]:
    """Every valid contract of this deployment with its family, and the errors of the others; a draft is one, too.

    One bad file must not stop the releases, the retention or the review of all other datasets.
    """
    loaded, faults = [], []
    families: dict[str, FamilyBudget] = {}
    for path in sorted(settings.contracts.glob("*.yaml")):
        try:
            contract, family = load_dataset(settings, path.stem, families)
        except ContractError as error:
            faults.append(error)
        else:
            loaded.append((contract, family))
            families[family.family] = family
    return loaded, faults
