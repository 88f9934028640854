"""Reads contracts and family budgets from their files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpsynth_platform.contracts.base import FamilyName
from dpsynth_platform.contracts.constraints import unquoted
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.cross_checks import Parts, parse_or_none
from dpsynth_platform.contracts.family import FamilyBudget, check_family
from dpsynth_platform.contracts.linked_contract import by_tables, dotted, faults_of_tables, with_stand_in
from dpsynth_platform.contracts.tables import PREVIOUS, columns_named, unquoted_in_tables
from dpsynth_platform.contracts.validation import explain, refused, validated, without_unknown_keys
from dpsynth_platform.foundation.errors import ContractDraft, ContractError, DpsynthError, printable
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.yaml_files import read_yaml


@dataclass(frozen=True)
class Draft:
    """A contract file, valid or not.

    Attributes:
        contract: None where there are faults.
        family: the name of its family, if valid.
        parts: the valid parts.
        faults: key path, value and what is accepted, one each.
    """

    contract: DataContract | None
    family: str | None
    parts: Parts
    faults: tuple[str, ...]


def draft_contract(document: Mapping[str, Any], variables: Mapping[str, str]) -> Draft:
    """Reads a parsed document, valid or not; `variables` replaces ${NAME} in its URIs."""
    unknown: dict[str, None] = {}
    whole = _expand(document, variables, unknown, _names(document))
    faults = [f"${{{name}}} is not known; accepted: {', '.join(sorted(variables))}" for name in unknown]
    faults += (f"generate.constraints.{fault}" for fault in _unquoted(whole.get("columns"), whole.get("generate")))
    faults += unquoted_in_tables(whole.get("tables"))
    if of_tables := faults_of_tables(whole):
        faults += of_tables
        whole = with_stand_in(whole)
    contract = None
    try:
        contract = DataContract.model_validate(whole)
        parts = Parts.of(whole)
    except ValidationError as error:
        whole, problems, unknown_keys = without_unknown_keys(DataContract, whole, error.errors())
        parts = Parts.of(whole)
        faults += unknown_keys
        faults += [line for problem in problems for line in explain(DataContract, problem)]
        if all(problem["loc"] for problem in problems):  # else the contradictions are among the problems
            faults += parts.contradictions()
    family = parse_or_none(FamilyName, whole.get("family"))
    tables = document.get("tables")
    named = [by_tables(tables if isinstance(tables, dict) else {}, fault) for fault in faults]
    return Draft(None if faults else contract, family, parts, tuple(named))


def _unquoted(columns: Any, generate: Any) -> Iterator[str]:
    """See `constraints.unquoted`; for unvalidated parts."""
    named = columns.items() if isinstance(columns, dict) else ()
    texts = {name for name, column in named if isinstance(column, dict) and column.get("type") == "categorical"}
    return unquoted(generate.get("constraints") if isinstance(generate, dict) else None, texts)


def load_contract(path: Path, variables: Mapping[str, str]) -> DataContract:
    """Reads and validates a contract; `variables` replaces ${NAME} in its URIs.

    Raises:
        ContractError: one line for each fault, with file, key path, value and what is accepted.
    """
    return parse_contract(read_yaml(path), where=str(path), variables=variables)


def parse_contract(document: Mapping[str, Any], *, where: str, variables: Mapping[str, str]) -> DataContract:
    """Validates a parsed document; see `load_contract`."""
    draft = draft_contract(document, variables)
    if draft.contract is None:
        raise refused(where, draft.faults)
    return draft.contract


def load_family(path: Path) -> FamilyBudget:
    """Reads and validates a family budget. Raises `ContractError` like `load_contract`."""
    return validated(FamilyBudget, read_yaml(path), str(path))


def contract_json_schema() -> dict[str, Any]:
    """JSON schema of a contract file, for editors. What follows from `tables` is required without them only."""
    schema = DataContract.model_json_schema()
    without: dict[str, Any] = {"required": ["columns"], "properties": {}}
    schema["required"].remove("columns")
    for name, part, keys in (
        ("source", "Source", ["key"]),
        ("privacy", "Privacy", ["owner_columns", "max_contributions"]),
    ):
        for key in keys:
            schema["$defs"][part]["required"].remove(key)
        without["properties"][name] = {"required": keys}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | schema | {"if": {"required": ["tables"]}, "else": without}


NONE_YET = "none yet; `dpsynth contract init` drafts one"
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _names(document: Mapping[str, Any]) -> set[str]:
    """The texts that name a declared column, as a key does, which nothing replaces."""
    columns, tables = document.get("columns"), document.get("tables")
    named = {name for name in columns if isinstance(name, str)} if isinstance(columns, dict) else set()
    named |= {f"weight:{name}" for name in named}
    for table, declared in tables.items() if isinstance(tables, dict) else ():
        for name in columns_named(declared):
            named |= {name, dotted(PREVIOUS, name), dotted(str(table), name)}
    return named


def _expand(value: Any, variables: Mapping[str, str], unknown: dict[str, None], names: Collection[str]) -> Any:
    """Replaces each ${NAME} outside of columns' names; unknown ones are kept and added to `unknown`."""
    if isinstance(value, dict):
        return {key: _expand(item, variables, unknown, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, variables, unknown, names) for item in value]
    if not isinstance(value, str) or value in names:
        return value

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            unknown[name] = None
        return variables.get(name, match.group())

    return VARIABLE.sub(replace, value)


