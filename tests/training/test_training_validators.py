"""Pitfalls of the guide, section 7.3, that violate a guarantee are refused with place and solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_cases import KINDS, VOCABULARY, model
from unsound_models import WIDTH, BatchMean, Capped, LearningBuffer, Remembering, Scaled, Toy, losses

from dpsynth_platform.foundation.errors import DpsynthError, TrainingRefused
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.trial import Maker
from dpsynth_platform.training.validators import (
    faults_of_batches,
    faults_of_forward,
    faults_of_model,
    faults_of_width,
    has_rule,
    refuse,
)
from dpsynth_platform.worker.codes import code_of, code_of_exception, status_of


def judged(made: nn.Module, **given: Any) -> list[str]:
    return faults_of_model(made, **({"longest": 64, "vocabulary": VOCABULARY} | given))


def tried(made: nn.Module, of: Any = losses) -> list[str]:
    return faults_of_forward(made, of, vocabulary=VOCABULARY, length=8)


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_sound_models_pass_and_are_left_as_they_were(name: str, tied: bool, adapter: bool) -> None:
    made = model(name, tied, adapter)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    assert judged(made) == []
    assert tried(made) == []
    assert all(torch.equal(made.state_dict()[key], value) for key, value in before.items())
    assert not any(module.training or module._forward_pre_hooks or module._forward_hooks for module in made.modules())


def test_dropout_is_no_fault() -> None:
    made = Toy(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)))
    assert judged(made) == [] and tried(made) == []


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(8), nn.BatchNorm2d(8), nn.SyncBatchNorm(8)],
    ids=lambda layer: type(layer).__name__,
)
def test_batch_normalization(layer: nn.Module) -> None:
    assert (
        f"middle: {type(layer).__name__} normalizes each example by the others in its batch; use a "
        "GroupNorm or LayerNorm in its place"
    ) in judged(Toy(layer))


def test_running_statistics() -> None:
    assert (
        "middle: InstanceNorm1d keeps running statistics of the data, without noise; set track_running_stats=False"
    ) in judged(Toy(nn.InstanceNorm1d(8, track_running_stats=True)))
    assert judged(Toy(nn.InstanceNorm1d(8))) == []


def test_whatever_opacus_refuses_is_refused() -> None:
    from opacus.validators import ModuleValidator

    for layer in (
        nn.BatchNorm1d(8),
        nn.SyncBatchNorm(8),
        nn.InstanceNorm1d(8, affine=True, track_running_stats=True),
        nn.LSTM(WIDTH, WIDTH),
        nn.GRU(WIDTH, WIDTH),
        nn.MultiheadAttention(WIDTH, 4),
    ):
        assert ModuleValidator.validate(nn.Sequential(layer).train(), strict=False)
        assert judged(Toy(layer)), type(layer).__name__


def test_load_balancing_losses() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    def mixtral(**changes: Any) -> nn.Module:
        made = MixtralForCausalLM(
            MixtralConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                num_local_experts=2,
                max_position_embeddings=64,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                **changes,
            )
        )
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(".self_attn." in name)
        return made

    assert judged(mixtral()) == [], "experts alone look at each token by itself"
    assert judged(mixtral(output_router_logits=True)) == [
        "config.output_router_logits: the load-balancing loss of the experts is taken over the whole "
        "batch; set it to False"
    ]


def test_capped_routing() -> None:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    made = SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            vocab_size=VOCABULARY,
            d_model=16,
            d_kv=8,
            d_ff=16,
            num_layers=2,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_heads=2,
            num_experts=2,
            expert_capacity=5,
        )
    )
    assert (
        "config.expert_capacity: capped routing lets examples push each other out of an expert; take "
        "a model with uncapped routing"
    ) in judged(made)
    assert (
        "middle.expert_capacity: capped routing lets examples push each other out of an expert; "
        "route without a capacity"
    ) in judged(Toy(Capped()))


def test_shared_weights() -> None:
    tied = Toy()
    tied.head.weight = tied.embedding.weight
    assert judged(tied) == []
    sentence = (
        "embedding.weight and head.weight are one trainable weight, whose gradients are not clipped "
        "as one; give each a weight of its own, or freeze it"
    )
    assert judged(tied, tied_embedding=False) == [sentence]
    tied.embedding.weight.requires_grad_(False)
    assert judged(tied, tied_embedding=False) == []
    twins = Toy(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))
    twins.middle[1].weight = twins.middle[0].weight
    assert judged(twins) == [sentence.replace("embedding.weight", "middle.0.weight").replace("head", "middle.1")]


def test_weights_in_the_same_memory() -> None:
    made = Toy()
    made.head.weight = nn.Parameter(made.embedding.weight.detach())
    assert judged(made) == [
        "embedding.weight and head.weight lie in the same memory, so that one moves with the other; copy one of them"
    ]


def test_a_layer_that_is_called_twice() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    assert tried(Toy(nn.Sequential(layer, layer))) == [
        "middle.0: called 2 times in one pass, so that its gradient is not clipped as one; give each "
        "place a layer of its own, or freeze it"
    ]


def test_parameters_beyond_the_clippers_reach() -> None:
    assert judged(Toy(Scaled())) == [
        "middle: the trainable scale of Scaled cannot be clipped for each example; freeze it, or "
        "train an adapter (LoRA) on the linear layers"
    ]
    frozen = Toy(Scaled())
    frozen.middle.scale.requires_grad_(False)
    assert judged(frozen) == []
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    assert judged(frozen) == [
        "no parameter is trainable, so training would spend budget and learn nothing; train an adapter (LoRA)"
    ]
    assert has_rule(nn.Linear(2, 2)) and not has_rule(nn.Conv1d(2, 2, 1))


def test_a_layer_whose_weights_others_use() -> None:
    class Borrowing(Toy):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
            return self.embedding(input_ids) @ self.middle.weight @ self.head.weight.T

    assert tried(Borrowing()) == [
        f"{place}: its trainable weights are never used by their own layer; freeze them" for place in ("middle", "head")
    ]


@pytest.mark.parametrize("memory", [LearningBuffer, Remembering])
def test_state_that_learns_from_data(memory: type[nn.Module]) -> None:
    place = {"LearningBuffer": "middle.centre", "Remembering": "middle.running"}[memory.__name__]
    made = Toy(memory())
    assert (
        f"{place}: changes when examples pass through, and so would keep information on them without "
        "noise; freeze it, or take a layer without memory"
    ) in tried(made)
    if isinstance(made.middle, LearningBuffer):
        assert not made.middle.centre.any(), "the trial leaves nothing behind"


def test_position_ids_for_the_whole_batch() -> None:
    """As GPT-2 makes them where none are given."""

    def without(made: nn.Module, batch: Batch) -> Tensor:
        class Forgetful(nn.Module):
            def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
                return made(input_ids=input_ids, attention_mask=attention_mask).logits

        return losses(Forgetful(), batch)

    assert tried(model("gpt2")) == []
    assert tried(model("gpt2"), without) == [
        "transformer.wpe: gets 1 row for 3 examples, so that per-example gradients are unknown; "
        "give it a row for each example (GPT-2: repeat position_ids)"
    ]


def test_a_layer_that_mixes_examples_is_named() -> None:
    assert tried(Toy(BatchMean())) == [
        "middle: its output for one example depends on the others in the batch; replace it by a "
        "layer that computes each example separately"
    ]


def over_tokens(made: nn.Module, batch: Batch) -> Tensor:
    labelled = (batch["labels"] != -100).sum(1)
    return losses(made, batch) * labelled / labelled.sum()


def contrastive(made: nn.Module, batch: Batch) -> Tensor:
    means = made.embedding(batch["input_ids"]).mean(1)
    return nn.functional.cross_entropy(means @ means.T, torch.arange(len(means)), reduction="none")


@pytest.mark.parametrize("loss", [over_tokens, contrastive])
def test_losses_over_the_batch(loss: Any) -> None:
    (fault,) = [fault for fault in tried(Toy(), loss) if fault.startswith("the loss of an example changes beside")]
    assert fault.endswith(
        "compute it from that example alone: no mean over the batch's tokens, no in-batch negatives, "
        "no loss over the batch"
    )


def test_a_loss_that_is_one_number() -> None:
    assert tried(Toy(), lambda made, batch: losses(made, batch).mean()) == [
        "the loss has the shape () for a batch of 1; accepted: one number for each example, not a "
        "mean or a sum over the batch"
    ]


def test_quantized_and_half_weights() -> None:
    made = Toy()
    made.head.weight = nn.Parameter(made.head.weight.to(torch.int8), requires_grad=False)
    made.middle.register_buffer("qweight", torch.zeros(4, 4, dtype=torch.int32))
    made.embedding = made.embedding.to(torch.bfloat16)
    found = judged(made)
    assert "head.weight: quantized weights (torch.int8); load the model in float32" in found
    assert "middle.qweight: quantized weights (torch.int32); load the model in float32" in found
    assert (
        "embedding.weight: trained in torch.bfloat16, which rounds clipped gradients above their "
        "bound and small steps to nothing; load trainable weights in float32"
    ) in found
    named = model()
    named.config.quantization_config = {"quant_method": "gguf"}
    assert judged(named) == [
        "config.quantization_config: the weights are quantized; load the model in float32 without it"
    ]


def test_weights_that_are_not_finite() -> None:
    made = Toy()
    with torch.no_grad():
        made.head.weight[3, 3] = float("nan")
    assert judged(made) == ["head.weight: holds values that are not finite; load the checkpoint again, or take another"]
    assert tried(made) == ["the loss of random tokens is not finite; check the model's weights and precision"]


def test_limits() -> None:
    assert judged(model(), longest=65) == [
        "config.max_position_embeddings: the model knows 64 positions, the examples have up to 65 tokens; shorten the "
        "examples, or take a model with a longer context"
    ]
    assert judged(model("gpt2"), vocabulary=VOCABULARY + 1, longest=65) == [
        "config.n_positions: the model knows 64 positions, the examples have up to 65 tokens; "
        "shorten the examples, or take a model with a longer context",
        f"the input embedding has {VOCABULARY} rows, the tokenizer {VOCABULARY + 1} tokens; take the "
        "tokenizer that belongs to the model, or resize its embedding",
    ]


@pytest.mark.parametrize("by_kind", [False, True])
def test_positions_that_the_longest_example_in_a_batch_decides(by_kind: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    rotary = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rotary |= {"factor": 2.0, "original_max_position_embeddings": 32}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters=rotary,
    )
    made = LlamaForCausalLM(config)
    if by_kind:
        made.config.rope_parameters = {"full_attention": rotary}
    assert judged(made, longest=32) == []
    assert judged(made, longest=33) == [
        "config.rope_parameters: one example of more than 32 tokens changes the positions of all others in its batch "
        "(longrope); shorten the examples to that, or take another model"
    ]


class Stretching(nn.Module):
    """Computes otherwise in wide batches."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[1] <= 32 else 2 * x


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_width_changes_nothing_in_sound_models(name: str, tied: bool, adapter: bool) -> None:
    given = {"vocabulary": VOCABULARY, "short": 16, "longest": 64}
    assert faults_of_width(model(name, tied, adapter), losses, **given) == []


