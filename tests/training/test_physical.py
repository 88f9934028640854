"""Physical batches hold every record once, by its weight, and as many tokens as fit."""

from itertools import chain
from unittest.mock import Mock

import pytest
import torch
from training_cases import batch, flat, model, plan

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training import physical
from dpsynth_platform.training.clipping import ClippedSums

CPU = torch.device("cpu")


def records(parts, rows):
    """(record, weight) pairs of each unit; tokens identify records."""
    known = {tuple(row.tolist()): number for number, row in enumerate(rows["input_ids"])}
    width = rows["input_ids"].shape[1]
    found = []
    for part in parts:
        wide = part.weights.shape[1]
        for unit, weights in enumerate(part.weights):
            ids = part.batch["input_ids"][unit * wide : (unit + 1) * wide].tolist()
            pairs = zip(ids, weights.tolist(), strict=True)
            found.append([(known[tuple(row + [0] * (width - len(row)))], weight) for row, weight in pairs if weight])
    return found


@pytest.mark.parametrize("tokens", [1, 10, 24, 50, 10_000])
@pytest.mark.parametrize("sizes", [[1] * 8, [1, 4, 2, 1]])
def test_every_record_is_there_once(tokens, sizes):
    rows = batch([9, 12, 3, 7, 1, 12, 5, 5])
    starts = [sum(sizes[:unit]) for unit in range(len(sizes))]
    expected = [
        [(row, pytest.approx(1 / size)) for row in range(start, start + size)]
        for start, size in zip(starts, sizes, strict=True)
    ]
    found = []
    for parts in physical.fixed_shape_parts(rows, sizes, tokens, CPU, longest=12, planned=40):
        assert all(part.batch["input_ids"].numel() <= max(tokens, 12) for part in parts)
        divided = records(parts, rows)
        found += [unit for unit in divided if unit] if len(parts) == 1 else [list(chain(*divided))]
    assert sorted(found) == expected


SIZES = [1, 4, 2, 1]
LENGTHS = [9, 33, 3, 7, 1, 40, 5, 5]


@pytest.mark.parametrize("tokens", [1, 64, 130, 10_000])
def test_in_parts_of_like_shape_every_unit_is_there_once(tokens):
    """With the gradients that it has alone."""
    made, chosen, rows = model("gpt2", True), plan(sampled="user", max_contributions=4), batch(LENGTHS)
    summed = []
    units = physical._units(SIZES)
    for divided in (
        [[physical._part(rows, [unit], (1, len(unit), 40), None, CPU)] for unit in units],
        physical.fixed_shape_parts(rows, SIZES, tokens, CPU, longest=50, planned=80),
    ):
        with ClippedSums(made, chosen) as sums:
            for parts in divided:
                assert all(part.batch["position_ids"].shape == part.batch["labels"].shape for part in parts)
                assert all(part.batch["labels"].numel() <= max(tokens, 160) for part in parts)
                if len(parts) == 1:
                    sums.add(parts[0].batch, parts[0].weights)
                else:
                    sums.add_large((part.batch, part.weights) for part in parts)
            summed.append(flat(sums.totals.values()))
    assert (summed[0] - summed[1]).norm() <= 1e-4 * summed[0].norm()
    assert summed[0].norm() > 0.1


def shapes(sizes, lengths, tokens, mark):
    """The shapes of the parts that hold the unit of a marked row, and of no other, as training divides a batch."""
    rows, made, chosen = batch(lengths), model(), plan(units=800, batch_size=80)
    rows["input_ids"][mark, 0] = -1
    with ClippedSums(made, chosen) as sums:
        division = physical.TokenDivision(sums, made, chosen, 50, CPU, 4)
    return [
        (tuple(part.batch["labels"].shape), tuple(part.weights.shape))
        for parts in division.parts(rows, sizes, tokens)
        if any((part.batch["input_ids"][:, 0] == -1).any() for part in parts)
        for part in parts
    ]


@pytest.mark.parametrize("tokens", [1, 64, 130, 10_000])
@pytest.mark.parametrize(("unit", "mark"), enumerate([0, 1, 5, 7]))
def test_the_shape_of_a_units_part_follows_from_the_unit_alone(tokens, unit, mark):
    """Or how its gradient is rounded would depend on the others, by a share of it that is not always small."""
    starts = [sum(SIZES[:number]) for number in range(len(SIZES) + 1)]
    own = LENGTHS[starts[unit] : starts[unit + 1]]
    alone = shapes([SIZES[unit]], own, tokens, mark - starts[unit])
    assert alone == shapes(SIZES, LENGTHS, tokens, mark)
    assert alone == shapes([*SIZES, 1, 1, 1], [*LENGTHS, 50, 9, 8], tokens, mark)


