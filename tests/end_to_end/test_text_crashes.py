"""A training that is killed goes on under its own entry, every executed step counted, or stops and says what to do."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from frozen import Frozen
from inside import inside, worker_inside
from line_cases import PEOPLE, Ran, ledger_of, lineage_of, run_here, storage_of
from test_crashes import running, session_of, wait_for
from text_line_cases import declare_base_public, text_deployment

from assets import model as model_step
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.synth.text import dp_finetune, trained
from dpsynth_platform.training import journal as journals
from dpsynth_platform.training import weights
from dpsynth_platform.worker import run as worker

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
PLANNED, ALLOWANCE = 6, 4
TO_BOUNDED = ["raw", "scrubbed", "canaries", "clearance", "bounded"]

NO_GATE = """
import sys
if "dpsynth_platform.worker" in sys.orig_argv:
    from dpsynth_platform.synth.text import batch_trial
    from dpsynth_platform.training import soundness
    soundness.refuse_unsound = batch_trial.refuse_batches = lambda *_, **__: None
"""
"""As the fixture of that name, in workers of their own."""

DIES_WHERE_TOLD = f"""{NO_GATE}
if "dpsynth_platform.worker" in sys.orig_argv:
    import os, pathlib, signal, time
    from dpsynth_platform.training.journal import StepJournal
    begin = StepJournal.begin_step
    orders = pathlib.Path(__file__).with_name("orders")
    def dying(journal):
        executed = begin(journal)
        left = orders.read_text().split()
        if left and executed == int(left[0].lstrip("p")):
            orders.write_text(" ".join(left[1:]))
            orders.with_name("worker").write_text(str(os.getpid()))
            os.kill(os.getppid() if left[0].startswith("p") else os.getpid(), signal.SIGKILL)
            time.sleep(600)  # until it is dead with its step, however long that takes
        return executed
    StepJournal.begin_step = dying
"""


class Killed(BaseException):
    """Stands for the end of the process: nothing in the code may catch it and go on."""


def kill(*_: object, **__: object) -> None:
    raise Killed


def deployed(root: Path, **training: Any) -> Deployment:
    deployment = text_deployment(root, training=training)
    deployment.family["cap"] = {"epsilon": 8.0, "delta": 1e-5}
    deployment.write()
    declare_base_public(deployment)
    return deployment


Bounded = Callable[[int], Deployment]


@pytest.fixture(scope="module")
def kept_bounded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Frozen[Deployment]]:
    """Everything before the mechanism, run once for each allowance."""

    @cache
    def kept(allowance: int) -> Frozen[Deployment]:
        directory = tmp_path_factory.mktemp("bounded")
        deployment = deployed(directory / "here", replay_steps=allowance)
        ran = run_here(deployment, steps=TO_BOUNDED)
        assert ran.success, ran.failures
        return Frozen.of(deployment, deployment.root, directory / "kept")

    return kept


@pytest.fixture
def line_to_bounded(kept_bounded: Callable[[int], Frozen[Deployment]]) -> Bounded:
    """Puts back such a deployment for this test alone: what follows materializes `model` alone."""
    return lambda allowance: kept_bounded(allowance).put_back()


def model_inside(deployment: Deployment) -> Ran:
    return run_here(deployment, steps=["model"], accelerator=inside(deployment))


def only_failure(ran: Ran) -> str:
    assert set(ran.failures) == {"model"}
    return ran.failures["model"]


def place_of(deployment: Deployment) -> Path:
    (claim,) = deployment.settings.restricted.glob("people/all/model/*/claim.json")
    return claim.parent


def executed_in(place: Path) -> int:
    """Steps that the journal counts, read by its records' length alone."""
    _, _, records = (place / "training" / "journal").read_bytes().partition(b"\n")
    assert len(records) % 43 == 0
    return len(records) // 43


