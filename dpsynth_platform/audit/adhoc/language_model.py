"""Attacks on any language model, with texts that it was trained on and texts that it was not.

What belongs here: loading the model, tokenizing texts, and running the attacks. What does not: the attacks (`texts`,
`attacks`), conclusions (`outcomes`), and models of the asset line, which have prompts (`text_scoring`). A text is
scored unchanged, after the token that texts begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsynth_platform.audit.attacks import LIKELIHOOD, TEXT_LIKELIHOOD, Floats, Scored, equal_items, likelihood_scores
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.risk import Reconstructed
from dpsynth_platform.audit.texts.reconstruction import RECONSTRUCTION, count_reconstructed, reconstruct
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.base_models import BaseModel, base_model, context_length, load, refuse_decoder
from dpsynth_platform.synth.text.trained import rows_log_likelihoods

MOST_TOKENS = 256
"""Scored tokens from the beginning of a text; more would mostly take time."""


def score_model(
    model: str, base: str | None, targets: Sequence[str], included: Coins, *, cache: Path, hub: bool
) -> tuple[list[Scored], tuple[Reconstructed, ...]]:
    """Scores of the attacks on a model: likelihood, relative to the base model's if declared, and reconstruction.

    Models are declared as in `base_models`: a directory with safetensors, a GGUF file, a name. `cache` is for converted
    and downloaded models, and `hub` allows downloads. `included` only counts reconstructions.

    Raises:
        ConfigurationError: a model is missing or unsuitable, or the two have different tokens.
        AccountingError: all or none of the targets are members.
    """
    asked, tokenizer = load(_causal(model, cache, hub))
    start = int(tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    texts = _tokens(tokenizer, targets, min(MOST_TOKENS, context_length(asked) - 1))
    likeness = reconstruct(asked, texts, [[start]] * len(texts))
    likelihood = _log_likelihoods(asked, texts, start)
    duplicates = equal_items(map(tuple, texts))
    scored = Scored(LIKELIHOOD, likelihood, duplicates)
    if base is not None:
        del asked  # two models at once may not fit into memory
        before, own = load(_causal(base, cache, hub))
        if own.get_vocab() != tokenizer.get_vocab():
            raise ConfigurationError(
                f"base model {base!r}: its tokens are not those of {model!r}; accepted: the model that it was trained "
                "from"
            )
        scored = Scored(
            TEXT_LIKELIHOOD, likelihood_scores(_log_likelihoods(before, texts, start), likelihood), duplicates
        )
    return [scored, Scored(RECONSTRUCTION, likeness, duplicates)], count_reconstructed(likeness, included)


def _causal(declared: str, cache: Path, hub: bool) -> BaseModel:
    """A model that gives the likelihood of a text without an encoder's input."""
    found = base_model(declared, cache, hub=hub)
    refuse_decoder(found, "an attack on a model of one's own")
    return found


def _tokens(tokenizer: Any, targets: Sequence[str], most: int) -> list[list[int]]:
    # `verbose` would warn of long texts, with their lengths.
    found = tokenizer(list(targets), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [tokens[:most] for tokens in found["input_ids"]]


def _log_likelihoods(model: Any, texts: Sequence[Sequence[int]], start: int) -> Floats:
    return rows_log_likelihoods(model, [([start], tokens) for tokens in texts], start)
