"""SynBench's membership attack on texts that votes choose from a public table. Not a test: it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_synbench.py --results FILE [--cells financial/record/8/0]
    python tests/benchmarks/bench_text_synbench.py --table tests/benchmarks/results/text_synbench.jsonl

What belongs here: a hundred releases of a cell of `aug_pe+retrieved` (`bench_text_utility.py`), each by the product's
plan, votes and drawing, under `audit.texts.synbench`. What does not: asserting, and an attack of its own.

A release takes seconds, because no model is asked and the features of each text are computed once for all releases;
`dpsynth bench text --membership` runs methods whose releases take minutes. A release reads nine tenths of a third of
the texts, and has as many texts as it reads. With `none` in the place of epsilon the votes have no noise: what there is
to be found is there then.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from text_cells import NO_NOISE, RETRIEVED, SCHEMA, SOURCES, Cell, Effort, Source
from text_figures import written
from text_methods import as_asked, draw, fit, planned

from dpsynth_platform.audit.texts import synbench
from dpsynth_platform.synth.text.embeddings import SentenceEncoder

METHOD = f"aug_pe{RETRIEVED}"
CELLS = tuple(f"{source}/record/{epsilon}/0" for source in ("financial", "enron") for epsilon in ("8", "1", NO_NOISE))
HEADINGS = ("texts", "epsilon", "releases, of so many texts", "targets", "area of the mean curve", "above the bound by")
PROVED = ("area, one score a release", "proved epsilon", "at most")


@contextmanager
def remembered() -> Iterator[None]:
    """Each text's features are computed once, and then found: the texts are public here."""
    known: dict[str, npt.NDArray[np.float32]] = {}
    encode: Callable[..., npt.NDArray[np.float32]] = SentenceEncoder.encode

    def found(encoder: SentenceEncoder, texts: Sequence[str], *_: object) -> npt.NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, encode(encoder, new), strict=True))
        return np.array([known[text] for text in texts]).reshape(len(texts), -1)

    with mock.patch.object(SentenceEncoder, "encode", found):
        yield


def attacked(cell: Cell, source: Source, data: Path, releases: int) -> dict[str, Any]:
    """What the attack finds of the records of a cell's source: `synbench.Evaluation` as JSON, of means over words."""
    rows = source.rows(data)
    texts = [text for _, _, text in rows]
    design = synbench.design(SentenceEncoder().encode(texts), runs=releases)
    units = design.subsets.shape[1]
    # All releases have one plan: with its target, a release reads one text more.
    way = planned(cell, replace(source, units=units, records=units), Effort(texts=units))

    def release(places: Sequence[int], run: int) -> list[str]:
        read = [
            {"record": f"{at:032x}", "owner": rows[at][0], "label": rows[at][1], "text": texts[at]} for at in places
        ]
        with tempfile.TemporaryDirectory() as place:
            model = fit(way, pa.Table.from_pylist(read, SCHEMA), Path(place))
            return [text for text in draw(way, model, units)["text"].to_pylist() if text]

    begun = time.process_time()
    with as_asked(cell):
        scores = synbench.attack(texts, design, release)
    found = synbench.evaluate(scores[synbench.WORD], design, epsilon=cell.claim, delta=way.contract.privacy.delta)
    about = {"cell": asdict(cell), "units": units, "plan": way.told, "processor_seconds": time.process_time() - begun}
    return about | found.to_json()


def table_of(lines: Sequence[dict[str, Any]]) -> str:
    """A row for each cell; areas with what 95% of repeats, or an interval of 95%, hold."""
    rows = [[*HEADINGS, *PROVED]]
    for line in lines:
        area, own = (
            f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
            for one in (line["curve"]["area"], line["area"])
        )
        excess = line["curve"]["excess"]
        above = "" if excess is None else "nothing" if excess <= 0 else f"{excess:.2f}"
        source, epsilon = line["cell"]["source"], line["cell"]["epsilon"]
        releases = f"{line['runs']}, {line['units']:,}"
        proved = [f"{line[name]:.2f}" for name in ("bound", "highest")]
        rows.append([source, epsilon, releases, str(line["targets"]), area, above, own, *proved])
    return written(rows)


def main() -> None:
    """Reads the arguments; attacks the cells that the results lack, or prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="file of one JSON line a cell; gets longer")
    parser.add_argument("--table", type=Path, help="prints the table of such a file")
    parser.add_argument("--cells", nargs="*", default=CELLS, help="source/sampled/epsilon/seed")
    parser.add_argument("--releases", type=int, default=synbench.SUBSETS)
    chosen = parser.parse_args()
    os.environ.setdefault("DPSYNTH_HOME", str(Path(tempfile.gettempdir()) / "dpsynth-bench-home"))
    if chosen.table:
        print(table_of([json.loads(line) for line in chosen.table.read_text().splitlines()]))
        return
    if not chosen.results:
        parser.error("--results or --table is needed")
    done = [json.loads(line) for line in chosen.results.read_text().splitlines()] if chosen.results.exists() else []
    with remembered():
        for cell in (replace(Cell.of(cell), method=METHOD) for cell in chosen.cells):
            if asdict(cell) in [line["cell"] for line in done]:
                continue
            found = attacked(cell, SOURCES[cell.source], Path(os.environ["DPSYNTH_BENCH_DATA"]), chosen.releases)
            with chosen.results.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(cell, round(found["processor_seconds"]), flush=True)


if __name__ == "__main__":
    main()
