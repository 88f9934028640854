"""Numerical tests, on random tokens, that training's sums are those that the guarantee assumes.

What belongs here: trials of the functions that training uses (clipped sum, noise, sampler, step). They use numbers
only, so they also detect faults that no list of layers names (`validators` has the lists). What does not: real records:
all inputs are random and new each time.

The guarantee of DP-SGD requires (Abadi et al. 2016; Ponomareva et al., "How to DP-fy Your Data", algorithm 1 and
section 7.3): the sum over a batch has one contribution for each example, a contribution depends on its own example
alone and has a norm of at most C, every coordinate that training moves is in the sum and gets noise, and nothing else
moves.

Results may differ by the share sqrt(u) of the contributions' norms, u the unit roundoff (`trial.tolerance` derives it:
2.4e-4 in single precision); larger changes of a contribution are detected. All batches of a trial have one shape, as
those of training have, so that the rounding of a correct model is equal on both sides. Two comparisons have none: with
automatic differentiation, and with another width. There, back-propagation amplifies the rounding of some random texts
above that share: one of 210 in a model of 30 layers. So texts are chosen whose gradient by automatic
differentiation is alike in two shapes; and a fault counts if it is found `ATTEMPTS` times in a row, with new texts and
weights each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dpsynth_platform.training import trial
from dpsynth_platform.training.trial import ClippedSum, Losses, Maker

LARGE_FACTOR = 1000.0
"""Scales gradients at the scores for a trial with large ones."""
ATTEMPTS = 4
"""Trials of new texts and weights. If one in forty failed where nothing is wrong, four would once in two million."""
CHOICES = 5
"""Texts among which the first is taken whose gradient's rounding is not amplified; the last, if all are."""
ROWS = 6
"""Rows of all batches of a trial, as texts without labels fill them up."""
FALSE_ALARM = 1e-9
"""Largest probability for each statistical check of noise and sampler."""
UNIT_NEAR = 2.0**-14
"""Accepted rounding of each unit in a sum, in clipping norms, if layers compute in a coarse precision. Single precision
leaves about 2**-24; shapes of parts that depended on other units left 2**-12."""
SAMPLER_UNITS, SAMPLER_STEPS = 400, 400

Sums = Mapping[str, Tensor]
Draw = Callable[[], Sequence[int]]
"""Returns a sampler's next batch: positions of units."""


def faults_of_clipping(
    model: nn.Module,
    clipped_sum: ClippedSum,
    losses: Losses,
    *,
    clipping_norm: float,
    vocabulary: int,
    length: int = 16,
) -> list[str]:
    """Faults of the clipped sum of this model's gradients. The model is restored.

    It is tested at random weights near the model's, since at the start of LoRA most gradients are zero: in evaluation
    mode, as in training, and in train mode with larger gradients at the scores, so that more are clipped. A clipper has
    another code path for scores that a model processes further, which the scaling uses, too.

    `clipped_sum` is training's own, which clips each row of a batch to `clipping_norm`, C. `vocabulary` is the number
    of token ids, and `length` the tokens of the longest random example.
    """
    attempts: list[list[str]] = []
    for _ in range(ATTEMPTS):
        attempts.append(_faults_of_one_attempt(model, clipped_sum, losses, clipping_norm, vocabulary, length))
        if not attempts[-1]:
            return []
    return attempts[0]  # what a faulty model keeps from batch to batch may spoil the others


def _faults_of_one_attempt(
    model: nn.Module, clipped_sum: ClippedSum, losses: Losses, clipping_norm: float, vocabulary: int, length: int
) -> list[str]:
    maker = Maker.like(model, vocabulary, length)
    found = _Probe(model, clipped_sum, losses, clipping_norm, maker, trial.tolerance(model))
    frozen = trial.frozen_digests(model)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    with trial.left_as_found(model):
        try:
            found.names()
            if not found.faults:
                for training, scaling in ((False, nullcontext()), (True, _large_gradients(model))):
                    model.train(training)
                    with moved(model, maker.generator), scaling:
                        found.at_these_weights()
        except Exception as error:  # random tokens only: its message cannot quote the data
            found.add(f"the clipped sum fails on random tokens with {type(error).__name__} ({error}); fix that first")
    for name, digest in trial.frozen_digests(model).items():
        if digest != frozen[name]:
            found.add(f"{name}: is frozen, but changes when the clipped sum is taken; nothing may write it")
    for name, parameter in model.named_parameters():
        if parameter.grad is not gradients[name]:
            found.add(f"{name}: something writes its gradient beside the clipped sum; remove that hook")
            parameter.grad = gradients[name]
    return list(found.faults)