@contextmanager
def fault_of(path: Path) -> Iterator[None]:
    """Turns every failure with a file into a `ContractError`, so that others can still be read.

    A library's error is named by its type only, since its text may quote content.
    """
    kind = ContractError
    try:
        yield
        return
    except ContractError as error:
        problem = str(error)
        kind = ContractDraft if isinstance(error, ContractDraft) else ContractError
    except DpsynthError as error:
        problem = f"{path}: {error}"
    except Exception as error:
        problem = f"{path}: cannot be used ({type(error).__name__}); accepted: what docs/guides/contracts.md says"
    raise kind(printable(problem))


def names_of(directory: Path) -> list[str]:
    """Names of a directory's YAML files, without suffix."""
    return sorted(printable(item.stem) for item in directory.glob("*.yaml"))


def check_with_family(
    settings: Settings, contract: DataContract, families: Mapping[str, FamilyBudget] | None = None
) -> FamilyBudget:
    """The budget of a contract's family. Raises `ContractError` if it is missing or does not fit the contract."""
    family = (families or {}).get(contract.family) or family_of(settings, contract.family, contract.dataset)
    check_family(contract, family)
    return family


def family_of(settings: Settings, name: str, where: str) -> FamilyBudget:
    """The budget of a family by name; `where` starts the error's message. Raises `ContractError`."""
    path = settings.families / f"{name}.yaml"
    if not os.path.lexists(path):
        known = ", ".join(names_of(settings.families)) or NONE_YET
        raise ContractError(f"{where}: family: {name!r} has no file in {settings.families}; accepted: {known}")
    return read_family(path)


def read_family(path: Path) -> FamilyBudget:
    """As `load_family`, with every failure as a `ContractError`, also where file and family have different names."""
    with fault_of(path):
        family = load_family(path)
        if family.family != path.stem:
            raise ContractError(f"{path}: family: {family.family!r}; accepted: {path.stem!r}, the name of the file")
        return family


def contract_path(settings: Settings, given: str) -> Path:
    """The contract's file that a dataset's name or a path names; a path has a slash or ends in .yaml or .yml."""
    is_path = os.sep in given or given.casefold().endswith((".yaml", ".yml"))
    return Path(given) if is_path else settings.contracts / f"{given}.yaml"


def dataset_named(settings: Settings, given: str) -> str:
    """The dataset that a name or the path of a contract of this deployment names.

    Raises:
        ContractError: the path is that of no contract of this deployment.
    """
    path = contract_path(settings, given)
    if path.resolve().parent != settings.contracts.resolve():
        raise ContractError(
            f"{path}: is not in {settings.contracts}, the contracts of this deployment; accepted: a dataset's name, "
            "a contract there, or another DPSYNTH_DEPLOY"
        )
    return path.stem


def family_path(settings: Settings, contract: DataContract) -> Path:
    """The file with the budget of a contract's family."""
    return settings.families / f"{contract.family}.yaml"
