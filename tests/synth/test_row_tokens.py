"""Rows as words and tokens, the tree of a column's values, and reading rows in parts."""

import datetime as dt
import itertools
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_cases import tokens
from synth_cases import contract_with
from test_table_networks import fix
from text_cases import tiny_gpt2, tiny_llama, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
from dpsynth_platform.synth.neural.row_reading import LanguageRows, refuse_unreadable
from dpsynth_platform.synth.neural.row_tokens import MOST_VALUE_TOKENS, Choices, RowTokens, most_tokens
from dpsynth_platform.synth.neural.row_words import _roundest, order_of, possible_words, words_of
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.column_states import ColumnStates


@pytest.fixture
def the_same_each_time(monkeypatch):
    fix(monkeypatch)


# Words.


@given(st.decimals(-1000, 1000, places=4), st.decimals(Decimal("0.0001"), 1000, places=4))
def test_a_range_is_written_as_a_number_in_it_with_the_fewest_digits(low, width):
    high = low + width
    found = Decimal(_roundest(low, high))
    assert low <= found < high
    digits = len(found.normalize().as_tuple().digits)
    if digits > 1:
        step = Decimal(1).scaleb(max(abs(low), abs(high)).adjusted() - digits + 2)
        assert not any(low <= step * number < high for number in range(int(low / step) - 1, int(high / step) + 2))


def test_every_state_has_words_of_its_own():
    contract = contract_with(
        columns__city={"type": "categorical", "values": ["other", "a,  b", "a; b", "Cork"], "nullable": True},
        columns__at={"type": "time", "min": "08:00:00", "max": "18:00:00", "bins": 2},
    )
    domain = planned_domain(contract, None)
    found = {
        column.name: words_of(column, ColumnStates(np.arange(column.size), np.ones(column.size))) for column in domain
    }
    assert found["city"] == ["other", "a; b", "a; b (2)", "Cork", "missing"]
    assert found["age"] == [*map(str, range(10)), "missing"]
    assert found["member"] == ["false", "true", "missing"]
    assert [Decimal(word) for word in found["score"][:-1]] == [Decimal(n) for n in ("-1", "-0.2", "0.2", "0.8")]
    assert all(
        dt.date(2026, 1, 1) <= dt.date.fromisoformat(word) <= dt.date(2026, 12, 31) for word in found["day"][:-1]
    )
    assert dt.time.fromisoformat(found["at"][0]) < dt.time.fromisoformat(found["at"][1])
    merged = ColumnStates(np.array([0, 1, 2, 2, 2]), np.ones(5))
    assert words_of(domain.columns[domain.names.index("city")], merged) == ["other", "a; b", "other (2)"]
    assert domain.names[order_of(domain, "member")[0]] == "member"


# Tokens.


def test_no_value_is_the_beginning_of_another_and_rows_differ():
    made = tokens()
    text = tiny_tokenizer().decode
    rows = made.rows(torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1], [1, 0]]), 0.65)
    assert text(rows["input_ids"][0][rows["labels"][0] >= 0]) == " size is 1, a, b is yes no,"
    assert text(rows["input_ids"][1][rows["labels"][1] >= 0]) == " a, b is no, size is 170,"
    values = [text(ids[weights > 0.2]) for ids, weights in zip(rows["input_ids"], rows["token_weights"], strict=True)]
    assert values == [" 1 yes no", " no 170"]
    assert {round(float(w), 4) for w in rows["token_weights"].unique()} == {0.0, 0.175, 0.325}
    for column in made.columns:
        for one, other in itertools.permutations(column.values, 2):
            assert one != other[: len(one)]


def test_long_values_are_cut_off_and_stay_apart():
    long = "abcdefgh" * 40
    made = RowTokens.of(tiny_tokenizer(), ["x"], [[long + "1", long + "2", ", ,"]], [0])
    lengths = [len(value) for value in made.columns[0].values]
    assert len(set(made.columns[0].values)) == 3 and max(lengths) <= most_tokens(tiny_tokenizer(), [""], [None], 3)


def test_no_row_is_longer_than_the_plan_says_whatever_is_counted(the_same_each_time):
    """Rare values become `other`, which is longer than they are, cells are joined, learned values are cut off."""
    contract = contract_with(
        columns__city={"type": "categorical", "values": ["a", "b", "c"], "nullable": True},
        columns__age={"type": "integer", "min": 0, "max": 1_000_000, "bins": 9},
        columns__score={"type": "float", "min": -1, "max": 1, "bins": [-0.99951, 0.3333, 0.5, 1]},
        columns__town={"type": "categorical", "values": "learned", "most": 120},
    )
    domain = planned_domain(contract, None)
    most = most_tokens(tiny_tokenizer(), domain.names, [*map(possible_words, domain)], max(domain.most_states))
    known = domain.with_values({domain.names.index("town"): ["abcdefgh" * 9 + str(number) for number in range(120)]})
    rng = np.random.default_rng(0)
    for joined in (0.0, *rng.uniform(0, 1, 40)):
        words = []
        for column in known:
            cells = rng.uniform(size=column.missing) < joined
            if column.ordered:
                state_of = np.append(np.cumsum(~np.append(False, cells[1:])) - 1, 0)
                state_of[-1] = state_of[-2] + 1
            else:
                state_of = np.append(np.cumsum(~cells) - 1, (~cells).sum())
                state_of[:-1][cells] = (~cells).sum()
            words.append(words_of(column, ColumnStates(state_of.astype(np.int32), np.ones(column.size))))
        assert RowTokens.of(tiny_tokenizer(), known.names, words, range(len(known))).longest <= most


