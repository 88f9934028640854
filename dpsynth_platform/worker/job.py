"""The job of a worker, which it receives as Dagster Pipes extras.

What belongs here: the typed job, its JSON form, and two of the files that it names. What does not: how the process is
started (`launch`).
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.storage import write_durably

if TYPE_CHECKING:
    from dpsynth_platform.synth.text.base_models import BaseModel

Mode = Literal["fit", "resume", "estimate"]
MODES = ("fit", "resume", "estimate")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class WorkerJob:
    """One start of the worker.

    Attributes:
        plan: file with the sealed plan.
        model: the existing model directory; the grant names it.
        mode: `fit` runs the mechanism, `resume` continues an interrupted one, `estimate` only repeats the fit from
            complete measurements.
        device: `auto`, `cpu` or `cuda`.
        grant: text of the signed grant. `estimate` does not need this and the following fields.
        public_key: hex of the deployment's 32-byte Ed25519 public key.
        bounded: path of the bounded Delta table.
        participants: file of the reserved participants' fingerprints (`scrub.fingerprints.write_fingerprints`).
        canaries: file of the included canaries' fingerprints.
        engine: file with the choice of a SQL engine (`compute.choice.write_choice`) that may count instead of this
            process. The engine spills into the file's directory, which is deleted with the job. Empty: none.
        base_model: file that describes a training's initial language model (`synth.text.base_models`). Empty: none.
        endpoint: file with the address and key of the endpoint that writes texts. Empty: none.
        checkpoint_key: file of the 32 bytes that encrypt the training's checkpoints.
        processes: the most processes that train the model together, in digits. Empty: one, or one per CUDA device.
    """

    plan: str
    model: str
    mode: Mode
    device: str = "auto"
    grant: str = ""
    public_key: str = ""
    bounded: str = ""
    participants: str = ""
    canaries: str = ""
    engine: str = ""
    base_model: str = ""
    checkpoint_key: str = ""
    endpoint: str = ""
    processes: str = ""

    def to_extras(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_extras(cls, extras: Mapping[str, Any]) -> WorkerJob:
        """Reads `to_extras` back.

        Raises:
            ConfigurationError: a field is missing, unknown or not text, or has an unaccepted value.
        """
        try:
            job = cls(**extras)
        except TypeError:
            raise ConfigurationError("the worker's job has missing or unknown fields") from None
        if not all(isinstance(getattr(job, field.name), str) for field in fields(job)):
            raise ConfigurationError("the worker's job has a field that is not text")
        if job.processes and not re.fullmatch(r"[1-9][0-9]?", job.processes):
            raise ConfigurationError(f"the worker's job; accepted processes: 1 to 99, not {job.processes!r}")
        if job.mode not in MODES or job.device not in DEVICES:
            raise ConfigurationError(f"the worker's job; accepted modes: {MODES}, accepted devices: {DEVICES}")
        return job

    @property
    def model_directory(self) -> Path:
        return Path(self.model)


def base_model_file(base: BaseModel, place: Path) -> dict[str, str]:
    """Writes the description of the language model that a job starts from; returns the job's field."""
    write_durably(place / "base_model.json", json.dumps(asdict(base) | {"directory": str(base.directory)}))
    return {"base_model": str(place / "base_model.json")}


def checkpoint_key_file(secret: bytes, entry_id: str, place: Path) -> dict[str, str]:
    """Writes the key of a job's checkpoints, for this ledger entry only; returns the job's field."""
    write_durably(place / "checkpoint.key", hmac.digest(secret, entry_id.encode(), "sha256"))
    return {"checkpoint_key": str(place / "checkpoint.key")}
