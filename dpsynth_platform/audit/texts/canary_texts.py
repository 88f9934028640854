"""Canary texts that a base model writes, given a canary's other values: they resemble real texts.

What belongs here: drawing them. What does not: made-up words, coins and owners (`audit.canaries`). No data is used:
prompts are the contract's values, and the base model is as public as its clearance says.

Meeus et al. ("The Canary's Echo", ICML 2025): strange texts are remembered best, but leave no trace in the texts that a
model writes freely. A text with a common beginning and an unlikely ending does, since a common beginning leads to it.
Here the ending is drawn at a high temperature; the paper searches for a given perplexity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.base_models import load
from dpsynth_platform.synth.text.layout import Encoder
from dpsynth_platform.synth.text.rows import check_rows, rows_for
from dpsynth_platform.synth.text.sampling import Sampling, drawn, probabilities
from dpsynth_platform.synth.text.sealing import layout_of

BEGINNING, LENGTH = 16, 32
"""Tokens at temperature 1, and tokens of the whole text if the layout has room."""
HEAT = 1.5
"""Temperature of an unlikely ending, which is still words but seldom makes sense."""
_AT_ONCE = 32
_TRIES = 20


def base_texts(contract: DataContract, records: Sequence[Mapping[str, Any]], unlikely: Sequence[bool]) -> list[str]:
    """A text for each record of other values, by the contract's base model, perhaps with an `unlikely` ending.

    Raises `ConfigurationError` if the base model is missing, cannot be sampled from, or writes blanks only.
    """
    layout = layout_of(contract)
    model, tokenizer = load(trained.deployed(str(contract.generate.base_model)))
    encoder = Encoder(layout, tokenizer)
    check_rows(model, layout.max_tokens)
    prompts = [layout.given(record) for record in records]
    if any(prompt is None for prompt in prompts):
        raise ConfigurationError(
            f"{contract.dataset}: a canary has a value that the prompt of the language model cannot hold"
        )
    found = [""] * len(records)
    for _ in range(_TRIES):
        missing = [place for place, text in enumerate(found) if not text.strip()]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            given = [prompt for place in part if (prompt := prompts[place]) is not None]
            texts = write_texts(model, encoder, given, [HEAT if unlikely[place] else 1.0 for place in part])
            for place, text in zip(part, texts, strict=True):
                found[place] = text
    if not all(text.strip() for text in found):
        raise ConfigurationError("the base model writes blanks only; accepted: one that writes texts")
    return found


def write_texts(model: Any, encoder: Encoder, prompts: Sequence[Given], heats: Sequence[float]) -> list[str]:
    """One text a prompt, all of the same length: `LENGTH` tokens, or as many as the layout has room for.

    The model is in evaluation mode and checked by `rows.check_rows`; `heats` are temperatures after `BEGINNING` tokens.
    """
    rows = rows_for(model, len(prompts), encoder.layout.max_tokens)
    read = rows.read([encoder.prompt(prompt) for prompt in prompts])
    for row, prompt in enumerate(read):
        rows.put(prompt, row)
    # One token less than the room: training adds the end of the text.
    length = min(LENGTH, encoder.layout.max_tokens - max(prompt.length for prompt in read) - 1)
    logits, tokens = torch.stack([prompt.logits for prompt in read]), []
    never = torch.zeros_like(logits, dtype=torch.bool)
    never[:, encoder.eos] = True
    hot = torch.tensor(heats, device=logits.device, dtype=logits.dtype)[:, None]
    source = torch.Generator(device=logits.device)
    source.seed()  # from the operating system
    for place in range(length):
        cooled = logits if place < BEGINNING else logits / hot
        uniforms = torch.rand(len(prompts), generator=source, dtype=torch.float64, device=logits.device)
        tokens.append(drawn(probabilities(cooled, Sampling(), never), uniforms))
        if place + 1 < length:
            logits = rows.step(tokens[-1])
    return [encoder.text(row) for row in torch.stack(tokens, dim=1).tolist()]