def faults_of_names(parameters: Mapping[str, nn.Parameter], sums: Sums) -> Iterator[str]:
    """A clipped sum has all trainable parameters, with their shapes, and no others."""
    for name in sorted(parameters.keys() | sums.keys()):
        if name not in sums:
            yield f"{name}: trainable, but missing from the clipped sum, so neither clipped nor noised; freeze it"
        elif name not in parameters:
            yield f"{name}: in the clipped sum, but not trainable; leave it out"
        elif sums[name].shape != parameters[name].shape:
            yield f"{name}: its clipped sum has the shape {tuple(sums[name].shape)}; accepted: the parameter's"


@dataclass
class _Probe:
    """Trials of one clipped sum at the model's current weights, with their findings in `faults`."""

    model: nn.Module
    clipped_sum: ClippedSum
    losses: Losses
    bound: float
    maker: Maker
    near: float
    faults: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parameters = trial.trainable(self.model)

    def add(self, *sentences: str) -> None:
        self.faults.update(dict.fromkeys(sentences))

    def sum(self, examples: Sequence[Sequence[int]], *, width: int | None = None) -> Sums:
        """Of examples in a batch of `ROWS` rows, padded to `width`: the longest example's by default."""
        missing = range(len(examples), ROWS)
        filled = [*examples, *(self.maker.example(5) for _ in missing)]
        batch = self.maker.batch(filled, width=width or self.maker.length, unlabelled=missing)
        sums = self.clipped_sum(self.model, batch)
        return {name: tensor.detach().clone() for name, tensor in sums.items()}

    def names(self) -> None:
        self.add(*faults_of_names(self.parameters, self.sum([self.maker.example(self.maker.length)])))

    def at_these_weights(self) -> None:
        maker = self.maker
        own = self._steady(maker.length - 3)
        others = [
            self._steady(maker.length - 3),
            self._steady(maker.length),
            self._steady(2),
            [maker.reserved] * maker.length,
        ]
        before = self.sum([own])
        remembered = trial.state(self.model)
        touched = self._gradient(own, before)
        everyone = before
        for other in others:
            alone = self.sum([other])
            touched |= self._gradient(other, alone)
            self._additive([own, other], [before, alone])
            everyone = {name: everyone[name] + alone[name] for name in alone}
        self._untouched(self.parameters.keys() - touched)
        self._additive([own, own], [before, before])
        self._additive([*[other] * 5, own], [*[alone] * 5, before])
        self._additive([*others, own], [everyone])
        self._padding(own, before)
        self._unlabelled()
        self._not_finite(own, before)
        self._repeatable(own, before, remembered)

    def _gradient(self, example: list[int], made: Sums) -> set[str]:
        """A contribution's norm is at most C, and it is proportional to the loss's gradient, in every parameter.

        Returns:
            Names of the parameters that this example moves.
        """
        length = length_of(made)
        if not length <= self.bound * (1 + self.near):
            self.add(
                f"the contribution of one example is {length / self.bound:.3g} times as long as the clipping norm; "
                "clip the whole gradient of each example, over all trainable parameters together"
            )
        expected = self._reference(example)
        total = length_of(expected)
        scale = _inner(made, expected) / total**2 if total > 0 and math.isfinite(total) else 0.0
        rounding = 1e3 * self.near**2
        wrong = length_of({name: made[name] - scale * expected[name] for name in made})
        blind = [n for n in made if not made[n].any() and float(expected[n].norm()) > rounding * total]
        if not math.isfinite(total):
            self.add("the gradient of random tokens is not finite; check the model's weights and precision")
        elif blind:
            self.add(
                *(
                    f"{name}: the loss depends on it outside of the layer that owns it, which the clipper does not "
                    "see; compute with it in that layer only, or freeze it"
                    for name in blind
                )
            )
        elif not wrong <= 4 * self.near * length:
            worst = max(made, key=lambda name: float((made[name] - scale * expected[name]).norm()))
            self.add(
                f"{worst}: its clipped gradient is not the loss's gradient scaled down; it may be used by several "
                "layers, or a hook changes gradients: give each use a weight of its own, or freeze it"
            )
        return {name for name in expected if float(expected[name].norm()) > 0}

    def _steady(self, length: int) -> list[int]:
        """A random example whose gradient is alike alone and in a larger batch, without any clipper."""
        beside = self.maker.example(self.maker.length)
        for _ in range(CHOICES):
            example = self.maker.example(length)
            alone, other = self._reference(example), self._reference(example, beside)
            difference = length_of({name: alone[name] - other[name] for name in alone})
            if difference <= self.near / 4 * length_of(alone):
                break
        return example

    def _reference(self, example: list[int], *beside: list[int]) -> dict[str, Tensor]:
        """The gradient of one example's loss, by automatic differentiation alone; `beside` it, some without labels."""
        batch = self.maker.batch([example, *beside], unlabelled=range(1, 1 + len(beside)))
        loss = self.losses(self.model, batch).sum()
        gradients = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(self.parameters.items(), gradients, strict=True)
        }

    def _untouched(self, names: set[str]) -> None:
        self.add(
            *(
                f"{name}: no example moves it, so that training would add noise to it alone; freeze it"
                for name in sorted(names)
            )
        )

    def _additive(self, examples: list[list[int]], parts: Sequence[Sums]) -> None:
        """The sum over a batch is the sum of its examples' separate contributions."""
        rest = dict(self.sum(examples))
        for part in parts:
            rest = {name: rest[name] - part[name] for name in rest}
        lengths = sum(length_of(part) for part in parts)
        difference = length_of(rest)
        if not difference <= self.near * lengths:
            worst = max(rest, key=lambda name: float(rest[name].norm()))
            path = trial.first_leak(self.model, self.losses, self.maker, self.near)
            where = "the loss or the clipping" if path is None else path or "the model itself"
            self.add(
                f"{where}: the clipped gradient of an example depends on the others in its batch (by "
                f"{difference / self.bound:.2g} of the clipping norm, most at {worst}); "
                "every example must be computed, and clipped, separately"
            )

    def _padding(self, own: list[int], before: Sums) -> None:
        self._same(
            before,
            self.sum([own], width=len(own)),
            "an example's clipped gradient depends on how far it is padded; mask the padding in attention and loss",
        )

    def _unlabelled(self) -> None:
        """Examples without labels, which fill up batches, contribute zero, not a division by zero."""
        if any(total.any() for total in self.sum([]).values()):
            self.add(
                "an example without labels adds something; its loss must be 0, not a division by its number of labels"
            )

    def _not_finite(self, own: list[int], before: Sums) -> None:
        """An example whose gradient overflows contributes zero: a NaN in the sum would reveal it."""
        with _overflowing(self.model, self.maker):
            sums = self.sum([own, [self.maker.reserved, *self.maker.example(3)]])
        self._same(
            before,
            sums,
            "an example whose gradient is not finite is not left out of the sum, and would be seen in spite of the "
            "noise; set its contribution to zero",
        )

    def _repeatable(self, own: list[int], before: Sums, remembered: Mapping[str, Any]) -> None:
        self.sum([self.maker.example(5)])
        for path in trial.changed(remembered, trial.state(self.model)):
            self.add(f"{path}: changes when examples pass through; keep nothing from one batch for the next")
        self._same(
            before,
            self.sum([own]),
            "the same example gives another clipped gradient after other batches; something is kept from batch to "
            "batch, or there is randomness other than dropout: take it out",
        )

    def _same(self, one: Sums, other: Sums, fault: str) -> None:
        if not length_of({name: one[name] - other[name] for name in one}) <= 2 * self.near * length_of(one):
            self.add(fault)