def check_complete(deployment: Deployment, *, executed: int) -> None:
    """One entry, spent; a whole model that says how often the data were looked at; nothing of the training is left."""
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert ledger_of(deployment).verify().ok
    place = storage_of(deployment).require(PEOPLE, "model").directory
    assert json.loads((place / "trained.json").read_text())["executed_steps"] == executed <= PLANNED + ALLOWANCE
    left = {path.name for path in place.parent.iterdir()} | {path.name for path in place.iterdir()}
    assert left == {entry.entry_id, "claim.json", "columns", "plan.json", "trained.json", "weights.safetensors"}


@contextmanager
def dying_at(executed: int) -> Iterator[None]:
    """The mechanism, inside this process, dies once so many steps were counted in all."""
    begin = journals.StepJournal.begin_step

    def dies(journal: journals.StepJournal) -> int:
        count = begin(journal)
        if count == executed:
            raise Killed
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals.StepJournal, "begin_step", dies)
        yield


MATERIALIZES = """
import pathlib, sys
from deployment import Deployment
from line_cases import run_here
if __name__ == "__main__":
    print(run_here(Deployment(pathlib.Path(sys.argv[1])), steps=["model"]).failures)
"""


def test_real_processes_are_killed_at_random_steps(line_to_bounded: Bounded, tmp_path: Path) -> None:
    """The worker, then its step's process; nobody says a word, and the third attempt completes the model."""
    deployment = line_to_bounded(ALLOWANCE)
    first = random.randint(2, 4)
    second = random.randint(first + 1, PLANNED)
    code = tmp_path / "sabotage"
    code.mkdir()
    (code / "sitecustomize.py").write_text(DIES_WHERE_TOLD)
    (code / "orders").write_text(f"{first} p{second}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), str(Path(__file__).parent), *sys.path]))
        said = only_failure(run_here(deployment, steps=["model"]))
        assert said.count("killed") == 1 and "which has paid: run again" in said
        assert executed_in(place_of(deployment)) == first
        materializes = [sys.executable, "-c", MATERIALIZES, str(deployment.root)]
        step = subprocess.run(materializes, check=False, capture_output=True)
        assert step.returncode == -signal.SIGKILL, step.stdout
        worker_left = int((code / "worker").read_text())
        wait_for(lambda: worker_left not in running())
        assert executed_in(place_of(deployment)) == second
        (entry,) = ledger_of(deployment).entries()
        assert entry.state == "started"
        with worker_inside():
            ran = run_here(deployment, steps=[*TO_BOUNDED, "model"])  # what is there already is kept
    assert ran.success, ran.failures
    check_complete(deployment, executed=PLANNED + 2)


def test_beyond_the_allowance_only_the_word_helps(line_to_bounded: Bounded, no_gate: None) -> None:
    """Each kill costs one step. The plan pays for two of them; the third ends it, and nothing more is read."""
    deployment = line_to_bounded(2)
    for executed in (1, 2, 3):
        with dying_at(executed):
            model_inside(deployment)
    place = place_of(deployment)
    assert executed_in(place) == 3
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"

    refused = only_failure(model_inside(deployment))
    assert f"ledger entry {entry.entry_id} started and did not complete" in refused
    assert f"dpsynth run people --spend-again {entry.entry_id}" in refused
    clearance = run_here(deployment, steps=["clearance"]).failures["clearance"]
    assert f"dpsynth run people --spend-again {entry.entry_id}" in clearance
    assert executed_in(place) == 3
    assert len(ledger_of(deployment).entries()) == 1

    spent = run_here(
        deployment,
        steps=["clearance", "bounded", "model"],
        spend_again=entry.entry_id,
        accelerator=inside(deployment),
    )
    assert spent.success, spent.failures
    assert [item.state for item in ledger_of(deployment).entries()] == ["started", "spent"]
    assert executed_in(place) == 3
    model = storage_of(deployment).require(PEOPLE, "model").directory
    assert json.loads((model / "trained.json").read_text())["executed_steps"] == PLANNED


def test_a_step_that_nobody_paid_for_is_refused_by_the_worker_itself(line_to_bounded: Bounded, no_gate: None) -> None:
    """Where the asset would let it go on: the worker counts for itself."""
    deployment = line_to_bounded(0)
    with dying_at(2):
        model_inside(deployment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_finetune.DpFinetune, "can_resume", lambda *_: True)
        stopped = only_failure(run_here(deployment, steps=["model"]))
    assert "(details: restricted log" in stopped
    assert "--spend-again" in stopped
    assert executed_in(place_of(deployment)) == 2


BEFORE_THE_FIRST_STEP = {
    "before the columns are counted": (worker, "check_owners"),
    "before the journal": (journals.StepJournal, "__init__"),
}


@pytest.mark.parametrize("where", BEFORE_THE_FIRST_STEP)
def test_before_the_journal_nothing_can_go_on(line_to_bounded: Bounded, no_gate: None, where: str) -> None:
    """What was counted may be out already, and there is no count of steps: another attempt is another spend."""
    deployment = line_to_bounded(ALLOWANCE)
    owner, name = BEFORE_THE_FIRST_STEP[where]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, kill)
        model_inside(deployment)
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"
    for step in ("model", "clearance"):
        refused = run_here(deployment, steps=[step], accelerator=inside(deployment)).failures[step]
        assert f"ledger entry {entry.entry_id} started and did not complete" in refused
        assert f"dpsynth run people --spend-again {entry.entry_id}" in refused
    assert [item.state for item in ledger_of(deployment).entries()] == ["started"]


