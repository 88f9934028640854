"""Contracts and family budgets from their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
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
from dpsynth_platform.contracts.validation import explain, validated
from dpsynth_platform.foundation.errors import ContractError, DpsynthError, printable
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.yaml_files import read_yaml


@dataclass(frozen=True)
class Draft:
    """A contract file as far as it can be read.

    Attributes:
        contract: the whole; None where anything is wrong with it.
        family: the family that it names, if it names one.
        parts: its parts, as far as each is sound by itself.
        faults: all that is wrong and can be seen at once: key path, value and what is accepted.
    """

    contract: DataContract | None
    family: str | None
    parts: Parts
    faults: tuple[str, ...]


def draft_contract(document: Mapping[str, Any], variables: Mapping[str, str]) -> Draft:
    """Reads an already parsed document, sound or not; `variables` replaces ${NAME} in its URIs."""
    unknown: dict[str, None] = {}
    whole = _expand(document, variables, unknown)
    faults = [f"${{{name}}} is not known; accepted: {', '.join(sorted(variables))}" for name in unknown]
    parts = Parts.of(whole)
    faults += (f"generate.constraints.{fault}" for fault in _unquoted(whole.get("columns"), whole.get("generate")))
    contract = None
    try:
        contract = DataContract.model_validate(whole)
    except ValidationError as error:
        problems = error.errors()
        faults += [line for problem in problems for line in explain(DataContract, problem)]
        if all(problem["loc"] for problem in problems):  # what is wrong between parts is looked for in sound ones only
            faults += parts.contradictions()
    family = parse_or_none(FamilyName, whole.get("family"))
    return Draft(None if faults else contract, family, parts, tuple(faults))


def _unquoted(columns: Any, generate: Any) -> Iterator[str]:
    """See `constraints.unquoted`; of parts that nobody has checked."""
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
    """Validates an already parsed document; see `load_contract`."""
    draft = draft_contract(document, variables)
    if draft.contract is None:
        raise ContractError("\n".join(f"{where}: {fault}" for fault in draft.faults))
    return draft.contract


def load_family(path: Path) -> FamilyBudget:
    """Reads and validates a family budget. Raises `ContractError` like `load_contract`."""
    return validated(FamilyBudget, read_yaml(path), str(path))


def contract_json_schema() -> dict[str, Any]:
    """JSON schema of a contract file, for editors."""
    schema = DataContract.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


NONE_YET = "none yet; `dpsynth contract init` drafts one"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _expand(value: Any, variables: Mapping[str, str], unknown: dict[str, None]) -> Any:
    """A value with each ${NAME} replaced; names that stand for nothing stay and are added to `unknown`."""
    if isinstance(value, dict):
        return {key: _expand(item, variables, unknown) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, variables, unknown) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            unknown[name] = None
        return variables.get(name, match.group())

    return _VARIABLE.sub(replace, value)


@contextmanager
def fault_of(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file is its own fault: others are read on. A library's error is named by its type.

    Raises:
        ContractError: anything went wrong.
    """
    try:
        yield
        return
    except ContractError as error:
        problem = str(error)
    except DpsynthError as error:
        problem = f"{path}: {error}"
    except Exception as error:
        problem = f"{path}: cannot be used ({type(error).__name__}); accepted: what docs/guides/contracts.md says"
    raise ContractError(printable(problem))


def names_of(directory: Path) -> list[str]:
    """Of a directory's YAML files, without their ending."""
    return sorted(printable(item.stem) for item in directory.glob("*.yaml"))


def check_with_family(
    settings: Settings, contract: DataContract, families: Mapping[str, FamilyBudget] | None = None
) -> FamilyBudget:
    """The budget of a contract's family. Raises `ContractError` if there is none or it cannot carry the contract."""
    family = (families or {}).get(contract.family) or family_of(settings, contract.family, contract.dataset)
    check_family(contract, family)
    return family


def family_of(settings: Settings, name: str, where: str) -> FamilyBudget:
    """The budget of a family by its name; `where` begins the message of the error. Raises `ContractError`."""
    path = settings.families / f"{name}.yaml"
    if not os.path.lexists(path):
        known = ", ".join(names_of(settings.families)) or NONE_YET
        raise ContractError(f"{where}: family: {name!r} has no file in {settings.families}; accepted: {known}")
    return read_family(path)


def read_family(path: Path) -> FamilyBudget:
    """As `load_family`, with every failure of reading as the file's fault, another name than the family's as well.

    Raises:
        ContractError: the file is not acceptable.
    """
    with fault_of(path):
        family = load_family(path)
        if family.family != path.stem:
            raise ContractError(f"{path}: family: {family.family!r}; accepted: {path.stem!r}, as the file is named")
        return family


def family_path(settings: Settings, contract: DataContract) -> Path:
    """The file that holds the budget of a contract's family."""
    return settings.families / f"{contract.family}.yaml"
