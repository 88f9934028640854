"""Votes of private records: what one owner moves, by brute force over neighbouring datasets, and what can be read."""

import copy
import itertools
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError, StaleInput
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.accounting import cost, epsilon, pld_epsilon
from dpsynth_platform.privacy.events import (
    GaussianCountsEvent,
    GaussianVotesEvent,
    event_from_json,
    event_to_json,
    matches_claim,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.privacy.units import RECORD_PARTS, vote_sensitivity
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.evolution.votes import NOBODY, noisy_votes, scaled
from dpsynth_platform.synth.text.evolution_votes import Voters, read_voters
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import PrivateText

UNIT = np.eye(4, dtype=np.float32)
LAYOUT = TextLayout(fields=("letter",), conditions=(Condition("kind", ("mail", "note")),))


def voters(records, *, several_owners=False):
    """Voters of (owner, candidate that is nearest) pairs."""
    return Voters(
        np.array([UNIT[nearest] for _, nearest in records], dtype=np.float32).reshape(len(records), 4),
        np.zeros(len(records), dtype=np.int64),
        None if several_owners else np.array([owner for owner, _ in records], dtype=np.int64),
    )


def histogram(records, **changes):
    return voters(records, **changes).votes(UNIT, [0] * 4).astype(object)


def squared(change):
    return sum(int(part) ** 2 for part in change)


OTHERS = [(1, 0), (1, 0), (1, 3), (2, 1), (3, 2), (3, 2)]
OWN = [tuple((9, nearest) for nearest in chosen) for b in range(4) for chosen in itertools.product(range(4), repeat=b)]
"""All records that owner 9 can have, up to three of them."""


def test_one_owner_moves_the_votes_by_one_vote_at_most_whatever_it_has():
    without = histogram(OTHERS)
    moved = {own: histogram([*own[:1], *OTHERS, *own[1:]]) - without for own in OWN}
    assert max(squared(change) for change in moved.values()) == RECORD_PARTS**2
    allowed = vote_sensitivity("add-or-remove", 3).l2_squared * RECORD_PARTS**2
    assert allowed == RECORD_PARTS**2 == vote_sensitivity("zero-out", 3).l2_squared * RECORD_PARTS**2
    replaced = max(squared(one - other) for one, other in itertools.combinations(moved.values(), 2))
    assert replaced == vote_sensitivity("replace-one", 3).l2_squared * RECORD_PARTS**2 == 2 * RECORD_PARTS**2


def test_a_hundred_documents_move_no_more_than_one_does():
    random = np.random.default_rng(3)
    for _ in range(200):
        own = [(9, int(nearest)) for nearest in random.integers(0, int(random.integers(1, 5)), 100)]
        change = histogram([*OTHERS, *own]) - histogram(OTHERS)
        assert 0 < squared(change) <= RECORD_PARTS**2
        assert squared(change) > 0.999 * RECORD_PARTS**2  # rounding down wastes next to nothing
    unscaled = histogram([*OTHERS, *own], several_owners=True) - histogram(OTHERS, several_owners=True)
    assert squared(unscaled) > 1000 * RECORD_PARTS**2


def test_records_of_several_owners_count_in_full():
    """Fixed graph: the contents of one owner's b records change, and the records stay."""
    b = 2
    all_contents = itertools.product(itertools.product(range(4), repeat=b), repeat=2)
    found = max(
        squared(
            histogram([*OTHERS, *((9, cell) for cell in one)], several_owners=True)
            - histogram([*OTHERS, *((9, cell) for cell in other)], several_owners=True)
        )
        for one, other in all_contents
    )
    assert found == vote_sensitivity("fixed-graph", b).l2_squared * RECORD_PARTS**2 == 2 * b * b * RECORD_PARTS**2


@pytest.mark.parametrize("counts", [{0: 1}, {0: 7}, {0: 1, 5: 1}, {0: 3, 1: 4}, dict.fromkeys(range(100), 1)])
def test_scaled_votes_are_whole_and_of_length_one_at_most(counts):
    found = scaled(counts)
    norm = math.sqrt(sum(count * count for count in counts.values()))
    for cell, count in counts.items():
        assert found[cell] == pytest.approx(RECORD_PARTS * count / norm, abs=1)
    assert sum(part * part for part in found.values()) <= RECORD_PARTS**2


def test_votes_go_to_the_nearest_of_the_own_group():
    records = voters([(1, 0), (2, 3)])
    one = Voters(records.features, np.array([1, NOBODY]), records.owners)
    near = np.array([[1, 0, 0, 0], [0.8, 0.6, 0, 0], [0.6, 0.8, 0, 0]], dtype=np.float32)
    assert one.votes(near, [0, 1, 1]).tolist() == [0, RECORD_PARTS, 0]
    assert one.votes(near, [0, 0, 0]).tolist() == [0, 0, 0]


def test_the_noise_is_that_of_the_event_in_votes():
    draws = np.concatenate([noisy_votes(voters(OTHERS), UNIT, [0] * 4, 2.5) for _ in range(2000)]) / RECORD_PARTS
    draws = draws - np.tile(voters(OTHERS).votes(UNIT, [0] * 4) / RECORD_PARTS, 2000)
    assert abs(draws.mean()) < 6 * 2.5 / math.sqrt(len(draws))  # 2e-9
    assert draws.std() == pytest.approx(2.5, rel=0.05)  # 6.3 deviations of 1 / sqrt(2 * 8000), 3e-10


# Votes that several candidates share


def shared(records, nearest, *, several_owners=False, candidates=UNIT, groups=(0, 0, 0, 0)):
    """The histogram where records share their votes; each record has an order of the candidates of its own."""
    features = np.array([[1.0, 0.5, 0.25, 0.125]] * len(records), dtype=np.float32).reshape(len(records), 4)
    turned = np.array([np.roll(row, nearest) for row, (_, nearest) in zip(features, records, strict=True)])
    found = Voters(
        turned.reshape(len(records), 4),
        np.zeros(len(records), dtype=np.int64),
        None if several_owners else np.array([owner for owner, _ in records], dtype=np.int64),
        nearest,
    )
    return found.votes(candidates, list(groups)).astype(object)


@pytest.mark.parametrize("nearest", [1, 2, 3, 4, 7])
def test_one_owner_moves_shared_votes_by_one_vote_at_most_whatever_it_has(nearest):
    without = shared(OTHERS, nearest)
    moved = {own: shared([*own[:1], *OTHERS, *own[1:]], nearest) - without for own in OWN}
    most = max(squared(change) for change in moved.values())
    assert 0.9999 * RECORD_PARTS**2 < most <= vote_sensitivity("add-or-remove", 3).l2_squared * RECORD_PARTS**2
    replaced = max(squared(one - other) for one, other in itertools.combinations(moved.values(), 2))
    assert replaced <= vote_sensitivity("replace-one", 3).l2_squared * RECORD_PARTS**2


@pytest.mark.parametrize("nearest", [1, 2, 3])
def test_shared_votes_of_several_owners_move_as_far_as_counts_of_their_records_at_most(nearest):
    """Fixed graph: the contents of one owner's b records change; farthest where no candidate is common."""
    contents = list(itertools.product(range(4), repeat=2))
    votes = {one: shared([*OTHERS, *((9, cell) for cell in one)], nearest, several_owners=True) for one in contents}
    found = max(squared(votes[one] - votes[other]) for one, other in itertools.product(contents, repeat=2))
    allowed = vote_sensitivity("fixed-graph", 2).l2_squared * RECORD_PARTS**2
    assert allowed == 2 * 2 * 2 * RECORD_PARTS**2
    assert found <= allowed
    assert found > 0.9999 * allowed * (1 if nearest <= 2 else 1 / 3)  # of four candidates, two sets of three share two


def test_shared_votes_are_equal_parts_of_the_nearest_of_the_own_group():
    part = math.isqrt(RECORD_PARTS**2 // 2)
    assert shared([(1, 1)], 2).tolist() == [0, part, part, 0]
    assert shared([(1, 1)], 2, groups=(0, 1, 0, 0)).tolist() == [0, 0, part, part]
    assert shared([(1, 1)], 2, groups=(1, 0, 1, 1)).tolist() == [0, RECORD_PARTS, 0, 0], "fewer than share it"
    assert shared([(1, 1)], 2, groups=(1, 1, 1, 1)).tolist() == [0, 0, 0, 0]
    equal = np.array([UNIT[0]] * 4)
    assert shared([(1, 0)], 2, candidates=equal).tolist() == [part, part, 0, 0], "of equal ones, the first"
    assert shared([], 2).tolist() == [0, 0, 0, 0]
    many = shared([(1, 0), (1, 0), (1, 1)], 2)  # counts 2, 3, 1 of one owner
    assert many.tolist() == [math.isqrt(RECORD_PARTS**2 * count**2 // 14) for count in (2, 3, 1)] + [0]


# The event


@pytest.mark.parametrize(("adjacency", "l2"), [("add-or-remove", 1), ("zero-out", 1), ("replace-one", math.sqrt(2))])
def test_votes_cost_what_a_gaussian_of_their_length_costs(adjacency, l2):
    rounds = dp_event.SelfComposedDpEvent(GaussianVotesEvent(6.0, adjacency, 50), 5)
    ratio = l2 * math.sqrt(5) / 6.0
    assert cost(rounds).curve.values == pytest.approx([order * ratio**2 / 2 for order in ORDERS], rel=1e-6)
    one = GaussianCountsEvent(6.0 / l2 / math.sqrt(5), "add-or-remove", 1)
    assert epsilon(rounds, 1e-6).epsilon == pytest.approx(epsilon(one, 1e-6).epsilon, rel=0.01)
    assert pld_epsilon(rounds, 1e-6) is not None


def test_votes_of_records_with_several_owners_cost_what_counts_of_records_cost():
    found = epsilon(GaussianVotesEvent(20.0, "fixed-graph", 3), 1e-6).epsilon
    assert found == epsilon(GaussianCountsEvent(20.0, "fixed-graph", 3), 1e-6).epsilon


def test_the_event_keeps_its_bound_and_reads_back():
    event = GaussianVotesEvent(6.0, "add-or-remove", 50)
    assert event_from_json(event_to_json(event)) == event
    assert matches_claim(event, Guarantee(1.0, 1e-6, "user", "add-or-remove", 50))
    assert not matches_claim(event, Guarantee(1.0, 1e-6, "user", "add-or-remove", 49))
    with pytest.raises(AccountingError, match="sigma: 0"):
        GaussianVotesEvent(0, "add-or-remove", 1)


# Reading


class Letters:
    """An encoder that knows how often a, b, c and d stand in a text."""

    def encode(self, texts):
        counts = np.array([[text.count(letter) for letter in "abcd"] for text in texts], dtype=np.float32)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)


def table(records):
    schema = pa.schema([("kind", pa.string()), ("letter", pa.string()), (OWNER_COLUMN, pa.string())])
    columns = list(zip(*records, strict=True))
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=schema)


RECORDS = [
    ("mail", "aab", "1"),
    ("note", "ddd", "1"),
    ("mail", "   ", "2"),
    ("fax", "abc", "2"),
    ("mail", None, "3"),
    ("mail", "c", "3"),
]


def read(place, records, **changes):
    rows = table(records)
    write_table(place, rows.schema, rows.to_batches())
    groups = {("mail",): 0, ("note",): 1}
    return read_voters(place, LAYOUT, changes.pop("groups", groups), Letters(), **({"by_owner": True} | changes))


def test_blank_texts_and_undeclared_values_vote_for_nothing(tmp_path):
    found = read(tmp_path / "all", RECORDS)
    assert found.groups.tolist() == [0, 1, 0]
    assert found.owners.tolist() == [0, 0, 1]
    assert found.features[1].tolist() == [0, 0, 0, 1]
    none = read(tmp_path / "none", RECORDS, groups={})
    assert none.votes(UNIT, [0] * 4).tolist() == [0, 0, 0, 0]
    assert read(tmp_path / "many", RECORDS, by_owner=False).owners is None


def test_a_text_that_many_records_have_is_looked_at_once_and_by_itself(tmp_path):
    class Asked(Letters):
        def __init__(self):
            self.asked = []

        def encode(self, texts):
            self.asked.append(list(texts))
            return super().encode(texts)

    encoder = Asked()
    rows = table([("mail", "aab", "1"), ("note", "d", "1"), ("note", " aab", "2"), ("mail", "d", "3")])
    write_table(tmp_path / "table", rows.schema, rows.to_batches())
    found = read_voters(tmp_path / "table", LAYOUT, {("mail",): 0, ("note",): 1}, encoder, by_owner=True)
    assert encoder.asked == [["aab"], ["d"]]
    assert found.features.tolist() == [Letters().encode([text])[0].tolist() for text in ("aab", "d", "aab", "d")]
    assert found.groups.tolist() == [0, 1, 1, 0]


def test_one_owner_more_moves_the_votes_of_a_table_by_one_vote(tmp_path):
    more = [*RECORDS, *[("mail", "d" * number, "7") for number in range(1, 41)], ("note", "a", "7")]
    groups = [0, 0, 1, 0]
    fewer = read(tmp_path / "fewer", RECORDS).votes(UNIT, groups)
    change = read(tmp_path / "more", more).votes(UNIT, groups) - fewer
    assert 0 < squared(change) <= RECORD_PARTS**2


def test_a_table_without_owners_is_refused(tmp_path):
    rows = table(RECORDS).drop_columns([OWNER_COLUMN])
    write_table(tmp_path / "table", rows.schema, rows.to_batches())
    with pytest.raises(StaleInput, match=OWNER_COLUMN):
        read_voters(tmp_path / "table", LAYOUT, {}, Letters(), by_owner=True)


# No words of private texts


@pytest.mark.parametrize(
    "shown", [str, "{}".format, lambda text: f"{text}", pickle.dumps, copy.copy, lambda text: text.__getstate__()]
)
def test_a_private_text_shows_no_words(shown):
    with pytest.raises(TypeError, match="private text"):
        shown(PrivateText("the secret"))


def test_a_private_text_is_no_string():
    text = PrivateText("the secret")
    assert "secret" not in repr(text)
    assert "secret" not in repr([text])
    for joined in (lambda: "a" + text, lambda: " ".join([text])):
        with pytest.raises(TypeError):
            joined()
    assert not text.is_blank
    assert text.features(Letters()).shape == (4,)


def test_voters_show_nothing_of_the_records():
    assert "1." not in repr(voters(OTHERS))