def test_a_model_that_cannot_be_loaded_costs_nothing_beyond_its_entry(line_to_bounded: Bounded, no_gate: None) -> None:
    """As where a device is in use: no record was read by then, so the same entry begins again, in whatever process."""
    deployment = line_to_bounded(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_finetune, "_prepared", kill)
        for _ in range(2):
            model_inside(deployment)
    place = place_of(deployment)
    assert {path.name for path in place.iterdir()} == {"claim.json", "unread"}
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"
    assert run_here(deployment, steps=["clearance"]).success
    ran = model_inside(deployment)
    assert ran.success, ran.failures
    check_complete(deployment, executed=PLANNED)


def test_once_reading_began_a_count_that_was_cut_short_is_lost(line_to_bounded: Bounded, no_gate: None) -> None:
    deployment = line_to_bounded(ALLOWANCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_finetune.counted, "measure", kill)
        model_inside(deployment)
    assert {path.name for path in place_of(deployment).iterdir()} == {"claim.json"}
    assert "started and did not complete" in only_failure(model_inside(deployment))


AROUND_THE_STEPS = {
    "before the first step": (dp_finetune, "write_examples", 0),
    "after the last step": (trained, "save_weights", 0),
    "half of the weights": (weights, "digest_file", 0),
    "before the training is cleared away": (dp_finetune.shutil, "rmtree", 0),
    "before the ledger knows": (Ledger, "complete", 0),
    "before the record": (model_step, "_record", 0),
}
"""What is killed at, and how many steps that costs."""


def test_kills_around_the_steps_cost_nothing(line_to_bounded: Bounded, no_gate: None) -> None:
    """One after the other, into one training: none of them makes a step void, so all fit under no allowance at all."""
    deployment = line_to_bounded(0)
    for where, (owner, name, _) in AROUND_THE_STEPS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, kill)
            assert set(model_inside(deployment).failures) == {"model"}, where
    ran = model_inside(deployment)
    assert ran.success, ran.failures
    check_complete(deployment, executed=PLANNED)


