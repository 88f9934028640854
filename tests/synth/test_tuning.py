"""Settings among which a mechanism chooses: what it costs, what is drawn, what is left, and interruptions."""

import dataclasses
import functools
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from network_cases import SHORT, job
from scipy import stats
from scipy.special import gammaln
from short_fits import STEPS
from synth_cases import SCHEMA, contract_with, people, write_bounded

from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    BestRunEvent,
    GaussianCountsEvent,
    best_run_event,
    event_from_json,
    leaves,
)
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.neural import states_network
from dpsynth_platform.synth.planning import plan_release
from dpsynth_platform.synth.tabular import marginals, paid
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood
from dpsynth_platform.synth.tuning import generator as tuned
from dpsynth_platform.synth.tuning import runs
from dpsynth_platform.synth.tuning.runs import Runs
from dpsynth_platform.synth.tuning.sealing import SealedTuning

PROGRAM = Path(__file__).with_name("killed_tuning.py")
COUNTS = [{"method": "mst"}, {"method": "independent"}]
NETWORKS = [{"method": "arn", "network": SHORT}, {"method": "dp_vae", "network": SHORT}]
MADE = generator("tuned")


def tuned_plan(candidates=COUNTS, *, how="each", score=None, **changes):
    tune = {"candidates": candidates, "runs": how, **({} if score is None else {"score": score})}
    return plan_release(contract_with(generate__tune=tune, **changes), SCHEMA, None)


@functools.cache
def short_plan(networks=False, how=3.0):
    return tuned_plan(NETWORKS if networks else COUNTS, how=how)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(paid, "ROWS", 500)
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)


def with_runs(monkeypatch, *settings):
    """Makes the runs of these settings, as if they had been drawn."""
    draw = Runs.draw
    monkeypatch.setattr(Runs, "draw", lambda *given: dataclasses.replace(draw(*given), settings=settings))


# What it costs.


@pytest.mark.parametrize("how", ["each", 2, 20.0])
@pytest.mark.parametrize("candidates", [COUNTS, [*COUNTS, *NETWORKS]])
def test_the_whole_guarantee_is_used(how, candidates):
    plan = tuned_plan(candidates, how=how)
    event = event_from_json(plan.event)
    assert 0.985 * 4 < epsilon(event, 1e-5).epsilon <= 4.0
    assert isinstance(event, BestRunEvent) == (how != "each")
    if how != "each":
        assert event.mean == pytest.approx(how)
    assert plan.method == "tuned" and plan.guarantee["epsilon"] == 4.0
    MADE.check(plan)
    assert SealedPlan.from_json(plan.to_json()).digest == plan.digest


@pytest.mark.parametrize(("runs", "shape"), [(3.0, 1.0), (30.0, 1.0), (8.0, 0.0), (5.0, 2.5)])
def test_the_event_is_as_another_accountant_has_it(runs, shape):
    """Of each setting's noise, read out of its own parameters: zCDP adds up, and the dearest setting counts."""
    tune = {"candidates": COUNTS, "runs": runs, "shape": shape}
    plan = plan_release(contract_with(generate__tune=tune), SCHEMA, None)
    b = plan.guarantee["max_contributions"]
    costs = []
    for each in SealedTuning.of(plan).plans(plan):
        sealed = each.parameters
        tables = [sealed["sigma_total"]] if "sigma_total" in sealed else []
        tables += [sealed["sigma_one"]] * len(plan.columns) if "sigma_one" in sealed else []
        links = len(plan.columns) - 1 if "sigma_two" in sealed else 0
        tables += [sealed["sigma_two"]] * links if links else []
        tables.append(sealed["paid"]["sigma"])
        costs.append(sum(b**2 / (2 * sigma**2) for sigma in tables) + links * sealed.get("epsilon_select", 0) ** 2 / 8)
    one_run = dp_event.GaussianDpEvent(1 / math.sqrt(2 * max(costs)))
    accountant = RdpAccountant([1 + octave / 8 for octave in range(1, 8)] + list(range(2, 512)))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(one_run, runs, shape))
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon(event_from_json(plan.event), 1e-5).epsilon, rel=5e-3)
    assert 3.9 < accountant.get_epsilon(1e-5) <= 4.02


