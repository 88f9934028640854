"""What private synthetic texts are good for, by method and epsilon. Not a test: it takes hours and prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_utility.py --results FILE [--cells financial/record/8/0]
    python tests/benchmarks/bench_text_utility.py --table tests/benchmarks/results/text_utility.jsonl
    python tests/benchmarks/bench_text_utility.py --table tests/benchmarks/results/text_utility.jsonl --plots docs
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_utility.py --copies  # what the attack finds of real texts
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_utility.py --results FILE --smoke   # does it run at all?

What belongs here: cells of source, what is sampled, epsilon, seed and method, each from real texts to the product's own
figures of synthetic ones, by the product's plan, mechanism, sampling and filters. What does not: a generator or a
measure of its own, and asserting; `tests/synth` and `tests/quality` hold what must hold.

Methods are `dp_finetune`; `ctcl`, which sorts the texts by the universal topics first and trains alike; `aug_pe`, where
the same model as it is writes what records vote for; and `dp_inference`, where it writes what records make likely.
With `+votes` after the method, texts are chosen among three times as many (`text.resample`; documents of
`dp_inference`, each of which is paid for, among half as many more), in one plan, so that all else has more noise than
without; a second line, `unchosen`, is of the same model's texts (the same documents) at random. `+labels` is the same
with sums of features by label, by which texts also get their labels.

`aug_pe+retrieved` chooses among a table of public texts of other kinds (`text_cells.others`), without a model;
`aug_pe+public` has their variations by the model; with `+shared`, three texts share a vote. `results/text_public.jsonl`
has what was measured of these.

Where authors have several posts, `record` draws posts in training (DP-SGD-ELS) and `user` draws authors (DP-SGD-ULS),
fewer of them, so that both compute as many gradients. A quarter of the units is held out, others for each seed. Texts
are cut off to what an example holds, and not scrubbed.

`none` is the same without noise, which the product cannot do: noise and the watch over it are patched away here, and of
`dp_inference` the clipping; label counts keep theirs, of epsilon 0.8. `untrained` is the base model, told the label
alone. Nothing was chosen by looking at the sentences and posts: of two learning rates the one after which held-out
e-mails (`enron_categories`) were likelier, with noise as at epsilon 1 and 8, so that cells of `enron` are no blind
test; large batches by the guide (Ponomareva et al. 2026, section 7.3), samples at temperature 1 and an adapter, too
(section 5.2), automatic clipping; contexts by what a core does in about the same time, and rounds and variations by
what it did before its writer was faster: a fourth of that. How much is computed (`Effort`) is little: what a core does
in five minutes (`aug_pe`) to half an hour a cell.

A cell adds a line to the results file when it is done; cells that are there are not run again. Samples and noise are
the operating system's, so no two runs are alike, whatever the seed. `results/text_utility.jsonl` has what was measured
so far, without the drawn texts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from text_cells import LABELS, NO_NOISE, PLAIN, SOURCES, UNCHOSEN, UNTRAINED, VOTES, Cell, Effort, Source, cut, divided
from text_figures import (
    attack_table,
    attacked,
    copies_table,
    labels_table,
    learned_table,
    methods_table,
    utility_plot,
    votes_table,
)
from text_methods import Planned, Spent, as_asked, contract_of, draw, fit, planned, read_by, unchosen

from dpsynth_platform.quality.text.corpora import corpus_of
from dpsynth_platform.quality.text.report import measure_texts
from dpsynth_platform.synth.text.base_models import DEFAULT, load
from dpsynth_platform.synth.text.dp_finetune import log_likelihoods
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.sealing import layout_of
from dpsynth_platform.synth.text.topic_sorting import as_learned
from dpsynth_platform.synth.text.trained import deployed

TRIALS = 3
SMOKE_UNITS = 1_200
"""Enough that DP inference has documents to choose among: twelve owners write one."""
COMPARED = ("aug_pe", "dp_inference", "ctcl")
FIRST = [
    *(f"financial/record/{epsilon}/{{}}" for epsilon in ("8", NO_NOISE, "1", "4")),
    *(f"newsgroups/{sampled}/8/{{}}" for sampled in ("user", "record")),
    f"newsgroups/user/{NO_NOISE}/{{}}",
    *(f"newsgroups/{sampled}/1/{{}}" for sampled in ("user", "record")),
    *(f"{line}/{UNTRAINED}/{{}}" for line in ("financial/record", "newsgroups/user")),
    *(f"newsgroups/{sampled}/4/{{}}" for sampled in ("user", "record")),
    *(f"financial/record/{epsilon}/{{}}/{method}" for epsilon in ("8", "1") for method in COMPARED),
    *(f"newsgroups/user/8/{{}}/{method}" for method in COMPARED),
    *(f"financial/record/{epsilon}/{{}}/{method}{VOTES}" for epsilon in ("8", "1") for method in (PLAIN, *COMPARED)),
    *(f"financial/record/{epsilon}/{{}}/{method}" for epsilon in ("4", "0.5") for method in (*COMPARED, PLAIN)),
    *(f"financial/record/{NO_NOISE}/{{}}/{method}" for method in COMPARED),
    *(f"newsgroups/user/{epsilon}/{{}}/{method}" for epsilon in ("1", "4") for method in COMPARED),
    *(f"newsgroups/user/8/{{}}/{method}{VOTES}" for method in (PLAIN, *COMPARED)),
    *(f"newsgroups/user/{epsilon}/{{}}/{method}{VOTES}" for epsilon in ("1", "4") for method in (PLAIN, *COMPARED)),
    *(f"financial/record/4/{{}}/{method}{VOTES}" for method in (PLAIN, *COMPARED)),
    *(
        f"{line}/4/{{}}/{method}{LABELS}"
        for line in ("newsgroups/user", "financial/record")
        for method in ("aug_pe", PLAIN)
    ),
]
"""The cells of one seed, which fills the braces; the most telling first."""

Line = dict[str, Any]


def measure(cell: Cell, source: Source, effort: Effort, data: Path) -> list[Line]:
    """Lets a cell's method write, and measures: the results' line or, where votes choose, those with and without."""
    real, held_out, vocabulary = texts_of(cell, source, effort, data)
    way = planned(cell, source, effort)
    read, spent = read_by(way, real), Spent(vocabulary)
    with tempfile.TemporaryDirectory() as place, as_asked(cell):
        with spent.on("training"):
            model = fit(way, read, Path(place))
        nats = learned(way, model, held_out.slice(0, effort.likelihoods)) if cell.trains else None
        with spent.on("drawing"):
            tables = {cell: draw(way, model, effort.texts)}
        if cell.chooses:
            with unchosen():
                tables[replace(cell, method=cell.method + UNCHOSEN)] = draw(way, model, effort.texts)
    about = {
        "effort": asdict(effort),
        "records": read.num_rows,
        "units": len(pc.unique(read["owner"])),
        "delta": way.contract.privacy.delta,
        "plan": way.told,
        "nats_a_token": nats,
        "processor_seconds": spent.seconds,
        "work": spent.work,
    }
    return [
        {"cell": asdict(one)}
        | about
        | figures_of(table, real, held_out, effort.texts)
        | {"attack": attacked(read, held_out, table, epsilon=cell.claim, delta=way.contract.privacy.delta)}
        for one, table in tables.items()
    ]


def texts_of(cell: Cell, source: Source, effort: Effort, data: Path) -> tuple[pa.Table, pa.Table, int]:
    """A source's real texts as cut, those that may be read and those held out; and how many tokens the model knows."""
    tokenizer = load(deployed(cell.base))[1]
    encoder = Encoder(layout_of(contract_of(replace(cell, method=PLAIN), source, effort)), tokenizer)
    return *divided(cut(source.rows(data), encoder), source, cell.seed), len(tokenizer)