def test_two_at_once(line_to_bounded: Bounded, no_gate: None) -> None:
    """The second finds the first at work and is refused; the first ends as if it had been alone."""
    deployment = line_to_bounded(ALLOWANCE)
    held, go_on = threading.Event(), threading.Event()
    begin = journals.StepJournal.begin_step

    def holding(journal: journals.StepJournal) -> int:
        executed = begin(journal)
        if executed == 3:
            held.set()
            assert go_on.wait(300)
        return executed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals.StepJournal, "begin_step", holding)
        first: list[Ran] = []
        thread = threading.Thread(target=lambda: first.append(model_inside(deployment)))
        thread.start()
        try:
            assert held.wait(300)
            assert "is being materialized by another process" in only_failure(model_inside(deployment))
            assert executed_in(place_of(deployment)) == 3
        finally:
            go_on.set()
            thread.join()
    assert first[0].success, first[0].failures
    check_complete(deployment, executed=PLANNED)


def test_other_rows_are_not_gone_on_with(line_to_bounded: Bounded, no_gate: None) -> None:
    """Bounded was purged and made anew meanwhile: the training has read another table."""
    deployment = line_to_bounded(ALLOWANCE)
    with dying_at(2):
        model_inside(deployment)
    shutil.rmtree(storage_of(deployment).require(PEOPLE, "bounded").directory)
    assert run_here(deployment, steps=["bounded"]).success
    (entry,) = ledger_of(deployment).entries()
    refused = only_failure(model_inside(deployment))
    assert "bounded or canaries were made again since" in refused
    assert f"dpsynth run people --spend-again {entry.entry_id}" in refused
    assert executed_in(place_of(deployment)) == 2
    assert [item.state for item in ledger_of(deployment).entries()] == ["started"]


HOLDS_IN_A_STEP = f"""{NO_GATE}
from dpsynth_platform.worker import local
local.STOP_SECONDS = 300.0  # however busy the machine is, nobody's patience ends
if "dpsynth_platform.worker" in sys.orig_argv:
    import pathlib, time
    from dpsynth_platform.training import stopping
    stopping.PATIENCE_SECONDS = 300.0
    from dpsynth_platform.training.journal import StepJournal
    begin = StepJournal.begin_step
    def holding(journal):
        executed = begin(journal)
        if executed == 3:
            pathlib.Path(__file__).with_name("held").write_text("held")
            end = time.monotonic() + 600
            while not pathlib.Path(__file__).with_name("told").exists() and time.monotonic() < end:
                time.sleep(0.05)
        return executed
    StepJournal.begin_step = holding
"""


def test_cancelled_in_training(line_to_bounded: Bounded, tmp_path: Path) -> None:
    """Ctrl-C on `dpsynth run` in a step: it ends cleanly, and whoever asks again goes on without a step lost."""
    deployment = line_to_bounded(0)
    code = tmp_path / "sabotage"
    code.mkdir()
    (code / "sitecustomize.py").write_text(HOLDS_IN_A_STEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), *sys.path]))
        command = deployment.start("run", "people")
    wait_for(lambda: (code / "held").exists() or command.poll() is not None)
    os.killpg(command.pid, signal.SIGINT)
    (code / "told").touch()  # by now the signal waits for whatever the worker does next
    printed = "".join(command.communicate(timeout=600))
    assert command.returncode == 1, printed
    assert "Traceback" not in printed
    wait_for(lambda: not session_of(command.pid), 300)
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"
    ends = {node.job: node.state for node in lineage_of(deployment).runs.values()}
    assert ends["people.model"] == "ABORT"
    assert "RUNNING" not in ends.values()
    assert storage_of(deployment).read(PEOPLE, "model") is None
    assert executed_in(place_of(deployment)) == 3
    left = {path.name for path in place_of(deployment).iterdir()}
    assert left == {"claim.json", "columns", "training"}

    ran = run_here(deployment, steps=["model"], accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert any("resuming the mechanism of ledger entry" in words for words in ran.said["model"])
    check_complete(deployment, executed=PLANNED)
    ends = [node.state for node in lineage_of(deployment).runs.values() if node.job == "people.model"]
    assert sorted(ends) == ["ABORT", "COMPLETE"]
