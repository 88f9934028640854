"""A small language model for the rows of one table, made of public words: first weights, and a tokenizer.

What belongs here: making it. What does not: training it (`language_generator`), and base models in general
(`text.base_models`).

A large model is slow on a CPU, and most of its words are in no table. This one is a Llama of few layers with weights
at random. Its tokenizer knows each name of a column and each declared value as one token, and writes all else by bytes.
First weights have the deviation 1/sqrt(width), not the usual .02: so each place has other features from the start.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.columns import CategoricalColumn, Column
from dpsynth_platform.foundation.errors import ConfigurationError

BEGIN, END = "<s>", "</s>"
MOST_TOKENS = 20_000
HEADS, WIDER, POSITIONS = 4, 2, 2048
_FREQUENT = 4
"""How often each word is shown to the tokenizer: it joins what occurs twice."""


def write_small_model(directory: Path, columns: Mapping[str, Column], width: int = 32, layers: int = 3) -> int:
    """Writes a model and its tokenizer, as `base_models` reads them; returns the number of weights.

    Args:
        directory: a new one.
        columns: declared ones of the table.
        width: of the layers, a multiple of 8.

    Raises:
        ConfigurationError: the directory exists, or the width does not fit.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if directory.exists():
        raise ConfigurationError(f"{directory}: exists; accepted: the name of a new directory")
    if width % (2 * HEADS) or width < 2 * HEADS or layers < 1:
        raise ConfigurationError(
            f"width {width}, layers {layers}; accepted: a width of {2 * HEADS} or a multiple of it, and 1 layer or more"
        )
    tokenizer = _tokenizer(columns)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=WIDER * width,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=POSITIONS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
        initializer_range=width**-0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63))
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return sum(value.numel() for value in model.parameters())


def _tokenizer(columns: Mapping[str, Column]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = [f" {name} is" for name in columns]
    listed = [column.listed for column in columns.values() if isinstance(column, CategoricalColumn)]
    words += [f" {value}" for values in listed for value in values]
    backend = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MOST_TOKENS,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(words * _FREQUENT, trainer)
    wrapped: Any = PreTrainedTokenizerFast
    return wrapped(tokenizer_object=backend, bos_token=BEGIN, eos_token=END)
