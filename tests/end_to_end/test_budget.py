"""Beyond the budget: refused on public facts, before anything is read, and without a trace but the record of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from frozen import Frozen
from inside import inside
from line_cases import PEOPLE, add_dataset, ledger_of, run_here, small_deployment, small_table, storage_of

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates, families
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.reviewing import accounts, decisions, forecasts
from dpsynth_platform.sources import source

pytestmark = pytest.mark.end_to_end


def run_inside(deployment, job="people_candidate", **more):
    """A run whose mechanism takes place in this process."""
    return run_here(deployment, job, accelerator=inside(deployment), **more)


def files_of(directory):
    """Every file with its content, except logs."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "logs" not in path.relative_to(directory).parts
    }


def test_a_request_beyond_the_cap_changes_nothing(candidate, monkeypatch):
    """A changed contract that no longer fits is refused before the source is read; the earlier candidate stays."""
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    candidate.contract["privacy"]["guarantee"]["epsilon"] = 2.45
    candidate.write()
    ledger = ledger_of(candidate)
    entries, left, kept = ledger.entries(), ledger.left("tests", 1e-6), files_of(candidate.settings.restricted)

    def unread(*_):
        raise AssertionError("the source was read")

    monkeypatch.setattr(source, "batches", unread)
    ran = run_inside(candidate)
    assert set(ran.failures) == {"raw"}
    assert re.search(r"epsilon left at this delta: [1-9]", ran.failures["raw"])
    assert ran.materializations == {}
    assert ledger.entries() == entries
    assert ledger.left("tests", 1e-6) == left
    (blocked,) = ledger.history(kinds=["blocked"])
    assert blocked.subject == "tests"
    assert (blocked.payload["dataset"], blocked.payload["runner"]) == ("people", "runner")
    assert files_of(candidate.settings.restricted) == kept
    assert ledger.verify().ok


def test_what_is_left_is_one_figure_wherever_people_read_it(candidate):
    """Plan, ledger, Dagster, console and both pages for reviewers: at the contract's own delta, for a like release."""
    settings = candidate.settings
    ran = run_inside(candidate)
    figure = forecasts.forecast(settings, "people", None).left
    assert 0 < figure < ledger_of(candidate).account("tests").epsilon
    (account,) = accounts.listing(settings)
    assert [left["epsilon"] for left in account["left"]] == [figure]
    assert ran.materializations["raw"]["epsilon_left_before"] == figure  # nothing new is spent by a repeated run
    assert ran.materializations["model"]["epsilon_left_after"] == figure
    page = Path(decisions.review(settings, PEOPLE).dossier)
    assert json.loads(page.with_name("reviewers.json").read_text())["spend"]["account"]["epsilon_left"] == figure
    everything = frozenset(Action)
    budget = candidates.candidate(settings, everything, "people").budget
    (row,) = families.budgets(settings, everything)
    (of_family,) = row.left_words
    assert [left.epsilon for left in row.left] == [figure]
    for words in (budget.left_words, of_family, *account["left_in_words"]):
        assert f"up to about epsilon {figure:g} at its own delta" in words


@pytest.mark.slow
def test_the_command_says_what_is_left_and_exits_with_three(tmp_path):
    deployment = small_deployment(tmp_path)
    deployment.family["cap"]["epsilon"] = 0.9
    deployment.write()
    done = deployment.dpsynth("run", "people")
    assert done.returncode == 3
    assert "raw failed: " in done.stderr
    assert re.search(r"epsilon left at this delta: 0\.[78]", done.stderr)
    again = deployment.here("run", "people", "--json")
    assert again.returncode == 3
    assert json.loads(again.stdout)["blocked"]
    assert ledger_of(deployment).entries() == []
    assert len(ledger_of(deployment).history(kinds=["blocked"])) == 2
    assert storage_of(deployment).places() == []


@pytest.mark.slow
def test_of_two_runs_at_once_that_do_not_both_fit_one_is_granted(tmp_path):
    """Two commands on two datasets of one family: whichever asks second is refused, wherever it stands by then."""
    deployment = small_deployment(tmp_path)
    deployment.family["cap"]["epsilon"] = 1.3
    deployment.write()
    add_dataset(deployment, "others", small_table(seed=5))
    commands = [deployment.start("run", dataset, "--json") for dataset in ("people", "others")]
    printed = [command.communicate(timeout=600) for command in commands]
    assert sorted(command.returncode for command in commands) == [0, 3], printed
    (loser,) = (json.loads(out) for (out, _), command in zip(printed, commands, strict=True) if command.returncode)
    assert loser["blocked"]
    assert "epsilon left" in loser["failures"][0][1]
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert entry.request.dataset != loser["dataset"]
    assert len(ledger_of(deployment).history(kinds=["blocked"])) == 1
    assert ledger_of(deployment).verify().ok


