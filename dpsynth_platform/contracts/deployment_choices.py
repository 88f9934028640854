"""What a deployment chooses for its datasets in one YAML file: a default, and others by dataset.

What belongs here: the file's shape, and which of its choices is a dataset's. What does not: what may be chosen
(`compute.choice`, `worker.choice`). A choice is no part of a contract: it changes nothing that a guarantee rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.yaml_files import read_yaml

_KEYS = ("default", "datasets")
Choice = TypeVar("Choice")
Model = TypeVar("Model", bound=BaseModel)


def choice_for(
    path: Path | None, dataset: str, read: Callable[[Any, str], Choice], usual: Any, known: Collection[str] | None
) -> Choice:
    """The choice for a dataset; where the file has no default, or there is none, the usual one.

    Args:
        usual: as a file would say it.
        read: makes a choice of what the file says, and is told where that stands; raises `ContractError`.
        known: names of the deployment's datasets; the file may speak of no others. None: not looked at.

    Raises:
        ConfigurationError: the file cannot be read, or something in it is not accepted, whichever dataset it is about.
    """
    if path is None:
        return read(usual, "default")
    try:
        document = read_yaml(path)
        unknown = sorted(str(key) for key in document if key not in _KEYS)
        if unknown:
            raise ContractError(f"{path}: {unknown[0]}: unknown key; accepted: {', '.join(_KEYS)}")
        datasets = document.get("datasets") or {}
        if not isinstance(datasets, dict):
            raise ContractError(f"{path}: datasets: accepted is a mapping of datasets to choices")
        general = read(document.get("default", usual), f"{path}: default")
        chosen = {name: read(value, f"{path}: datasets.{name}") for name, value in datasets.items()}
        strangers = sorted(str(name) for name in chosen if known is not None and name not in known)
        if strangers:
            accepted = ", ".join(sorted(known or ()))
            raise ContractError(f"{path}: datasets.{strangers[0]}: there is no such contract; accepted: {accepted}")
    except ContractError as error:
        problem = str(error)
    else:
        return chosen.get(dataset, general)
    raise ConfigurationError(problem)


def tagged(document: Any, where: str, key: str, models: Mapping[str, type[Model]], example: str) -> Model:
    """One choice, of the model that a key of it names. Raises `ContractError`."""
    if not isinstance(document, dict):
        raise ContractError(f"{where}: accepted is a mapping such as {example}")
    model = models.get(str(document.get(key)))
    if model is None:
        raise ContractError(f"{where}.{key}: {document.get(key)!r}; accepted: {', '.join(models)}")
    return validated(model, document, where)
