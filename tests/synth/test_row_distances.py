"""The loss of language models that knows the order of numbers: its values, its gradients, and a whole fit."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from network_cases import job
from synth_cases import SCHEMA, contract_with, people, write_bounded
from text_cases import tiny_gpt2, tiny_llama, tiny_tokenizer

from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural import row_training
from dpsynth_platform.synth.neural.language_plan import LanguageParameters
from dpsynth_platform.synth.neural.row_distances import NumberDistances
from dpsynth_platform.synth.neural.row_tokens import RowTokens
from dpsynth_platform.synth.neural.row_training import LanguageBatches, RowSums, refuse_unsound_rows
from dpsynth_platform.synth.neural.row_words import ranks_of
from dpsynth_platform.synth.neural.small_model import write_small_model
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.training.adapter import with_adapter
from dpsynth_platform.training.plan import Adapter, TrainingPlan
from dpsynth_platform.training.unit_probe import faults_of_unit_sums, unit_sums

CPU = torch.device("cpu")
NUMBERS = ["3", "40", "5", "missing", "41", "7"]
RANKS = [[0, 3, 1, None, 4, 2], [None, None]]
PLAN = TrainingPlan(40, 8, 1, 1.0, clipping="automatic")


def rows_of(order=(0, 1)):
    return RowTokens.of(tiny_tokenizer(), ["size", "b"], [NUMBERS, ["1", "2"]], order)


def batches(number_distance, fixed_order=0.5):
    parameters = SimpleNamespace(
        fixed_order=fixed_order, value_weight=0.65, number_distance=number_distance, evidence=()
    )
    return LanguageBatches(rows_of(), parameters, CPU, RANKS)


def certain_of(state, other, vocabulary):
    """Scores of a model that is certain of a state's tokens where the other state is read, one of each column."""
    rows = rows_of()
    read, thought = (rows.rows(torch.tensor([[one, 0]]), torch.tensor([[0, 1]]), 0.5) for one in (other, state))
    scores = torch.zeros(1, read["input_ids"].shape[1], vocabulary)
    for place in range(min(scores.shape[1], thought["input_ids"].shape[1]) - 1):
        scores[0, place, thought["input_ids"][0, place + 1]] = 100
    return scores


def test_a_near_number_costs_less_than_a_far_one():
    """For a model that is certain, the distance in ranges to what its first other token leads to, by two columns."""
    distances = NumberDistances.of(rows_of(), RANKS, CPU)
    order = torch.tensor([[0, 1]])

    def loss(thought, true):
        read = rows_of().rows(torch.tensor([[true, 0]]), order, 0.5, distances.edges)
        return distances.losses(certain_of(thought, true, len(tiny_tokenizer())), read["edges"]).item() * 2

    found = [loss(NUMBERS.index(thought), NUMBERS.index("3")) for thought in ("3", "5", "7")]
    assert found == pytest.approx([0, 1, 2], abs=1e-4)
    assert loss(NUMBERS.index("40"), NUMBERS.index("41")) == pytest.approx(1, abs=1e-4), "4 leads to both"
    assert loss(NUMBERS.index("40"), NUMBERS.index("3")) == pytest.approx(3.5, abs=1e-4), "the middle of both"
    assert loss(NUMBERS.index("3"), NUMBERS.index("missing")) == 0


def test_the_score_is_that_of_an_explicit_loop_and_the_truth_has_the_least():
    """Of the first digit of a number: E|X - y| - E|X - X'| / 2, which the ranked probability score equals."""
    distances = NumberDistances.of(rows_of(), RANKS, CPU)
    ranks = {"3": 0.0, "5": 1.0, "7": 2.0, "4": 3.5}
    tokens = {word: tiny_tokenizer()(f" {word}")["input_ids"][-1] for word in ranks}
    assert len(set(tokens.values())) == 4
    generator = torch.Generator().manual_seed(3)
    where = rows_of().rows(torch.tensor([[2, 0]]), torch.tensor([[0, 1]]), 0.5, distances.edges)
    (place, *_) = (where["edges"][0] >= 0).nonzero()[:, 0].tolist()

    def scored(log, word):
        """Of the first choice alone."""
        state = {"3": 0, "5": 2, "7": 5, "4": 1}[word]
        edges = rows_of().rows(torch.tensor([[state, 0]]), torch.tensor([[0, 1]]), 0.5, distances.edges)["edges"]
        edges = edges.where(torch.arange(edges.shape[1]) == place, -1)
        scores = torch.randn(1, edges.shape[1], len(tiny_tokenizer()), generator=generator)
        for other, value in zip(ranks, log, strict=True):
            scores[0, place - 1, tokens[other]] = value
        return distances.losses(scores, edges).item() * 2

    def expected(chances, word):
        near = sum(p * abs(ranks[x] - ranks[word]) for x, p in zip(ranks, chances, strict=True))
        pairs = itertools.product(zip(ranks, chances, strict=True), repeat=2)
        return near - sum(p * q * abs(ranks[x] - ranks[y]) for (x, p), (y, q) in pairs) / 2

    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(4))
    least = sum(p * scored(np.log(truth), word) for word, p in zip(ranks, truth, strict=True))
    for _ in range(20):
        other = rng.dirichlet(np.ones(4))
        found = [scored(np.log(other), word) for word in ranks]
        assert found == pytest.approx([expected(other, word) for word in ranks], abs=1e-5)
        assert np.dot(found, truth) > least


