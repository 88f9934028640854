"""Lines of governed datasets in a Dagster project of one's own.

    # defs/synthetic/defs.yaml
    type: dpsynth.dagster.SyntheticTables
    attributes:
      deploy: ../../../../deploy

What belongs here: the component and what loads releases into other assets. What does not: the line itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg
from dagster.components import scaffold_component, scaffold_with
from pydantic import BaseModel, Field

from dpsynth_platform.contracts.loading import NONE_YET, names_of
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.settings import Settings

_HOME = ".dpsynth/"


class ReleaseIOManager(dg.IOManager):
    """Loads the published rows where an asset has `DATASET/released` as an input. Stores nothing.

    An input of type `pyarrow.Table` or `polars.DataFrame` gets that, any other one a pandas frame. Only releases that
    verify are loaded, and no other step of a line: those are restricted.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Refuses a value: a line stores its own outputs."""
        raise ConfigurationError(f"{context.step_key} returned a value; accepted: none, a line stores explicitly")

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of the newest release of the dataset, or of the partition.

        Raises:
            StaleInput: there is none.
            ConfigurationError: it does not verify.
        """
        from dpsynth_platform.foundation.storage import Place, Storage, read_table
        from dpsynth_platform.release.verify import verify_release

        dataset = context.asset_key.path[-2]
        place = Place(dataset, context.asset_partition_key if context.has_asset_partitions else None)
        path = Path(Storage(self._settings.restricted).require(place, "released").facts["path"])
        report = verify_release(path)
        if not report.ok or report.withdrawn:
            why = "is withdrawn" if report.ok else "does not verify"
            raise ConfigurationError(
                f"{path}: the release {why}; dpsynth release verify {path} says more; accepted: a valid release"
            )
        import pyarrow as pa

        batches = list(read_table(path / "data"))
        table = pa.Table.from_batches(batches)
        wanted = context.dagster_type.typing_type
        if wanted is pa.Table:
            return table
        if getattr(wanted, "__module__", "").partition(".")[0] == "polars":
            import polars

            return polars.from_arrow(table)
        return table.to_pandas()


class NewContracts(BaseModel):
    """What `dg scaffold defs` may be given."""

    table: str | None = Field(default=None, description="A table (Parquet, Delta) to draft a contract for.")
    deploy: str = Field(default="deploy", description="Directory of contracts, in the project.")


class _Scaffolder(dg.Scaffolder[NewContracts]):
    @classmethod
    def get_scaffold_params(cls) -> type[NewContracts]:
        return NewContracts

    def scaffold(self, request: dg.ScaffoldRequest[NewContracts]) -> None:
        """Writes `defs.yaml`, directories for contracts and budgets, and, for a table, a draft of its contract."""
        project = request.project_root or Path.cwd()
        deploy = (project / request.params.deploy).resolve()
        for name in ("contracts", "families"):
            (deploy / name).mkdir(parents=True, exist_ok=True)
        scaffold_component(request, {"deploy": os.path.relpath(deploy, request.target_path)})
        _keep_from_git(project)
        if request.params.table is not None:
            from dpsynth_platform.drafting.draft import dataset_of, drafted, write

            settings = Settings.from_environment({**os.environ, "DPSYNTH_DEPLOY": str(deploy)})
            table = Path(request.params.table).resolve()
            dataset = dataset_of(table)
            write(settings, drafted(settings, table, dataset, None), deploy / "contracts" / f"{dataset}.yaml")


def _keep_from_git(project: Path) -> None:
    """Adds the default home of a run in the project to its `.gitignore`: it holds keys, ledger and rows."""
    file = project / ".gitignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if _HOME not in lines:
        file.write_text("\n".join([*lines, _HOME, ""]), encoding="utf-8")


@scaffold_with(_Scaffolder)
class SyntheticTables(dg.Component, dg.Model, dg.Resolvable):
    """The lines of a deployment's contracts, with their jobs, schedules, sensors and checks.

    Use one in a project: the sensors (retention, notices, interrupted runs) are those of the whole deployment. Assets
    of the project may be a contract's source (`source.asset`) and may have `DATASET/released` as an input.

    Attributes:
        deploy: the directory with `contracts/` and `families/`, relative to `defs.yaml`. Default: `DPSYNTH_DEPLOY`.
        datasets: those whose lines are built. Default: all contracts.
    """

    deploy: str | None = None
    datasets: list[str] | None = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions. Raises `ContractError` for a dataset without a contract, or an invalid one."""
        from dpsynth_platform.definitions import build_definitions

        environment = dict(os.environ)
        if self.deploy is not None:
            environment["DPSYNTH_DEPLOY"] = str((context.path / self.deploy).resolve())
        settings = Settings.from_environment(environment)
        definitions = build_definitions(
            settings, datasets=self.datasets, embedded=True, release_io_manager=ReleaseIOManager(settings)
        )
        known = {key.path[-2] for key in definitions.resolve_all_asset_keys() if len(key.path) > 1}
        if missing := sorted(set(self.datasets or ()) - known):
            raise ContractError(
                f"datasets: {missing[0]!r} has no valid contract in {settings.contracts}; accepted: "
                f"{', '.join(names_of(settings.contracts)) or NONE_YET}"
            )
        return definitions
