"""The method that `auto` stands for in contracts with texts, and the reason.

What belongs here: the choice, from public facts only: the contract's own numbers and the deployment's settings, never
the number of records. What does not: the choice for tables (`synth.automatic`), the methods, and resolving a contract's
method (`planning.resolve_method`).

The first rule that applies decides. Epsilon 1, 5,000 and 10,000 records are those of the guide's table 10, which
recommends `dp_inference` for no number of records but names it for short texts (section 5.4.2); the rest is ours:

1. An endpoint has the model: `aug_pe`, the only method that does not need the weights.
2. Epsilon below 1, or fewer than 5,000 records planned: `aug_pe`, whose votes exceed their noise where gradients do
   not. With the bundled model, epsilon below 0.5, or fewer than 1,000: it writes hardly any text worth a vote. Its
   texts have a MAUVE of 0.07 without noise, and of 0.42 to 0.58 after training at epsilon 0.5 and 1, on 3,600 sentences
   of financial news (`tests/benchmarks/bench_text_utility.py`). Fewer records and a smaller epsilon were not measured;
   a model that learns nothing writes the same texts that votes would choose among.
3. Training would take long on a deployment without an accelerator (`DPSYNTH_DEVICE=cpu`): `dp_inference`, if few and
   short texts are requested, epsilon is 4 or more, and the contract's owners can be divided into contexts; else
   `aug_pe`.
4. 10,000 records planned or more: `dp_finetune`.
5. Else `ctcl`, which learns more from few records because its prompts have public topics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.generation import DEFAULT_BASE_MODEL
from dpsynth_platform.contracts.methods import TRAINED_METHODS
from dpsynth_platform.contracts.text_generation import Training, batch_size, training_units
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.figures import rounded
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.synth.automatic import Choice

LEAST_EPSILON, LEAST_EPSILON_FOR_BUNDLED = 1.0, 0.5
"""For training, and for training the bundled model."""
LEAST_RECORDS, LEAST_FOR_BUNDLED, PLENTY_OF_RECORDS = 5_000, 1_000, 10_000
"""For training, for training the bundled model, and for training without topics."""
LONG_TOKENS = 20_000_000
"""Of a training: about a day of one core, at 220 tokens a second (SmolLM2-135M with an adapter)."""
FEW_TEXTS, SHORT_TOKENS, INFERENCE_EPSILON = 500, 64, 4.0
"""The most texts, the longest record and the least epsilon for `dp_inference`, which pays for each token."""


@dataclass(frozen=True)
class TextFacts:
    """What the choice depends on. All of it is public.

    Attributes:
        records: that training is planned for: declared, or the most that the expected units may have.
        cpu_only: whether the deployment is declared to have no accelerator.
        tokens: that training would read in all planned steps, if each record is as long as allowed.
        rows: texts to pay for token by token: the rows, or more if votes choose among them; None: as many as possible.
        longest: the most tokens of a record.
        divisible: whether the contract's owners can be divided into contexts as DP inference needs them.
    """

    endpoint: bool
    bundled: bool
    epsilon: float
    records: int
    cpu_only: bool
    tokens: int
    rows: int | None
    longest: int
    divisible: bool

    @property
    def least_epsilon(self) -> float:
        return LEAST_EPSILON_FOR_BUNDLED if self.bundled else LEAST_EPSILON

    @property
    def least_records(self) -> int:
        return LEAST_FOR_BUNDLED if self.bundled else LEAST_RECORDS


def text_method_for(contract: DataContract, settings: Settings) -> Choice:
    """The method that `auto` stands for in a contract with a text to write."""
    return choose_for_texts(text_facts(contract, settings))


def text_facts(contract: DataContract, settings: Settings) -> TextFacts:
    """What the choice depends on. Raises `ContractError` if no text is written."""
    generate, text = contract.generate, contract.generate.text
    if text is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written")
    training = generate.training or Training()
    sampled = training_units(contract.privacy, training)
    batch = batch_size(training, sampled)
    among = 1.0 if text.resample is None else text.resample.pool
    return TextFacts(
        endpoint=generate.endpoint is not None,
        bundled=(generate.base_model or DEFAULT_BASE_MODEL) == DEFAULT_BASE_MODEL,
        epsilon=contract.privacy.guarantee.epsilon,
        records=sampled,
        cpu_only=settings.device == "cpu",
        tokens=training.steps * batch * text.max_tokens * text.chunks,
        rows=None if generate.rows == "auto" else math.ceil(generate.rows * among),
        longest=text.max_tokens,
        divisible=_divisible(contract),
    )


def choose_for_texts(facts: TextFacts) -> Choice:
    """The method for these facts, by the rules above."""
    records = f"{facts.records:,} records planned"
    if facts.endpoint:
        return Choice("aug_pe", "auto: an endpoint has the language model, and no other method can do without weights")
    if facts.epsilon < facts.least_epsilon:
        return Choice(
            "aug_pe", f"auto: votes stand above their noise at epsilon {facts.epsilon:g}, and gradients hardly would"
        )
    if facts.records < facts.least_records:
        return Choice("aug_pe", f"auto: {records} are too few to train a language model with privacy")
    if facts.cpu_only and facts.tokens > LONG_TOKENS:
        read = rounded(facts.tokens)
        long = f"auto: training would read about {read} tokens, which takes a day or more without an accelerator"
        few = facts.rows is not None and facts.rows <= FEW_TEXTS and facts.longest <= SHORT_TOKENS
        if few and facts.epsilon >= INFERENCE_EPSILON and facts.divisible:
            return Choice("dp_inference", f"{long}, and {facts.rows} short texts can be paid for token by token")
        return Choice("aug_pe", f"{long}, and votes need none")
    if facts.records >= PLENTY_OF_RECORDS:
        return Choice("dp_finetune", f"auto: {records} are enough to train a language model with privacy")
    if facts.records < LEAST_RECORDS:
        return Choice(
            "ctcl",
            f"auto: {records} are few to train on, but the bundled model hardly writes what could be voted for",
        )
    return Choice("ctcl", f"auto: public topics help a language model that is trained on few records: {records}")


def lost_training_of(contract: DataContract, settings: Settings) -> str | None:
    """Why the training in a contract learns little, by the limits of `auto`; None if it may learn."""
    if contract.generate.method not in TRAINED_METHODS:
        return None
    facts = text_facts(contract, settings)
    few = [f"epsilon {facts.epsilon:g}, below {facts.least_epsilon:g}"] if facts.epsilon < facts.least_epsilon else []
    if facts.records < facts.least_records:
        few.append(f"{facts.records:,} records planned, fewer than {facts.least_records:,}")
    if not few:
        return None
    return (
        f"with {' and '.join(few)}, gradients hardly exceed their noise: texts may differ little from the base "
        "model's own; better: more records or a larger epsilon (below these limits, auto chooses aug_pe)"
    )


def _divisible(contract: DataContract) -> bool:
    try:
        contract.with_method("dp_inference")
    except ContractError:
        return False
    return True
