"""The score `likelihood`: owners in two parts, sensitivity on neighbouring tables, noise, and what is refused."""

import dataclasses
import functools
import hashlib
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from network_cases import SHORT, job
from synth_cases import SCHEMA, contract_with, people, write_bounded
from test_table_networks import fix

from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianMeasuresEvent, event_from_json, leaves
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural import network_generator, states_network
from dpsynth_platform.synth.planning import plan_release
from dpsynth_platform.synth.tabular import held_out, marginals, paid
from dpsynth_platform.synth.tabular.held_out import Parts, bound_of, exact_score, record_parts
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood
from dpsynth_platform.synth.tuning import generator as tuned
from dpsynth_platform.synth.tuning import runs
from dpsynth_platform.synth.tuning.sealing import SealedTuning

MADE = generator("tuned")
TWO = [{"method": "arn", "network": SHORT}, {"method": "tbart", "network": {**SHORT, "width": 8}}]
SCORE = {"measure": "likelihood", "held_out": 0.3, "share": 0.2}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)


def tuned_plan(candidates=TWO, *, how="each", score=SCORE, **changes):
    tune = {"candidates": candidates, "runs": how, "score": score}
    return plan_release(contract_with(generate__tune=tune, **changes), SCHEMA, None)


short_plan = functools.cache(tuned_plan)