def test_each_once_is_the_composition_of_all():
    plan = tuned_plan()
    parts = [each.event for each in SealedTuning.of(plan).plans(plan)]
    assert plan.event == {"kind": "composed", "events": parts}
    assert all(part["events"][-1]["kind"] == "gaussian-measures" for part in parts)


def test_more_runs_leave_less_for_each():
    parts = [SealedTuning.of(tuned_plan(how=how)).epsilon for how in (2, 5, 50)]
    assert parts == sorted(parts, reverse=True) and parts[0] < 3


def test_every_setting_pays_for_its_score():
    """A setting's plan without its score, or whose event leaves it out, is refused."""
    plan = short_plan()
    for candidate in range(2):
        parameters = json.loads(json.dumps(plan.parameters))
        unpaid = parameters["candidates"][candidate]
        del unpaid["parameters"]["paid"]
        with pytest.raises(GrantRefused):
            MADE.check(dataclasses.replace(plan, parameters=parameters))
        unpaid["event"] = unpaid["event"]["events"][0]
        with pytest.raises(GrantRefused, match="privacy event"):
            MADE.check(dataclasses.replace(plan, parameters=parameters))
        events = [each["event"] for each in parameters["candidates"]]
        with pytest.raises(GrantRefused, match="does not pay for the score"):
            MADE.check(dataclasses.replace(plan, parameters=parameters, event=plan.event | {"events": events}))


@pytest.mark.parametrize("change", ["gamma", "shape", "epsilon of a choice", "one run"])
def test_a_plan_that_costs_something_else_is_refused(change):
    plan = short_plan()
    parameters, event = json.loads(json.dumps(plan.parameters)), dict(plan.event)
    if change in ("gamma", "shape"):
        parameters[change] = parameters[change] / 2
    elif change == "one run":
        parameters |= {"shape": None, "gamma": None}
    else:
        parameters["candidates"][0]["parameters"]["epsilon_select"] *= 2
    with pytest.raises(GrantRefused):
        MADE.check(dataclasses.replace(plan, parameters=parameters, event=event))


def test_learned_values_are_learned_in_each_run():
    learned = {"type": "categorical", "values": "learned", "most": 5, "nullable": True}
    plan = tuned_plan(columns__city=learned)
    MADE.check(plan)
    kinds = {type(leaf).__name__ for leaf, _ in leaves(event_from_json(plan.event))}
    assert "ThresholdedGaussianCountsEvent" in kinds
    with pytest.raises(ContractError, match=r"generate\.tune\.runs: 3, but the values of city are learned"):
        tuned_plan(how=3, columns__city=learned)


def test_a_setting_that_cannot_be_planned_says_which():
    with pytest.raises(ContractError, match=r"generate\.tune\.candidates\.1: .*weighting"):
        tuned_plan([{"method": "mst"}, NETWORKS[0]], privacy__weighting="owners")
    with pytest.raises(AccountingError, match=r"generate\.tune"):
        tuned_plan(how=100, privacy__guarantee={"epsilon": 1e-5, "delta": 1e-9})


# What is drawn.


@pytest.mark.parametrize(("shape", "gamma"), [(0.0, 0.05), (0.5, 0.3), (1.0, 0.1), (10.0, 0.4)])
def test_the_number_of_runs_is_drawn_from_its_distribution(shape, gamma, monkeypatch):
    """Random bits just below and above each step of the distribution function give the numbers beside it."""
    k = np.arange(1, 2000)
    logs = k * math.log1p(-gamma) + gammaln(k + shape) - gammaln(k + 1)
    expected = np.exp(logs - logs.max())
    expected /= expected.sum()
    found = [float(chance) for chance in itertools.islice(runs.chances(shape, gamma), 200)]
    np.testing.assert_allclose(found, expected[:200], rtol=1e-9)
    below = sum(itertools.islice(runs.chances(shape, gamma), 7))
    edge = int(below * 2**runs.RANDOM_BITS)
    for bits, number in ((edge - 2**100, 7), (edge + 2**100, 8), (0, 1)):
        monkeypatch.setattr(runs.secrets, "randbits", lambda size, bits=bits: bits)
        assert runs.drawn_number(shape, gamma) == number
    assert (
        expected[: runs.rarely_above(shape, gamma)].sum()
        >= 0.99
        > expected[: runs.rarely_above(shape, gamma) - 1].sum()
    )


