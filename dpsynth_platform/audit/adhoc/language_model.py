"""Attacks on a language model of anybody's making, with texts that it was trained on and texts that it was not.

What belongs here: loading the model, texts as its tokens, and running the attacks. What does not: the attacks (`texts`,
`attacks`), what their scores mean (`own`), and models of the asset line, whose prompts are their plan's
(`text_scoring`). A text is scored as it stands, after the token that texts begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsynth_platform.audit.attacks import (
    LIKELIHOOD,
    TEXT_LIKELIHOOD,
    Floats,
    Scored,
    alike_items,
    likelihood_scores,
)
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.texts.reconstruction import (
    RECONSTRUCTION,
    Reconstructed,
    count_reconstructed,
    reconstruct,
)
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.base_models import BaseModel, base_model, context_length, load, refuse_decoder
from dpsynth_platform.synth.text.trained import rows_log_likelihoods

MOST_TOKENS = 256
"""Of a text, from its beginning; more would mostly take time."""


def score_model(
    model: str, base: str | None, targets: Sequence[str], included: Coins, *, cache: Path, hub: bool
) -> tuple[list[Scored], tuple[Reconstructed, ...]]:
    """Scores of the attacks on a model: likelihood, beside the base model's where there is one, and reconstruction.

    Args:
        model: declared as base models are (`base_models`): a directory with safetensors, a GGUF file, a name.
        base: that its training started from, declared likewise; None: unknown.
        targets: texts asked about.
        included: who was in, shape (targets,); only for counting what came back.
        cache: directory for converted and downloaded models.
        hub: whether a model hub may be asked.

    Returns:
        The scores, and how many texts came back exactly and nearly.

    Raises:
        ConfigurationError: a model is not there or cannot be asked, or the two have different tokens.
        AccountingError: everybody was in, or nobody.
    """
    asked, tokenizer = load(_causal(model, cache, hub))
    start = int(tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    texts = _tokens(tokenizer, targets, min(MOST_TOKENS, context_length(asked) - 1))
    likeness = reconstruct(asked, texts, [[start]] * len(texts))
    likelihood = _log_likelihoods(asked, texts, start)
    alike = alike_items(map(tuple, texts))
    scored = Scored(LIKELIHOOD, likelihood, alike)
    if base is not None:
        del asked  # two models at once may be too much
        before, own = load(_causal(base, cache, hub))
        if own.get_vocab() != tokenizer.get_vocab():
            raise ConfigurationError(f"base model {base!r}: its tokens are not those of {model!r}; accepted: its base")
        scored = Scored(TEXT_LIKELIHOOD, likelihood_scores(_log_likelihoods(before, texts, start), likelihood), alike)
    return [scored, Scored(RECONSTRUCTION, likeness, alike)], count_reconstructed(likeness, included)


def _causal(declared: str, cache: Path, hub: bool) -> BaseModel:
    """A model that can be asked how likely a text is as it stands, without what its encoder was told."""
    found = base_model(declared, cache, hub=hub)
    refuse_decoder(found, "an attack on a model of one's own")
    return found


def _tokens(tokenizer: Any, targets: Sequence[str], most: int) -> list[list[int]]:
    """`verbose` would warn of long texts, and say how long they are."""
    found = tokenizer(list(targets), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [tokens[:most] for tokens in found["input_ids"]]


def _log_likelihoods(model: Any, texts: Sequence[Sequence[int]], start: int) -> Floats:
    return rows_log_likelihoods(model, [([start], tokens) for tokens in texts], start)
