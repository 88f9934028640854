"""What private synthetic texts are good for, by method and epsilon. Not a test: it takes hours and prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_utility.py --results FILE [--cells financial/record/8/0]
    python tests/benchmarks/bench_text_utility.py --table tests/benchmarks/results/text_utility.jsonl
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_utility.py --results FILE --smoke   # does it run at all?

What belongs here: cells of source, what is sampled, epsilon and seed, each from real texts to the product's own
figures of synthetic ones, by the product's plan, training, sampling and filters. What does not: a trainer or a measure
of its own, and asserting; `tests/synth` and `tests/quality` hold what must hold.

`financial` are sentences of financial news with their sentiment, each a unit. `newsgroups` are posts to four groups of
newsgroups (comp, rec, sci, talk) without what they quote; a unit is an author with two posts at most (2.2 on average).
There, `record` draws posts (DP-SGD-ELS) and `user` draws authors (DP-SGD-ULS), fewer of them, so that both compute as
many gradients. A quarter of the units is held out, others for each seed. Texts are cut off to what an example holds,
and not scrubbed.

Methods are `dp_finetune` and `ctcl`, which sorts the texts by the universal topics first; both train alike.

`none` is the same training without noise, which the product cannot do: noise and the watch over it are patched away
here; label counts keep theirs, of epsilon 0.8. `untrained` is the base model, told the label alone. Nothing was chosen
by looking at these texts: of two learning rates the one after which held-out e-mails (`enron_categories`) were
likelier, with noise as at epsilon 1 and 8; large batches, automatic clipping, samples at temperature 1 and an adapter
by the guide (Ponomareva et al., sections 5 and 7.3). How much is computed (`Effort`) is little: what a core does in
twenty minutes a cell.

A cell adds a line to the results file when it is done; cells that are there are not run again. Samples and noise are
the operating system's, so no two runs are alike, whatever the seed. `results/text_utility.jsonl` has what was measured
so far, without the drawn texts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts import DataContract, parse_contract
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.quality.text.corpora import corpus_of
from dpsynth_platform.quality.text.report import measure_texts
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.storage import write_table
from dpsynth_platform.synth.interface import Checkpoints, SealedPlan, generator
from dpsynth_platform.synth.text import sealing
from dpsynth_platform.synth.text.base_models import DEFAULT, load
from dpsynth_platform.synth.text.dp_finetune import as_learned, log_likelihoods
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.terms import terms_of
from dpsynth_platform.synth.text.trained import deployed

SCHEMA = pa.schema([("record", pa.string()), ("owner", pa.string()), ("label", pa.string()), ("text", pa.string())])
PLAIN = "dp_finetune"
KEYWORDS_TOKENS = 44
"""What the longest keywords of a topic take: with so much more, texts may be as long as where none are told."""
HELD_OUT = 4
"""One unit of so many."""
TRIALS = 3
QUOTED = re.compile(r"^\s*[>|:}]|^In (article|<)|(writes|wrote|says):?\s*$")
NO_NOISE, UNTRAINED, REAL = "none", "untrained", "real texts"
PATCHED_EPSILON = 8.0
"""Of the plans of trainings that are run without noise, or not at all."""
SHOWN = {
    "f1_words": "F1, words",
    "f1_features": "F1, features",
    "mauve": "MAUVE",
    "next_token": "next token",
    "lengths": "lengths",
    "entities": "entities",
    "runs_1": "1-grams",
    "runs_2": "2-grams",
    "self_bleu": "self-BLEU",
    "distinct_2": "distinct-2",
}
"""Figures of the table: their keys in a report, and their headings."""


@dataclass(frozen=True)
class Source:
    """One table of labelled texts.

    Attributes:
        rows: reads (owner, label, text) of all records.
        labels: the public list of labels.
        units, records: public, rounded numbers of units that are not held out, and of their records.
        most: records of a unit that are used.
        max_tokens: of an example that is told a label.
    """

    rows: Callable[[Path], list[tuple[str, str, str]]]
    labels: tuple[str, ...]
    units: int
    records: int
    most: int
    max_tokens: int


@dataclass(frozen=True)
class Effort:
    """How much is computed in a cell.

    Attributes:
        batch: records expected in a step.
        texts: that are drawn.
        likelihoods: held-out texts of which the likelihood is told.
    """

    batch: int = 384
    steps: int = 14
    texts: int = 240
    likelihoods: int = 64
    rank: int = 4
    learning_rate: float = 1e-2


@dataclass(frozen=True)
class Cell:
    """What one line of the results is about."""

    source: str
    sampled: str
    epsilon: str
    seed: int
    method: str = PLAIN

    @classmethod
    def of(cls, written: str) -> Cell:
        """From `source/sampled/epsilon/seed`, and `/method` where it is not `dp_finetune`."""
        source, sampled, epsilon, seed, *method = written.split("/")
        return cls(source, sampled, epsilon, int(seed), *method)


def sentences(data: Path) -> list[tuple[str, str, str]]:
    """Financial PhraseBank; a sentence belongs to nobody but itself."""
    table = read_file(data / "financial_phrasebank/financial_phrasebank.parquet").to_pylist()
    return [(str(number), row["label_name"], row["text"]) for number, row in enumerate(table)]


def posts(data: Path) -> list[tuple[str, str, str]]:
    """Posts to the groups, once each, without quoted lines and in one line."""
    table = read_file(data / "newsgroups20/newsgroups20.parquet").to_pylist()
    groups = [(row, row["newsgroup"].split(".")[0]) for row in table if not row["is_crosspost_dup"]]
    kept = [(row["author_id"], group, unquoted(row["text"])) for row, group in groups if group in GROUPS]
    return [row for row in kept if row[2]]


def unquoted(text: str) -> str:
    """The words of the lines that are the author's own."""
    return " ".join(word for line in text.split("\n") if not QUOTED.search(line) for word in line.split())


