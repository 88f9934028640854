"""Any number of rows in bounded memory: batch by batch, with ids that go on."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synth_cases import grant_for

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.one_table.output import write_rows
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import sampling
from dpsynth_platform.synth.tabular.model import load_model
from dpsynth_platform.synth.tabular.sampling import drawing

RULES = [Constraint(forbid={"age": {"max": 3}, "city": ["Bern"]})]


@pytest.fixture(scope="module")
def directory(plan, bounded, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    generator("mst").fit(plan, bounded, grant_for(plan), path)
    return path


def test_ids_go_on_and_batches_add_up(directory, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_ROWS", 64)
    for rules in ((), RULES):
        drawn = generator("mst").draw(directory, 1000, constraints=rules)
        sizes = []
        for batch in drawn.batches:
            first = sum(sizes) + 1
            assert batch["person_id"].to_pylist() == [f"S{first + n:07d}" for n in range(batch.num_rows)]
            assert batch.schema == drawn.schema
            sizes.append(batch.num_rows)
        assert sizes == [64] * 15 + [40]


def test_batches_together_follow_the_model(directory, monkeypatch):
    """Each of 200 batches rounds expected numbers of rows by its own: columns deviate by what 200 roundings do."""
    model = load_model(directory)
    whole = model.domain.encode(drawing(model, 20_000).table())
    monkeypatch.setattr(sampling, "BATCH_ROWS", 100)
    parts = model.domain.encode(drawing(model, 20_000).table())
    for index, column in enumerate(model.domain):
        if column.size <= 11:
            counts = [np.bincount(codes[:, index], minlength=column.size) for codes in (whole, parts)]
            # A count's deviation is at most that of independent rows, sqrt(20,000) / 2 = 71: seven of them.
            assert np.abs(counts[0] - counts[1]).max() < 500


@pytest.mark.parametrize("format_", ["parquet", "csv", "delta"])
def test_memory_does_not_grow_with_the_number_of_rows(directory, tmp_path, monkeypatch, format_):
    monkeypatch.setattr(sampling, "BATCH_ROWS", 2000)

    def peak(rows):
        """Bytes beyond what was there, of Python's and Arrow's memory, while so many rows are drawn and written."""
        drawn = generator("mst").draw(directory, rows, constraints=RULES)
        arrow = [pa.total_allocated_bytes()]
        batches = drawn.batches

        def watched():
            for batch in batches:
                arrow.append(pa.total_allocated_bytes())
                yield batch

        object.__setattr__(drawn, "batches", watched())
        tracemalloc.start()
        write_rows(tmp_path / f"{rows}", drawn, {name: name for name in drawn.schema.names}, format_)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return python + max(arrow) - arrow[0]

    peak(2000)  # what is imported or cached once
    few, many = peak(10_000), peak(150_000)
    # A hundred and forty thousand rows of seven columns, with twelve bytes of id each, are more than six megabytes.
    assert many < few + 3_000_000
    if format_ == "parquet":
        assert pq.read_metadata(tmp_path / "150000").num_rows == 150_000