def test_what_a_tokenizer_cannot_write_is_refused_before_a_spend_and_never_afterwards():
    """A tokenizer of words: values that are learned later may be unknown to it, and get numbers."""
    vocabulary = {
        word: number for number, word in enumerate(["?", "<s>", "a", ",", "is", "x", "(", ")", *"0123456789"])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    writes = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="?")
    made = RowTokens.of(writes, ["x"], [["a", "new", "newer"]], [0])
    assert len(set(made.columns[0].values)) == 3
    with pytest.raises(ConfigurationError, match="cannot write"):
        made.refuse_unknown(0)
    RowTokens.of(writes, ["x"], [["a", "a a"]], [0]).refuse_unknown(0)
    assert most_tokens(writes, ["x"], [None], 4) == 1 + 2 + MOST_VALUE_TOKENS + 3 + 1
    backend = Tokenizer(models.WordLevel({word: vocabulary[word] for word in ("?", "<s>", "a")}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    loses = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="?")
    for write in (
        lambda: RowTokens.of(loses, ["x"], [["a", "b", "c", "d", "e"]], [0]),
        lambda: most_tokens(loses, ["x"], [None], 4),
    ):
        with pytest.raises(ConfigurationError, match="cannot write"):
            write()


def test_special_tokens_in_values_are_plain_text():
    made = RowTokens.of(tiny_tokenizer(), ["<s>"], [["<|endoftext|>", "b"]], [0])
    special = {tiny_tokenizer().bos_token_id, tiny_tokenizer().eos_token_id}
    assert not special.intersection([*made.columns[0].name, *(t for value in made.columns[0].values for t in value)])


@given(st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=2, max_size=12, unique_by=tuple))
def test_the_tree_gives_each_value_the_product_of_its_choices(bodies):
    """Against an explicit walk through each value; 0 is the comma. All together have probability one."""
    values = [(*body, 0) for body in bodies]
    choices = Choices.of(values)
    scores = torch.randn(1, 1 + len(choices.tokens), 4, generator=torch.Generator().manual_seed(1))
    found = choices.log_probabilities(scores)[0]
    assert float(found.exp().sum()) == pytest.approx(1)
    places = {(): 0}
    for place, (token, parent) in enumerate(zip(choices.tokens, choices.parents, strict=True), 1):
        places[(*next(path for path, at in places.items() if at == parent), token)] = place
    for value, log in zip(values, found, strict=True):
        expected, rest = 0.0, value[len(choices.common) :]
        for depth, token in enumerate(rest):
            following = sorted(
                {v[len(choices.common) + depth] for v in values if v[len(choices.common) :][:depth] == rest[:depth]}
            )
            if len(following) > 1:
                logs = scores[0, places[rest[:depth]], following].double().log_softmax(0)
                expected += float(logs[following.index(token)])
        assert float(log) == pytest.approx(expected, abs=1e-9)


# Reading.


@pytest.mark.parametrize("model", [tiny_llama, tiny_gpt2])
def test_read_in_parts_a_row_is_as_likely_as_read_at_once(model):
    rows = LanguageRows(model(), tokens())
    refuse_unreadable(rows)
    rows = LanguageRows(model(), tokens((1, 0)))
    refuse_unreadable(rows)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_all_rows_together_have_probability_one(order):
    joint = ColumnwiseJoint(LanguageRows(tiny_llama(), tokens(order)), [np.full(4, 0.25), np.full(3, 1 / 3)], order)
    every = np.array(list(itertools.product(range(4), range(3))), dtype=np.int32)
    assert np.exp(joint.log_likelihood(every)).sum() == pytest.approx(1, abs=1e-5)


def test_a_model_that_sees_positions_wrongly_is_refused(monkeypatch):
    model = tiny_llama()
    forward = model.forward

    def shifted(*given, position_ids=None, past_key_values=None, **others):
        moved = position_ids if past_key_values is None else torch.zeros_like(position_ids)
        return forward(*given, position_ids=moved, past_key_values=past_key_values, **others)

    monkeypatch.setattr(model, "forward", shifted)
    with pytest.raises(ConfigurationError, match="when a row is read in parts than at once"):
        refuse_unreadable(LanguageRows(model, tokens()))
