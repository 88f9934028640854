"""Wherever the operating system starts to refuse, what writes says so in its words and leaves the old or the new.

Each case is repeated with the refusal beginning one call later, until it succeeds: so each of its calls fails once.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from deployment import CONTRACT, FAMILY

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.restricted_log import keep_traceback, new_log, output_to
from dpsynth_platform.foundation.scratch import scratch_directory
from dpsynth_platform.foundation.storage import Place, Storage, write_durably
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.commitments import NonceBook
from dpsynth_platform.release.register import Register
from dpsynth_platform.secrets.vault import Vault

MARK = "Zaphodina-904-55-7731"
NUMBERS = {
    errno.ENOSPC: "no space left on device",
    errno.EROFS: "read-only file system",
    errno.EMFILE: "too many open files",
}
MOST = 60
"""Calls of one case; each has fewer."""
CALLS = ((os, "open"), (os, "mkdir"), (os, "fsync"), (os, "replace"), (os, "rename"), (os, "link"), (io, "open"))


@contextmanager
def refusing(number: int, after: int) -> Iterator[list[str]]:
    """Lets some calls pass and refuses all later ones that write or open. Yields the names of those refused."""
    left, refused = after, list[str]()

    def wrapped(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                refused.append(name)
                raise OSError(number, os.strerror(number), MARK)
            return call(*args, **kwargs)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, wrapped(name, getattr(module, name)))
        patch.setattr(builtins, "open", io.open)
        yield refused


def durable(root: Path) -> None:
    write_durably(root / "zone" / "file", "new")


def recorded(root: Path) -> None:
    storage, place = Storage(root / "restricted"), Place("people")
    with storage.new_output(place, "raw") as directory:
        (directory / "plan.json").write_text("{}", encoding="utf-8")
        storage.record(place, "raw", run_key="k", directory=directory, facts={"a": 1})


def scratched(root: Path) -> None:
    with scratch_directory("dpsynth-test-", root):
        pass


def key(root: Path) -> None:
    Vault(root / "vault").create("signing")


def nonces(root: Path) -> None:
    NonceBook(root / "nonces").commit_all({"rows": MARK})


def registered(root: Path) -> None:
    Register(root).note("release", root, ["somebody@example.org"])


def logged(root: Path) -> None:
    with output_to(root / "logs" / "log"):
        pass


def reserved(root: Path) -> None:
    """From an empty directory to a started entry."""
    ledger = Ledger(f"sqlite:///{root}/ledger/ledger.db")
    ledger.open_account(FamilyBudget.model_validate(FAMILY), ("k1", "k2"))
    ledger.start(ledger.reserve("tests", "key", request(), None, "compose").entry_id)


def request() -> CostRequest:
    return CostRequest.of(
        DiscreteGaussianCountsEvent(20.0, "add-or-remove", 1),
        dataset="people",
        period=None,
        guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 1),
        plan_digest="9" * 64,
        runner="Ada",
    )


def never_half(root: Path) -> None:
    """What is there after a refusal: no half of a file under its own name, and nothing aside."""
    file = root / "zone" / "file"
    assert not file.exists() or file.read_text() in ("old", "new")
    for partial in [*root.rglob(".file.*"), *root.rglob(".*.json.*"), *root.rglob(".*.key.*")]:
        raise AssertionError(partial)
    record = Storage(root / "restricted").read(Place("people"), "raw")
    assert record is None or (record.directory / "plan.json").read_text() == "{}"


def not_spent(root: Path) -> None:
    path = root / "ledger" / "ledger.db"
    if path.exists() and path.stat().st_size:
        ledger = Ledger(f"sqlite:///{path}")
        assert ledger.verify().ok
        assert [entry.state for entry in ledger.entries()] in ([], ["reserved"])


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "write",
    [durable, recorded, scratched, key, nonces, registered, logged, reserved],
    ids=lambda one: one.__name__,
)
def test_every_call_that_is_refused(tmp_path: Path, write: Callable[[Path], None], number: int) -> None:
    Path(tmp_path / "warm").mkdir()
    write(tmp_path / "warm")  # with its imports done
    for after in range(MOST):
        root = tmp_path / f"{after}"
        (root / "zone").mkdir(parents=True)
        (root / "zone" / "file").write_text("old")
        error: BaseException | None = None
        with refusing(number, after) as refused:
            try:
                write(root)
            except (OSError, DpsynthError) as caught:
                error = caught
        never_half(root)
        if error is None:
            break
        assert refused
        code, words = safe_error(error)
        assert code != "unexpected", words
        assert NUMBERS[number] in words, words
        assert MARK not in words
        not_spent(root)
        write(root)  # nothing that is left stands in the way
    else:
        pytest.fail("it never succeeded")
    assert after > 0


@pytest.mark.parametrize("number", NUMBERS)
def test_an_event_that_cannot_be_recorded_fails_nothing(tmp_path: Path, number: int) -> None:
    """Where there is no place for an event there is a warning, and nothing is raised."""
    run = StepRun("0b6b2c9e-1111-4222-8333-444455556666", "people", "raw")
    warm = LineageEmitter(f"sqlite:///{tmp_path}/warm/ledger.db", tmp_path / "warm" / "lineage")
    assert warm.start(run).warnings == ()
    for after in range(0, MOST, 2):
        root = tmp_path / f"{after}"
        emitter = LineageEmitter(f"sqlite:///{root}/ledger/ledger.db", root / "lineage")
        with refusing(number, after) as refused:
            told = [*emitter.start(run).warnings, *emitter.complete(run).warnings]
        assert bool(refused) == bool(told)
        assert not any(MARK in words for words in told)
        if not refused:
            return
    pytest.fail("it never succeeded")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_traceback_that_is_refused_is_said(tmp_path: Path, number: int) -> None:
    for after in range(MOST):
        with refusing(number, after) as refused:
            said = keep_traceback(new_log(tmp_path / f"{after}" / "logs", "step"), ValueError(MARK))
        assert MARK not in said
        if not refused:
            return
        assert said == f"its traceback could not be kept: {NUMBERS[number]}"


def test_contracts_are_not_written_over_a_refusal(tmp_path: Path) -> None:
    """The deployment's own files are read only: a contract that cannot be read is named with the reason."""
    from dpsynth_platform.contracts.loading import load_contract
    from dpsynth_platform.foundation.errors import ContractError

    file = tmp_path / "people.yaml"
    file.write_text(yaml.safe_dump(CONTRACT), encoding="utf-8")
    assert isinstance(load_contract(file, {"DPSYNTH_HOME": str(tmp_path)}), DataContract)
    with refusing(errno.EMFILE, 0), pytest.raises(ContractError) as raised:
        load_contract(file, {"DPSYNTH_HOME": str(tmp_path)})
    assert MARK not in str(raised.value)