GROUPS = ("comp", "rec", "sci", "talk")
SOURCES = {
    "financial": Source(sentences, ("negative", "neutral", "positive"), 3_600, 3_600, 1, 48),
    "newsgroups": Source(posts, GROUPS, 5_600, 7_500, 2, 48),
}
FIRST = [
    *(f"financial/record/{epsilon}" for epsilon in ("8", NO_NOISE, "1", "4")),
    *(f"newsgroups/{sampled}/8" for sampled in ("user", "record")),
    f"newsgroups/user/{NO_NOISE}",
    *(f"newsgroups/{sampled}/1" for sampled in ("user", "record")),
    *(f"{line}/{UNTRAINED}" for line in ("financial/record", "newsgroups/user")),
    *(f"newsgroups/{sampled}/4" for sampled in ("user", "record")),
]
"""The cells of one seed, the most telling first."""


# One cell.


def contract_of(source: Source, cell: Cell, effort: Effort) -> DataContract:
    """The contract by which a cell's model is trained and drawn from."""
    private = cell.epsilon not in (NO_NOISE, UNTRAINED)
    owned = source.most > 1
    by_user = cell.sampled == "user"
    document = {
        "dataset": "benchmark",
        "description": "Texts of a benchmark.",
        "owners": ["benchmarks@example.org"],
        "source": {"uri": "/nowhere", "key": ["record"]},
        "family": "benchmarks",
        "privacy": {
            "unit": "user" if owned else "example",
            "owner_columns": ["owner" if owned else "record"],
            "namespace": "benchmark",
            "max_contributions": source.most,
            "guarantee": {"epsilon": float(cell.epsilon) if private else PATCHED_EPSILON},
            "expected_units": source.units,
        },
        "columns": {
            "record": {"type": "identifier"},
            "owner": {"type": "identifier"},
            "label": {"type": "categorical", "values": list(source.labels)},
            "text": {"type": "text", "pii": "replace"},
        },
        "generate": {
            "method": cell.method,
            "base_model": DEFAULT,
            "rows": effort.texts,
            "text": {
                "column": "text",
                "given": ["label"],
                "max_tokens": source.max_tokens + (KEYWORDS_TOKENS if cell.method == "ctcl" else 0),
            },
            "training": {
                "sampled": "owners" if by_user else "records",
                "batch_size": round(effort.batch * source.units / source.records) if by_user else effort.batch,
                "steps": effort.steps,
                "replay_steps": 0,
                "learning_rate": effort.learning_rate,
                "adapter": {"rank": effort.rank, "alpha": 2 * effort.rank},
                **({"expected_records": source.records} if owned and not by_user else {}),
            },
        },
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="benchmark", variables={})


