"""Physical batches hold every record once, by its weight, and as many tokens as fit."""

from itertools import chain
from unittest.mock import Mock

import pytest
import torch
from training_cases import batch, model, plan

from dpsynth_platform.errors import MechanismFailed
from dpsynth_platform.training import physical
from dpsynth_platform.training.clipping import ClippedSums

CPU = torch.device("cpu")


def records(parts, rows):
    """Of each unit, its (record, weight) pairs; records are told by their tokens."""
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
    for parts in physical.parts_of(rows, sizes, tokens, CPU):
        assert all(part.batch["input_ids"].numel() <= max(tokens, 12) for part in parts)
        divided = records(parts, rows)
        found += divided if len(parts) == 1 else [list(chain(*divided))]
    assert sorted(found) == expected
    assert tokens < 10_000 or len(list(physical.parts_of(rows, sizes, tokens, CPU))) == 1


def test_padding_is_cut_and_like_lengths_go_together():
    rows = batch([2, 30, 2, 30, 2])
    shapes = [parts[0].batch["labels"].shape for parts in physical.parts_of(rows, [1] * 5, 60, CPU)]
    assert shapes == [(2, 30), (3, 2)]


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
