"""Language models that write rows, beside DP-2Stage's published figures: quality, perplexity and time. Not a test.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_language.py --source adult --epsilon 1
    ... --method great --base smollm2-135m --keys '{"steps": 40, "adapter": {"rank": 16}}' --rows 5000

What belongs here: adult and texas in the cut of the DP-2Stage benchmark, by default with a model of
`dpsynth synth base-model`. What does not: asserting. Delta is 1e-5, and each row is
a unit. Figures are those of `bench_tabular`; perplexities are of the tokens of names, values and commas of test rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_methods import table_of
from bench_tabular import PERSON, QUALITY_DELTA, figures, plan_of, say, stored
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.one_table.declaration import SchemaFile
from dpsynth_platform.quality.columns import align, cells
from dpsynth_platform.quality.fidelity import k_way_distance
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural.language_generator import LanguageGenerator
from dpsynth_platform.synth.neural.row_tokens import KINDS, RowTokens
from dpsynth_platform.synth.neural.small_model import write_small_model

PUBLISHED = {
    ("adult", 1.0): {
        "GPT-2, DP only": (27.8, 58.5, 65.2, 55.0, 68.4, 85.7),
        "DP-2Stage-U": (21.2, 48.9, 61.9, 55.0, 76.1, 86.7),
        "DP-2Stage-O, first": (30.4, 61.6, 66.7, 55.4, 72.3, 88.5),
        "DP-2Stage-O, second": (31.6, 60.5, 66.4, 55.6, 71.3, 86.9),
        "AIM": (59.6, 86.8, 80.3, 86.4, 77.1, 88.4),
    },
    ("texas", 1.0): {
        "GPT-2, DP only": (55.4, 90.2, 77.1, 70.3, 60.6, 92.3),
        "DP-2Stage-U": (23.5, 59.8, 67.3, 68.2, 80.7, 93.4),
        "DP-2Stage-O, first": (74.8, 96.7, 89.1, 69.9, 60.5, 91.7),
        "DP-2Stage-O, second": (74.3, 96.4, 88.8, 70.9, 62.0, 93.2),
        "AIM": (84.5, 98.3, 94.2, 81.0, 93.0, 98.9),
    },
}
"""DP-2Stage, table 8: F1, AUC, accuracy, CorAcc, Pair, HIST."""
MOST_TEST = 500


@torch.no_grad()
def perplexities(model: nn.Module, tokens: RowTokens, states: Tensor) -> dict[str, float]:
    """Of the tokens of names, values and commas in some rows, [rows, columns], in the order in which rows are drawn."""
    rows = tokens.rows(states, torch.tensor(tokens.order).expand(len(states), -1), 0.5)
    scores = model(input_ids=rows["input_ids"], position_ids=rows["position_ids"], use_cache=False).logits
    lost = functional.cross_entropy(scores[:, :-1].flatten(0, 1), rows["labels"][:, 1:].flatten(), reduction="none")
    kinds = rows["kinds"][:, 1:].flatten()
    return {name: float(lost[kinds == kind].mean().exp()) for kind, name in enumerate(KINDS)}


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    train, test, columns, target = table_of(options.source)
    assert test is not None and target is not None
    with tempfile.TemporaryDirectory() as place, stored(train) as bounded:
        base, keys = options.base, json.loads(options.keys)
        if base == "small":
            declared = validated(SchemaFile, {"columns": columns}, "the benchmark").columns
            write_small_model(Path(place) / "base", declared, options.width)
            base, keys = str(Path(place) / "base"), {"adapter": "none"} | keys
        more: dict[str, Any] = {"base_model": base, "language": keys}
        if options.public:
            more["public"] = {"uri": options.public, "why": "a table of a benchmark"}
        plan = plan_of(options.method, columns, train.schema, options.epsilon, QUALITY_DELTA, target, more=more)
        began, model, method = [time.process_time()], Path(place) / "model", generator(options.method)
        model.mkdir()
        method.measure(plan, bounded, model)
        method.estimate(plan, model)
        began.append(time.process_time())
        made = method.sample(model, options.rows or train.num_rows).drop([PERSON])
        began.append(time.process_time())
        assert isinstance(method, LanguageGenerator)
        learned, rows = method.rows_model(plan, model)
        codes = learned.domain.encode(test.slice(0, MOST_TEST))
        states = np.stack([item.state_of[codes[:, at]] for at, item in enumerate(learned.states)], axis=1)
        perplexity = perplexities(rows.model, rows.tokens, torch.from_numpy(states).long())
    (real, other), sizes = cells(align({"real": train, "synthetic": made}))
    found = {
        "source": options.source,
        "method": options.method,
        "epsilon": options.epsilon,
        "base": options.base,
        "keys": keys,
        "pairs": k_way_distance(real, other, sizes, 2).mean,
        "triples": k_way_distance(real, other, sizes, 3).mean,
        "training": began[1] - began[0],
        "drawing": began[2] - began[1],
        **{f"perplexity of {name}": value for name, value in perplexity.items()},
    }
    say(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}))
    say(f"{'':24}      F1     AUC     ACC  CorAcc    Pair    HIST")
    for name, values in PUBLISHED.get((options.source, options.epsilon), {}).items():
        say(f"{name:24}" + "".join(f"{value:8.1f}" for value in values))
    f1, auc, accuracy, corr, pair, hist, *_ = figures(test, made, target)
    say(f"{options.method:24}" + "".join(f"{value:8.1f}" for value in (f1, auc, accuracy, corr, pair, hist)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="adult", choices=("adult", "texas"))
    parser.add_argument("--method", default="dp_2stage", choices=("great", "dp_2stage"))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--base", default="small")
    parser.add_argument("--keys", default="{}")
    parser.add_argument("--width", type=int, default=32, help="of the small model")
    parser.add_argument("--public")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--threads", type=int, default=1)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
