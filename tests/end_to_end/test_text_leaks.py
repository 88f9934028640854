"""Must show: marks that stand in letters stay in the restricted zone, whatever goes wrong on their way into a model.

The letters, their writers' ids and what libraries say of both hold the marks; base model and canaries do not. One
deployment goes through a failure of each part that reads texts, then completes and is released.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from column_walk import Root, described, roots
from deployment import Deployment
from inside import inside
from leak_cases import (
    EMAIL,
    MARKED_ROWS,
    MARKS,
    NAME,
    OWNER,
    SPEAKING,
    SSN,
    UNLISTED,
    count_forms,
    found,
    found_in,
    put_back,
    spoken_in,
    without_noisy_counts,
)
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from test_leaks import public_places, raising
from text_line_cases import declare_base_public, letters_table, text_deployment, without_gate

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.storage import digest_directory
from dpsynth_platform.lifecycle import retention
from dpsynth_platform.lifecycle.purging import purge_due
from dpsynth_platform.lineage.columns import FROM_CONTRACT
from dpsynth_platform.operations import running
from dpsynth_platform.synth.planning import load_dataset

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SPEAKING_WORKER = f"""{SPEAKING}
if "dpsynth_platform.worker" in sys.orig_argv:
    from dpsynth_platform.synth.text import batch_trial, examples
    from dpsynth_platform.training import soundness
    soundness.refuse_unsound = batch_trial.refuse_batches = lambda *_, **__: None
    def _batch(self, indices):
        failure = ValueError(speak(list(indices)))
        failure.add_note(speak(self._tokens[:50]))
        raise failure
    examples.Examples.batch = _batch
