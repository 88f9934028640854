import dataclasses
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.foundation.errors import ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import count_sensitivity
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular import drawing, mst
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import ITERATIONS, SCORE_SCALE
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts, is_complete, read_measurements

MST = generator("mst")


# The sealed plan.


def test_a_plan_is_a_function_of_public_inputs(contract, plan):
    again = MST.plan(contract, SCHEMA, Guarantee.target(contract))
    assert again == plan
    assert again.digest == plan.digest
    assert SealedPlan.from_json(plan.to_json(), expected_digest=plan.digest) == plan


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SealedPlan) if field.name != "why"])
def test_an_altered_field_is_refused(plan, field):
    document = json.loads(plan.to_json())
    value = document["plan"][field]
    document["plan"][field] = {**value, "x": 1} if isinstance(value, dict) else [value] if value else "x"
    with pytest.raises(GrantRefused, match="altered"):
        SealedPlan.from_json(json.dumps(document))


def test_another_plan_and_no_plan_are_refused(plan):
    with pytest.raises(GrantRefused, match="altered"):
        SealedPlan.from_json(plan.to_json(), expected_digest="0" * 64)
    for text in ("", "[]", "{}", '{"plan": {"method": "mst"}}'):
        with pytest.raises(GrantRefused, match="cannot be read"):
            SealedPlan.from_json(text)


def test_noise_that_the_event_does_not_account_for_is_refused(plan, bounded, tmp_path):
    cheaper = dataclasses.replace(plan, parameters=plan.parameters | {"sigma_one": 0.5})
    with pytest.raises(GrantRefused, match="not that of its noise scales"):
        MST.fit(cheaper, bounded, grant_for(cheaper), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_grant_for_another_plan_is_refused(plan, bounded, tmp_path):
    other = dataclasses.replace(plan, period="2026-01")
    with pytest.raises(GrantRefused, match="another plan"):
        MST.fit(plan, bounded, grant_for(other), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_too_many_cells_are_refused_before_anything_runs():
    wide = {"type": "categorical", "values": [str(number) for number in range(10_000)]}
    names = ("age", "score", "day", "city", "member")
    contract = contract_with(**{f"columns__{name}": wide for name in names})
    schema = pa.schema([pa.field(field.name, pa.string()) for field in SCHEMA])
    with pytest.raises(ContractError, match="declare fewer bins"):
        MST.plan(contract, schema, Guarantee.target(contract))


def test_an_unknown_method_is_refused():
    with pytest.raises(ContractError, match="accepted: aim, jam, mst"):
        generator("magic")


def test_the_description_is_public_and_counts_right(plan):
    described = plan.describe()
    sizes = Domain.from_json(plan.columns).sizes
    assert described["one_way_cells"] == sum(sizes)
    assert described["pair_cells"] == sum(a * b for a, b in itertools.combinations(sizes, 2))
    assert described["expected_error_per_one_way_cell"] == pytest.approx(
        0.79788 * plan.parameters["sigma_one"], rel=1e-4
    )
    assert json.dumps(described)


# The mechanism.


def test_the_plans_noise_scales_reach_the_sampler(plan, bounded, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        drawing, "sample_rounded_gaussian", lambda counts, sigma: asked.append(("noise", sigma)) or counts
    )
    monkeypatch.setattr(
        drawing, "select_by_exponential_mechanism", lambda scores, epsilon, s: asked.append(("choice", epsilon, s)) or 0
    )
    MST.measure(plan, bounded, tmp_path)
    chosen = plan.parameters
    assert asked == [
        *[("noise", chosen["sigma_one"])] * 5,
        *[("choice", chosen["epsilon_select"], 2 * SCORE_SCALE)] * 4,
        *[("noise", chosen["sigma_two"])] * 4,
    ]


def test_measured_noise_has_the_plans_deviation(plan, tmp_path):
    table = people(400)
    bounded = write_bounded(table, tmp_path / "table")
    domain = Domain.from_json(plan.columns)
    exact = np.concatenate(Records(bounded, domain).one_way())
    residuals = []
    for repeat in range(12):
        directory = tmp_path / str(repeat)
        directory.mkdir()
        MST.measure(plan, bounded, directory)
        stored = read_measurements(directory, plan.digest)
        residuals.append(np.concatenate([noisy.counts for noisy in stored.one_way]) - exact)
    residuals = np.concatenate(residuals) / plan.parameters["sigma_one"]
    # A chi-square law with that many degrees of freedom; 6.5 deviations and its skew leave less than 1e-7.
    assert abs((residuals**2).mean() - 1) < 6.5 * np.sqrt(2 / residuals.size)


def test_every_result_is_durable_before_it_is_used(plan, bounded, tmp_path, monkeypatch):
    """When the next draw happens, the file already holds the one before."""
    lines = lambda: (tmp_path / "measurements.jsonl").read_bytes().count(b"\n")  # noqa: E731
    seen = []
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: seen.append(lines()) or counts)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, e, s: seen.append(lines()) or 0)
    MST.measure(plan, bounded, tmp_path)
    assert seen == list(range(1, 14))
    assert lines() == 15


@pytest.mark.parametrize("survivors", range(15))
def test_a_crash_before_the_end_leaves_nothing_to_use(plan, bounded, tmp_path, monkeypatch, no_noise, survivors):
    append = MeasurementLog._append
    written = []

    def crashing(self, document):
        if len(written) == survivors:
            raise OSError("disk full")
        append(self, document)
        written.append(document)

    monkeypatch.setattr(MeasurementLog, "_append", crashing)
    with pytest.raises(OSError, match="disk full"):
        MST.measure(plan, bounded, tmp_path)
    monkeypatch.undo()
    assert not is_complete(tmp_path)
    with pytest.raises(MechanismFailed, match="stays spent"):
        MST.estimate(plan, tmp_path)
    with pytest.raises(MechanismFailed, match="not measured twice"):
        MST.measure(plan, bounded, tmp_path)