def held_out_owners(table, plan, share=SCORE["held_out"]):
    """By another computation of the hash."""
    found = set()
    for owner in set(table["_owner"].to_pylist()):
        hashed = hashlib.sha256(plan.digest.encode() + b"holdout" + bytes.fromhex(owner)).digest()
        if int.from_bytes(hashed[:8], "big") < share * 2**64:
            found.add(owner)
    return found


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run of each method, with its records."""
    place = tmp_path_factory.mktemp("fitted")
    table = people(600)
    models = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)
        for number, each in enumerate(SealedTuning.of(short_plan()).plans(short_plan())):
            run = job(each, write_bounded(table, place / f"table {number}"), place / str(number))
            run = dataclasses.replace(run, training=table, held_out=table)
            generator(each.method).run(run)
            models[each.method] = load_model(run.directory)
    return models


# Parts.


def test_no_owner_is_in_both_parts(tmp_path):
    table, plan = people(1000), short_plan()
    out = held_out_owners(table, plan)
    parts = Parts.of(job(plan, write_bounded(table, tmp_path / "table"), tmp_path / "model"), SCORE["held_out"])
    assert {*parts.held_out["_owner"].to_pylist()} == out
    assert {*parts.training["_owner"].to_pylist()} == {*table["_owner"].to_pylist()} - out
    assert parts.training.num_rows + parts.held_out.num_rows == 1000
    assert 100 < len(out) < 200  # of 500, .3 in expectation: 4.9 deviations either way, and fixed by the plan


def read_by(monkeypatch):
    """The owners whose records training and score read, of all runs."""
    trained, scored = set(), set()
    records, exact = network_generator.LearnedColumns.records, held_out.exact_score

    def owners_of(bounded):
        assert isinstance(bounded, pa.Table), "a run reads the bounded table as a whole"
        return bounded["_owner"].to_pylist()

    def watched_records(self, sealed, bounded):
        trained.update(owners_of(bounded))
        return records(self, sealed, bounded)

    def watched_score(model, table, bound):
        scored.update(owners_of(table))
        return exact(model, table, bound)

    class Counted(marginals.Records):
        def __post_init__(self):
            trained.update(owners_of(self.bounded))

    monkeypatch.setattr(marginals, "Records", Counted)
    monkeypatch.setattr(network_generator.LearnedColumns, "records", watched_records)
    monkeypatch.setattr(held_out, "exact_score", watched_score)
    return trained, scored


@pytest.mark.parametrize("key", [b"k" * 32, None])
def test_each_run_counts_and_trains_on_one_part_and_is_scored_on_the_other(tmp_path, monkeypatch, key):
    trained, scored = read_by(monkeypatch)
    table, plan = people(400), short_plan()
    run = job(plan, write_bounded(table, tmp_path / "table"), tmp_path / "model")
    run = run if key else dataclasses.replace(run, checkpoints=None)
    MADE.run(run)
    out = held_out_owners(table, plan)
    assert scored == out and trained == {*table["_owner"].to_pylist()} - out


def test_a_run_that_trains_on_held_out_owners_is_found(tmp_path, monkeypatch):
    """The planted mistake, by the test above: all records are trained on."""
    in_parts = tuned._in_parts

    def planted(run, sealed):
        parted = in_parts(run, sealed)
        return dataclasses.replace(parted, training=pa.concat_tables([parted.training, parted.held_out]))

    monkeypatch.setattr(tuned, "_in_parts", planted)
    with pytest.raises(AssertionError, match="Extra items in the left set"):
        test_each_run_counts_and_trains_on_one_part_and_is_scored_on_the_other(tmp_path, monkeypatch, b"k" * 32)


def test_a_run_that_forgets_its_part_reads_nothing(tmp_path):
    table = write_bounded(people(50), tmp_path / "table")
    run = tuned._in_parts(job(short_plan(), table, tmp_path / "model"), SealedTuning.of(short_plan()))
    assert not run.bounded.exists() and run.engine is None


# The score.


def independent_score(model, table, bound):
    """In other words: owner by owner, record by record, in exact fractions of the bound."""
    total = 0
    for owner in sorted(set(table["_owner"].to_pylist())):
        mine = table.filter(pc.equal(table["_owner"], owner))
        logs = [float(log_likelihood(model, mine.slice(row, 1))[0]) for row in range(mine.num_rows)]
        parts = [math.floor(max(-1.0, min(0.0, log / bound)) * RECORD_PARTS) for log in logs]
        total += math.floor(sum(parts) / len(parts))
    return total


@pytest.mark.parametrize("method", ["arn", "tbart"])
def test_the_score_is_the_clipped_mean_of_each_owner(fitted, method):
    model, table = fitted[method], people(81, seed=3)
    for clip in (1.0, 0.2):
        bound = bound_of(model.domain, clip)
        assert exact_score(model, table, bound) == independent_score(model, table, bound)
    cells = [10, 4, 4, 3, 2]
    whole = math.prod(cells[index] + extra for index, extra in enumerate(_missing(model)))
    assert bound_of(model.domain, 1.0) == pytest.approx(math.log(whole))
    assert exact_score(model, table.slice(0, 0), bound) == 0


def _missing(model):
    return [size - cells for size, cells in zip(model.domain.sizes, [10, 4, 4, 3, 2], strict=True)]


def neighbours(table):
    """Tables without one owner each, and tables with one more, whose records are the rarest there are."""
    for owner in sorted(set(table["_owner"].to_pylist()))[:12]:
        yield table.filter(pc.not_equal(table["_owner"], owner))
    rare = pa.table(
        {
            "age": pa.array([9, 0], pa.int8()),
            "score": pa.array([1.0, -1.0], pa.float32()),
            "day": pa.array(["2026-12-31", None]).cast(pa.date32()),
            "city": ["Aix", None],
            "member": [None, True],
            "_owner": ["f" * 32] * 2,
            "_record": ["e" * 64, "f" * 64],
        }
    ).cast(table.schema)
    for records in (1, 2):
        yield pa.concat_tables([table, rare.slice(0, records)])


def most_moved(model, bound, score=exact_score):
    table = people(41, seed=5)
    whole = score(model, table, bound)
    return max(abs(whole - score(model, other, bound)) for other in neighbours(table))


@pytest.mark.parametrize("method", ["arn", "tbart"])
@pytest.mark.parametrize("clip", [1.0, 0.1])
def test_one_owner_moves_the_score_by_one_at_most(fitted, method, clip):
    """Of several records, and of impossible ones: the bound is reached where all are clipped."""
    moved = most_moved(fitted[method], bound_of(fitted[method].domain, clip))
    assert 0 < moved <= RECORD_PARTS
    if clip == 0.1:
        assert moved == RECORD_PARTS


def test_an_unclipped_sum_is_found(fitted, monkeypatch):
    """The planted mistake, by the test above."""
    monkeypatch.setattr(held_out.np, "clip", lambda values, low, high: values)
    assert most_moved(fitted["arn"], bound_of(fitted["arn"].domain, 0.1)) > RECORD_PARTS


def test_a_sum_over_records_is_found(fitted):
    """The planted mistake: an owner of b records counts b times."""

    def planted(model, table, bound):
        return int(record_parts(model, table, bound).sum())

    assert most_moved(fitted["arn"], bound_of(fitted["arn"].domain, 0.1), planted) == 2 * RECORD_PARTS


def test_a_record_counts_the_same_whatever_stands_beside_it(fitted):
    """To the last bit: otherwise rounding would move the scores of other owners."""
    for model in fitted.values():
        table, bound = people(61, seed=8), bound_of(model.domain, 1.0)
        together = record_parts(model, table, bound)
        for rows in ([0], [3, 1], list(range(60, 20, -1))):
            assert (record_parts(model, table.take(rows), bound) == together[rows]).all()


def test_likelihoods_are_of_cells_and_sum_to_one(fitted):
    """Over all cells of the declared domain, whatever states a run's counts tell apart: so that runs compare."""
    for model in fitted.values():
        assert model.domain.sizes == fitted["arn"].domain.sizes
        cells = np.indices(model.domain.sizes).reshape(len(model.domain), -1).T.astype(np.int32)
        states = np.stack([column.state_of[cells[:, at]] for at, column in enumerate(model.states)], axis=1)
        logs = model.joint.log_likelihood(states)
        logs += sum(np.log(each.share[cells[:, at]]) for at, each in enumerate(model.states))
        assert np.exp(logs).sum() == pytest.approx(1, abs=1e-4)


