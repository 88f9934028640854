"""Dagster resources: configuration around the library.

What belongs here: where each part of the library finds its place. What does not: anything that decides, computes or
writes; the library does that without Dagster.

They are plain frozen dataclasses on purpose. Dagster shows the fields of configurable resources in its Launchpad: a
person who starts a run could then name another ledger, vault or zone. A deployment's places are settings of its code
location, never of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import dagster as dg

from dpsynth_platform.compute.choice import EngineChoice, engine_choice
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.foundation.volumes import require_encrypted
from dpsynth_platform.secrets.vault import Vault
from resources.accelerator import AcceleratorResource as AcceleratorResource

if TYPE_CHECKING:
    from dpsynth_platform.federation.choice import RelayChoice
    from dpsynth_platform.ledger.store import Ledger
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.lineage.store import LineageStore


@dataclass(frozen=True)
class StorageResource:
    """The restricted zone.

    Attributes:
        places: all places of the deployment with rows, fingerprints or keys, by their names in messages.
        encrypted: whether these must be encrypted (`volumes.require_encrypted`).
    """

    restricted: str
    places: Mapping[str, Path] = field(default_factory=dict)
    encrypted: str = "no"

    def open(self) -> Storage:
        return Storage(Path(self.restricted))

    def check(self) -> None:
        """Raises `ConfigurationError` where places must be encrypted and are not."""
        require_encrypted(self.places, self.encrypted)


@dataclass(frozen=True)
class VaultResource:
    """Directory of the keys."""

    directory: str

    def open(self) -> Vault:
        return Vault(Path(self.directory))


@dataclass(frozen=True)
class LedgerResource:
    """SQLAlchemy URL of the ledger and the stored graph. It may contain a password, so it is not shown."""

    url: str = field(repr=False)

    def open(self) -> Ledger:
        from dpsynth_platform.ledger.store import Ledger

        return Ledger(self.url)

    def graph(self) -> LineageStore:
        from dpsynth_platform.lineage.store import LineageStore

        return LineageStore(self.url)


@dataclass(frozen=True)
class LineageResource:
    """The stored graph's database, which is the ledger's, and the directory of the lineage record.

    A further transport comes from the standard OpenLineage configuration.
    """

    directory: str
    url: str = field(repr=False)

    def open(self) -> LineageEmitter:
        from dpsynth_platform.lineage.emitter import LineageEmitter

        return LineageEmitter(self.url, Path(self.directory))


@dataclass(frozen=True)
class ComputeResource:
    """The file that names the SQL engine of each dataset, if the deployment has one."""

    configuration: str | None = None

    def choice(self, dataset: str) -> EngineChoice:
        """Raises `ConfigurationError` where the file is invalid."""
        return engine_choice(Path(self.configuration) if self.configuration else None, dataset)


@dataclass(frozen=True)
class FederationResource:
    """The file that says where relays of federated runs connect, if the deployment has one."""

    configuration: str | None = None

    def choice(self, dataset: str) -> RelayChoice:
        """Raises `ConfigurationError` where the file is invalid, or says nothing of the dataset."""
        from dpsynth_platform.federation.choice import relay_choice

        return relay_choice(Path(self.configuration) if self.configuration else None, dataset)


class RefusingIOManager(dg.ConfigurableIOManager):
    """Refuses every value that an asset returns or asks for: steps store explicitly, through `storage`.

    Dagster's default IO manager would write sensitive values as plain pickles below the Dagster home.
    """

    def handle_output(self, context: dg.OutputContext, obj: Any) -> NoReturn:
        raise ConfigurationError(
            f"{context.step_key} returned a value of type {type(obj).__name__}; steps store explicitly and return a "
            "MaterializeResult or nothing (annotated '-> None')"
        )

    def load_input(self, context: dg.InputContext) -> NoReturn:
        raise ConfigurationError("steps read what other steps stored through the storage resource, not as arguments")