def test_complete_measurements_are_enough_without_the_data(plan, bounded, tmp_path):
    MST.measure(plan, bounded, tmp_path)
    assert is_complete(tmp_path)
    MST.estimate(plan, tmp_path)  # no path to the data anywhere
    assert MST.sample(tmp_path, 20).num_rows == 20
    with pytest.raises(MechanismFailed, match="another plan"):
        MST.estimate(dataclasses.replace(plan, period="2026-01"), tmp_path)


def test_a_torn_or_damaged_file_is_not_used(plan, bounded, tmp_path):
    MST.measure(plan, bounded, tmp_path)
    file = tmp_path / "measurements.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(MechanismFailed, match="stays spent"):
        read_measurements(tmp_path, plan.digest)
    file.write_bytes(b"{" + whole)
    with pytest.raises(MechanismFailed, match="damaged"):
        read_measurements(tmp_path, plan.digest)
    file.unlink()
    with pytest.raises(MechanismFailed, match="no stored measurements"):
        read_measurements(tmp_path, plan.digest)


def test_progress_says_stages_and_steps_only(plan, bounded, tmp_path):
    seen = []
    MST.fit(plan, bounded, grant_for(plan), tmp_path, progress=lambda *step: seen.append(step))
    assert {stage for stage, _, _ in seen} == {
        "counting columns",
        "measuring columns",
        "counting pairs",
        "choosing pairs",
        "measuring pairs",
        "estimating",
    }
    steps = {5, 4, 1, ITERATIONS}
    assert {total for _, _, total in seen} <= steps


# Sensitivity.

STATES = tuple(ColumnStates(np.arange(size, dtype=np.int32), np.ones(size)) for size in (3, 2, 4))
RECORDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), max_size=12)


def exact_pairs(records):
    codes = np.array(records, dtype=np.int64).reshape(-1, 3)
    pairs = {}
    for a, b in itertools.combinations(range(3), 2):
        flat = codes[:, a] * STATES[b].size + codes[:, b]
        counts = np.bincount(flat, minlength=STATES[a].size * STATES[b].size)
        pairs[(a, b)] = counts.reshape(STATES[a].size, STATES[b].size)
    return pairs


@settings(deadline=None)
@given(
    RECORDS,
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_one_user_moves_counts_and_scores_by_no_more_than_the_sensitivity(others, mine, instead, seed):
    rng = np.random.default_rng(seed)
    one_way = [
        NoisyCounts((index,), rng.integers(-5, 20, size=column.size), 3.0) for index, column in enumerate(STATES)
    ]
    b = 3
    for adjacency, left, right in (
        ("add-or-remove", others, others + mine),
        ("zero-out", others + mine, others),
        ("replace-one", others + mine, others + instead),
    ):
        bound = count_sensitivity(adjacency, b)
        before, after = exact_pairs(left), exact_pairs(right)
        moved = mst.pair_scores(before, one_way, STATES, 1), mst.pair_scores(after, one_way, STATES, 1)
        for edge in before:
            change = (after[edge] - before[edge]).astype(float)
            assert np.abs(change).sum() <= bound.l1
            assert (change**2).sum() <= bound.l2_squared
            assert abs(moved[0][edge] - moved[1][edge]) <= bound.l1 * SCORE_SCALE


def test_the_bound_on_scores_is_reached():
    """Records where none were expected: each moves its pair's score by a whole record, so b is no overestimate."""
    one_way = [NoisyCounts((index,), np.zeros(column.size, dtype=np.int64), 1.0) for index, column in enumerate(STATES)]
    one_way = [
        dataclasses.replace(noisy, counts=noisy.counts + (np.arange(noisy.counts.size) == 0)) for noisy in one_way
    ]
    record = (2, 1, 3)
    before, after = (mst.pair_scores(exact_pairs([record] * times), one_way, STATES, 1) for times in (0, 3))
    assert after[(0, 1)] - before[(0, 1)] == 3 * SCORE_SCALE


# From data to sample.


def test_without_noise_the_sample_follows_the_data(plan, bounded, tmp_path, no_noise):
    MST.fit(plan, bounded, grant_for(plan), tmp_path)
    stored = read_measurements(tmp_path, plan.digest)
    names = Domain.from_json(plan.columns).names
    tree = {tuple(sorted((names[a], names[b]))) for a, b in stored.chosen}
    assert ("age", "city") in tree
    assert ("city", "member") in tree
    sample = MST.sample(tmp_path, 3000)
    sample.validate(full=True)
    assert sample["age"].null_count == sample["member"].null_count == 0
    assert 100 < sample["city"].null_count < 200
    real = people(3000)
    for column in ("age", "city"):
        for value in real[column].unique().drop_null().to_pylist():
            shares = [table[column].to_pylist().count(value) / 3000 for table in (real, sample)]
            assert shares[0] == pytest.approx(shares[1], abs=0.01)
    pairs = [list(zip(*(table[name].to_pylist() for name in ("age", "city")), strict=True)) for table in (real, sample)]
    distance = sum(abs(pairs[0].count(pair) - pairs[1].count(pair)) for pair in set(pairs[0] + pairs[1])) / 6000
    assert distance < 0.05