def learned(way: Planned, model: Path, held_out: pa.Table) -> dict[str, float]:
    """How likely held-out texts are to a trained model, in nats a token, before training and after."""
    before, after = log_likelihoods(way.plan, model, as_learned(way.plan, held_out))
    return {"before": float(before.mean()), "after": float(after.mean())}


def figures_of(drawn: pa.Table, real: pa.Table, held_out: pa.Table, most: int) -> Line:
    """The product's report of some synthetic texts, and a few of them."""
    tables = (("real", real), ("held-out", held_out), ("synthetic", drawn))
    sides = (corpus_of(name, table, "text", "label") for name, table in tables)
    report = measure_texts(*sides, trials=TRIALS, most=most)
    return {
        "texts": drawn.num_rows,
        "drawn": report.drawn,
        "majority_accuracy": report.majority_accuracy,
        "figures": {
            part["key"]: {side: part[side] for side in ("synthetic", "real")} for part in report.to_json()["figures"]
        },
        "examples": drawn.select(["label", "text"]).slice(0, 4).to_pylist(),
    }


def read_lines(results: Path) -> list[Line]:
    """The lines of cells that are done."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def run(cells: Sequence[Cell], sources: Mapping[str, Source], effort: Effort, data: Path, results: Path) -> None:
    """Measures the cells that the results lack."""
    for cell in cells:
        done = [(Cell(**found["cell"]), found["effort"]) for found in read_lines(results)]
        if (cell, asdict(effort)) in done:
            continue
        lines = measure(cell, sources[cell.source], effort, data)
        with results.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        print(cell, lines[0]["processor_seconds"], lines[0]["work"], lines[0]["nats_a_token"], flush=True)


def main() -> None:
    """Reads the arguments; runs cells, or prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="file of one JSON line a cell; gets longer")
    parser.add_argument("--table", type=Path, help="prints the tables of such a file")
    parser.add_argument("--plots", type=Path, help="with --table: directory for a plot of each source")
    parser.add_argument(
        "--cells", nargs="*", help="source/sampled/epsilon/seed[/method]; by default all, the most telling first"
    )
    parser.add_argument("--base-model", default=DEFAULT, help="as in a contract; of a writer, its path, from /")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="a few short texts and steps: figures mean nothing")
    parser.add_argument("--copies", action="store_true", help="prints what the attack finds of texts that are copied")
    chosen = parser.parse_args()
    os.environ.setdefault("DPSYNTH_HOME", str(Path(tempfile.gettempdir()) / "dpsynth-bench-home"))
    if chosen.copies:
        data, effort = Path(os.environ["DPSYNTH_BENCH_DATA"]), Effort()
        for name, source in SOURCES.items():
            read, held_out, _ = texts_of(Cell(name, "record", NO_NOISE, 0), source, effort, data)
            print(copies_table(name, read, held_out, effort.texts), end="\n\n")
        return
    if chosen.table:
        lines = read_lines(chosen.table)
        print(
            "\n\n".join(
                table(lines) for table in (learned_table, methods_table, votes_table, labels_table, attack_table)
            )
        )
        for source in sorted({line["cell"]["source"] for line in lines} if chosen.plots else ()):
            (chosen.plots / f"texts-{source}.svg").write_text(utility_plot(lines, source))
        return
    if not chosen.results:
        parser.error("--results, --table or --copies is needed")
    written = chosen.cells or [cell.format(seed) for seed in range(chosen.seeds) for cell in FIRST]
    sources, effort = SOURCES, Effort()
    if chosen.smoke:
        sources = {name: source.smaller(SMOKE_UNITS) for name, source in SOURCES.items()}
        effort = Effort(batch=8, steps=2, texts=96, likelihoods=4)
    run(
        [Cell.of(cell, chosen.base_model) for cell in written],
        sources,
        effort,
        Path(os.environ["DPSYNTH_BENCH_DATA"]),
        chosen.results,
    )


if __name__ == "__main__":
    main()
