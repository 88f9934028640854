"""Choices of a deployment in one YAML file: a default, and exceptions by dataset.

What belongs here: the file's shape, and the choice for a dataset. What does not: the options (`compute.choice`,
`worker.choice`). A choice is not part of a contract: no guarantee depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from dpsynth_platform.contracts.validation import unknown_key, validated
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.yaml_files import read_yaml

_KEYS = ("default", "datasets")
Choice = TypeVar("Choice")
Model = TypeVar("Model", bound=BaseModel)


def choice_for(
    path: Path | None, dataset: str, read: Callable[[Any, str], Choice], usual: Any, known: Collection[str] | None
) -> Choice:
    """The choice for a dataset: its own, else the file's default, else the usual one.

    Args:
        usual: in the form that a file has.
        read: parses a choice, given its value and place; raises `ContractError`.
        known: names of the deployment's datasets, the only ones that the file may name. None: not checked.

    Raises:
        ConfigurationError: the file is unreadable, or contains a fault, about whichever dataset.
    """
    if path is None:
        return read(usual, "default")
    try:
        document = read_yaml(path)
        unknown = sorted(str(key) for key in document if key not in _KEYS)
        if unknown:
            raise ContractError("\n".join(f"{path}: {unknown_key((), key, _KEYS)}" for key in unknown))
        datasets = document.get("datasets") or {}
        if not isinstance(datasets, dict):
            raise ContractError(f"{path}: datasets: accepted is a mapping of datasets to choices")
        general = read(document.get("default", usual), f"{path}: default")
        chosen = {name: read(value, f"{path}: datasets.{name}") for name, value in datasets.items()}
        unknown = sorted(str(name) for name in chosen if known is not None and name not in known)
        if unknown:
            accepted = ", ".join(sorted(known or ()))
            raise ContractError(f"{path}: datasets.{unknown[0]}: no such contract; accepted: {accepted}")
    except ContractError as error:
        problem = str(error)
    else:
        return chosen.get(dataset, general)
    raise ConfigurationError(problem)


def tagged(document: Any, where: str, key: str, models: Mapping[str, type[Model]], example: str) -> Model:
    """Parses a choice by the model that one of its keys names. Raises `ContractError`."""
    if not isinstance(document, dict):
        raise ContractError(f"{where}: accepted is a mapping such as {example}")
    model = models.get(str(document.get(key)))
    if model is None:
        raise ContractError(f"{where}.{key}: {document.get(key)!r}; accepted: {', '.join(models)}")
    return validated(model, document, where)
