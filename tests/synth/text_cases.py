"""A contract of letters, a tokenizer of some hundred tokens, and language models that train in seconds."""

import json
from dataclasses import asdict
from functools import cache
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.synth.endpoint_access import Access, Transport
from dpsynth_platform.synth.evolution.journal import has_begun
from dpsynth_platform.synth.interface import Checkpoints, PlanInputs, SealedPlan, generator
from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters
from dpsynth_platform.synth.text.sealing import TextParameters, started_from
from dpsynth_platform.synth.text.topics import write_topics

WORDS = [
    "the patient came back with a cough and a fever",
    "the parcel came late and the box was open",
    "please send the report to the team by monday",
    "topic: mail\ntext: the team was late",
]
TOPICS = ["team", "parcel", *(f"topic{number}" for number in range(14))]
BOS, EOS = "<s>", "<|endoftext|>"


@cache
def tiny_tokenizer(size=300, eos=EOS):
    """Byte-level BPE: every text can be written in it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = [BOS] + ([eos] if eos else [])
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(WORDS * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, **({"eos_token": eos} if eos else {}))


def tiny_llama(tokenizer=None, vocabulary=None, seed=0, positions=64, **changes):
    """Grouped queries and tied embeddings, as SmolLM2 has; weights drawn wide enough to prefer some tokens."""
    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary or len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
        initializer_range=0.3,
        **changes,
    )
    return LlamaForCausalLM(config).eval()


def tiny_gpt2(tokenizer=None, seed=0, positions=64):
    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    return GPT2LMHeadModel(config).eval()


def tiny_t5(tokenizer=None, seed=0, **changes):
    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_max_distance=40,
        pad_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        **changes,
    )
    return T5ForConditionalGeneration(config).eval()


def tiny_bart(tokenizer=None, seed=0, positions=64):
    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.bos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        init_std=0.3,
    )
    return BartForConditionalGeneration(config).eval()


def save_model(directory, model=None, tokenizer=None):
    tokenizer = tokenizer or tiny_tokenizer()
    (model or tiny_llama(tokenizer)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def letters_contract(columns, generate, *, privacy=(), description="Letters to the editor."):
    """A contract of letters by readers: their body is text, which other columns stand before."""
    return parse_contract(
        {
            "dataset": "letters",
            "description": description,
            "owners": ["letters@example.org"],
            "source": {"uri": "/nowhere", "key": ["letter"]},
            "family": "readers",
            "privacy": {
                "unit": "user",
                "owner_columns": ["reader"],
                "namespace": "reader",
                "max_contributions": 2,
                "guarantee": {"epsilon": 8.0, "delta": "auto"},
                "expected_units": 100,
            }
            | dict(privacy),
            "columns": {
                "letter": {"type": "identifier"},
                "reader": {"type": "identifier"},
                **columns,
                "body": {"type": "text", "pii": "replace"},
            },
            "generate": generate,
            "release": {"uri": "/nowhere/public"},
        },
        where="letters.yaml",
        variables={},
    )


def sealed_plan(contract, source, base, row_bytes=1000):
    """The plan that `Generator.plan` makes, without trying the model, which needs its weights."""
    inputs, method = PlanInputs(contract, source, Guarantee.target(contract)), contract.generate.method
    if method == "dp_inference":
        parameters = InferenceParameters.calibrated(inputs, base, row_bytes)
    else:
        parameters = (EvolutionParameters if method == "aug_pe" else TextParameters).calibrated(inputs, base)
    return SealedPlan.of(method, inputs, parameters.parts(inputs))


def bounded_table(place, columns):
    """A bounded table of these columns, with two records of each owner."""
    table = pa.table(columns)
    numbers = range(table.num_rows)
    table = table.append_column(OWNER_COLUMN, pa.array([f"{number // 2:032x}" for number in numbers]))
    table = table.append_column(RECORD_COLUMN, pa.array([f"{number:032x}" for number in numbers]))
    write_table(place, table.schema, table.to_batches())
    return place


def fitted(plan, bounded, directory, *, of=None, resume=False, key=b"k" * 32):
    """Runs a plan's mechanism as a worker does, with the plan's base model or endpoint; `of` is the grant's plan."""
    named, base, endpoint = started_from(plan), None, None
    if named is None:
        endpoint = directory.parent / "endpoint.json"
        Access("top-secret", Transport(seconds=5.0, attempts=2)).write(endpoint)
    else:
        described, base = trained.deployed(named[0]), directory.parent / "base.json"
        base.write_text(json.dumps(asdict(described) | {"directory": str(described.directory)}))
    directory.mkdir(exist_ok=True)
    grant = SimpleNamespace(plan_digest=of or plan.digest, entry_id="e" * 32)
    resume = resume or has_begun(directory)
    checkpoints = Checkpoints(base, key, resume=resume, endpoint=endpoint)
    generator(plan.method).fit(plan, bounded, grant, directory, checkpoints=checkpoints)
    return directory


def two_topics(file, texts):
    """A topic model of two texts, `TOPICS[:2]`, and fourteen topics in directions that neither points to."""
    about = SentenceEncoder("cpu").encode(texts)
    others = np.linalg.svd(about, full_matrices=True)[2][2:16]
    write_topics(file, {16: (np.concatenate([about, others]), TOPICS)}, "two sentences")
    return file
