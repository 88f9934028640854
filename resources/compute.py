"""The SQL engine of a dataset, as the deployment chooses it."""

from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.compute.choice import EngineChoice, engine_choice


@dataclass(frozen=True)
class ComputeResource:
    """The file that says which engine a dataset has, if the deployment has one."""

    configuration: str | None = None

    def choice(self, dataset: str) -> EngineChoice:
        """The dataset's engine. Raises `ConfigurationError` where the file cannot be used."""
        return engine_choice(Path(self.configuration) if self.configuration else None, dataset)
