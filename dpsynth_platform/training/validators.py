"""Faults of a model, its batches or its loss that rule out differentially private training, found before any spend.

What belongs here: checks of a model's modules, and trials on random tokens, which name a module by its path. They cover
the pitfalls of Ponomareva et al., "How to DP-fy Your Data", section 7.3, and those of per-example clipping by hooks.
What does not: numerical tests of clipping for any model (`probe`), and real records: trials use random tokens and
made-up examples.

Every check returns its findings as sentences: place, reason, solution. `refuse` raises them all at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsynth_platform.foundation.errors import MechanismFailed, TrainingRefused
from dpsynth_platform.training import trial
from dpsynth_platform.training.families import has_encoder
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.layers import rule_for
from dpsynth_platform.training.trial import Losses, Maker

CAPACITIES = (
    "expert_capacity",
    "expert_capacity_factor",
    "capacity_factor",
    "moe_capacity_factor",
    "moe_eval_capacity_token_fraction",
)
"""Libraries' names for the most tokens of a batch that an expert takes."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
"""Configurations' names for a model's number of positions."""
ROTARY = ("rope_parameters", "rope_scaling")
"""Configurations' names for the scaling of rotary positions, for all layers or by kind of layer."""
ORIGINAL = "original_max_position_embeddings"
FIELDS = ("input_ids", "attention_mask", "labels", "position_ids")
NO_LABEL = -100


def refuse(faults: Sequence[str]) -> None:
    """Raises `TrainingRefused` with all faults, each once, if there are any."""
    if faults:
        raise TrainingRefused(tuple(dict.fromkeys(faults)))


def has_rule(layer: nn.Module) -> bool:
    """Whether per-example gradients of such a layer are known (`layers.rule_for`)."""
    try:
        rule_for("", layer)
    except MechanismFailed:
        return False
    return True


def faults_of_model(
    model: nn.Module,
    *,
    longest: int,
    vocabulary: int,
    supports: Callable[[nn.Module], bool] = has_rule,
    tied_embedding: bool = True,
) -> list[str]:
    """Faults of a model by its modules.

    Args:
        model: as in training, with frozen parts marked so.
        longest: tokens of the longest planned example.
        vocabulary: number of token ids in examples.
        supports: whether the clipper computes per-example gradients of a module's own parameters.
        tied_embedding: whether it supports a weight shared by an embedding and one linear layer.
    """
    return [
        *_crossing_layers(model),
        *_experts(model),
        *_sharing(model, tied_embedding),
        *_beyond_reach(model, supports),
        *_weights(model),
        *_gradients_from_elsewhere(model),
        *_limits(model, longest, vocabulary),
    ]


def faults_of_forward(model: nn.Module, losses: Losses, *, vocabulary: int, length: int = 16) -> list[str]:
    """Faults of a model and a loss by one trial on random tokens in train mode. The model is restored.

    `vocabulary` is the number of token ids, and `length` the tokens of the longest random example.
    """
    maker = Maker.like(model, vocabulary, length)
    before = trial.switches(model)
    with trial.left_as_found(model):
        try:
            faults = [
                *_calls(model, losses, maker),
                *_learning_state(model, losses, maker),
                *_mixing(model, losses, maker),
            ]
        except Exception as error:  # random tokens only: its words cannot quote the data
            return [f"the model fails on random tokens with {type(error).__name__} ({error}); try it by itself first"]
    return _turned(model, before) + faults


_SHORT_EXAMPLES = 8
"""One alone might have the same loss at random, if layers compute in bfloat16."""
_SHORT_PROMPT, _LONG_PROMPT = 1 / 16, 15 / 16
"""Prompt shares for which the decoder, or the encoder, is nearly as wide as possible."""


def faults_of_width(model: nn.Module, losses: Losses, *, vocabulary: int, short: int, longest: int) -> list[str]:
    """Whether a short example's loss changes in a batch with one of the planned length, as in some models.

    A model with an encoder is tested with short prompts and with long ones, since each of its stacks may do so. `short`
    and `longest` are tokens of the short examples, and of the longest planned one.
    """
    shares = (_SHORT_PROMPT, _LONG_PROMPT) if has_encoder(model) else (0.0,)
    for share in shares:
        maker = Maker(vocabulary, longest, trial.device_of(model), prompt_share=share)
        own, near = [maker.example(short) for _ in range(_SHORT_EXAMPLES)], trial.tolerance(model)
        before = trial.switches(model)
        with trial.left_as_found(model), torch.no_grad():
            try:
                alone = losses(model, maker.batch(own)).double()
                beside = losses(model, maker.batch([*own, maker.example(longest)]))[: len(own)].double()
            except Exception as error:  # random tokens only: its words cannot quote the data
                return [
                    f"the model fails on {longest} random tokens with {type(error).__name__} ({error}); shorten "
                    "examples"
                ]
        faults = _turned(model, before)
        if not bool(((alone - beside).abs() <= near * alone.abs()).all()):
            faults.append(
                f"the loss of an example of {short} tokens changes beside one of {longest}; shorten the examples, or "
                "take a model that computes each example separately for any width of the batch"
            )
        if faults:
            return faults
    return []