@pytest.mark.parametrize("model", ["llama", "gpt2", "adapter"])
def test_its_clipped_sums_are_those_of_each_row_alone(model):
    """Against automatic differentiation row by row; what leaves the distances out, or mixes rows, is found."""
    made = batches(0.5)
    network = {"llama": tiny_llama, "gpt2": tiny_gpt2, "adapter": tiny_llama}[model]()
    plan = PLAN
    if model == "adapter":
        plan = TrainingPlan(40, 8, 1, 1.0, clipping="automatic", adapter=Adapter(4, 8))
        network = with_adapter(network, plan)
    refuse_unsound_rows(network, plan, made, len(tiny_tokenizer()), rows_of().longest)

    class Without(RowSums):
        def _backward(self, batch, weights):
            super()._backward({name: part for name, part in batch.items() if name != "edges"}, weights)

    def by_others(network, rows):
        return made.losses(network, rows) * (1 + rows["token_weights"].std())

    def tried(losses=made.losses, sums=RowSums):
        return faults_of_unit_sums(network, unit_sums(losses, sums), made.losses, made.made_up, plan)

    assert tried() == []
    assert tried(sums=Without)
    assert tried(losses=by_others)


def test_without_it_nothing_changes():
    made, states = batches(0.0), torch.tensor([[0, 1], [3, 0]])
    rows, model = made.arranged(states, torch.tensor([[0, 1], [1, 0]])), tiny_llama()
    assert "edges" not in rows
    assert torch.equal(made.losses(model, rows), row_training.losses(model, rows))
    more = batches(1e-3).losses(model, batches(1e-3).arranged(states, torch.tensor([[0, 1], [1, 0]])))
    difference = more - made.losses(model, rows)
    assert difference[0] > 0 and difference[1] == 0, "a missing value has no distance from numbers"
    plain, zero, some = (
        contract_with(generate__method="great", generate__language=keys).mechanism_snapshot()
        for keys in ({}, {"number_distance": 0}, {"number_distance": 1})
    )
    assert plain == zero != some
    assert type(some["language"]["number_distance"]) is float


def test_ranks_are_those_of_ranges_in_their_order_whatever_noise_joined():
    domain = planned_domain(contract_with(), None)
    by_name = {column.name: column for column in domain}
    age, city = by_name["age"], by_name["city"]
    joined = np.array([*np.arange(age.size - 1) // 2, 1], dtype=np.int32)  # missing values are in state 1
    assert ranks_of(age, ColumnStates(joined, np.ones(age.size))) == [*range(joined.max() + 1)]
    apart = np.arange(age.size, dtype=np.int32)
    assert ranks_of(age, ColumnStates(apart, np.ones(age.size))) == [*range(age.size - 1), None]
    assert set(ranks_of(city, ColumnStates(np.arange(city.size, dtype=np.int32), np.ones(city.size)))) == {None}


def test_a_whole_fit_draws_rows(tmp_path):
    """With the gate, at the plan's largest size and at the counted one; weights differ from those without it."""
    write_small_model(tmp_path / "base", contract_with().columns, width=8, layers=1)
    language = {"steps": 4, "replay_steps": 0, "batch_size": 40, "number_distance": 2, "fixed_order": 0.5}
    contract = contract_with(
        generate__method="great", generate__base_model=str(tmp_path / "base"), generate__language=language
    )
    plan = generator("great").plan(contract, SCHEMA, Guarantee.target(contract))
    assert LanguageParameters.of(plan.parameters).number_distance == 2.0
    earlier = {name: value for name, value in plan.parameters.items() if name != "number_distance"}
    assert LanguageParameters.of(earlier).number_distance == 0.0, "plans of before have no such loss"
    run = job(plan, write_bounded(people(2000), tmp_path / "table"), tmp_path / "model")
    generator("great").run(run)
    assert generator("great").sample(run.directory, 30).num_rows == 30
