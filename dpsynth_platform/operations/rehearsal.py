"""A rehearsal: the whole line up to its candidate on a table made from the contract alone, in a place of its own.

What belongs here: a throw-away deployment with a mock source, and running the line in it. What does not: the mock table
(`synth.mock`). The real ledger, source and keys are not touched, so a rehearsal costs nothing; what it shows is that
the contract can be carried out, not how good the result will be.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_platform.contracts.columns import conditioning_values as conditioning_values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.isolated_deployment import isolated_deployment
from dpsynth_platform.contracts.loading import family_path, load_family
from dpsynth_platform.contracts.text_generation import MOST_BATCH
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.restricted_log import output_to
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.operations.running import CodeLocation, failures_of
from dpsynth_platform.synth.planning import load_dataset

_TRIED = {"steps": 2, "replay_steps": 0, "batch_size": 8, "warmup_steps": 0}
"""Of a training, what is tried: all that can fail is seen in few steps."""
_TRIED_TOKENS = 4
"""Of a document that is drawn token by token."""
_TRIED_ROUNDS = {"population": 8, "variations": 1, "rounds": 2, "lookahead": 0}
"""Of an evolution, likewise."""
_TRIED_TEXTS = 20
_ROOM = 10
"""By what the rehearsal's cap is larger then: few steps take more of it than many of the same epsilon."""


class RehearsalFailed(DpsynthError):
    """A step of the rehearsal failed; the message names it."""

    code = "rehearsal"


def rehearse(
    settings: Settings,
    code_location: CodeLocation,
    dataset: str,
    period: str | None,
    rows: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the line on a mock table of so many rows; returns what was tried.

    Raises:
        RehearsalFailed: a step failed.
    """
    contract, _ = load_dataset(settings, dataset)
    with tempfile.TemporaryDirectory(prefix="dpsynth-rehearsal-") as place:
        mock = _mock_deployment(settings, contract, period, rows, Path(place))
        say(f"trying the line on {rows} rows made from the contract alone")
        job = code_location(mock).resolve_job_def(f"{dataset}_candidate")
        with dg.DagsterInstance.ephemeral() as instance, output_to(Path(place) / "output.log"):
            result = job.execute_in_process(instance=instance, partition_key=period, raise_on_error=False)
        failures = failures_of(result.all_events)
    if failures:
        raise RehearsalFailed("\n".join(f"rehearsal: {step}: {message}" for step, message in failures))
    say("the line can be carried out: every step up to the candidate ended well; nothing was spent")
    return {"rows": rows, "success": True}


def _mock_deployment(
    settings: Settings, contract: DataContract, period: str | None, rows: int, place: Path
) -> Settings:
    """A deployment with this one contract, its source replaced by a mock table."""
    from dpsynth_platform.synth.mock import mock_table

    document = contract.snapshot()
    family = load_family(family_path(settings, contract)).model_dump(mode="json")
    document["source"]["uri"] = str(place / "source")
    document["release"]["uri"] = str(place / "public")
    document["release"].pop("max_missing", None)  # so few made-up rows say nothing of how many values will be missing
    if contract.generate.training is not None:
        document["generate"]["training"] |= _TRIED
    if contract.generate.text is not None:
        if contract.generate.text.evolution is not None:
            document["generate"]["text"]["evolution"] |= _TRIED_ROUNDS
        document["generate"]["rows"] = _TRIED_TEXTS
        family["cap"]["epsilon"] *= _ROOM
    if contract.generate.text is not None and contract.generate.text.inference is not None:
        labels = math.prod(len(conditioning_values(contract.columns[name])) for name in contract.conditioning_columns)
        # One context for each label, and of each one document.
        most = min(contract.privacy.expected_units // labels, MOST_BATCH)
        document["generate"]["text"]["inference"] |= {"document_tokens": _TRIED_TOKENS, "batch_size": most}
        document["generate"]["rows"] = 1
    # Rows that are nobody's may lie where encryption is missing.
    mock = replace(isolated_deployment(settings, document, family, place), require_encrypted="no")
    table = mock_table(contract, rows, period)
    write_table(place / "source", table.schema, table.to_batches())
    if contract.generate.base_model is not None:
        _declare_public(mock, contract.generate.base_model)
    return mock


def _declare_public(mock: Settings, base_model: str) -> None:
    """In the rehearsal's own ledger: whether a run may start from the model is `dpsynth lineage check`'s to say."""
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.lineage.survey import model_name

    LineageStore(mock.ledger_url).declare_public(
        model_name(base_model), by=mock.user, reason="a rehearsal, on rows that are nobody's"
    )