def faults_of_batches(batch: Callable[[Sequence[int]], Batch], tokens: Sequence[Sequence[int]]) -> list[str]:
    """Faults in making batches, by made-up examples.

    One row must be one example, independent of other rows. Packing and concat-then-split violate this (guide, section
    7.3), and so do rows cut to fit the others. `batch` is `interface.Examples.batch` over at least three made-up
    examples of several lengths, and `tokens` are their expected tokens.
    """
    faults: list[str] = []
    alone = [batch([index]) for index in range(len(tokens))]
    for index, made in enumerate(alone):
        faults += _shape_faults(made, 1) or _row_faults(made, 0, tokens[index])
    if faults:
        return faults
    orders = [[0, 1], [1, 0], [0, 0], list(range(len(tokens))), list(reversed(range(len(tokens))))]
    for order in orders:
        made = batch(order)
        found = _shape_faults(made, len(order))
        if not found:
            for row, index in enumerate(order):
                found += _row_faults(made, row, tokens[index]) or _company_faults(made, row, alone[index])
        faults += found
    if not faults and not _alike(batch([0]), alone[0]):
        faults.append(
            "batches: the same example gives another row the second time; keep nothing from one batch for the next"
        )
    return faults


def _crossing_layers(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield (
                f"{path}: {type(module).__name__} normalizes each example by the others in its batch; "
                "use a GroupNorm or LayerNorm in its place"
            )
        elif getattr(module, "track_running_stats", False) or module._buffers.get("running_mean") is not None:
            yield (
                f"{path}: {type(module).__name__} keeps running statistics of the data, without noise; "
                "set track_running_stats=False"
            )


def _experts(model: nn.Module) -> Iterator[str]:
    for place, config in _configurations(getattr(model, "config", None), "config"):
        if config.get("output_router_logits"):
            yield (
                f"{place}.output_router_logits: the load-balancing loss of the experts is taken over the whole batch; "
                "set it to False"
            )
        for name in CAPACITIES:
            if config.get(name):
                yield (
                    f"{place}.{name}: capped routing lets examples push each other out of an expert; "
                    "take a model with uncapped routing"
                )
    for path, module in model.named_modules():
        for name in CAPACITIES:
            if isinstance(vars(module).get(name), (int, float)):
                yield (
                    f"{path}.{name}: capped routing lets examples push each other out of an expert; "
                    "route without a capacity"
                )


def _configurations(config: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A configuration and nested ones, by their paths."""
    values = config if isinstance(config, Mapping) else getattr(config, "__dict__", None)
    if values is None:
        return
    yield place, values
    for name, value in values.items():
        if hasattr(value, "to_dict") or name.endswith("_config"):
            yield from _configurations(value, f"{place}.{name}")


def _sharing(model: nn.Module, tied_embedding: bool) -> Iterator[str]:
    owners: dict[int, list[tuple[str, nn.Module]]] = defaultdict(list)
    parameters: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                parameters[id(parameter)] = parameter
                owners[id(parameter)].append((f"{path}.{name}".lstrip("."), module))
    for key, sharing in owners.items():
        tie = len(sharing) == 2 and {isinstance(module, nn.Embedding) for _, module in sharing} == {True, False}
        if len(sharing) > 1 and parameters[key].requires_grad and not (tie and tied_embedding):
            yield (
                f"{' and '.join(path for path, _ in sharing)} are one trainable weight, whose gradients are not "
                "clipped as one; give each a weight of its own, or freeze it"
            )
    spans = sorted(
        (parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes, owners[key][0][0], parameter.requires_grad)
        for key, parameter in parameters.items()
        if parameter.nbytes and parameter.device.type != "meta"
    )
    for (_, end, one, moves), (start, _, other, also_moves) in pairwise(spans):
        if start < end and (moves or also_moves):
            yield f"{one} and {other} lie in the same memory, so that one moves with the other; copy one of them"


def _beyond_reach(model: nn.Module, supports: Callable[[nn.Module], bool]) -> Iterator[str]:
    moving = False
    for path, module in model.named_modules():
        own = [name for name, p in module._parameters.items() if p is not None and p.requires_grad]
        moving = moving or bool(own)
        if own and not supports(module):
            yield (
                f"{path or 'the model itself'}: the trainable {', '.join(own)} of {type(module).__name__} cannot be "
                "clipped for each example; freeze it, or train an adapter (LoRA) on the linear layers"
            )
    if not moving:
        yield "no parameter is trainable, so training would spend budget and learn nothing; train an adapter (LoRA)"


def _weights(model: nn.Module) -> Iterator[str]:
    quantization = getattr(getattr(model, "config", None), "quantization_config", None)
    if quantization is not None or getattr(model, "is_quantized", False):
        yield "config.quantization_config: the weights are quantized; load the model in float32 without it"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        packed = name.endswith(("qweight", "weight_packed"))
        whole = isinstance(tensor, nn.Parameter) and not tensor.is_floating_point()
        if packed or whole or (tensor.is_floating_point() and tensor.dtype.itemsize == 1):
            yield f"{name}: quantized weights ({tensor.dtype}); load the model in float32"
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype.itemsize > 1:
            if parameter.requires_grad and parameter.dtype.itemsize < 4:
                yield (
                    f"{name}: trained in {parameter.dtype}, which rounds clipped gradients above their bound and small "
                    "steps to nothing; load trainable weights in float32"
                )
            if not torch.isfinite(parameter).all():
                yield f"{name}: holds values that are not finite; load the checkpoint again, or take another"


def _gradients_from_elsewhere(model: nn.Module) -> Iterator[str]:
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            yield f"{name}: a hook changes its gradient behind the clipping; remove the hook"
        if parameter.grad is not None:
            yield f"{name}: holds a gradient from elsewhere, neither clipped nor noised; set it to None"


def _limits(model: nn.Module, longest: int, vocabulary: int) -> Iterator[str]:
    for place, config in _configurations(getattr(model, "config", None), "config"):
        for name in POSITIONS:
            known = config.get(name)
            if isinstance(known, int) and 0 < known < longest:
                yield (
                    f"{place}.{name}: the model knows {known} positions, the examples have up to {longest} tokens; "
                    "shorten the examples, or take a model with a longer context"
                )
        yield from _rescaled_positions(place, config, longest)
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    if isinstance(embedding, nn.Embedding) and embedding.num_embeddings < vocabulary:
        yield (
            f"the input embedding has {embedding.num_embeddings} rows, the tokenizer {vocabulary} tokens; "
            "take the tokenizer that belongs to the model, or resize its embedding"
        )


def _rescaled_positions(place: str, config: Mapping[str, Any], longest: int) -> Iterator[str]:
    """Rotary positions of two scales, chosen for the whole batch by its longest example (LongRoPE)."""
    for name in ROTARY:
        found = config.get(name)
        parts = found.values() if isinstance(found, Mapping) else ()
        for rotary in (found, *parts):
            if not isinstance(rotary, Mapping) or "longrope" not in (rotary.get("rope_type"), rotary.get("type")):
                continue
            short = rotary.get(ORIGINAL) or config.get(ORIGINAL)
            if not isinstance(short, int) or longest > short:
                yield (
                    f"{place}.{name}: one example of more than {short or 'so many'} tokens changes the positions of "
                    "all others in its batch (longrope); shorten the examples to that, or take another model"
                )


def _calls(model: nn.Module, losses: Losses, maker: Maker) -> list[str]:
    """Layers for which the clipper's hooks would be wrong: called twice, never, or with one row for the whole batch."""
    examples = [maker.example(maker.length), maker.example(maker.length - 1), maker.example(maker.length)]
    inputs: dict[str, list[tuple[int, ...]]] = {
        path: [] for path, module in model.named_modules() if any(p.requires_grad for p in module.parameters(False))
    }

    def keep(path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next(trial.tensors_in((args, kwargs)), None)
        inputs[path].append(() if first is None else tuple(first.shape))

    with ExitStack() as hooks, torch.no_grad():
        for path in inputs:
            hook = partial(keep, path)
            hooks.enter_context(model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True))
        losses(model, maker.batch(examples))
    faults = []
    for path, shapes in inputs.items():
        where = path or "the model itself"
        if not shapes:
            faults.append(f"{where}: its trainable weights are never used by their own layer; freeze them")
        elif len(shapes) > 1 and path:
            faults.append(
                f"{where}: called {len(shapes)} times in one pass, so that its gradient is not clipped as one; "
                "give each place a layer of its own, or freeze it"
            )
        elif path and (not shapes[0] or shapes[0][0] % len(examples)):
            faults.append(
                f"{where}: gets {shapes[0][0] if shapes[0] else 'no'} row for {len(examples)} examples, so that "
                "per-example gradients are unknown; give it a row for each example (GPT-2: repeat position_ids)"
            )
    return faults


def _turned(model: nn.Module, before: Mapping[str, str | bool]) -> list[str]:
    """Switches (`trial.switches`) that examples changed for all later ones."""
    after = trial.switches(model)
    return [
        f"{path}: an example changes it from {before[path]!r} to {after[path]!r} for all later ones; load the model "
        f"with {after[path]!r}, or take another"
        for path in sorted(before.keys() & after.keys())
        if before[path] != after[path]
    ]


def _learning_state(model: nn.Module, losses: Losses, maker: Maker) -> list[str]:
    with torch.no_grad():
        losses(model, maker.batch([maker.example(maker.length)]))
        before = trial.state(model)
        losses(model, maker.batch([maker.example(maker.length), [maker.reserved] * maker.length]))
    return [
        f"{path}: changes when examples pass through, and so would keep information on them without noise; "
        "freeze it, or take a layer without memory"
        for path in trial.changed(before, trial.state(model))
    ]


def _mixing(model: nn.Module, losses: Losses, maker: Maker) -> list[str]:
    """A loss that is not one number for each example, or depends on other examples."""
    own = maker.example(maker.length - 1)
    companies = {
        "another example": maker.example(maker.length - 1),
        "a longer example": maker.example(maker.length),
        "a shorter example": maker.example(2),
        "its own copy": own,
    }
    with torch.no_grad():
        alone = losses(model, maker.batch([own]))
        beside = {name: losses(model, maker.batch([own, other])) for name, other in companies.items()}
    for count, result in ((1, alone), *((2, result) for result in beside.values())):
        if tuple(result.shape) != (count,):
            return [
                f"the loss has the shape {tuple(result.shape)} for a batch of {count}; accepted: one number for each "
                "example, not a mean or a sum over the batch"
            ]
        if not torch.isfinite(result).all():
            return ["the loss of random tokens is not finite; check the model's weights and precision"]
    near = trial.tolerance(model)
    if (path := trial.first_leak(model, losses, maker, near)) is not None:
        return [
            f"{path or 'the model itself'}: its output for one example depends on the others in the batch; "
            "replace it by a layer that computes each example separately"
        ]
    most = near * max(1.0, float(alone.abs()))
    mixed = [name for name, result in beside.items() if not abs(float(result[0] - alone[0])) <= most]
    if mixed:
        return [
            f"the loss of an example changes beside {mixed[0]}; compute it from that example alone: no mean over the "
            "batch's tokens, no in-batch negatives, no loss over the batch"
        ]
    return []


def _shape_faults(made: Batch, examples: int) -> list[str]:
    if missing := [name for name in FIELDS if name not in made]:
        return [f"batches: {', '.join(missing)} missing; accepted: {', '.join(FIELDS)}, each [examples, tokens]"]
    if len(made["input_ids"]) != examples:
        return [
            f"batches: {examples} examples make {len(made['input_ids'])} rows; one row must be one example: turn "
            "packing and splitting off, and shorten long examples"
        ]
    width = tuple(made["input_ids"].shape)
    if odd := [name for name, tensor in made.items() if tuple(tensor.shape) != width or len(width) != 2]:
        return [f"batches: {', '.join(odd)} not of the shape [examples, tokens]; leave out tensors for the whole batch"]
    if examples > 1 and made["position_ids"].stride(0) == 0:
        return ["batches: position_ids share one row; use repeat, not expand"]
    return []


def _row_faults(made: Batch, row: int, tokens: Sequence[int]) -> list[str]:
    mask, labels = made["attention_mask"][row], made["labels"][row]
    if not ((mask == 0) | (mask == 1)).all():
        return ["batches: attention_mask holds more than 0 and 1, as where documents are packed; turn packing off"]
    seen = mask == 1
    if made["input_ids"][row][seen].tolist() != list(tokens):
        return ["batches: a row's tokens are not exactly those of its example; turn packing, joining and splitting off"]
    if made["position_ids"][row][seen].tolist() != list(range(len(tokens))):
        return ["batches: position_ids do not count each example's own tokens from 0; count them for each row"]
    if not ((labels == NO_LABEL) | ((labels == made["input_ids"][row]) & seen)).all():
        return [f"batches: labels are not the example's own tokens; use the token's id, or {NO_LABEL} for no loss"]
    return []


def _company_faults(made: Batch, row: int, alone: Batch) -> list[str]:
    seen, own = made["attention_mask"][row] == 1, alone["attention_mask"][0] == 1
    if not all(torch.equal(made[name][row][seen], alone[name][0][own]) for name in FIELDS if name in made):
        return ["batches: an example's row depends on the others in the batch; make each row from its example alone"]
    return []


def _alike(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
