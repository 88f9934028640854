"""The SQL engine of a dataset: a choice of the deployment, in `deploy/compute.yaml`.

What belongs here: the models of that file, reading it, and opening the engine that it names. What does not: an engine.
The choice is no part of a contract: both engines keep the same rows and count the same, so no guarantee depends on it.

    default: {engine: duckdb, memory: 2GB, threads: 2}
    datasets:
      visits: {engine: spark, master: "local[2]", memory: 2GB}

Memory has one notation for all engines: 2GB are 2,000,000,000 bytes. Each engine documents what it limits, and the
additional memory of its processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.deployment_choices import choice_for, tagged
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.sizes import SIZE, bytes_of
from dpsynth_platform.foundation.storage import write_durably


def _matching(pattern: str, accepted: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"{value!r}; accepted: {accepted}")
        return value

    return AfterValidator(check)


Memory = Annotated[str, _matching(SIZE, "a size such as 512MB or 2GB")]
SparkMaster = Annotated[
    str,
    _matching(
        r"local\[[1-9][0-9]{0,3}\]|local-cluster\[[1-9][0-9]{0,3},[1-9][0-9]{0,3},[1-9][0-9]{0,6}\]"
        r"|spark://[A-Za-z0-9.-]+:[0-9]{1,5}(,[A-Za-z0-9.-]+:[0-9]{1,5})*",
        "local[N], local-cluster[N,cores,megabytes] or spark://host:port",
    ),
]


class _Choice(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    least_memory: ClassVar[str]

    @field_validator("memory", check_fields=False)
    @classmethod
    def _enough_to_work(cls, memory: str) -> str:
        if bytes_of(memory) < bytes_of(cls.least_memory):
            raise ValueError(f"{memory!r}; accepted: {cls.least_memory} or more")
        return memory


class DuckDBChoice(_Choice):
    """DuckDB in the step's process.

    Attributes:
        memory: memory of its tables, sorts and joins together; it spills the rest to disk. The step's process needs
            about 0.5 GB in addition, for Python, libraries and batches of rows.
        threads: the most threads.
    """

    least_memory = "100MB"

    engine: Literal["duckdb"] = "duckdb"
    memory: Memory = "2GB"
    threads: int = Field(default=2, ge=1, le=1024)

    @property
    def label(self) -> str:
        """The choice in words."""
        return f"DuckDB, {self.memory}, {self.threads} threads"

    def open(self, spill: Path) -> Engine:
        """An engine for one `with` block, whose temporary files lie below a directory of the restricted zone."""
        from dpsynth_platform.compute.duckdb_engine import DuckDBEngine

        return DuckDBEngine(spill, memory=bytes_of(self.memory), threads=self.threads)


class SparkChoice(_Choice):
    """Spark, on this machine or on a cluster that sees the same file system.

    Attributes:
        master: `local[N]`: N threads of one process; `local-cluster[N,cores,megabytes]`: N processes on this machine;
            `spark://host:port`: a standalone cluster.
        memory: heap of the one process, or of each worker. Java takes about a third in addition, and on a cluster the
            driver has another 1 GiB.
        partitions: the most parts of a shuffle; Spark joins small ones.
        options: further settings of Spark; `spark.authenticate...` for a standalone cluster only, since on one machine
            the engine makes its own secret.
    """

    least_memory = "500MB"

    engine: Literal["spark"]
    master: SparkMaster = "local[2]"
    memory: Memory = "2GB"
    partitions: int = Field(default=32, ge=1, le=100_000)
    options: dict[str, str] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _no_option_of_ours(cls, options: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        from dpsynth_platform.compute.spark_engine import RESERVED

        ours = ("spark.authenticate",) if str(info.data.get("master")).startswith("local") else ()
        for key in options:
            if not key.startswith("spark.") or key in RESERVED or key.startswith(ours):
                raise ValueError(f"{key!r}; accepted: settings of Spark ('spark. ...') that the engine does not set")
        return options

    @model_validator(mode="after")
    def _worker_has_the_memory(self) -> SparkChoice:
        cluster = re.fullmatch(r"local-cluster\[\d+,\d+,(\d+)\]", self.master)
        if cluster and bytes_of(self.memory) > int(cluster[1]) << 20:  # Spark's megabytes
            raise ValueError(f"memory: {self.memory!r}; accepted: at most the {cluster[1]} megabytes that master says")
        return self

    @property
    def label(self) -> str:
        """The choice in words."""
        return f"Spark, {self.master}, {self.memory}"

    def open(self, spill: Path) -> Engine:
        """An engine for one `with` block, whose temporary files lie below a directory of the restricted zone.

        Raises:
            ConfigurationError: see `check_usable`.
        """
        from dpsynth_platform.compute.spark_engine import SparkEngine

        check_usable(self)
        return SparkEngine(
            spill,
            master=self.master,
            memory=bytes_of(self.memory),
            partitions=self.partitions,
            options=self.options,
        )


EngineChoice = DuckDBChoice | SparkChoice
_CHOICES: dict[str, type[DuckDBChoice] | type[SparkChoice]] = {"duckdb": DuckDBChoice, "spark": SparkChoice}


def check_usable(choice: EngineChoice) -> None:
    """Raises `ConfigurationError` if this machine lacks Java or PySpark and the engine is Spark."""
    from dpsynth_platform.compute.spark_driver import missing_for_spark

    missing = missing_for_spark() if choice.engine == "spark" else None
    if missing:
        raise ConfigurationError(f"engine: spark: {missing}, or choose duckdb in the deployment's compute.yaml")


def engine_choice(path: Path | None, dataset: str, known: Collection[str] | None = None) -> EngineChoice:
    """The engine of a dataset; without a file, DuckDB with its defaults.

    Args:
        known: names of the deployment's datasets; the file may name no others. None: names are not checked.

    Raises:
        ConfigurationError: the file cannot be read, or an entry of any dataset is not accepted.
    """
    return choice_for(path, dataset, _choice, {"engine": "duckdb"}, known)


def write_choice(path: Path, choice: EngineChoice) -> None:
    """Writes a choice to a file that only this user can read: its options may contain a cluster's secret."""
    write_durably(path, choice.model_dump_json())


def read_choice(path: Path) -> EngineChoice:
    """Reads a file of `write_choice`. Raises `ConfigurationError` for other content."""
    try:
        return _choice(json.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, ValueError, ContractError):
        raise ConfigurationError(f"{path.name}: holds no SQL engine's choice; materialize the step again") from None


def _choice(document: Any, where: str) -> EngineChoice:
    return tagged(document, where, "engine", _CHOICES, "{engine: duckdb, memory: 2GB, threads: 2}")