def faults_of_rounding(
    model: nn.Module, logical_sum: ClippedSum, *, clipping_norm: float, vocabulary: int, length: int = 16
) -> list[str]:
    """Whether examples change the rounding of each other's gradients, in the precision of training.

    Rounding a gradient before clipping is harmless. But an example's contribution must not depend on others in its
    logical batch: otherwise one of them more or less changes all contributions, in addition to the clipping norm.

    The model is as in training, its frozen weights in that precision, and is restored. `logical_sum` is training's own
    clipped sum of a logical batch in the processor's memory, divided as in training.
    """
    maker = Maker.like(model, vocabulary, length, torch.device("cpu"))
    lengths = (maker.length, maker.length, maker.length - 1, maker.length // 2, maker.length // 2, 2)
    examples = [maker.example(tokens) for tokens in lengths]

    def sum_of(some: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        sums = logical_sum(model, maker.batch(some))
        return {name: tensor.detach().clone() for name, tensor in sums.items()}

    with trial.left_as_found(model):
        model.eval()
        try:
            with moved(model, maker.generator):
                whole, alone = sum_of(examples), [sum_of([example]) for example in examples]
        except Exception as error:  # random tokens only: its message cannot quote the data
            return [f"a logical batch of random tokens fails with {type(error).__name__} ({error}); fix that first"]
    longest = max(map(length_of, alone))
    if not longest <= clipping_norm * (1 + UNIT_NEAR):
        return [
            f"in the device's precision, the contribution of one example is {longest / clipping_norm:.5g} times as "
            "long as the clipping norm; take another model or device (DPSYNTH_DEVICE)"
        ]
    rest = length_of({name: whole[name] - sum(part[name] for part in alone) for name in whole})
    if not rest <= UNIT_NEAR * clipping_norm * len(examples):
        return [
            f"in the device's precision, {len(examples)} examples together differ by {rest / clipping_norm:.2g} of the "
            "clipping norm from the sum of their separate contributions: they change each other's rounding; take "
            "another model or device (DPSYNTH_DEVICE)"
        ]
    return []


def faults_of_noise(noised: Sums, model: nn.Module, *, deviation: float) -> list[str]:
    """Faults of the noised sum of an empty batch, which must be fresh noise in every coordinate.

    A parameter's squared norm over deviation**2 is chi-squared with as many degrees of freedom as it has coordinates;
    outside of the bounds of Laurent & Massart (2000, lemma 1) the noise is refused, at random with a probability of at
    most `FALSE_ALARM` for the whole model. `deviation` is noise multiplier times clipping norm.
    """
    parameters = trial.trainable(model)
    faults = [f"{name}: trainable, but gets no noise; freeze it" for name in sorted(parameters.keys() - noised.keys())]
    x = math.log(2 * max(len(parameters), 1) / FALSE_ALARM)
    seen: dict[bytes, str] = {}
    for name in sorted(parameters.keys() & noised.keys()):
        noise = noised[name].detach().double().flatten().cpu()
        size, squared = noise.numel(), float((noise / deviation).square().sum())
        if size and not (noise != 0).double().mean() > 0.5:
            faults.append(f"{name}: coordinates without noise; noise every coordinate of the sum")
        elif not size - 2 * math.sqrt(size * x) <= squared <= size + 2 * math.sqrt(size * x) + 2 * x:
            faults.append(
                f"{name}: the noise's deviation is {math.sqrt(squared / size) * deviation:.4g}, not {deviation:.4g}; "
                "noise the sum by noise multiplier times clipping norm"
            )
        head = noise[:64].numpy().tobytes()
        if size >= 4 and head in seen:
            faults.append(f"{name} and {seen[head]} get the same noise; draw it separately for each")
        seen[head] = name
    return faults


def faults_of_sampler(draw: Draw, *, probability: float) -> list[str]:
    """Faults of a sampler that should draw each of `SAMPLER_UNITS` made-up units by a separate coin.

    Shuffled batches of a fixed size are refused (guide, section 7.3): their batch sizes, or the number of draws of each
    unit, vary too little. For coins, the dispersion index of both is about chi-squared with 399 degrees of freedom over
    399: outside of 0.5 and 1.6 at random less than once in 1e10 (Laurent & Massart 2000, lemma 1). The coins'
    probability is between 0.1 and 0.9, so that the normal limit holds.
    """
    drawn = torch.zeros(SAMPLER_STEPS, SAMPLER_UNITS, dtype=torch.double)
    for step in range(SAMPLER_STEPS):
        batch = torch.tensor(list(draw()), dtype=torch.long)
        if len(set(batch.tolist())) != len(batch):
            return ["the sampler draws a unit twice into one batch; draw each by one coin"]
        drawn[step, batch] = 1.0
    coins, variance = drawn.numel(), probability * (1 - probability)
    faults = []
    # Hoeffding's bound of the mean of independent coins.
    if abs(float(drawn.mean()) - probability) > math.sqrt(math.log(2 / FALSE_ALARM) / (2 * coins)):
        faults.append(
            f"the sampler draws a unit with probability {float(drawn.mean()):.4g}, not {probability:.4g}; "
            "draw by the plan's probability"
        )
    for along, units, what in ((1, SAMPLER_UNITS, "batch sizes"), (0, SAMPLER_STEPS, "how often units are drawn")):
        dispersion = float(drawn.sum(along).var()) / (units * variance)
        if not 0.5 < dispersion < 1.6:
            faults.append(
                f"the sampler's {what} vary {dispersion:.2g} times as much as independent coins make them; draw "
                "Poisson samples: shuffled batches, or batches of a fixed size, are not what is accounted for"
            )
    return faults


def faults_of_step(model: nn.Module, step: Callable[[], None]) -> list[str]:
    """Faults of a whole step of training on random tokens: every trainable parameter must move, and nothing else.

    `step` takes one step, with noise; the model is not restored.
    """
    frozen, remembered = trial.frozen_digests(model), trial.state(model)
    before = {name: parameter.detach().clone() for name, parameter in trial.trainable(model).items()}
    try:
        step()
    except Exception as error:  # random tokens only: its message cannot quote the data
        return [f"a step of training fails on random tokens with {type(error).__name__} ({error}); fix that first"]
    after = trial.trainable(model)
    faults = [
        f"{name}: is frozen, but a step changes it"
        for name, d in trial.frozen_digests(model).items()
        if frozen[name] != d
    ]
    faults += [
        f"{path}: a step changes it; nothing but trainable parameters may move"
        for path in trial.changed(remembered, trial.state(model))
    ]
    faults += [
        f"{name}: is trainable, but a step does not move it; freeze it, or raise the learning rate"
        for name in before
        if torch.equal(before[name], after[name])
    ]
    return faults


@contextmanager
def moved(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Trainable weights are moved randomly a little, and restored exactly."""
    weights = trial.trainable(model).values()
    with trial.restored(weights):
        with torch.no_grad():
            for weight in weights:
                size = 0.1 * float(weight.double().square().mean().sqrt()) or 0.02
                weight.add_(size * torch.randn(weight.shape, generator=generator).to(weight))
        yield


@contextmanager
def _large_gradients(model: nn.Module) -> Iterator[None]:
    """The model's gradients times `LARGE_FACTOR`, with equal scores: scaled scores would have larger rounding."""

    def scale(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return _with_large_gradient(output)
        output.logits = _with_large_gradient(output.logits)
        return output

    with model.register_forward_hook(scale):
        yield


def _with_large_gradient(scores: Tensor) -> Tensor:
    """The same numbers in a new tensor, so that a head's own hooks get the scaled gradient."""
    same = scores.view_as(scores)
    if same.requires_grad:
        same.register_hook(lambda gradient: gradient * LARGE_FACTOR)  # type: ignore[no-untyped-call]
    return same


@contextmanager
def _overflowing(model: nn.Module, maker: Maker) -> Iterator[None]:
    """The reserved token's embedding is NaN."""

    def overflow(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        tokens = args[0] if args else None
        if not isinstance(tokens, Tensor) or not isinstance(output, Tensor) or module.num_embeddings < maker.vocabulary:
            return output
        return output.masked_fill((tokens == maker.reserved).unsqueeze(-1), math.nan)

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                hooks.enter_context(module.register_forward_hook(overflow))
        yield


def length_of(sums: Sums) -> float:
    """The L2 norm of all parameters together."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in sums.values()))


def _inner(one: Sums, other: Sums) -> float:
    return sum(float((one[name].double() * other[name].double()).sum()) for name in one)
