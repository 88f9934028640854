import numpy as np
import pytest
from scipy import stats
from synth_cases import grant_for, people

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.compression import compress
from dpsynth_platform.synth.tabular.conditioning import releasable
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.model import clique_scores, load_model, log_likelihood
from dpsynth_platform.synth.tabular.sampling import Sampler, draw_cells, draw_states, systematic


@pytest.fixture(scope="module")
def directory(plan, bounded, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    generator("mst").fit(plan, bounded, grant_for(plan), path)
    return path


@pytest.fixture(scope="module")
def model(directory):
    return load_model(directory)


def joint_over_states(model, *, releasable):
    beliefs = model.beliefs(releasable=releasable)
    sizes = [column.size for column in model.states]
    grids = np.indices(sizes)
    every = [*grids, *(levels[-1][grid] for levels, grid in zip(model.groups, grids, strict=True))]
    joint = np.ones(sizes)
    for axes, conditional in zip(beliefs.tree.axes, beliefs.conditionals, strict=True):
        shape = [model.attributes.sizes[index] for index in axes]
        joint *= conditional.numpy().reshape(shape)[tuple(every[index] for index in axes)]
    return joint


def test_likelihoods_are_those_of_the_joint(model):
    table = people(200, seed=5)
    codes = model.domain.encode(table)
    states = [column.state_of[codes[:, index]] for index, column in enumerate(model.states)]
    shares = np.prod([column.share[codes[:, index]] for index, column in enumerate(model.states)], axis=0)
    joint = joint_over_states(model, releasable=False)
    assert joint.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.exp(log_likelihood(model, table)), joint[tuple(states)] * shares, rtol=1e-9)


def test_impossible_records_keep_a_finite_likelihood(model):
    assert np.isfinite(log_likelihood(model, people(300, seed=9))).all()


def test_clique_scores_are_the_noisy_counts_of_each_records_cells(model):
    table = people(50, seed=6)
    scores = clique_scores(model, table)
    assert len(scores.cliques) == 9
    assert scores.counts.shape == scores.expected.shape == (50, 9)
    assert scores.cliques[0] == ("age",)
    first = model.measurements.one_way[0]
    np.testing.assert_array_equal(scores.counts[:, 0], first.counts[table["age"].to_numpy()])
    pair = model.measurements.joint[0]
    assert scores.cliques[5] == tuple(model.domain.names[index] for index in pair.clique)
    codes = model.domain.encode(table)
    a, b = (model.states[index].state_of[codes[:, index]] for index in pair.clique)
    np.testing.assert_array_equal(scores.counts[:, 5], pair.counts[a, b])
    assert scores.sigmas.tolist() == [model.plan.parameters["sigma_one"]] * 5 + [model.plan.parameters["sigma_two"]] * 4


def test_an_altered_or_missing_model_is_refused(directory, tmp_path):
    for name in ("model.json", "model.npz", "measurements.jsonl"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    load_model(tmp_path)
    with (tmp_path / "model.npz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(MechanismFailed, match="altered"):
        load_model(tmp_path)
    (tmp_path / "model.json").unlink()
    with pytest.raises(MechanismFailed, match="no complete model"):
        load_model(tmp_path)


def test_model_files_are_for_the_owner_alone(directory):
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == {
        "measurements.jsonl": 0o600,
        "model.npz": 0o600,
        "model.json": 0o600,
    }


def test_rare_values_share_a_state_and_their_shares():
    domain = Domain((ColumnDomain("x", "categorical", True, values=("a", "b", "c", "d")),))
    (states,) = compress(domain, [NoisyCounts((0,), np.array([500, 20, 300, 10, -3]), 10.0)])
    assert states.state_of.tolist() == [0, 2, 1, 2, 2]
    np.testing.assert_allclose(states.share, [1, 18.5 / 27, 1, 8.5 / 27, 0])
    (whole,) = compress(domain, [NoisyCounts((0,), np.array([500, 40, 300, 90, -3]), 10.0)])
    assert whole.state_of.tolist() == [0, 1, 2, 3, 4]
    (lost,) = compress(domain, [NoisyCounts((0,), np.array([-5, -20, 300, 10, -3]), 10.0)])
    np.testing.assert_allclose(lost.share, [0.25, 0.25, 1, 0.25, 0.25])


def test_systematic_draws_are_rounded_expectations_in_every_group():
    rng = np.random.default_rng()
    probabilities = np.array([[0.0, 0.31, 0.0, 0.6899, 0.0001, 0.0], [0.0] * 6, [3.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
    for rows in (1, 7, 1000):
        given = rng.permutation(np.repeat([0, 2], [rows, 2 * rows]))
        drawn = systematic(probabilities, given, rng)
        for group, size in ((0, rows), (2, 2 * rows)):
            counts = np.bincount(drawn[given == group], minlength=6)
            assert (np.abs(counts - size * probabilities[group] / probabilities[group].sum()) < 1).all()
            assert counts.sum() == size
    assert systematic(probabilities, np.zeros(0, dtype=np.int64), rng).size == 0


def test_systematic_draws_know_nothing_of_the_rows_order():
    """Within a group, who gets what is random: neighbours in the table are no likelier to share an outcome."""
    drawn = systematic(np.full((1, 2), 0.5), np.zeros(4000, dtype=np.int64), np.random.default_rng())
    # 3999 fair coins (nearly): six deviations, 2e-9.
    assert abs((drawn[1:] == drawn[:-1]).mean() - 0.5) < 6 * 0.5 / np.sqrt(3999)


def codes_of(sampler, rows):
    rng = np.random.default_rng()
    return sampler.cells(draw_states(sampler.beliefs, rows, rng), rng)


def test_samples_follow_the_joint(model):
    """One row at a time the draws are independent, so a chi-square test holds (p above 1e-8)."""
    sampler = Sampler.of(model)
    repeats = 1500
    drawn = np.concatenate([codes_of(sampler, 1) for _ in range(repeats)])
    states = np.stack([column.state_of[drawn[:, index]] for index, column in enumerate(model.states)])
    kept = (0, 3, 4)  # age, city, member: few enough cells to fill all of them
    joint = joint_over_states(model, releasable=True).sum(axis=(1, 2)).ravel()
    sizes = [model.attributes.sizes[index] for index in kept]
    observed = np.bincount(np.ravel_multi_index(states[list(kept)], sizes), minlength=joint.size)
    assert (observed[joint == 0] == 0).all()
    order = np.argsort(-joint)
    # Cells with fewer than ten expected draws are put together, with the last others if they are fewer than ten still.
    frequent = order[joint[order] * repeats >= 10]
    while (1 - joint[frequent].sum()) * repeats < 10:
        frequent = frequent[:-1]
    expected = np.append(joint[frequent], 1 - joint[frequent].sum()) * repeats
    found = np.append(observed[frequent], repeats - observed[frequent].sum())
    assert frequent.size > 5
    assert stats.chisquare(found, expected).pvalue > 1e-8


def test_cells_that_may_not_be_released_do_not_occur(model):
    codes = codes_of(Sampler.of(model), 4000)
    for index, column in enumerate(model.domain):
        assert column.allowed[codes[:, index]].all()


def test_a_state_whose_share_is_all_on_a_ruled_out_cell_still_yields_rows(model):
    column = ColumnDomain("x", "boolean", False)
    merged = ColumnStates(np.array([0, 1, 1], dtype=np.int32), np.array([1.0, 0.0, 1.0]))
    assert (draw_cells(releasable(column, merged), np.ones(5, dtype=np.int32), np.random.default_rng()) == 1).all()