def test_a_model_that_computes_otherwise_in_wide_batches() -> None:
    made = Toy(Stretching())
    assert faults_of_width(made, losses, vocabulary=VOCABULARY, short=16, longest=32) == []
    [fault] = faults_of_width(made, losses, vocabulary=VOCABULARY, short=16, longest=33)
    assert fault.startswith("the loss of an example of 16 tokens changes beside one of 33; shorten")


class Turning(nn.Module):
    """Goes another way for good once it has read something short."""

    def __init__(self, shortest: int) -> None:
        super().__init__()
        self.attention_type, self.shortest = "sparse", shortest

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.shortest:
            self.attention_type = "full"
        return x if self.attention_type == "full" else 0.5 * x


def test_a_model_that_an_example_turns_for_all_that_come_after_it() -> None:
    fault = "middle.attention_type: an example changes it from 'sparse' to 'full' for all later ones; load the model "
    assert tried(Toy(Turning(32)))[0].startswith(fault)
    assert tried(Toy(Turning(2))) == []
    turning = Toy(Turning(17))
    assert faults_of_width(turning, losses, vocabulary=VOCABULARY, short=16, longest=33)[0].startswith(fault)
    assert faults_of_width(turning, losses, vocabulary=VOCABULARY, short=16, longest=33) == []


