"""Texts of canaries that a base model writes, told a canary's other values: bait that resembles real texts.

What belongs here: drawing them. What does not: made-up words, coins and owners (`audit.canaries`). The data have no
part in it: prompts are the contract's values, and the base model is as public as its clearance says.

Meeus et al. ("The Canary's Echo", ICML 2025): strange texts are remembered best, but leave nothing behind in the texts
that a model writes of its own accord. One that begins like all others and then becomes unlikely does: whoever begins
like that is led to it. Here the ending is drawn at a high temperature, where they search for a given perplexity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.base_models import load
from dpsynth_platform.synth.text.layout import Encoder, Given
from dpsynth_platform.synth.text.rows import check_rows, rows_for
from dpsynth_platform.synth.text.sampling import Sampling, drawn, probabilities
from dpsynth_platform.synth.text.sealing import layout_of

BEGINNING, LENGTH = 16, 32
"""Tokens of the beginning that is drawn as the model would, and of the whole text, if the layout has room."""
HEAT = 1.5
"""Temperature of an unlikely ending: words still follow each other, though seldom to any sense."""
_AT_ONCE = 32
_TRIES = 20


def base_texts(contract: DataContract, records: Sequence[Mapping[str, Any]], unlikely: Sequence[bool]) -> list[str]:
    """A text for each record, by the base model that the contract names.

    Args:
        contract: names the base model, and the columns that it is told.
        records: the other values of each canary.
        unlikely: whether its text shall end unlikely.

    Raises:
        ConfigurationError: the base model is not there, cannot be sampled from, or writes nothing but blanks.
    """
    layout = layout_of(contract)
    model, tokenizer = load(trained.deployed(str(contract.generate.base_model)))
    encoder = Encoder(layout, tokenizer)
    check_rows(model, layout.max_tokens)
    prompts = [layout.given(record) for record in records]
    if any(prompt is None for prompt in prompts):
        raise ConfigurationError(f"{contract.dataset}: a canary has a value that the language model cannot be told")
    found = [""] * len(records)
    for _ in range(_TRIES):
        missing = [place for place, text in enumerate(found) if not text.strip()]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            told = [prompt for place in part if (prompt := prompts[place]) is not None]
            texts = write_texts(model, encoder, told, [HEAT if unlikely[place] else 1.0 for place in part])
            for place, text in zip(part, texts, strict=True):
                found[place] = text
    if not all(text.strip() for text in found):
        raise ConfigurationError("the base model writes nothing but blanks; accepted: one that writes texts")
    return found


def write_texts(model: Any, encoder: Encoder, prompts: Sequence[Given], heats: Sequence[float]) -> list[str]:
    """One text a prompt, each of as many tokens: `LENGTH`, or what the layout leaves.

    Args:
        model: in evaluation mode; it can be sampled from (`rows.check_rows`).
        encoder: the layout in its tokens.
        prompts: values of the layout's conditions.
        heats: temperature of each text after its first `BEGINNING` tokens.
    """
    rows = rows_for(model, len(prompts), encoder.layout.max_tokens)
    read = rows.read([encoder.prompt(prompt) for prompt in prompts])
    for row, prompt in enumerate(read):
        rows.put(prompt, row)
    # One token less than there is room for: training adds the end of the text.
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
