"""The worker's parts, in process."""

import dataclasses
import datetime as dt
import importlib
import json
import pkgutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError
from hypothesis import given
from hypothesis import strategies as st
from worker_cases import CANARIES, bounded_table, estimate_only, make_job, owner, packed

import dpsynth_platform.worker as package
from dpsynth_platform.foundation.errors import (
    BoundingError,
    ConfigurationError,
    DpsynthError,
    GrantRefused,
    ResumeRefused,
    StaleInput,
)
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger.grants import Grant
from dpsynth_platform.scrub import fingerprints
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.worker import cluster, codes, inputs, launch, lifeline, process
from dpsynth_platform.worker.__main__ import _Reporter
from dpsynth_platform.worker.job import WorkerJob
from dpsynth_platform.worker.run import read_plan, run


def subclasses(cls):
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


def test_every_error_of_the_worker_has_a_status_of_its_own():
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{package.__name__}.{module.name}")
    homes = ("dpsynth_platform.foundation.errors", package.__name__)
    found = {error.code for error in subclasses(DpsynthError) if error.__module__.startswith(homes)}
    assert {"claimed", "credentials", "mechanism", "grant"} <= found
    for code in found:
        assert codes.code_of(codes.status_of(code)) == code
        assert 40 <= codes.status_of(code) < 80


def test_what_is_not_on_the_list_does_not_leave():
    class Chatty(DpsynthError):
        code = "Zaphod"

    assert codes.code_of_exception(Chatty("Zaphod")) == codes.UNEXPECTED
    assert codes.code_of_exception(ValueError("Zaphod")) == codes.UNEXPECTED
    assert codes.code_of_exception(KeyboardInterrupt()) == "interrupted"
    assert codes.code_of_exception(MemoryError()) == "memory"
    assert codes.status_of("Zaphod") == codes.status_of(codes.UNEXPECTED)
    assert codes.code_of(-9) == codes.KILLED
    assert codes.code_of(137) == codes.KILLED
    assert codes.code_of(3) == codes.UNEXPECTED
    assert "spent" in codes.meaning("mechanism")
    assert "'ledger'" in codes.meaning("ledger")


def test_the_environment_is_made_of_a_list():
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "DPSYNTH_LEDGER_URL": "postgresql://secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "DAGSTER_PIPES_CONTEXT": "another's",
    }
    made = launch.environment(inherited, {"DAGSTER_PIPES_CONTEXT": "context", "DAGSTER_PIPES_MESSAGES": "messages"})
    assert made == {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "DAGSTER_PIPES_CONTEXT": "context",
        "DAGSTER_PIPES_MESSAGES": "messages",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def test_ledger_credentials_are_refused():
    process.refuse_credentials(["PATH", "HOME"])
    with pytest.raises(process.CredentialsFound, match="DPSYNTH_LEDGER_URL, PGPASSWORD"):
        process.refuse_credentials({"PGPASSWORD": "x", "DPSYNTH_LEDGER_URL": "y"})


def test_jobs_travel_as_json():
    job = WorkerJob(plan="p", model="/m/one", mode="fit", grant="g")
    assert WorkerJob.from_extras(json.loads(json.dumps(job.to_extras()))) == job
    assert job.model_directory.name == "one"
    for wrong in ({}, {"plan": "p"}, {**job.to_extras(), "x": "y"}, {**job.to_extras(), "mode": "again"}):
        with pytest.raises(ConfigurationError):
            WorkerJob.from_extras(wrong)
    with pytest.raises(ConfigurationError, match="accepted processes"):
        WorkerJob.from_extras({**job.to_extras(), "processes": "0"})
    with pytest.raises(ConfigurationError, match="not text"):
        WorkerJob.from_extras({**job.to_extras(), "bounded": 3})


@given(st.lists(st.binary(min_size=16, max_size=16)))
def test_fingerprints_survive_their_file(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("fingerprints") / "file"
    fingerprints.write_fingerprints(path, np.array(items, dtype="S16"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"".join(sorted(set(items)))
    assert fingerprints.read_fingerprints(path).size == len(set(items))


def test_damaged_fingerprint_files_are_refused(tmp_path):
    for content, words in ((b"x" * 17, "damaged"), (b"b" * 16 + b"a" * 16, "not sorted"), (b"a" * 32, "not sorted")):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(StaleInput, match=words):
            fingerprints.read_fingerprints(tmp_path / "file")
    with pytest.raises(StaleInput, match="missing"):
        fingerprints.read_fingerprints(tmp_path / "none")


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([owner(1), owner(2)], None),
        ([owner(1), owner(1), owner(9)], None),
        ([owner(1)] * 3, "more than 2 records"),
        ([owner(1), owner(7)], "an owner who is no participant"),
        ([owner(1), owner(2**127)], "an owner who is no participant"),
        ([owner(1), None], "without a readable owner"),
        ([owner(1), owner(2)[:-1]], "without a readable owner"),
        ([owner(1), "z" * 32], "without a readable owner"),
    ],
)
def test_owners_are_checked(tmp_path, owners, words):
    table = bounded_table(owners)
    write_table(tmp_path / "table", table.schema, table.to_batches(max_chunksize=1))
    allowed = np.sort(packed([owner(1), owner(2), owner(9), owner(256)]))
    if words is None:
        inputs.check_owners(tmp_path / "table", allowed, 2)
    else:
        with pytest.raises(BoundingError, match=words) as raised:
            inputs.check_owners(tmp_path / "table", allowed, 2)
        assert not any(text and text in str(raised.value) for text in owners)


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([[owner(1), owner(2)], [owner(2), owner(9)], [owner(1)]], None),
        ([[owner(1), owner(2)], [owner(2)], [owner(2), owner(9)]], "more than 2 records"),
        ([[owner(1), owner(7)]], "an owner who is no participant"),
        ([[owner(1)], []], "without a readable owner"),
        ([[owner(1)], None], "without a readable owner"),
        ([[owner(1), None]], "without a readable owner"),
    ],
)
def test_every_owner_of_a_shared_record_is_checked(tmp_path, owners, words):
    table = pa.table({"_owners": pa.array(owners, pa.list_(pa.string()))})
    write_table(tmp_path / "table", table.schema, table.to_batches(max_chunksize=1))
    allowed = np.sort(packed([owner(1), owner(2), owner(9)]))
    if words is None:
        inputs.check_owners(tmp_path / "table", allowed, 2)
    else:
        with pytest.raises(BoundingError, match=words):
            inputs.check_owners(tmp_path / "table", allowed, 2)


