"""A writer on disk: a base model's name and digest, and the adapter that was trained on public texts.

What belongs here: reading and writing both, and the model that they make. What does not: training (`writer`), and
finding the base model (`base_models`). Nothing here runs code of a directory: an adapter is
safetensors, and its shapes are checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import write_durably

if TYPE_CHECKING:
    from torch import Tensor

    from dpsynth_platform.training.plan import Adapter

FORMAT = "dpsynth-writer-1"
WRITER, ADAPTER = "writer.json", "adapter.safetensors"


@dataclass(frozen=True)
class Writer:
    """A complete writer.

    Attributes:
        base: the name by which its base model was requested, and `base_digest` that model's digest.
        digest: SHA-256 over base model, adapter and rank: what decides what it writes.
    """

    directory: Path
    base: str
    base_digest: str
    adapter: Adapter
    digest: str

    @classmethod
    def read(cls, directory: Path, declared: str) -> Writer:
        """Raises `ConfigurationError` if a file is missing, or of another training."""
        try:
            about = json.loads((directory / WRITER).read_text(encoding="utf-8"))
            named, base, rank = str(about["base"]["declared"]), str(about["base"]["digest"]), about["training"]["rank"]
            trained = digest_file(directory / ADAPTER)
            if about["format"] != FORMAT or about["adapter"] != trained or not isinstance(rank, int):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"base model {declared!r}: {WRITER} and {ADAPTER} are incomplete, damaged or do not belong together; "
                "accepted: a directory that `dpsynth synth writer` made"
            ) from None
        digest = canonical_digest({"format": FORMAT, "base": base, "adapter": trained, "rank": rank})
        return cls(directory, named, base, adapter_of(rank), digest)

    def merged(self, model: Any) -> Any:
        """Its base model with the adapter added to the weights. Raises `ValueError` if they do not fit together."""
        import torch
        from safetensors.torch import load_file

        from dpsynth_platform.training.adapter import adapted

        wrapped, trained = adapted(model, self.adapter), load_file(self.directory / ADAPTER)
        own = {name: value for name, value in wrapped.named_parameters() if value.requires_grad}
        if {name: value.shape for name, value in own.items()} != {name: each.shape for name, each in trained.items()}:
            raise ValueError("an adapter of another model")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(trained[name])
        return wrapped.merge_and_unload()


def is_writer(directory: Path) -> bool:
    """Whether a directory has a complete writer."""
    return (directory / WRITER).is_file()


def adapter_of(rank: int) -> Adapter:
    """The adapter of a writer, by its rank."""
    from dpsynth_platform.training.plan import Adapter  # with accounting, which loading a code location does not need

    return Adapter(rank, 2 * rank)


def write_adapter(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes trained weights by name, durably."""
    from safetensors.torch import save

    whole = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    write_durably(directory / ADAPTER, save(whole))
