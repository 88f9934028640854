"""Answers a minute to prompts of private evolution by SmolLM2-135M, beside `generate` of transformers. Run it.

    python tests/benchmarks/bench_prompts.py --texts 64 --longest 48

What belongs here: processor time on one core (wall time on a GPU) of as many answers to the same prompts, which are
variations of one sentence, half of them by blanks. What does not: what comes of the answers (`bench_text_utility.py`).
Both draw at temperature 1 in the precision that the platform takes on the device, and go on until all of a batch have
ended; `generate` has batches of prompts of like lengths, filled up on the left.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch

from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text.base_models import DEFAULT, load
from dpsynth_platform.synth.text.evolution_prompts import TextFoundation, Wording
from dpsynth_platform.synth.text.evolution_writers import LocalWriter
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.public_text import Prompt, PublicText
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.trained import deployed
from dpsynth_platform.training.precision import precision_of

SENTENCE = (
    "The company said that its operating profit rose to EUR 13.1 mn from EUR 8.7 mn in the corresponding period of "
    "2007, representing 7.7 % of net sales."
)
LABELS = ("negative", "neutral", "positive")
BATCH = 32


class Kept:
    """A `Writer` that answers nothing and keeps the prompts."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []

    def write(self, prompts: Sequence[Prompt]) -> list[PublicText | None]:
        """See `evolution_prompts.Writer.write`."""
        self.prompts += prompts
        return [PublicText(SENTENCE) for _ in prompts]


def prompts_of(number: int) -> list[Prompt]:
    """As many variations of the sentence as the product asks for."""
    kept, layout = Kept(), TextLayout(("text",), (Condition("label", LABELS),), max_tokens=64)
    about = "Sentences of financial news, each with what it tells an investor."
    wording = Wording(about=about, hints=(), ways=("rephrase", "fill-in"), blanks=0.5, words=36)
    foundation = TextFoundation(kept, lambda texts: texts, wording, layout, [(label,) for label in LABELS])
    foundation.vary([PublicText(SENTENCE)] * number, [at % len(LABELS) for at in range(number)])
    return kept.prompts


def plain(model: Any, tokenizer: Any, writer: LocalWriter, prompts: Sequence[Prompt], longest: int) -> None:
    """Batches by transformers."""
    tokens = sorted((writer._tokens(prompt) for prompt in prompts), key=len)
    for start in range(0, len(tokens), BATCH):
        part = tokens[start : start + BATCH]
        width = max(map(len, part))
        rows = torch.tensor([[0] * (width - len(one)) + one for one in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in part], device=model.device)
        settings = {"do_sample": True, "top_k": 0, "max_new_tokens": longest, "pad_token_id": tokenizer.eos_token_id}
        model.generate(rows, attention_mask=mask, **settings)


def main() -> None:
    """Prints answers a minute of both, and their ratio."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--texts", type=int, default=64)
    arguments.add_argument("--longest", type=int, default=48)
    arguments.add_argument("--device", default="cpu")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(deployed(DEFAULT))
    precision = precision_of(torch.device(chosen.device))
    model = model.to(chosen.device, precision)
    writer = LocalWriter(model, tokenizer, Sampling(max_tokens=chosen.longest), chosen.longest)
    prompts, clock = prompts_of(chosen.texts), time.process_time if chosen.device == "cpu" else time.perf_counter
    speeds = []
    for run in (lambda: plain(model, tokenizer, writer, prompts, chosen.longest), lambda: writer.write(prompts)):
        started = clock()
        run()
        speeds.append(60 * len(prompts) / (clock() - started))
    print("| numbers in | plain generate | what they begin with once | ratio |")
    print("| --- | --- | --- | --- |")
    name = str(precision).removeprefix("torch.")
    print(f"| {name} | {speeds[0]:.0f} | {speeds[1]:.0f} | {speeds[1] / speeds[0]:.2f} |")


if __name__ == "__main__":
    main()
