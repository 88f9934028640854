"""A job that the worker accepts, and starting it as a real process under Pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dagster_pipes import encode_param
from text_cases import save_model

from dpsynth_platform.audit.canaries import RESERVED_PREFIX
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.storage import digest_directory, write_table
from dpsynth_platform.ledger.grants import issue_grant
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import write_fingerprints
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.text.trained import deployed
from dpsynth_platform.worker import launch
from dpsynth_platform.worker.job import WorkerJob

CANARIES = "ca" * 32
MARK = "Zaphod-078-05-1120"
ROOT = Path(__file__).parents[2]

DOCUMENT = {
    "dataset": "people",
    "description": "Fictional people.",
    "owners": ["tests@example.org"],
    "source": {"uri": "/nowhere", "key": ["person_id"]},
    "family": "test-people",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person_id"],
        "namespace": "person",
        "max_contributions": 2,
        "guarantee": {"epsilon": 4.0, "delta": 1e-5},
        "expected_units": 2000,
    },
    "columns": {
        "person_id": {"type": "identifier"},
        "age": {"type": "integer", "min": 0, "max": 9},
        "city": {"type": "categorical", "values": ["Aix", "Bern"]},
    },
    "generate": {"rows": 100},
    "release": {"uri": "/nowhere/public"},
}


def owner(number, canary=False):
    """A fingerprint as 32 hex digits."""
    return RESERVED_PREFIX + f"{number:016x}" if canary else f"{number:032x}"


def packed(owners):
    """Hex fingerprints as dtype S16."""
    return np.array([bytes.fromhex(item) for item in owners], dtype="S16")


def bounded_table(owners):
    """One record for every owner in the list."""
    rows = len(owners)
    return pa.table(
        {
            "age": pa.array(np.arange(rows) % 10, pa.int32()),
            "city": pa.array(["Aix", "Bern", MARK, None] * (rows // 4 + 1)).slice(0, rows),
            "_owner": pa.array(owners, pa.string()),
        }
    )


def make_job(directory, owners=None, lifetime=None):
    """A complete `fit` job of a table below a directory; its grant names what is there."""
    people = [owner(number) for number in range(100)]
    canaries = [owner(number, canary=True) for number in range(3)]
    table = bounded_table(owners or [*people, *people, *canaries])
    schema = pa.schema([("person_id", pa.string()), ("age", pa.int32()), ("city", pa.string())])
    return job_for(directory, DOCUMENT, schema, table, people, canaries, lifetime)


def make_text_job(directory, **training):
    """A complete `fit` job of 100 letters below a directory, with a language model that is trained in a moment."""
    save_model(directory / "base")
    people = [owner(number) for number in range(100)]
    texts = ["the parcel came late", "please send the report to the team by monday"]
    letters = [texts[number % 2] for number in range(100)]
    table = pa.table({"city": ["Aix", "Bern"] * 50, "letter": letters, "_owner": people})
    columns = {"person_id": {"type": "identifier"}, "city": DOCUMENT["columns"]["city"]}
    document = DOCUMENT | {
        "columns": columns | {"letter": {"type": "text", "pii": "replace"}},
        "generate": {
            "method": "dp_finetune",
            "base_model": str(directory / "base"),
            "rows": 10,
            "text": {"given": ["city"], "max_tokens": 48},
            "training": {"adapter": {"rank": 2, "alpha": 4}} | training,
        },
    }
    document["privacy"] = DOCUMENT["privacy"] | {"expected_units": 100, "max_contributions": 1}
    schema = pa.schema([("person_id", pa.string()), ("city", pa.string()), ("letter", pa.string())])
    job = job_for(directory, document, schema, table, people, [])
    base = asdict(deployed(str(directory / "base")))
    (directory / "base_model.json").write_text(json.dumps(base | {"directory": str(base["directory"])}))
    (directory / "checkpoint.key").write_bytes(b"k" * 32)
    files = {"base_model": str(directory / "base_model.json"), "checkpoint_key": str(directory / "checkpoint.key")}
    return replace(job, **files)


def job_for(directory, document, schema, table, people, canaries, lifetime=None):
    """A complete `fit` job of a contract and its bounded table."""
    contract = parse_contract(document, where="test", variables={})
    plan = generator(document["generate"].get("method", "mst")).plan(contract, schema, Guarantee.target(contract))
    write_table(directory / "bounded", table.schema, table.to_batches())
    (directory / "plan.json").write_text(plan.to_json())
    write_fingerprints(directory / "participants", packed(people))
    write_fingerprints(directory / "canaries", packed(canaries))
    (directory / "model").mkdir()
    key = Ed25519PrivateKey.generate()
    grant = issue_grant(
        key,
        entry_id="entry-1",
        plan_digest=plan.digest,
        data_digest=digest_directory(directory / "bounded"),
        participants_digest=digest_file(directory / "participants"),
        canaries_digest=CANARIES,
        model_directory="model",
        **({"lifetime": lifetime} if lifetime else {}),
    )
    return WorkerJob(
        plan=str(directory / "plan.json"),
        model=str(directory / "model"),
        mode="fit",
        device="cpu",
        grant=grant,
        public_key=key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex(),
        bounded=str(directory / "bounded"),
        participants=str(directory / "participants"),
        canaries=str(directory / "canaries"),
    )


def estimate_only(job):
    """The same place, without anything that leads to the data."""
    return replace(job, mode="estimate", grant="", public_key="", bounded="", participants="", canaries="")


def sabotage(directory, code):
    """A directory for PYTHONPATH whose code runs at the start of the worker."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(code)
    return str(directory)


def pipes_environment(directory, extras, **more):
    """The environment that a Pipes client gives to its process, with context and messages in files."""
    (directory / "messages").touch()
    context = {
        "asset_keys": None,
        "code_version_by_asset_key": None,
        "provenance_by_asset_key": None,
        "partition_key": None,
        "partition_key_range": None,
        "partition_time_window": None,
        "run_id": "00000000-0000-0000-0000-000000000000",
        "job_name": None,
        "retry_number": 0,
        "extras": extras,
    }
    (directory / "context").write_text(json.dumps(context))
    return {
        **{name: os.environ[name] for name in launch.KEPT if name in os.environ},
        "DAGSTER_PIPES_CONTEXT": encode_param({"path": str(directory / "context")}),
        "DAGSTER_PIPES_MESSAGES": encode_param({"path": str(directory / "messages")}),
        **more,
    }


def run_worker(directory, job, **more):
    """Runs the worker to its end: (exit status, what it printed, messages, restricted log)."""
    environment = pipes_environment(directory, job.to_extras(), **more)
    command = [sys.executable, "-m", "dpsynth_platform.worker", "--parent", str(os.getpid())]
    ended = subprocess.run(
        [*command, "--log", str(directory / "log")], env=environment, cwd=ROOT, capture_output=True, timeout=300
    )
    messages = (directory / "messages").read_text()
    (directory / "messages").unlink()
    return ended.returncode, ended.stdout + ended.stderr, messages, (directory / "log").read_text()


def is_running(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds):
    """Whether the condition became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def kill(pid):
    """SIGKILL to one process."""
    os.kill(pid, signal.SIGKILL)
