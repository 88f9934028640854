"""How strong the attacks on texts are, on newsgroups, without noise. Not a test: run it, and it prints a table.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_attacks.py                # an hour on one core, estimated
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_attacks.py --members 100 --epochs 4 --samples 200 \\
        --tokens 32 --rate 3e-4                  # the table of docs/explanation/measurements/attacks.md; seven minutes
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_text_attacks.py --canaries 60 --members 60 --epochs 3 \\
        --samples 200 --tokens 40 --rate 5e-5        # its kinds of canaries; nine minutes of one core's time

What belongs here: area under the curve and true positive rates of every attack, on a model that was trained without
privacy and on the texts drawn from it, with the seconds that each takes. What does not: asserting; `tests/audit` holds
what must hold.

Without noise, all that an attack can find is there to be found: one that finds nothing then is not worth its place.
Members and others are posts without what they quote, cut off after so many tokens; the attacker has as many posts again
as a reference, and asks about all, then about the most unusual ones (SynBench's idea, section 3; here by TF-IDF).

With `--canaries`, so many canaries of each kind are made as the line makes them and tossed for, and those that are in
are trained on beside the posts. The line's two attacks and reconstruction are asked about each kind alone: after every
round how well the model itself tells them, and at last how well the texts drawn from it do.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from bench_attacks import line
from bench_tabular import say

from dpsynth_platform.audit.adhoc.language_model import score_model
from dpsynth_platform.audit.attacks import likelihood_scores, overlap_scores
from dpsynth_platform.audit.canaries import make_canaries
from dpsynth_platform.audit.texts import TEXT_ONLY_ATTACKS, TextEvidence
from dpsynth_platform.audit.texts.copies import count_text_copies
from dpsynth_platform.audit.texts.outliers import outliers
from dpsynth_platform.audit.texts.reconstruction import reconstruct
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, load
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.sealing import layout_of
from dpsynth_platform.synth.text.trained import encoded, rows_log_likelihoods

BATCH = 16
UNUSUAL = 0.1
KINDS = ("made-up", "in-distribution", "unlikely-ending")
KNOWN = {"n-gram model": (True,), "n-gram similarity": (False, True)}
"""With or without a reference, where an attack can use one."""


def posts(count: int) -> list[str]:
    """So many different posts, in random order, without quoted lines."""
    table = read_file(Path(os.environ["DPSYNTH_BENCH_DATA"]) / "newsgroups20" / "newsgroups20.parquet")
    order = np.random.default_rng().permutation(table.num_rows)[: 3 * count]
    own = (
        "\n".join(part for part in text.split("\n") if part.strip() and part.lstrip()[0] not in ">|:")
        for text in table.column("text").take(order).to_pylist()
    )
    return list(dict.fromkeys(text for text in own if len(text) >= 100))[:count]


def trained(model: Any, rows: Sequence[Sequence[int]], filler: int, epochs: int, rate: float) -> None:
    """Trains on some texts' tokens, as often as said, without clipping and without noise."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate)
    rng = np.random.default_rng()
    for epoch in range(epochs):
        losses = []
        for part in np.array_split(rng.permutation(len(rows)), max(1, len(rows) // BATCH)):
            width = max(len(rows[row]) for row in part)
            tokens = torch.tensor([[*rows[row], *[filler] * (width - len(rows[row]))] for row in part])
            real = torch.tensor([[1] * len(rows[row]) + [0] * (width - len(rows[row])) for row in part])
            loss = model(input_ids=tokens, attention_mask=real, labels=tokens.masked_fill(real == 0, -100)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        say(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}")
    model.eval()


def drawn(model: Any, tokenizer: Any, prompt: Sequence[int], samples: int, length: int) -> list[str]:
    """Texts of the model's own distribution."""
    texts: list[str] = []
    while len(texts) < samples:
        begun = torch.tensor([prompt] * min(64, samples - len(texts)))
        with torch.inference_mode():
            found = model.generate(
                begun,
                attention_mask=torch.ones_like(begun),
                do_sample=True,
                top_k=0,
                max_new_tokens=length,
                pad_token_id=tokenizer.eos_token_id,
            )
        texts += tokenizer.batch_decode(found[:, len(prompt) :], skip_special_tokens=True)
    return [text for text in texts if text.strip()]


def attack(base: str, members: int, epochs: int, samples: int, tokens: int, rate: float, cache: Path) -> None:
    """Trains, draws, and prints a line for each attack."""
    model, tokenizer = load(base_model(base, cache))
    start = int(tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    found = tokenizer(posts(3 * members), add_special_tokens=False, verbose=False)["input_ids"]
    cut = [own[: tokens - 1] for own in found]
    texts = [tokenizer.decode(own) for own in cut]
    targets, reference, included = texts[: 2 * members], texts[2 * members :], np.arange(2 * members) < members
    trained(model, [[start, *own, tokenizer.eos_token_id] for own in cut[:members]], start, epochs, rate)
    made = drawn(model, tokenizer, [start], samples, tokens)
    place = cache / "trained"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    del model
    unusual = outliers(targets, UNUSUAL)
    say(f"{'':20}{'AUC':>8}{'TPR 1%':>9}{'TPR 0.1%':>10}{'TNR 1%':>9}{'seconds':>9}")
    for whom, who in (("all", np.ones_like(unusual)), ("unusual ones", unusual)):
        say(f"{whom}: {int(included[who].sum())} in, {int((~included[who]).sum())} out")
        asked = [text for text, chosen in zip(targets, who, strict=True) if chosen]
        started = time.monotonic()
        scored, counted = score_model(str(place), base, asked, included[who], cache=cache, hub=False)
        for item in scored:
            line(item.attack.name, item.scores, included[who], time.monotonic() - started)
        for name, entry in TEXT_ONLY_ATTACKS.items():
            for known in KNOWN.get(name, (False,)):
                started = time.monotonic()
                scores = entry.run(TextEvidence(asked, made, reference if known else None)).scores
                line(name + (" *" if known else ""), scores, included[who], time.monotonic() - started)
        for item in counted:
            say(f"   {item.words}")
    copies = count_text_copies(targets[:members], targets[members:], made)
    say(f"   copies: {copies.members} of {members} in, {copies.held_out} of {members} out (p = {copies.p_value:.2g})")
    say("* with a reference of other posts")


def contract_of(base: str, canaries: int, tokens: int) -> DataContract:
    """Posts without an author, and so many canaries of each kind of text."""
    document = {
        "dataset": "posts",
        "description": "Posts to newsgroups.",
        "owners": ["nobody@example.org"],
        "source": {"uri": "/nowhere", "key": ["post"]},
        "family": "posts",
        "privacy": {
            "unit": "example",
            "owner_columns": ["post"],
            "namespace": "post",
            "max_contributions": 1,
            "guarantee": {"epsilon": 8.0},
            "expected_units": 10_000,
        },
        "columns": {
            "post": {"type": "identifier"},
            "replied": {"type": "boolean"},
            "text": {"type": "text", "pii": "replace"},
        },
        "generate": {
            "method": "dp_finetune",
            "base_model": base,
            "rows": 100,
            "text": {"column": "text", "given": [], "max_tokens": tokens},
            "training": {"steps": 1, "batch_size": 100},
        },
        "audit": {"canaries": len(KINDS) * canaries, "canary_texts": list(KINDS)},
        "release": {"uri": "/nowhere/public"},
    }
    return parse_contract(document, where="the benchmark", variables={})


def compare(
    base: str, canaries: int, members: int, epochs: int, samples: int, tokens: int, rate: float, cache: Path
) -> None:
    """Trains on posts and included canaries, and prints a line for each kind and attack."""
    os.environ["DPSYNTH_HOME"] = str(cache)  # where the base model is kept, for the canaries that it writes
    contract = contract_of(base, canaries, tokens)
    bait = make_canaries(
        contract, pa.schema([("replied", pa.bool_()), ("text", pa.string())]), contract.canary_count, 1, None
    )
    included, texts = bait.included, bait.values["text"].to_pylist()
    kinds = np.array([kind.removeprefix("random, ") for kind in bait.kinds])
    model, tokenizer = load(base_model(base, cache))
    encoder = Encoder(layout_of(contract), tokenizer)
    rows = encoded(encoder, [((), f" {text}") for text in texts])
    others = encoded(encoder, [((), f" {text}") for text in posts(members)])
    before = rows_log_likelihoods(model, rows, encoder.eos)
    say(f"{'':20}{'AUC':>8}{'TPR 1%':>9}{'TPR 0.1%':>10}{'TNR 1%':>9}{'seconds':>9}")

    def show(attack: str, scores: dict[str, Any], started: float) -> None:
        say(attack)
        for kind, mine in scores.items():
            line(kind, mine, included[kinds == kind], time.monotonic() - started)

    of_kind = {kind: kinds == kind for kind in dict.fromkeys(kinds)}
    say(", ".join(f"{kind}: {included[mine].sum()} in, {mine.sum()} in all" for kind, mine in of_kind.items()))
    trained_on = [[*prompt, *body] for prompt, body in [*itertools.compress(rows, included), *others]]
    for epoch in range(epochs):
        trained(model, trained_on, encoder.eos, 1, rate)
        started = time.monotonic()
        after = rows_log_likelihoods(model, rows, encoder.eos)
        gained = {kind: likelihood_scores(before[mine], after[mine]) for kind, mine in of_kind.items()}
        show(f"text likelihood after round {epoch + 1}", gained, started)
    started = time.monotonic()
    back = reconstruct(model, [body for _, body in rows], [prompt for prompt, _ in rows])
    show("reconstruction", {kind: back[mine] for kind, mine in of_kind.items()}, started)
    started = time.monotonic()
    made = drawn(model, tokenizer, rows[0][0], samples, tokens)
    found = overlap_scores(texts, made)
    show(f"text overlap, {len(made)} drawn texts", {kind: found[mine] for kind, mine in of_kind.items()}, started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", default=DEFAULT)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--canaries", type=int, default=0, help="of each kind; 0: attack real posts instead")
    said = vars(parser.parse_args())
    canaries = said.pop("canaries")
    with tempfile.TemporaryDirectory() as cache:
        if canaries:
            compare(**said, canaries=canaries, cache=Path(cache))
        else:
            attack(**said, cache=Path(cache))


if __name__ == "__main__":
    main()
