"""A rehearsal: the line up to its candidate, on a table made from the contract alone, in a temporary deployment.

Linked tables are made from the contract and its public tables.

What belongs here: the temporary deployment with its mock source, and running the line in it. What does not: the mock
table (`synth.mock`). It spends nothing, and shows that the contract works, not how good the result will be.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_platform.contracts.columns import conditioning_values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.isolated_deployment import isolated_deployment
from dpsynth_platform.contracts.linked_contract import TABLES_FORMAT
from dpsynth_platform.contracts.loading import family_path, load_family
from dpsynth_platform.contracts.text_generation import MOST_BATCH
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.restricted_log import output_to
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.operations.running import CodeLocation, failures_of
from dpsynth_platform.synth.planning import load_dataset

_TRIED = {"steps": 2, "replay_steps": 0, "batch_size": 8, "warmup_steps": 0}
"""Parameters of a training for the trial: a few steps show all that can fail."""
_TRIED_TOKENS = 4
"""Tokens of a document that is drawn token by token."""
_TRIED_ROUNDS = {"population": 8, "variations": 1, "rounds": 2, "lookahead": 0}
"""Parameters of an evolution."""
_TRIED_TEXTS = 20
_ROOM = 10
"""Factor of the cap for texts: few steps take more of a cap than many steps of the same epsilon."""


class RehearsalFailed(DpsynthError):
    """A step of the rehearsal failed; the message names it."""

    code = "rehearsal"


def rehearse(
    settings: Settings,
    code_location: CodeLocation,
    dataset: str,
    period: str | None,
    rows: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Runs all assets on a mock table or several; returns facts for `dpsynth plan --json`. Raises `RehearsalFailed`."""
    contract, _ = load_dataset(settings, dataset)
    if contract.source.federation is not None:
        raise RehearsalFailed(
            f"{dataset}: a rehearsal would need participants; accepted: a run, which asks them before anything is spent"
        )
    with tempfile.TemporaryDirectory(prefix="dpsynth-rehearsal-") as place:
        mock = _mock_deployment(settings, contract, period, rows, Path(place))
        progress(f"running all assets on {rows} rows made from the contract alone")
        job = code_location(mock).resolve_job_def(f"{dataset}_candidate")
        with dg.DagsterInstance.ephemeral() as instance, output_to(Path(place) / "output.log"):
            result = job.execute_in_process(instance=instance, partition_key=period, raise_on_error=False)
        failures = failures_of(result.all_events)
    if failures:
        raise RehearsalFailed("\n".join(f"rehearsal: {step}: {message}" for step, message in failures))
    progress("the trial succeeded: every step up to the candidate completed; nothing was spent")
    return {"rows": rows, "success": True}


def _mock_deployment(
    settings: Settings, contract: DataContract, period: str | None, rows: int, place: Path
) -> Settings:
    """A deployment with this one contract, its source replaced by a mock table."""
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.lineage.survey import model_name
    from dpsynth_platform.synth.mock import mock_table

    document = contract.snapshot()
    family = load_family(family_path(settings, contract)).model_dump(mode="json")
    read_by = {key: document["source"][key] for key in ("key", "period_column")}
    layout = TABLES_FORMAT if contract.tables else "delta"
    document["source"] = read_by | {"uri": str(place / "source"), "format": layout}
    document["release"]["uri"] = str(place / "public")
    document["release"].pop("max_missing", None)  # few fictional rows do not show how many values will be missing
    document["audit"]["accept_inconclusive"] = "a rehearsal, of which nothing is released"
    if contract.generate.training is not None:
        document["generate"]["training"] |= _TRIED
    if contract.generate.text is not None:
        if contract.generate.text.evolution is not None:
            document["generate"]["text"]["evolution"] |= _TRIED_ROUNDS
        document["generate"]["rows"] = _TRIED_TEXTS
        family["cap"]["epsilon"] *= _ROOM
    if contract.generate.text is not None and contract.generate.text.inference is not None:
        labels = math.prod(len(conditioning_values(contract.columns[name])) for name in contract.conditioning_columns)
        # One context and one document for each label.
        most = min(contract.privacy.expected_units // labels, MOST_BATCH)
        document["generate"]["text"]["inference"] |= {"document_tokens": _TRIED_TOKENS, "batch_size": most}
        document["generate"]["rows"] = 1
    # Fictional rows need no encryption.
    mock = replace(isolated_deployment(settings, document, family, place), require_encrypted="no")
    if contract.tables:
        from dpsynth_platform.linked_rows.mock import write_mock_tables

        write_mock_tables(contract, rows, place / "source")
    else:
        table = mock_table(contract, rows, period)
        write_table(place / "source", table.schema, table.to_batches())
    for base in contract.bases:
        if base.is_writer:  # `dpsynth lineage check` decides whether a real run may start from the model
            LineageStore(mock.ledger_url).declare_public(
                model_name(base.name), by=mock.user, reason="a rehearsal, on fictional rows"
            )
    return mock