def divided(rows: Sequence[tuple[str, str, str]], source: Source, seed: int) -> tuple[pa.Table, pa.Table]:
    """Records that training may read and records of other units, at most `source.most` of each unit."""
    rng = np.random.default_rng(seed)
    owners = sorted({owner for owner, _, _ in rows})
    held = set(rng.permutation(owners)[: len(owners) // HELD_OUT].tolist())
    taken: defaultdict[str, int] = defaultdict(int)
    sides: tuple[list[dict[str, str]], list[dict[str, str]]] = ([], [])
    for at in rng.permutation(len(rows)).tolist():
        owner, label, text = rows[at]
        taken[owner] += 1
        if taken[owner] <= source.most:
            row = {"record": f"{at:032x}", "owner": owner, "label": label, "text": text}
            sides[owner in held].append(row)
    return pa.Table.from_pylist(sides[0], SCHEMA), pa.Table.from_pylist(sides[1], SCHEMA)


def cut(rows: Sequence[tuple[str, str, str]], encoder: Encoder) -> list[tuple[str, str, str]]:
    """The records with so much of their texts as an example holds that is told a label."""
    bodies = encoder.bodies([f" {text}" for _, _, text in rows])
    kept = []
    for (owner, label, _), body in zip(rows, bodies, strict=True):
        room = encoder.layout.max_tokens - len(encoder.prompt((label,)))
        kept.append((owner, label, encoder.text(body[:room]).strip().rstrip("\N{REPLACEMENT CHARACTER}")))
    return kept


@contextmanager
def as_asked(epsilon: str) -> Iterator[None]:
    """Without noise or training where a cell says so; always without the gate on models, which reads no data."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch("dpsynth_platform.training.soundness.refuse_unsound"))
        if epsilon == NO_NOISE:
            patches.enter_context(mock.patch("dpsynth_platform.training.noise.GaussianNoise.add_"))
            patches.enter_context(mock.patch("dpsynth_platform.training.health.Watch.step"))
        if epsilon == UNTRAINED:
            patches.enter_context(mock.patch("dpsynth_platform.training.loop.train"))
        yield


def planned(contract: DataContract) -> tuple[SealedPlan, sealing.TextParameters]:
    """The plan of a cell's contract, and what it says."""
    target, why = Guarantee.target(contract), "the benchmark's"
    plan = sealing.sealed(contract.generate.method, contract, SCHEMA, target, deployed(DEFAULT), period=None, why=why)
    return plan, sealing.check(plan)


def fit(method: str, plan: SealedPlan, real: pa.Table, place: Path) -> Path:
    """A model's directory, trained on the bounded records."""
    numbers = {owner: f"{number:032x}" for number, owner in enumerate(sorted(set(real["owner"].to_pylist())))}
    owners = [numbers[owner] for owner in real["owner"].to_pylist()]
    bounded = real.select(["label", "text"]).append_column(OWNER_COLUMN, pa.array(owners))
    bounded = bounded.append_column(RECORD_COLUMN, real["record"])
    write_table(place / "bounded", bounded.schema, bounded.to_batches())
    base = deployed(DEFAULT)
    described = place / "base.json"
    described.write_text(json.dumps(asdict(base) | {"directory": str(base.directory)}))
    directory = place / "model"
    directory.mkdir()
    grant: Any = SimpleNamespace(plan_digest=plan.digest, entry_id="b" * 32)  # there is no ledger here
    generator(method).fit(
        plan, place / "bounded", grant, directory, checkpoints=Checkpoints(described, os.urandom(32), resume=False)
    )
    return directory


def measure(cell: Cell, source: Source, effort: Effort, data: Path) -> dict[str, Any]:
    """Trains, draws and measures: the results' line."""
    contract = contract_of(source, cell, effort)
    plan, parameters = planned(contract)
    plain = parameters if cell.method == PLAIN else planned(contract_of(source, replace(cell, method=PLAIN), effort))[1]
    encoder = Encoder(plain.layout, load(deployed(DEFAULT))[1])
    real, held_out = divided(cut(source.rows(data), encoder), source, cell.seed)
    clock = [time.process_time()]
    with tempfile.TemporaryDirectory() as place, as_asked(cell.epsilon):
        model = fit(cell.method, plan, real, Path(place))
        clock.append(time.process_time())
        before, after = log_likelihoods(plan, model, as_learned(plan, held_out.slice(0, effort.likelihoods)))
        drawn = generator(cell.method).draw(model, effort.texts, texts=terms_of(contract)).table()
    clock.append(time.process_time())
    sides = [("real", real), ("held-out", held_out), ("synthetic", drawn)]
    report = measure_texts(
        *(corpus_of(name, table, "text", "label") for name, table in sides), trials=TRIALS, most=effort.texts
    )
    clock.append(time.process_time())
    return {
        "cell": asdict(cell),
        "effort": asdict(effort),
        "records": real.num_rows,
        "texts": drawn.num_rows,
        "drawn": report.drawn,
        "noise_multiplier": parameters.training.noise_multiplier,
        "delta": contract.privacy.delta,
        "processor_seconds": dict(
            zip(("training", "drawing", "measuring"), np.diff(clock).round().tolist(), strict=True)
        ),
        "nats_a_token": {"before": float(before.mean()), "after": float(after.mean())},
        "majority_accuracy": report.majority_accuracy,
        "figures": {
            part["key"]: {side: part[side] for side in ("synthetic", "real")} for part in report.to_json()["figures"]
        },
        "examples": drawn.select(["label", "text"]).slice(0, 4).to_pylist(),
    }


# All cells, and their table.


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of cells that are done."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def run(cells: Sequence[Cell], effort: Effort, data: Path, results: Path) -> None:
    """Measures the cells that the results lack."""
    for cell in cells:
        if any((Cell(**found["cell"]), found["effort"]) == (cell, asdict(effort)) for found in read(results)):
            continue
        line = measure(cell, SOURCES[cell.source], effort, data)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(cell, line["processor_seconds"], line["nats_a_token"], flush=True)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Means over runs with their standard error; of a single run, that of the draws of texts in its report."""
    grouped: defaultdict[tuple[str, str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        cell = Cell(**line["cell"])
        grouped[cell.source, cell.method, cell.sampled, cell.epsilon].append(line)
        of_real = grouped[cell.source, "", "", REAL]
        if cell.seed not in {other["cell"]["seed"] for other in of_real}:  # all cells of a seed share its real texts
            of_real.append(line)
    order = {name: place for place, name in enumerate((REAL, NO_NOISE, "8", "4", "1", UNTRAINED))}
    rows = [["texts", "method", "sampled", "epsilon", "runs", "nats a token", *SHOWN.values()]]
    rows.append(["---"] * len(rows[0]))
    for source, method, sampled, epsilon in sorted(grouped, key=lambda key: (key[0], order[key[3]], *key[1:3])):
        found = grouped[source, method, sampled, epsilon]
        side = "real" if epsilon == REAL else "synthetic"
        gains = [line["nats_a_token"]["after"] - line["nats_a_token"]["before"] for line in found]
        about = ["", ""] if epsilon == REAL else [str(len(found)), shown([{"mean": gain} for gain in gains])]
        figures = [shown([line["figures"][key][side] for line in found]) for key in SHOWN]
        rows.append([source, method, sampled, epsilon, *about, *figures])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def shown(estimates: Sequence[dict[str, float | None]]) -> str:
    """The mean of a report's estimates and its standard error; where there is one, its own."""
    means = [estimate["mean"] for estimate in estimates if estimate["mean"] is not None]
    if not means:
        return "-"
    error = estimates[0].get("standard_error")
    if len(means) > 1:
        error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    return f"{np.mean(means):.2f}" + ("" if error is None else f" ± {error:.2f}")


def main() -> None:
    """Reads the arguments; runs cells, or prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="file of one JSON line a cell; gets longer")
    parser.add_argument("--table", type=Path, help="prints the table of such a file")
    parser.add_argument(
        "--cells", nargs="*", help="source/sampled/epsilon/seed[/method]; by default all, the most telling first"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="two small steps a cell: figures mean nothing")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(read(chosen.table)))
        return
    if not chosen.results:
        parser.error("--results or --table is needed")
    written = chosen.cells or [f"{cell}/{seed}" for seed in range(chosen.seeds) for cell in FIRST]
    effort = Effort(batch=8, steps=2, texts=64, likelihoods=4) if chosen.smoke else Effort()
    os.environ.setdefault("DPSYNTH_HOME", str(Path(tempfile.gettempdir()) / "dpsynth-bench-home"))
    run([Cell.of(cell) for cell in written], effort, Path(os.environ["DPSYNTH_BENCH_DATA"]), chosen.results)


if __name__ == "__main__":
    main()