@pytest.mark.parametrize(("planned", "parts"), [(4, 4), (8, 2), (20, 1), (2, 4)])
def test_parts_of_like_shape_are_for_a_quarter_of_the_planned_batch(planned, parts):
    found = list(physical.fixed_shape_parts(batch([9] * 4), [1] * 4, 10_000, CPU, longest=50, planned=planned))
    assert len(found) == parts
    assert {len(part.weights) for (part,) in found} == {max(1, planned // 4)}


def test_padding_is_cut_and_like_lengths_go_together():
    rows = batch([2, 30, 2, 30, 2])
    divided = physical.fixed_shape_parts(rows, [1] * 5, 60, CPU, longest=50, planned=12)
    assert [parts[0].batch["labels"].shape for parts in divided] == [(1, 32), (1, 32), (3, 16)]


def test_what_fits_is_found_with_random_tokens_alone(monkeypatch):
    """On an accelerator by trial, which halves until a pass fits; the sums stay empty."""
    monkeypatch.setattr(physical, "TRIED", ("cpu",))
    monkeypatch.setattr(physical, "MOST_TOKENS", {"cpu": 65_536})
    made, tried = model(), []

    def add(self, batch, weights):
        tried.append(tuple(batch["input_ids"].shape))
        if batch["input_ids"].numel() > 5000:
            raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(ClippedSums, "add", add)
    monkeypatch.setattr(ClippedSums, "unused_layers", lambda self: [])
    assert physical.first_size(ClippedSums(made, plan()), made, 64, CPU) == 4096
    assert tried == [(1, 8), (1024, 64), (512, 64), (256, 64), (128, 64), (64, 64)]
    monkeypatch.setattr(ClippedSums, "add", Mock(side_effect=[None] + [MemoryError()] * 99))
    with pytest.raises(MechanismFailed, match="one record of up to 64 tokens"):
        physical.first_size(ClippedSums(made, plan()), made, 64, CPU)


@pytest.mark.parametrize("rows", [1, 3, 40, 5000])
def test_memory_is_tried_in_the_largest_shapes_that_units_may_have(monkeypatch, rows):
    """Products of all tokens of a unit are taken: those of one owner with many records take most."""
    monkeypatch.setattr(physical, "TRIED", ("cpu",))
    monkeypatch.setattr(physical, "MOST_TOKENS", {"cpu": 2048})
    made, longest = model(), 24
    shapes, large = [], []
    monkeypatch.setattr(ClippedSums, "unused_layers", lambda self: [])
    monkeypatch.setattr(
        ClippedSums, "add", lambda self, batch, weights: shapes.append((*weights.shape, batch["input_ids"].shape[1]))
    )
    monkeypatch.setattr(ClippedSums, "add_large", lambda self, parts: large.extend(parts))
    assert physical.first_size(ClippedSums(made, plan()), made, longest, CPU, rows) == 2048
    assert bool(large) == (rows * longest > 2048)
    assert all(abs(sum(float(weights.sum()) for _, weights in large) - 1) < 1e-6 for _ in large)
    tried = max(units * (wide * long) ** 2 for units, wide, long in shapes)
    for wide in (2**power for power in range(13) if 2**power < 2 * rows):
        for long in (16, 24):
            if wide * long <= 2048:  # as `fixed_shape_parts` puts them together
                assert 2048 // (wide * long) * (wide * long) ** 2 <= tried


def test_a_trial_of_one_owner_with_many_records_leaves_the_sums_empty(monkeypatch):
    monkeypatch.setattr(physical, "TRIED", ("cpu",))
    monkeypatch.setattr(physical, "MOST_TOKENS", {"cpu": 64})
    made = model()
    with ClippedSums(made, plan()) as sums:
        assert physical.first_size(sums, made, 12, CPU, 9) == 64
        assert not any(total.any() for total in sums.totals.values())


def test_on_a_cpu_what_fits_is_estimated(monkeypatch):
    made = model()
    with ClippedSums(made, plan()) as sums:
        assert physical.first_size(sums, made, 64, CPU) == 1024
        assert not any(total.any() for total in sums.totals.values())
        monkeypatch.setattr(physical, "MEMORY_PART", 1e-9)
        assert physical.first_size(sums, made, 64, CPU) == 64


def test_a_trainable_layer_that_is_not_passed_is_refused_by_name():
    made = model()
    made.model.extra = torch.nn.Linear(3, 3)
    with ClippedSums(made, plan()) as sums, pytest.raises(MechanismFailed, match=r"layers model\.extra; accepted"):
        physical.first_size(sums, made, 64, CPU)