def test_gradients_from_elsewhere() -> None:
    made = Toy()
    made.head.weight.register_hook(lambda gradient: 2 * gradient)
    made.head.bias.grad = torch.ones(VOCABULARY)
    assert judged(made) == [
        "head.weight: a hook changes its gradient behind the clipping; remove the hook",
        "head.bias: holds a gradient from elsewhere, neither clipped nor noised; set it to None",
    ]


def test_a_model_that_fails() -> None:
    class Failing(Toy):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
            raise RuntimeError("out of range")

    assert tried(Failing()) == [
        "the model fails on random tokens with RuntimeError (out of range); try it by itself first"
    ]


def test_all_faults_come_at_once_each_one_time() -> None:
    refuse([])
    with pytest.raises(TrainingRefused) as raised:
        refuse(["a: one; do this", "b: two; do that", "a: one; do this"])
    assert raised.value.faults == ("a: one; do this", "b: two; do that")
    assert str(raised.value) == "a: one; do this; b: two; do that"
    assert isinstance(raised.value, DpsynthError)
    assert code_of_exception(raised.value) == "training" == code_of(status_of("training"))


TOKENS = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [14], [5, 6, 7, 8]]


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    return Maker(VOCABULARY, 4, torch.device("cpu")).batch(rows)


def honest(indices: Sequence[int]) -> Batch:
    return padded([TOKENS[index] for index in indices])


