"""Tokens a second of sampling from SmolLM2-135M, beside `generate` of transformers. Not a test: run it.

    python tests/benchmarks/bench_sampling.py --texts 48 --batch 16 --longest 112 --lengths spread

What belongs here: processor time on one core (wall time on a GPU) of the same numbers of tokens, in float32 and in
bfloat16. What does not: that texts have the right distribution (`tests/synth/test_text_sampling.py`). Both draw at
temperature 1. A model that was not trained for a layout hardly ends its texts, so lengths are imposed on both: `spread`
draws them evenly from 1 to the longest, `same` has all texts run to the longest, where a plain batch wastes nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text import sampling
from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, load
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.slots import Slots

TOPICS = ("business", "sports", "science", "world")


class Lengths(StoppingCriteria):
    """Ends each row of a plain batch at its own length."""

    def __init__(self, lengths: torch.Tensor) -> None:
        self.lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return input_ids.shape[1] >= self.lengths


def plain(model, encoder, lengths, batch):
    """Batches of one prompt's texts, each as long as its longest."""
    for topic, wanted in lengths.items():
        prompt = encoder.prompt((topic,))
        for start in range(0, len(wanted), batch):
            rows = torch.tensor(wanted[start : start + batch], device=model.device)
            model.generate(
                torch.tensor([prompt] * len(rows), device=model.device),
                do_sample=True,
                top_k=0,
                max_new_tokens=int(rows.max()),
                eos_token_id=None,
                pad_token_id=encoder.eos,
                stopping_criteria=StoppingCriteriaList([Lengths(rows + len(prompt))]),
            )


def kept_full(model, encoder, lengths, batch):
    """The platform's loop, with the same lengths: no text ends by itself, each is cut off at its own."""
    missing = deque(((topic,), number) for topic, wanted in lengths.items() for number in range(len(wanted)))
    own = sampling.Sampling(min_tokens=encoder.layout.max_tokens, max_tokens=None)

    class Text(sampling._Text):
        def __init__(self, given, number, room, key):
            super().__init__(given, number, lengths[given[0]][number], key)

    sampling._Text, kept = Text, sampling._Text
    try:
        loop = sampling._Loop(Slots(model, batch, encoder.layout.max_tokens), encoder, own, b"benchmark")
        for _ in loop.texts(missing):
            pass
    finally:
        sampling._Text = kept


def main() -> None:
    """Prints tokens a second of both, and their ratio."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--texts", type=int, default=48)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--longest", type=int, default=112)
    arguments.add_argument("--lengths", choices=("spread", "same"), default="spread")
    arguments.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "dpsynth-bench-models")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--threads", type=int, default=1)
    chosen = arguments.parse_args()
    model, tokenizer = load(base_model(DEFAULT, chosen.cache))
    torch.set_num_threads(chosen.threads)
    encoder = Encoder(TextLayout(("text",), (Condition("topic", TOPICS),), max_tokens=chosen.longest + 16), tokenizer)
    rng = np.random.default_rng(0)
    least = chosen.longest if chosen.lengths == "same" else 1
    each = chosen.texts // len(TOPICS)
    lengths = {topic: rng.integers(least, chosen.longest + 1, each).tolist() for topic in TOPICS}
    tokens = sum(map(sum, lengths.values()))
    clock = time.process_time if chosen.device == "cpu" else time.perf_counter
    print(f"{tokens} tokens, tokens a second\n")
    print("| layers in | plain generate | slots kept full | ratio |")
    print("| --- | --- | --- | --- |")
    for precision in (torch.float32, torch.bfloat16):
        model.to(chosen.device, precision)
        speeds = []
        for run in (plain, kept_full):
            started = clock()
            run(model, encoder, lengths, chosen.batch)
            speeds.append(tokens / (clock() - started))
        name = str(precision).removeprefix("torch.")
        print(f"| {name} | {speeds[0]:.0f} | {speeds[1]:.0f} | {speeds[1] / speeds[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