def test_each_run_takes_any_setting(monkeypatch):
    monkeypatch.setattr(runs, "drawn_number", lambda *given: 4)
    drawn = iter([2, 0, 2, 1])
    monkeypatch.setattr(runs.secrets, "randbelow", lambda size: next(drawn) if size == 3 else pytest.fail())
    assert Runs.draw("plan", ["a", "b", "c"], (1.0, 0.5)).settings == (2, 0, 2, 1)
    assert Runs.draw("plan", ["a", "b", "c"], None).settings == (0, 1, 2)


def test_an_auditor_who_sees_the_best_run_stays_below_its_cost():
    """One count that a record moves by 1, with the noise of one of two settings; the score is the noisy count.

    Of 20,000 choices on each of two neighbouring tables, an auditor guesses by a threshold. Beside it the chances by
    arithmetic: the best of K is at most t with a chance of E[F(t)^K]. A correct choice fails this test with a chance
    below 1e-6: six intervals, each missed once in 1e8.
    """
    sigmas, number = (2.0, 3.0), 20_000
    event = best_run_event([GaussianCountsEvent(sigma, "add-or-remove", 1) for sigma in sigmas], 6.0)
    claimed = epsilon(event, 1e-5).epsilon
    chances = np.array([float(each) for each in itertools.islice(runs.chances(event.shape, event.gamma), 300)])
    rng = np.random.default_rng(7)
    proven = []
    for threshold in (5.0, 7.0, 9.0):
        above = []
        for count in (1, 0):
            hits = sum(_best_count(event, sigmas, count, rng) >= threshold for _ in range(number // 3))
            one = np.mean([stats.norm.cdf((threshold - count) / sigma) for sigma in sigmas])
            exact = 1 - (chances * one ** np.arange(1, 301)).sum()
            low, high = _interval(hits, number // 3)
            assert low <= exact <= high
            above.append((low, high, exact))
        (low, _, inside), (_, high, outside) = above
        assert math.log(inside / outside) <= claimed
        proven.append(math.log(max(low, 1e-12) / high))
    assert max(proven) < claimed


def test_the_auditor_finds_a_score_that_nobody_paid_for():
    """The planted mistake: the exact count decides whether the highest or the lowest noisy count is best.

    By arithmetic the auditor is right 48% of the time, and wrong 2.1%: epsilon 3.1, where .99 is claimed. With both off
    by six deviations of 4000 choices, the intervals still prove 1.97.
    """
    sigmas, number = (8.0, 12.0), 4000
    event = best_run_event([GaussianCountsEvent(sigma, "add-or-remove", 1) for sigma in sigmas], 6.0)
    rng = np.random.default_rng(8)
    hits = [sum(_best_count(event, sigmas, count, rng, unpaid=True) >= 12 for _ in range(number)) for count in (1, 0)]
    low, high = _interval(hits[0], number)[0], _interval(hits[1], number)[1]
    assert math.log(low / high) > epsilon(event, 1e-5).epsilon


def _best_count(event, sigmas, count, rng, *, unpaid=False):
    drawn = Runs.draw("plan", ["a", "b"], (event.shape, event.gamma))
    noisy = [count + sigmas[setting] * rng.standard_normal() for setting in drawn.settings]
    return noisy[runs.best([(2 * count - 1) * value for value in noisy] if unpaid else noisy)]


def _interval(hits, number, miss=1e-8):
    """Clopper & Pearson's."""
    low = 0.0 if hits == 0 else stats.beta.ppf(miss / 2, hits, number - hits + 1)
    return low, 1.0 if hits == number else stats.beta.ppf(1 - miss / 2, hits + 1, number - hits)


# What is left.


def scores(monkeypatch, *values):
    given = iter(values)
    monkeypatch.setattr(paid, "score_of", lambda directory: next(given))


def test_only_the_best_run_is_left(tmp_path, monkeypatch):
    """Nothing in the directory is of a run that lost, or says how many there were, or how they scored."""
    with_runs(monkeypatch, 0, 1, 1, 0, 1)
    scores(monkeypatch, 3, 9, 11, 10, 11)
    plan, bounded, seen = short_plan(), write_bounded(people(300), tmp_path / "table"), {}
    finish = runs.finish

    def watched(directory):
        seen.update({file.relative_to(directory): file.read_bytes() for file in directory.rglob("*") if file.is_file()})
        finish(directory)

    monkeypatch.setattr(runs, "finish", watched)
    MADE.run(run := job(plan, bounded, tmp_path / "model"))
    of_runs = {path.parts[1] for path in seen if len(path.parts) > 2}
    assert of_runs == {"0", "1", "2", "3", "4"}
    left = {path.relative_to(run.directory): path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    assert {str(path) for path in left} == {
        "measurements.jsonl",
        "model.json",
        "model.npz",
        "paid.json",
        runs.TUNED_FILE,
    }
    assert json.loads(left.pop(Path(runs.TUNED_FILE))) == {"candidate": 1, "method": "independent"}
    for path, content in left.items():
        assert content == seen[Path(runs.TUNING, "2", path)]  # of equal scores, the first
        others = [seen[Path(runs.TUNING, number, path)] for number in of_runs - {"2"}]
        assert content not in others
    assert not (run.directory / runs.TUNING).exists()


@pytest.mark.parametrize("method", ["mst", "aim", "arn", "tbart", "dp_vae", "table_diffusion", "dp_gan"])
def test_a_kept_model_is_one_of_its_method(tmp_path, method, monkeypatch):
    other = {"method": "independent" if method == "mst" else "mst"}
    network = {"network": SHORT} if method in ("arn", "tbart", "dp_vae", "table_diffusion", "dp_gan") else {}
    plan, bounded = tuned_plan([{"method": method, **network}, other]), write_bounded(people(300), tmp_path / "table")
    scores(monkeypatch, 1, 0)
    MADE.run(run := job(plan, bounded, tmp_path / "model"))
    assert MADE.is_complete(run.directory) and not MADE.can_resume(run.directory)
    kept = MADE.kept_plan(plan, run.directory)
    assert (kept.method, load_model(run.directory).plan) == (method, kept)
    assert np.isfinite(log_likelihood(load_model(run.directory), people(30))).all()
    drawing = MADE.draw(run.directory, 40, given={"city": "Bern"})
    assert (
        drawing.paid is None
        and drawing.measured is None
        and drawing.table().column("city").to_pylist() == ["Bern"] * 40
    )
    MADE.estimate(plan, run.directory)
    assert MADE.sample(run.directory, 20).num_rows == 20
    with pytest.raises(GrantRefused, match="another plan"):
        MADE.estimate(tuned_plan([other, {"method": "privbayes"}]), run.directory)


def test_a_better_setting_wins(tmp_path):
    """By its noisy distance of pairs: `independent` keeps no relation of city and age. The scores differ by 18 times
    the deviation of that, as measured; those of the next test by 8 times and more."""
    plan, bounded = tuned_plan(), write_bounded(people(3000), tmp_path / "table")
    MADE.run(run := job(plan, bounded, tmp_path / "model"))
    assert runs.kept_setting(run.directory) == (0, "mst")


@pytest.mark.parametrize(
    ("measure", "target", "task"), [("accuracy", "city", "classification"), ("regression", "age", "regression")]
)
def test_scores_of_a_target(tmp_path, measure, target, task):
    plan = tuned_plan(score={"measure": measure, "share": 0.2}, quality={"target": target, "task": task})
    bounded = write_bounded(people(3000), tmp_path / "table")
    MADE.run(run := job(plan, bounded, tmp_path / "model"))
    (measured,) = json.loads((run.directory / paid.FILE).read_text())["measures"]
    assert paid.score_of(run.directory) == sum(measured["noisy"][1])
    assert runs.kept_setting(run.directory) == (0, "mst")


def test_progress_says_nothing_of_the_runs(tmp_path, monkeypatch, capsys, caplog):
    with_runs(monkeypatch, 0, 1, 0)
    bounded, heard = write_bounded(people(300), tmp_path / "table"), []
    run = job(short_plan(networks=True), bounded, tmp_path / "model")
    MADE.run(dataclasses.replace(run, progress=lambda *given: heard.append(given)))
    assert heard == [(tuned.STAGE, 0, 1), (tuned.STAGE, 1, 1)]
    assert capsys.readouterr() == ("", "") and not caplog.records


def test_a_failure_says_nothing_of_the_runs(tmp_path, monkeypatch):
    with_runs(monkeypatch, 1, 0)
    stopped = MechanismFailed("at step 3 of 100: run 1, mst")
    monkeypatch.setattr(marginals.MarginalGenerator, "run", lambda *given: (_ for _ in ()).throw(stopped))
    bounded = write_bounded(people(300), tmp_path / "table")
    with pytest.raises(MechanismFailed) as caught:
        MADE.run(job(short_plan(), bounded, tmp_path / "model"))
    assert not re.search(r"\d|mst|independent", str(caught.value))
    assert caught.value.__cause__ is None and caught.value.__context__ is None


# Interruptions.


def stop_when(monkeypatch, place, name, times):
    """Interrupts at the call of that number."""
    called, calls = getattr(place, name), []

    def counted(*given, **named):
        calls.append(given)
        if len(calls) == times:
            raise KeyboardInterrupt
        return called(*given, **named)

    monkeypatch.setattr(place, name, counted)


def draws_nothing(monkeypatch):
    monkeypatch.setattr(Runs, "draw", lambda *given: pytest.fail("drawn a second time"))


@pytest.mark.parametrize(
    ("place", "name", "times"),
    [
        (marginals.MarginalGenerator, "run", 1),  # nothing is read yet
        (marginals.MarginalGenerator, "run", 2),
        (marginals.MarginalGenerator, "run", 3),
        (marginals, "save_model", 2),  # counted, and not fitted
        (marginals, "measure", 3),  # fitted, and without its score
        (paid, "write_durably", 2),  # the score is drawn, and not kept
    ],
)
def test_it_continues_with_what_was_drawn(tmp_path, monkeypatch, place, name, times):
    """And no run that has its score is made, or scored, again."""
    bounded = write_bounded(people(300), tmp_path / "table")
    with monkeypatch.context() as patch:
        with_runs(patch, 1, 0, 0)
        stop_when(patch, place, name, times)
        with pytest.raises(KeyboardInterrupt):
            MADE.run(run := job(short_plan(), bounded, tmp_path / "model"))
    run = job(short_plan(), bounded, tmp_path / "model", resume=True)
    drawn = (run.directory / runs.TUNING / runs.RUNS).read_bytes()
    made = {
        path: path.read_bytes() for path in run.directory.rglob("*") if path.name in ("measurements.jsonl", paid.FILE)
    }
    assert MADE.can_resume(run.directory) and not MADE.is_complete(run.directory)
    draws_nothing(monkeypatch)
    seen, finish = {}, runs.finish

    def watched(directory):
        seen.update({path: path.read_bytes() for path in directory.rglob("*") if path.is_file()})
        finish(directory)

    monkeypatch.setattr(runs, "finish", watched)
    MADE.run(run)
    assert seen[run.directory / runs.TUNING / runs.RUNS] == drawn
    assert made.items() <= seen.items()
    assert sum(path.name == paid.FILE for path in seen) == 3
    assert MADE.sample(run.directory, 20).num_rows == 20 and not (run.directory / runs.TUNING).exists()


def test_interrupted_counts_are_not_counted_again(tmp_path, monkeypatch):
    bounded = write_bounded(people(300), tmp_path / "table")
    with_runs(monkeypatch, 0, 1)
    with monkeypatch.context() as patch:
        stop_when(patch, marginals.MeasurementLog, "complete", 2)
        with pytest.raises(KeyboardInterrupt):
            MADE.run(job(short_plan(), bounded, tmp_path / "model"))
    assert not MADE.can_resume(tmp_path / "model") and not MADE.is_complete(tmp_path / "model")
    with pytest.raises(MechanismFailed):
        MADE.run(job(short_plan(), bounded, tmp_path / "model", resume=True))
    with pytest.raises(MechanismFailed, match="before all of its runs had a score"):
        MADE.estimate(short_plan(), tmp_path / "model")


def test_each_run_has_a_key_of_its_own(tmp_path):
    """So that no run opens a checkpoint of another one."""
    run = job(short_plan(), tmp_path / "table", tmp_path / "model")
    keys = {tuned._inner(run, run.plan, number).checkpoints.key for number in range(20)}
    assert len(keys | {run.checkpoints.key}) == 21 and {len(key) for key in keys} == {32}


def test_nothing_continues_where_nothing_was_drawn(tmp_path):
    """Such as in the place of a model that retention has deleted."""
    assert not MADE.can_resume(tmp_path / "model") and not MADE.is_complete(tmp_path / "model")


def test_damaged_runs_are_not_drawn_again(tmp_path):
    run = job(short_plan(), tmp_path / "table", tmp_path / "model")
    Runs.of(run.directory, run.plan.digest, ["mst", "independent"], (1.0, 0.3))
    (run.directory / runs.TUNING / runs.RUNS).write_text("{")
    assert not MADE.can_resume(run.directory)
    with pytest.raises(MechanismFailed, match="not drawn twice"):
        MADE.run(run)


def test_another_plan_does_not_continue_it(tmp_path, monkeypatch):
    bounded = write_bounded(people(300), tmp_path / "table")
    with monkeypatch.context() as patch:
        stop_when(patch, marginals.MarginalGenerator, "run", 1)
        with pytest.raises(KeyboardInterrupt):
            MADE.run(job(short_plan(), bounded, tmp_path / "model"))
    with pytest.raises(GrantRefused, match="of another plan"):
        MADE.run(job(tuned_plan(how=4), bounded, tmp_path / "model", resume=True))


@pytest.mark.parametrize(
    ("name", "times"), [("rmtree", 1), ("rmtree", 2), ("write_durably", 1), ("sync", 1), ("sync", 2)]
)
def test_an_interrupted_deletion_is_finished_without_data(tmp_path, monkeypatch, name, times):
    """From the moment at which the choice is on disk."""
    bounded = write_bounded(people(300), tmp_path / "table")
    with monkeypatch.context() as patch:
        with_runs(patch, 1, 0, 0)
        keep = runs.keep_best

        def then_stop(*given):
            keep(*given)
            stop_when(patch, runs.shutil if name == "rmtree" else runs, name, times)

        patch.setattr(runs, "keep_best", then_stop)
        with pytest.raises(KeyboardInterrupt):
            MADE.run(job(short_plan(), bounded, tmp_path / "model"))
    assert (MADE.is_complete(tmp_path / "model") and (tmp_path / "model" / runs.TUNING).exists()) or name == "sync"
    draws_nothing(monkeypatch)
    MADE.estimate(short_plan(), tmp_path / "model", progress=silent)
    assert not (tmp_path / "model" / runs.TUNING).exists()
    assert MADE.sample(tmp_path / "model", 20).num_rows == 20


@pytest.mark.parametrize("step", [3, 9])
def test_killed_within_a_training_it_continues_within_what_is_paid_for(tmp_path, step, monkeypatch):
    """In the third step of the first run's training, or of the second's: by the journal of that run."""
    plan, bounded = short_plan(networks=True, how="each"), write_bounded(people(1000), tmp_path / "table")
    (tmp_path / "plan.json").write_text(plan.to_json())
    directory = tmp_path / "model"
    directory.mkdir()
    command = [sys.executable, str(PROGRAM), str(tmp_path / "plan.json"), str(bounded), str(directory), str(step)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert MADE.can_resume(directory) and not MADE.is_complete(directory)
    stopped = runs.place(directory, step // 6)
    counts = (stopped / "measurements.jsonl").read_bytes()
    trained, finish = {}, runs.finish

    def watched(place):
        trained.update({path.parts[-3]: json.loads(path.read_text()) for path in place.rglob("trained.json")})
        assert (stopped / "measurements.jsonl").read_bytes() == counts
        finish(place)

    monkeypatch.setattr(runs, "finish", watched)
    draws_nothing(monkeypatch)
    MADE.run(job(plan, bounded, directory, resume=True))
    executed = {number: found["executed_steps"] for number, found in trained.items()}
    assert executed[str(1 - step // 6)] in (STEPS, 6)  # in this process, trainings are shorter
    assert STEPS + 1 <= executed[stopped.name] <= STEPS + 3
    assert MADE.sample(directory, 20).num_rows == 20