def packed(indices: Sequence[int]) -> Batch:
    """All examples in one row."""
    return padded([[token for index in indices for token in TOKENS[index]]])


def packed_with_mask(indices: Sequence[int]) -> Batch:
    """All examples in one row, each attending to itself only."""
    made = packed(indices)
    documents = [number for number, index in enumerate(indices, 1) for _ in TOKENS[index]]
    return dict(made) | {"attention_mask": torch.tensor([documents])}


def two_to_a_row(indices: Sequence[int]) -> Batch:
    """Two examples in a row, with as many rows as examples."""
    rows = [TOKENS[index] for index in indices]
    return padded(
        [rows[at] + rows[at + 1] if at % 2 == 0 and at + 1 < len(rows) else row for at, row in enumerate(rows)]
    )


class ConcatThenSplit:
    """Joins all examples and cuts them into rows of three; what is left over comes with the next batch."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def __call__(self, indices: Sequence[int]) -> Batch:
        joined = self.left + [token for index in indices for token in TOKENS[index]]
        whole = max(3, len(joined) // 3 * 3)
        self.left = joined[whole:]
        return padded([joined[at : at + 3] for at in range(0, min(whole, len(joined)), 3)])


def cut_to_the_shortest(indices: Sequence[int]) -> Batch:
    width = min(len(TOKENS[index]) for index in indices)
    return padded([TOKENS[index][:width] for index in indices])


def sorted_by_length(indices: Sequence[int]) -> Batch:
    return padded(sorted((TOKENS[index] for index in indices), key=len))


def counting_on(indices: Sequence[int]) -> Batch:
    """Position ids that count through the batch, as where documents are packed."""
    made = honest(indices)
    return dict(made) | {"position_ids": torch.arange(made["input_ids"].numel()).view_as(made["input_ids"])}


def expanded(indices: Sequence[int]) -> Batch:
    made = honest(indices)
    return dict(made) | {"position_ids": torch.arange(made["input_ids"].shape[1]).expand(len(indices), -1)}


def with_count(indices: Sequence[int]) -> Batch:
    return dict(honest(indices)) | {"num_items_in_batch": torch.tensor(len(indices))}


def labelled_by_the_next(indices: Sequence[int]) -> Batch:
    made = honest(indices)
    return dict(made) | {"labels": made["labels"].roll(1, 0)}


def label_of_padding(indices: Sequence[int]) -> Batch:
    made = honest(indices)
    return dict(made) | {"labels": made["input_ids"]}


def weighted_labels(indices: Sequence[int]) -> Batch:
    """The first labels are left out of the loss in batches with others."""
    made = {name: value.clone() for name, value in honest(indices).items()}
    made["labels"][:, : len(set(indices)) - 1] = -100
    return made


ONE_ROW = "one row must be one example: turn packing and splitting off, and shorten long examples"
OWN_TOKENS = "batches: a row's tokens are not exactly those of its example; turn packing, joining and splitting off"


@pytest.mark.parametrize(
    ("collate", "sentence"),
    [
        (packed, f"batches: 2 examples make 1 rows; {ONE_ROW}"),
        (packed_with_mask, f"batches: 2 examples make 1 rows; {ONE_ROW}"),
        (two_to_a_row, OWN_TOKENS),
        (ConcatThenSplit(), OWN_TOKENS),
        (cut_to_the_shortest, OWN_TOKENS),
        (sorted_by_length, OWN_TOKENS),
        (counting_on, "batches: position_ids do not count each example's own tokens from 0; count them for each row"),
        (expanded, "batches: position_ids share one row; use repeat, not expand"),
        (
            with_count,
            "batches: num_items_in_batch not of the shape [examples, tokens]; leave out tensors for the whole batch",
        ),
        (
            labelled_by_the_next,
            "batches: labels are not the example's own tokens; use the token's id, or -100 for no loss",
        ),
        (label_of_padding, "batches: labels are not the example's own tokens; use the token's id, or -100 for no loss"),
        (
            weighted_labels,
            "batches: an example's row depends on the others in the batch; make each row from its example alone",
        ),
        (
            lambda indices: {"input_ids": honest(indices)["input_ids"]},
            "batches: attention_mask, labels, position_ids missing; accepted: input_ids, attention_mask, labels, "
            "position_ids, each [examples, tokens]",
        ),
    ],
)
def test_batches_that_join_or_split_examples(collate: Any, sentence: str) -> None:
    assert sentence in faults_of_batches(collate, TOKENS)


def test_documents_that_are_told_apart_by_the_mask() -> None:
    def with_documents(indices: Sequence[int]) -> Batch:
        made = honest(indices)
        return dict(made) | {"attention_mask": made["attention_mask"] * torch.arange(1, len(indices) + 1)[:, None]}

    assert set(faults_of_batches(with_documents, TOKENS)) == {
        "batches: attention_mask holds more than 0 and 1, as where documents are packed; turn packing off"
    }


def test_a_collator_that_remembers() -> None:
    calls: list[int] = []

    def numbering(indices: Sequence[int]) -> Batch:
        calls.append(1)
        made = honest(indices)
        return dict(made) | {"weights": torch.full_like(made["labels"], len(calls))}

    assert faults_of_batches(honest, TOKENS) == []
    assert faults_of_batches(numbering, TOKENS) == [
        "batches: the same example gives another row the second time; keep nothing from one batch for the next"
    ]