def test_block_refuses_an_overlap_and_says_that_it_looked(candidate):
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    deployment = candidate
    add_dataset(deployment, "others", small_table(seed=5), on_overlap="block")
    add_dataset(deployment, "strangers", small_table(seed=6, first_person=50_000), on_overlap="block")
    ran = run_inside(deployment, "others_candidate")
    assert set(ran.failures) == {"clearance"}
    assert "This verdict looks at the data" in ran.failures["clearance"]
    assert [entry.request.dataset for entry in ledger_of(deployment).entries()] == ["people"]
    assert [event.payload["reason"] for event in ledger_of(deployment).history(kinds=["blocked"])] == ["overlap"]
    assert run_inside(deployment, "strangers_candidate").success


def test_exclude_leaves_out_who_was_charged_before(candidate):
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    deployment = candidate
    # The second table holds the second half of the first one's people, and as many strangers.
    add_dataset(deployment, "others", small_table(seed=5, first_person=500), on_overlap="exclude")
    ran = run_inside(deployment, "others_candidate")
    assert ran.success, ran.failures
    ledger = ledger_of(deployment)
    first, second = (ledger.participants(entry.entry_id) for entry in ledger.entries())
    assert first.size > 0
    assert second.size > 0
    assert np.intersect1d(first, second).size == 0


@pytest.mark.parametrize(
    ("account", "policy"),
    [({"mode": "per-owner", "cap": {"epsilon": 1.3, "delta": 1.0e-5}}, "compose"), ({"mode": "family"}, "exclude")],
    ids=["exhausted", "excluded"],
)
def test_owners_are_left_out_without_a_word(tmp_path, account, policy):
    """Whether a line meets owners whom it must leave out, and even nobody else, what it shows is the same."""
    shown, known = [], []
    first_line = small_deployment(tmp_path / "here")
    first_line.family |= account
    first_line.write()
    assert run_inside(first_line).success
    kept = Frozen.of(first_line, first_line.root, tmp_path / "kept")
    for first_person, left_in in ((500, 450), (0, 0), (50_000, 900)):  # some of them, everybody, nobody
        deployment = kept.put_back()
        add_dataset(deployment, "others", small_table(seed=5, first_person=first_person), on_overlap=policy)
        ran = run_inside(deployment, "others_candidate")
        assert ran.success, ran.failures
        ledger = ledger_of(deployment)
        first, second = (ledger.participants(entry.entry_id) for entry in ledger.entries())
        assert np.intersect1d(first, second).size == 0
        assert second.size == pytest.approx(left_in, abs=120 if left_in else 0)
        # Entries differ between any two runs.
        facts = {
            step: {
                key: re.sub(r"[0-9a-f]{16,}", "ID", str(value))
                for key, value in ran.materializations[step].items()
                if key not in ("entry_id", "plan_digest")
            }
            for step in ("scrubbed", "clearance", "bounded", "synthetic", "quality")
        }
        said = {
            step: [re.sub(r"[0-9a-f]{16,}", "ID", sentence) for sentence in sentences]
            for step, sentences in ran.said.items()
            if step != "audit"  # its numbers are the attacks', on a model with fresh noise
        }
        left = ran.materializations["raw"]["epsilon_left_before"]
        shown.append((facts, said, left, ledger.left("tests", 1e-6), ledger.history(kinds=["blocked"])))
        record = storage_of(deployment).require(Place("others"), "clearance")
        assert set(record.facts) == {"entry_id", "plan_digest", "family", "policy", "attempt", "verdict", "clearance"}
        known.append(re.sub(r"[0-9a-f]{16,}", "ID", str(record.facts["clearance"])))
        assert storage_of(deployment).require(PEOPLE, "clearance").facts.keys() == record.facts.keys()
    assert shown[0] == shown[1] == shown[2]
    assert known[0] == known[1] == known[2]
    assert "an earlier mechanism of the same family" in shown[0][0]["clearance"]["findings"]
    assert shown[0][1]["clearance"]  # something was said


def test_clearance_hands_the_ledger_the_owners_that_are_not_held_out(candidate):
    """What is charged are the people whom the mechanism may read, no more and no fewer."""
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
    ledger = ledger_of(candidate)
    (entry,) = ledger.entries()
    charged = ledger.participants(entry.entry_id)
    owners = np.frombuffer(
        (storage_of(candidate).require(PEOPLE, "scrubbed").directory / "participants").read_bytes(), "S16"
    )
    assert 0.8 * owners.size < charged.size < owners.size
    assert np.isin(charged, owners).all()