def test_the_noise_is_that_of_the_event(fitted, tmp_path, monkeypatch):
    """Divided by the sensitivity of the sum, as the event's by that of counts."""
    plan, drawn = short_plan(), []
    monkeypatch.setattr(held_out, "sample_rounded_gaussian", lambda exact, scale: drawn.append((exact, scale)) or exact)
    table = people(200)
    MADE.run(job(plan, write_bounded(table, tmp_path / "table"), tmp_path / "model"))
    out = held_out_owners(table, plan)
    for each, (exact, scale) in zip(SealedTuning.of(plan).plans(plan), drawn, strict=True):
        (event,) = [leaf for leaf, _ in leaves(event_from_json(each.event)) if isinstance(leaf, GaussianMeasuresEvent)]
        assert scale / RECORD_PARTS == pytest.approx(event.sigma / each.guarantee["max_contributions"], rel=1e-6)
        assert exact.shape == (1,) and -len(out) * RECORD_PARTS <= exact[0] < 0
    kept = json.loads((tmp_path / "model" / paid.FILE).read_text())["measures"][0]["noisy"]
    assert kept == max(int(exact[0]) for exact, _ in drawn) == paid.score_of(tmp_path / "model")


@pytest.mark.parametrize("how", ["each", 3.0])
def test_the_whole_guarantee_is_used(how):
    plan = tuned_plan(how=how)
    assert 0.985 * 4 < epsilon(event_from_json(plan.event), 1e-5).epsilon <= 4.0
    for each in SealedTuning.of(plan).plans(plan):
        sealed = each.parameters["paid"]
        assert (sealed["measures"], sealed["held_out"], sealed["clip"], sealed["rows"]) == (["likelihood"], 0.3, 1, 0)
    words = MADE.describe(plan)["event"]
    assert "likelihood of the records of 30% of the owners" in words


