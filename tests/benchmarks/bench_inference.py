"""How long a token of DP inference takes, with kept keys and values and without. Not a test: run it.

    python tests/benchmarks/bench_inference.py                               # those of docs/guides/texts.md; minutes
    python tests/benchmarks/bench_inference.py --owners 100 --tokens 64 --device cuda

What belongs here: seconds a token of one context of so many owners, with the program's own memory of what was read, and
by reading everything again for each token; how many rows a batch may have, and a document. What does not: asserting;
`tests/synth/test_inference.py` holds what must hold.

Records are fictional letters. Reading them again is timed on a few tokens; it takes longer as the document grows.
"""

from __future__ import annotations

import argparse
import time

import torch

from dpsynth_platform.contracts.text_generation import Inference
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, load, special_tokens
from dpsynth_platform.synth.text.inference_contexts import Contexts
from dpsynth_platform.synth.text.inference_model import Context, Prompts, independent_rows
from dpsynth_platform.synth.text.inference_plan import InferencePlan
from dpsynth_platform.synth.text.inference_writing import Writer, shape_of
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.training.precision import precision_of

THINGS = ("kettle", "lamp", "bicycle pump", "garden chair", "radio", "umbrella", "backpack", "alarm clock")
FAULTS = ("came with a crack in its side", "stopped working after two days", "is not the colour that I ordered")
WISHES = ("Please send another one.", "I would like my money back.", "Who pays for sending it back?")
LAYOUT = TextLayout(("letter",), (Condition("kind", ("complaint", "praise")),), max_tokens=64)
LABEL = ("complaint",)
ABOUT = "Letters of complaint that customers wrote to a shop."
AGAIN = 3
"""Tokens for which everything is read again."""


def letter(number: int) -> str:
    """A fictional complaint."""
    thing = THINGS[number % len(THINGS)]
    return f" Dear shop, the {thing} {FAULTS[number % len(FAULTS)]}. {WISHES[number % len(WISHES)]}"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=24, help="of a document")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    model, tokenizer = load(base_model(DEFAULT, Settings.from_environment().base_models))
    model = model.to(asked.device, precision_of(torch.device(asked.device)))
    encoder = Encoder(LAYOUT, tokenizer)
    prompts, declared = (
        Prompts(encoder, ABOUT),
        Inference(batch_size=asked.owners, document_tokens=asked.tokens, top_k=50),
    )
    plan = InferencePlan(
        contexts=1,
        tokens=asked.tokens,
        adjacency="add-or-remove",
        max_contributions=1,
        **declared.model_dump(exclude={"about"}),
    )
    shape = shape_of(prompts, asked.tokens)
    start = time.perf_counter()
    rows = independent_rows(model, **shape)
    print(f"rows that are computed by themselves in a batch: {rows} ({time.perf_counter() - start:.1f} s to find out)")
    bodies = [letter(number) for number in range(asked.owners)]
    read, filler = prompts.of_records(LABEL, bodies), prompts.public(LABEL)
    start = time.perf_counter()
    for token in range(AGAIN):
        again = [[*prompt, *[100] * token] for prompt in read]
        list(Context(model, again, filler, rows=rows, **shape).begin())
    print(f"{(time.perf_counter() - start) / AGAIN:.2f} s a token if {asked.owners} records are read again for each")
    blank = [token for token in range(len(tokenizer)) if not encoder.text([token]).strip()]
    writer = Writer(model, encoder, prompts, plan, never=tuple(special_tokens(tokenizer)), blank=blank)
    start = time.perf_counter()
    documents = writer.texts(Contexts((LABEL,)), [{str(number): [body] for number, body in enumerate(bodies)}])
    took = time.perf_counter() - start
    tokens = sum(document.tokens for document in documents)
    print(f"{took / tokens:.2f} s a token with what was read kept, for {tokens} tokens, reading once included")
    for document in documents:
        print(f"{document.tokens} tokens:{document.body}")


if __name__ == "__main__":
    main()