def test_nobody_allowed(tmp_path):
    table = bounded_table([owner(1)])
    write_table(tmp_path / "table", table.schema, table.to_batches())
    with pytest.raises(BoundingError, match="no participant"):
        inputs.check_owners(tmp_path / "table", packed([]), 2)


@pytest.mark.parametrize(
    ("unit", "bound", "allowed", "fine"),
    [("example", 1, [], True), ("user", 1, [], False), ("example", 2, [], False), ("example", 1, [1], False)],
)
def test_only_rows_that_are_units_by_their_plan_need_no_owners(tmp_path, unit, bound, allowed, fine):
    table = pa.table({"age": [1, 2]})
    write_table(tmp_path / "table", table.schema, table.to_batches())
    people = packed([owner(number) for number in allowed])
    if fine:
        assert inputs.check_unowned(tmp_path / "table", people, unit, bound)
        return
    with pytest.raises(BoundingError, match="has no owners"):
        inputs.check_unowned(tmp_path / "table", people, unit, bound)


def test_where_there_are_owners_they_are_checked_whatever_the_plan(tmp_path):
    table = bounded_table([owner(1)])
    write_table(tmp_path / "table", table.schema, table.to_batches())
    assert not inputs.check_unowned(tmp_path / "table", packed([]), "example", 1)


def test_a_claim_is_made_once(tmp_path):
    grant = Grant("entry", "a" * 64, "b" * 64, "c" * 64, "d" * 64, "model", "now", "later")
    with pytest.raises(StaleInput, match="no readable claim"):
        inputs.claimed_canaries(tmp_path)
    inputs.claim(tmp_path, grant)
    assert json.loads((tmp_path / "claim.json").read_text())["entry"] == "entry"
    assert inputs.claimed_canaries(tmp_path) == "d" * 64
    with pytest.raises(inputs.AlreadyClaimed):
        inputs.claim(tmp_path, grant)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"canaries": [1], "data": {}}', '{"data": "c"}'])
@pytest.mark.parametrize("digest", ["c", None])
def test_a_claim_that_says_nothing_is_for_nothing(tmp_path, text, digest):
    if text is not None:
        (tmp_path / "claim.json").write_text(text)
    assert not inputs.claimed_for(tmp_path, canaries=digest, data=digest)


def test_a_whole_job_in_process_and_its_repetitions(tmp_path):
    job = make_job(tmp_path)
    run(job, silent)
    assert (tmp_path / "model" / "model.json").exists()
    assert inputs.claimed_canaries(tmp_path / "model") == CANARIES
    with pytest.raises(inputs.AlreadyClaimed):
        run(job, silent)
    (tmp_path / "model" / "model.json").unlink()
    run(estimate_only(job), silent)
    assert (tmp_path / "model" / "model.json").exists()