def test_a_better_setting_wins(tmp_path, monkeypatch):
    """A network that is trained, beside one whose step hardly changes it. Random numbers are the same each time; in
    four tries with others, exact scores differed by 14 and more deviations of the noise of their difference."""
    fix(monkeypatch)
    still = {"method": "arn", "network": {"steps": 1, "learning_rate": 1e-9, "fixed_order": 1.0}}
    plan = tuned_plan([still, {"method": "arn", "network": {"steps": 60}}], privacy__expected_units=3000)
    MADE.run(run := job(plan, write_bounded(people(6000), tmp_path / "table"), tmp_path / "model"))
    assert runs.kept_setting(run.directory) == (1, "arn")


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_without_records_in_a_part_is_no_failure(tmp_path, rows):
    """That would show whether there are any."""
    plan = short_plan()
    MADE.run(run := job(plan, write_bounded(people(2).slice(0, rows), tmp_path / "table"), tmp_path / "model"))
    assert MADE.is_complete(run.directory)


def test_it_continues_in_the_same_parts(tmp_path, monkeypatch):
    trained, scored = read_by(monkeypatch)
    table, plan = people(400), short_plan()
    bounded, score, made = write_bounded(table, tmp_path / "table"), held_out.score, []

    def stopped(*given):
        made.append(given)
        if len(made) == 2:
            raise KeyboardInterrupt
        score(*given)

    monkeypatch.setattr(held_out, "score", stopped)
    with pytest.raises(KeyboardInterrupt):
        MADE.run(job(plan, bounded, tmp_path / "model"))
    assert not any(path.suffix == ".parquet" for path in (tmp_path / "model").rglob("*"))
    MADE.run(job(plan, bounded, tmp_path / "model", resume=True))
    out = held_out_owners(table, plan)
    assert len(made) == 3 and scored == out and not trained & out


# What is refused.


def test_a_score_without_a_held_out_part_is_refused(tmp_path):
    plan = SealedTuning.of(short_plan()).plans(short_plan())[0]
    run = job(plan, write_bounded(people(100), tmp_path / "table"), tmp_path / "model")
    with pytest.raises(GrantRefused, match="the run has none"):
        generator("arn").run(run)
    assert not (run.directory / paid.FILE).exists()


def test_settings_that_hold_out_other_owners_are_refused():
    plan = short_plan()
    parameters = json.loads(json.dumps(plan.parameters))
    for share in (0.1, None):
        parameters["candidates"][0]["parameters"]["paid"]["held_out"] = share
        with pytest.raises(GrantRefused, match="hold out other owners"):
            MADE.check(dataclasses.replace(plan, parameters=parameters))


REFUSED = {
    "no likelihood": ({"candidates": [{"method": "mst"}, *TWO]}, {}, r"candidates\.0\.method: 'mst', with score"),
    "a network without one": (
        {"candidates": [{"method": "dp_vae"}, *TWO]},
        {},
        "accepted: arn, tbart, great, dp_2stage, or another",
    ),
    "learned values": (
        {},
        {"columns__city": {"type": "categorical", "values": "learned", "most": 5}},
        "those of city are learned",
    ),
    "units of rows": (
        {},
        {
            "privacy__unit": "example",
            "privacy__max_contributions": 1,
        },
        "holds owners out",
    ),
    "other neighbours": ({}, {"privacy__adjacency": "replace-one"}, "with adjacency 'replace-one'"),
    "a clip of pairs": ({"score": {"clip": 1.0}}, {}, r"score\.clip: is for measure likelihood"),
    "nobody held out": ({"score": {"measure": "likelihood", "held_out": 0}}, {}, r"score\.held_out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    tune, changes, message = REFUSED[name]
    whole = {"candidates": TWO, "score": SCORE, **tune}
    with pytest.raises(ContractError, match=message):
        contract_with(generate__tune=whole, **changes)


def test_the_sealed_contract_has_the_defaults_and_others_have_no_new_keys():
    sealed = contract_with(generate__tune={"candidates": TWO, "score": {"measure": "likelihood"}}).snapshot()
    assert sealed["generate"]["tune"]["score"] == {"measure": "likelihood", "share": 0.05, "held_out": 0.2, "clip": 1.0}
    assert {*contract_with(generate__tune={"candidates": TWO}).snapshot()["generate"]["tune"]["score"]} == {
        "measure",
        "share",
    }
    other = tuned_plan(score={"measure": "pairs"}).parameters["candidates"][0]["parameters"]["paid"]
    assert {*other} == {"measures", "share", "sigma", "rows", "target", "constraints"}