"""
"""A real worker whose training fails and tells all it knows in every way."""

COUNT = 917
"""Letters, and people: a number to be looked for."""

PATCHES: dict[str, dict[str, object]] = {
    "records": {"dpsynth_platform.synth.text.examples._made": raising},
    "gradients": {"dpsynth_platform.training.clipping.ClippedSums.add": raising},
    "worker": {},
    "texts": {"dpsynth_platform.synth.text.dp_finetune.sample_records": raising},
    "likelihoods": {"dpsynth_platform.audit.text_scoring.log_likelihoods": raising},
    "none": {},
}
"""What goes wrong in one run after the other."""


def marked_letters() -> pa.Table:
    """Letters of which the first bear the marks, one a person."""
    table = letters_table(COUNT)
    person = [f"{OWNER}-{row}" if row < MARKED_ROWS else f"P{row:05d}" for row in range(table.num_rows)]
    marked = f"{NAME} ({EMAIL}, {SSN}) of {UNLISTED} says that the parcel came late"
    letter = [marked if row < MARKED_ROWS else text for row, text in enumerate(table["letter"].to_pylist())]
    table = table.set_column(0, "person", pa.array(person))
    return table.set_column(table.schema.get_field_index("letter"), "letter", pa.array(letter))


@dataclass
class Marked:
    """A deployment in which much went wrong, and what its runs said."""

    deployment: Deployment
    failures: dict[str, dict[str, str]]
    left: list[Path]
    """What lay in the model's directories after each failure of the training."""
    release: Path
    instance_home: Path


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marked]:
    root = tmp_path_factory.mktemp("text-leaks")
    deployment = text_deployment(root, table=marked_letters())
    deployment.family["cap"] = {"epsilon": 8.0, "delta": 1e-5}
    deployment.write()
    declare_base_public(deployment)
    settings = deployment.settings
    running.prepare_home(settings)
    code = root / "home" / "sources" / "sabotage"  # holds the marks, as sources do
    code.mkdir(parents=True)
    (code / "sitecustomize.py").write_text(SPEAKING_WORKER)
    failures: dict[str, dict[str, str]] = {}
    left: list[Path] = []
    with (
        pytest.MonkeyPatch.context() as outer,
        dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        without_gate(outer)
        for name, patches in PATCHES.items():
            with pytest.MonkeyPatch.context() as patch:
                for target, value in patches.items():
                    patch.setattr(target, value)
                if name == "worker":
                    patch.setenv("PYTHONPATH", str(code), prepend=os.pathsep)
                    ran = run_here(deployment, instance=instance, steps=["model"])
                else:
                    ran = run_here(deployment, instance=instance, accelerator=inside(deployment))
            if "model" in ran.failures:
                left += settings.restricted.glob("people/all/model/**/*")
            failures[name] = ran.failures
        yield Marked(deployment, failures, left, released(deployment), settings.dagster_home)


def test_every_planted_error_struck(marked: Marked) -> None:
    assert {name: tuple(failed) for name, failed in marked.failures.items()} == {
        "records": ("model",),
        "gradients": ("model",),
        "worker": ("model",),
        "texts": ("synthetic",),
        "likelihoods": ("audit",),
        "none": (),
    }
    assert spoken_in(marked.deployment.settings.restricted / "logs") == set(MARKS), "the marks were never spoken"
    (entry,) = ledger_of(marked.deployment).entries()
    assert entry.state == "spent"


def test_no_mark_leaves_the_restricted_zone(marked: Marked) -> None:
    assert public_places(marked.deployment) == {}
    with dg.DagsterInstance.from_config(str(marked.instance_home)) as instance:
        events = [str(entry) for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    assert len(events) > 50
    assert not found_in(MARKS, "\n".join(events).encode())


def test_what_only_training_needed_is_gone_with_it(marked: Marked) -> None:
    """Tokens of the letters are gone once a training has failed; its journal and checkpoints, once it is complete."""
    names = {path.name for path in marked.left}
    assert "journal" in names
    assert not {"tokens.i4", "owners.i4"} & names
    model = storage_of(marked.deployment).require(PEOPLE, "model").directory
    assert [path.name for path in model.parent.iterdir()] == [model.name]
    assert not (model / "training").exists()


def test_models_and_synthetic_rows_hold_no_mark(marked: Marked) -> None:
    for step in ("model", "synthetic", "audit", "canaries"):
        assert found(MARKS, storage_of(marked.deployment).require(PEOPLE, step).directory) == {}
    restricted = marked.deployment.settings.restricted
    assert found((UNLISTED,), storage_of(marked.deployment).require(PEOPLE, "bounded").directory), "the search is blind"
    assert {str(path) for path in restricted.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077} == set()


def test_what_is_public_tells_no_private_count_hash_or_fingerprint(marked: Marked, tmp_path: Path) -> None:
    """What only the letters can have told: how many there are, hashes of what was made of them, who wrote them."""
    storage, ledger = storage_of(marked.deployment), ledger_of(marked.deployment)
    steps = ("raw", "scrubbed", "canaries", "bounded", "model", "synthetic")
    records = {step: storage.require(PEOPLE, step) for step in steps}
    model = records["model"].directory
    hashes = [record.content_hash for record in records.values()]
    hashes += [digest_file(model / name) for name in ("weights.safetensors", "columns/measurements.jsonl")]
    hashes += [digest_directory(records["bounded"].directory / "table"), digest_directory(model / "columns")]
    people = ledger.participants(ledger.entries()[-1].entry_id)
    counts = {COUNT, len(people), records["bounded"].facts["rows"]}
    needles = (
        *hashes,
        *(item.hex() for item in people.tolist()[:50]),
        *(form for count in counts for form in count_forms(count)),
    )
    assert not found_in(needles, marked.deployment.settings.lineage_file.read_bytes())
    assert found(needles, without_noisy_counts(marked.release.parent, tmp_path / "public")) == {}
    assert found((hashes[0],), marked.deployment.settings.restricted), "the search for hashes is blind"


def test_a_released_text_walks_back_to_raw_ones_masked(marked: Marked) -> None:
    """To the letters themselves, and to what the model was told beside them, through scrubbing and the mechanism."""
    lines = marked.deployment.settings.lineage_file.read_text().splitlines()
    known = described(json.loads(line) for line in lines)
    source = str(marked.deployment.settings.home / "sources" / "people")
    for column in ("letter", "region", "outcome"):
        ends = roots(known, (str(marked.release / "data"), column))
        assert Root(source, column, masked=True) in ends
        assert {end for end in ends if not end.masked} == set()
        canaries = [end for end in ends if end.dataset != source]
        assert {end.reason for end in canaries} == {FROM_CONTRACT}


def test_what_an_abandoned_training_left_expires(marked: Marked) -> None:
    """As after a kill that nobody came back to: tokens, checkpoints' key and half-written texts go with the model."""
    deployment = marked.deployment
    model = storage_of(deployment).require(PEOPLE, "model").directory
    abandoned = [
        model.with_name("0" * 16),
        model.with_name(f"{model.name}-job"),
        model.with_name(f"{model.name}-texts"),
    ]
    for directory in abandoned:
        (directory / "training" / "examples").mkdir(parents=True)
        (directory / "training" / "examples" / "tokens.i4").write_bytes(b"1234")
    contract, _ = load_dataset(deployment.settings, "people")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=8)
    due = {item.path: item for item in retention.due(storage_of(deployment), [contract], later) if item.step == "model"}
    assert set(abandoned) <= set(due)
    for directory in abandoned:
        retention.purge(due[directory])
        assert not directory.exists()


def test_no_file_holds_a_mark_after_expiry(marked: Marked) -> None:
    """The last of these tests: it takes everything away that the others look at."""
    deployment = marked.deployment
    settings = deployment.settings
    assert found(MARKS, settings.restricted)
    put_back(settings.restricted)
    contract, _ = load_dataset(settings, "people")
    steps = {item.step for item in purge_due(settings, [contract])}
    assert {"scrubbed", "bounded", "model", "log"} <= steps
    assert found(MARKS, deployment.root, without=(settings.home / "sources",)) == {}
    assert ledger_of(deployment).verify().ok
