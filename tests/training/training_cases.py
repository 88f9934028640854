"""Tiny language models, batches and plans, and gradients of one example after the other, for tests of training."""

from __future__ import annotations

import copy

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from dpsynth_platform.training.plan import TrainingPlan

VOCABULARY = 61
KINDS = [(name, tied, adapter) for name in ("llama", "gpt2") for tied in (False, True) for adapter in (False, True)]


ENCODERS = ["t5", "gated t5", "bart"]
"""Encoder-decoder models; only adapters of them are trained."""
START = 3
"""The token with which their decoders begin."""


def plan(**changes):
    usual = {"units": 100, "batch_size": 10, "steps": 3, "noise_multiplier": 1.0, "replay_allowance": 1}
    return TrainingPlan(**(usual | changes))


def model(name="llama", tied=False, adapter=False, width=16):
    if name == "llama":
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=width,
                intermediate_size=2 * width,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                tie_word_embeddings=tied,
                pad_token_id=0,
            )
        )
    elif name.endswith("t5"):
        made = T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=width,
                d_kv=4,
                d_ff=2 * width,
                num_layers=2,
                num_heads=4,
                feed_forward_proj="gated-gelu" if name.startswith("gated") else "relu",
                relative_attention_max_distance=20,
                decoder_start_token_id=START,
            )
        )
    elif name == "bart":
        made = BartForConditionalGeneration(
            BartConfig(
                vocab_size=VOCABULARY,
                d_model=width,
                encoder_layers=2,
                decoder_layers=2,
                encoder_ffn_dim=2 * width,
                decoder_ffn_dim=2 * width,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                max_position_embeddings=64,
                pad_token_id=0,
                decoder_start_token_id=START,
            )
        )
        made.final_logits_bias.normal_()
    else:
        made = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=width,
                n_layer=2,
                n_head=4,
                n_positions=64,
                tie_word_embeddings=tied,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    with torch.no_grad():
        for value in made.parameters():  # gains and biases are 1 and 0 at first, which would hide mistakes
            value.add_(0.1 * torch.randn_like(value))
    if adapter:
        targets = ["c_attn", "c_proj", "c_fc"] if name == "gpt2" else "all-linear"
        made = get_peft_model(made, LoraConfig(r=2, target_modules=targets, fan_in_fan_out=name == "gpt2"))
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


def batch(lengths, longest=None):
    """Random tokens, padded on the right; of each example, the first third has no loss."""
    longest = longest or max(lengths)
    ids = torch.randint(1, VOCABULARY, (len(lengths), longest))
    mask = torch.zeros_like(ids)
    labels = ids.clone()
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        labels[row, : length // 3] = -100
    ids[mask == 0] = 0
    labels[mask == 0] = -100
    positions = torch.arange(longest).repeat(len(lengths), 1)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "position_ids": positions}


def gradients_one_by_one(made, rows):
    """Of each example alone, without its padding, by plain autograd in double precision: [examples, parameters]."""
    made = copy.deepcopy(made).double()
    wanted = [value for value in made.parameters() if value.requires_grad]
    found = []
    for row in range(len(rows["input_ids"])):
        length = int(rows["attention_mask"][row].sum())
        one = {name: values[row : row + 1, :length] for name, values in rows.items()}
        labels = one.pop("labels")
        if (labels[:, 1:] == -100).all():
            found.append([torch.zeros_like(value) for value in wanted])
            continue
        if made.config.is_encoder_decoder:
            logits, labels = scores_of_written(made, one["input_ids"][0], labels[0])
        else:
            logits, labels = made(**one, use_cache=False).logits[0, :-1], labels[0, 1:]
        loss = functional.cross_entropy(logits, labels, ignore_index=-100)
        got = torch.autograd.grad(loss, wanted, allow_unused=True)
        found.append([torch.zeros_like(w) if g is None else g for w, g in zip(wanted, got, strict=True)])
    return torch.stack([torch.cat([part.flatten() for part in one]) for one in found])


def scores_of_written(made, tokens, labels):
    """An encoder-decoder model's scores of one row, whose encoder reads the tokens before the first label."""
    first = max(1, (labels != -100).tolist().index(True))
    prompt, written = tokens[:first], tokens[first:]
    begun = torch.cat([torch.tensor([START]), written[:-1]])
    return made(input_ids=prompt[None], decoder_input_ids=begun[None], use_cache=False).logits[0], labels[first:]


def assert_clipped(found, units, bound, shorter):
    """A sum consists of these gradients, [units, coordinates], each with its own norm or that of the bound.

    Clipped ones may be shorter by the part `shorter`, since norms are rounded up. None is longer.
    """
    norms = units.norm(dim=1)
    units, norms = units[norms > 0], norms[norms > 0]
    ways = units / norms[:, None]
    lengths = torch.linalg.lstsq(ways.T, found[:, None]).solution[:, 0]
    assert (found - lengths @ ways).norm() <= 1e-5 * found.norm()
    clipped = norms.clamp(max=bound)
    assert (lengths <= (1 + 1e-6) * clipped).all()
    assert (lengths >= (1 - shorter) * clipped).all()


def flat(tensors):
    return torch.cat([part.flatten() for part in tensors]).double()


class Records:
    """Examples in memory, as the loop takes them."""

    def __init__(self, rows, max_length=None):
        self.rows, self.max_length = rows, max_length or rows["input_ids"].shape[1]

    def __len__(self):
        return len(self.rows["input_ids"])

    def batch(self, indices):
        return {name: values[list(indices)] for name, values in self.rows.items()}
