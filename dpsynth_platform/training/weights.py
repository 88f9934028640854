"""The result of a training on disk: its weights, and whether they are complete.

What belongs here: the files. What does not: the models that the weights belong to. Nothing here reads the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.storage import write_durably

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "weights.safetensors"
_COMPLETE = "trained.json"


def save_weights(weights: Mapping[str, Tensor], directory: Path, executed: int) -> None:
    """Writes weights by name, then the file that says that they are complete. Durable on return.

    Args:
        executed: the number of executed steps, including those that were repeated after a crash.
    """
    from safetensors.torch import save

    write_durably(
        directory / WEIGHTS, save({name: value.detach().cpu().contiguous() for name, value in weights.items()})
    )
    complete = {"weights": digest_file(directory / WEIGHTS), "executed_steps": executed}
    write_durably(directory / _COMPLETE, json.dumps(complete))


def is_trained(directory: Path) -> bool:
    """Whether the directory has complete trained weights."""
    return (directory / _COMPLETE).is_file()


def digest_of(directory: Path) -> str:
    """The digest of the trained weights in a directory."""
    return digest_file(directory / WEIGHTS)


def load_weights(own: Mapping[str, Tensor], directory: Path) -> None:
    """Reads trained weights into a model's own, by name.

    Raises:
        MechanismFailed: the weights are incomplete, damaged or of another plan.
    """
    import torch
    from safetensors.torch import load_file

    try:
        complete = json.loads((directory / _COMPLETE).read_text(encoding="utf-8"))
        if complete["weights"] != digest_of(directory):
            raise ValueError
        trained = load_file(directory / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismFailed("the trained weights are incomplete or damaged") from None
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in trained.items()}:
        raise MechanismFailed("the trained weights are of another plan")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(trained[name])