def alter(job, part):
    """One thing on disk, or in the job, that the grant does not name."""
    if part == "plan":
        document = json.loads(Path(job.plan).read_text())
        document["plan"]["parameters"]["sigma_one"] = 0.001
        Path(job.plan).write_text(json.dumps(document))
    elif part == "data":
        (Path(job.bounded) / "extra.parquet").write_bytes(b"x")
    elif part in ("participants", "canaries"):
        path = Path(getattr(job, part))
        fingerprints.write_fingerprints(path, np.append(fingerprints.read_fingerprints(path), packed([owner(12345)])))
    elif part == "model":
        other = job.model_directory.with_name("other")
        other.mkdir()
        return dataclasses.replace(job, model=str(other))
    elif part == "grant":
        return dataclasses.replace(job, grant=job.grant.replace("entry-1", "entry-2"))
    elif part == "key":
        return dataclasses.replace(job, public_key="00" * 32)
    elif part == "no plan":
        Path(job.plan).unlink()
    return job


@pytest.mark.parametrize("part", ["plan", "data", "participants", "model", "grant", "key", "no plan"])
def test_what_the_grant_does_not_name_is_refused_before_the_claim(tmp_path, part):
    job = alter(make_job(tmp_path), part)
    with pytest.raises(GrantRefused):
        run(job, silent)
    assert list(job.model_directory.iterdir()) == []


def test_nothing_is_gone_on_with_that_may_not_be_repeated(tmp_path, monkeypatch):
    """A grant is good for a day, and going on for as often as one likes: so the method must allow it."""
    job = make_job(tmp_path)
    run(job, silent)
    fitted = []
    monkeypatch.setattr(MarginalGenerator, "fit", lambda *given, **named: fitted.append(given))
    with pytest.raises(ResumeRefused, match="a new attempt is a new spend"):
        run(dataclasses.replace(job, mode="resume"), silent)
    assert not fitted


def test_a_plan_that_was_exchanged_after_it_was_granted_is_refused(tmp_path):
    """Whole in itself, so that only its digest tells: what processes that train along are told."""
    plan = read_plan(Path(make_job(tmp_path).plan))
    other = tmp_path / "other.json"
    other.write_text(dataclasses.replace(plan, dataset="others").to_json())
    assert read_plan(other).dataset == "others"
    with pytest.raises(GrantRefused, match="altered"):
        read_plan(other, expected_digest=plan.digest)


def test_an_expired_grant_is_refused(tmp_path):
    job = make_job(tmp_path, lifetime=dt.timedelta(seconds=-1))
    with pytest.raises(GrantRefused, match="expired"):
        run(job, silent)


def test_real_people_cannot_be_passed_off_as_canaries(tmp_path):
    job = alter(make_job(tmp_path), "canaries")
    with pytest.raises(GrantRefused, match="not canaries"):
        run(job, silent)
    assert not (tmp_path / "model" / "measurements.jsonl").exists()


def test_people_outside_the_reservation_stop_the_mechanism(tmp_path):
    job = make_job(tmp_path, owners=[owner(1), owner(500)])
    with pytest.raises(BoundingError):
        run(job, silent)
    assert not (tmp_path / "model" / "measurements.jsonl").exists()


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="cuda"):
        run(dataclasses.replace(make_job(tmp_path), device="cuda"), silent)


def test_progress_is_told_with_what_stands_beside_it():
    told: list[str] = []
    report = _Reporter(told.append)
    report("training", 1, 6, "epsilon so far: at most 3.2")
    report("fitting", 1, 1)
    assert told == ["training: 1 of 6; epsilon so far: at most 3.2", "fitting: 1 of 1"]


def test_an_ending_on_a_cluster_is_not_cut_short_by_another_interruption(tmp_path):
    """The sign of life lasts until the worker has ended: without it, it would end at once."""
    alive, asked = tmp_path / "alive", []

    def ending():
        assert alive.exists()
        asked.append("end it")
        if len(asked) < 3:
            raise DagsterExecutionInterruptedError if len(asked) > 1 else KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="the first"), lifeline.lifeline(alive):
        try:
            raise KeyboardInterrupt("the first")
        finally:
            cluster.uninterrupted(ending)
    assert len(asked) == 3
    assert not alive.exists()
    with pytest.raises(cluster.RequestFailed):
        cluster.uninterrupted(lambda: (_ for _ in ()).throw(cluster.RequestFailed()))
