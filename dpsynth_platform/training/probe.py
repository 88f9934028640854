"""A numerical proof, on random tokens, that what training adds up is what the guarantee assumes.

What belongs here: trials of the very functions that training uses (clipped sum, noise, sampler, step), which look at
numbers only, so that they also catch what no list of layers names (`validators` has the lists). What does not: any
record of the data: no function here takes one, and all inputs are random and made new each time.

The guarantee of DP-SGD rests on this (Abadi et al. 2016; Ponomareva et al., "How to DP-fy Your Data", algorithm 1 and
section 7.3): the sum over a batch is a sum of one contribution for each example, a contribution depends on its own
example alone and is at most C long, every coordinate that training moves is in the sum and gets noise, and nothing else
moves.

Results are compared up to the share sqrt(u) of the contributions' lengths, u the unit roundoff (`trial.tolerance`
derives it: 2.4e-4 in single precision). Rounding stays orders of magnitude below it, so a sound model is not refused by
chance; what changes a contribution by more is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dpsynth_platform.training import trial
from dpsynth_platform.training.trial import ClippedSum, Losses, Maker

LOUD = 1000.0
"""By how much gradients at the scores are scaled for a trial with large ones."""
FALSE_ALARM = 1e-9
"""Of each statistical check of noise and sampler, at most."""
UNIT_NEAR = 2.0**-14
"""Of the clipping norm, what each unit may leave in a sum by rounding, where layers compute in a coarse precision. Sums
are of single precision, which leaves about 2**-24 of it; a shape of the parts that hung on others left 2**-12."""
SAMPLER_UNITS, SAMPLER_STEPS = 400, 400

Sums = Mapping[str, Tensor]
Draw = Callable[[], Sequence[int]]
"""Of a sampler, the next batch: positions of units."""


def faults_of_clipping(
    model: nn.Module,
    clipped_sum: ClippedSum,
    losses: Losses,
    *,
    clipping_norm: float,
    vocabulary: int,
    length: int = 16,
) -> list[str]:
    """What is wrong with the clipped sum of this model's gradients. The model is left as it was found.

    Tried at random places near the model's weights, since at the start of LoRA most gradients are zero: in evaluation
    mode, the very way that training goes, and in train mode with the gradients at the scores scaled up, so that more
    are clipped. Scores that a model makes something of lead a clipper to another way, and so do scaled ones.

    Args:
        model: as training will use it.
        clipped_sum: training's own, which clips each row of a batch to `clipping_norm`.
        losses: the loss that it clips the gradients of, for each example.
        clipping_norm: C.
        vocabulary: how many token ids there are.
        length: tokens of the longest random example.
    """
    maker = Maker.like(model, vocabulary, length)
    found = _Probe(model, clipped_sum, losses, clipping_norm, maker, trial.tolerance(model))
    frozen = trial.frozen_digests(model)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    with trial.left_as_found(model):
        try:
            found.names()
            if not found.faults:
                for training, loud in ((False, nullcontext()), (True, _loud(model))):
                    model.train(training)
                    with _moved(model, maker.generator), loud:
                        found.at_this_place()
        except Exception as error:  # random tokens only: its words cannot quote the data
            found.add(f"the clipped sum fails on random tokens with {type(error).__name__} ({error}); mend that first")
    for name, digest in trial.frozen_digests(model).items():
        if digest != frozen[name]:
            found.add(f"{name}: is frozen, but changes when the clipped sum is taken; nothing may write it")
    for name, parameter in model.named_parameters():
        if parameter.grad is not gradients[name]:
            found.add(f"{name}: something writes its gradient beside the clipped sum; remove that hook")
            parameter.grad = gradients[name]
    return list(found.faults)


class _Probe:
    """Trials of one clipped sum at the model's present weights; findings gather in `faults`."""

    def __init__(
        self,
        model: nn.Module,
        clipped_sum: ClippedSum,
        losses: Losses,
        clipping_norm: float,
        maker: Maker,
        near: float,
    ) -> None:
        self.model = model
        self.clipped_sum = clipped_sum
        self.losses = losses
        self.bound = clipping_norm
        self.maker = maker
        self.near = near
        self.parameters = trial.trainable(model)
        self.faults: dict[str, None] = {}

    def add(self, *sentences: str) -> None:
        self.faults.update(dict.fromkeys(sentences))

    def sum(self, examples: Sequence[Sequence[int]], **how: Any) -> Sums:
        sums = self.clipped_sum(self.model, self.maker.batch(examples, **how))
        return {name: tensor.detach().clone() for name, tensor in sums.items()}

    def names(self) -> None:
        """Every trainable parameter is in the sum, with its shape, and nothing else is."""
        sums = self.sum([self.maker.example(self.maker.length)])
        for name in sorted(self.parameters.keys() - sums.keys()):
            self.add(f"{name}: trainable, but missing from the clipped sum, so neither clipped nor noised; freeze it")
        for name in sorted(sums.keys() - self.parameters.keys()):
            self.add(f"{name}: in the clipped sum, but not trainable; leave it out")
        for name in sorted(self.parameters.keys() & sums.keys()):
            if sums[name].shape != self.parameters[name].shape:
                self.add(f"{name}: its clipped sum has the shape {tuple(sums[name].shape)}; accepted: the parameter's")

    def at_this_place(self) -> None:
        """All trials with the weights as they are."""
        maker = self.maker
        own = maker.example(maker.length - 3)
        others = [
            maker.example(maker.length - 3),
            maker.example(maker.length),
            maker.example(2),
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
        self._unlabelled(own, before)
        self._not_finite(own, before)
        self._repeatable(own, before, remembered)

    def _gradient(self, example: list[int], made: Sums) -> set[str]:
        """One contribution is at most C long, and points where the loss's own gradient points, in every parameter.

        Returns:
            Names of the parameters that this example moves.
        """
        length = _length(made)
        if not length <= self.bound * (1 + self.near):
            self.add(
                f"the contribution of one example is {length / self.bound:.3g} times as long as the clipping norm; "
                "clip the whole gradient of each example, over all trainable parameters together"
            )
        expected = self._reference(example)
        total = _length(expected)
        scale = _inner(made, expected) / total**2 if total > 0 and math.isfinite(total) else 0.0
        rounding = 1e3 * self.near**2
        wrong = _length({name: made[name] - scale * expected[name] for name in made})
        blind = [n for n in made if not made[n].any() and float(expected[n].norm()) > rounding * total]
        if not math.isfinite(total):
            self.add("the gradient of random tokens is not finite; check the model's weights and precision")
        elif blind:
            self.add(
                *(
                    f"{name}: the loss depends on it by a way that the clipper does not see; let the layer that owns "
                    "it compute with it, or freeze it"
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

    def _reference(self, example: list[int]) -> dict[str, Tensor]:
        """The gradient of one example's loss, by automatic differentiation alone."""
        loss = self.losses(self.model, self.maker.batch([example])).sum()
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
        """The sum over a batch is the sum of what its examples give alone."""
        rest = dict(self.sum(examples))
        for part in parts:
            rest = {name: rest[name] - part[name] for name in rest}
        lengths = sum(_length(part) for part in parts)
        difference = _length(rest)
        if not difference <= self.near * lengths:
            worst = max(rest, key=lambda name: float(rest[name].norm()))
            path = trial.first_leak(self.model, self.losses, self.maker, self.near)
            where = "the loss or the clipping" if path is None else path or "the model itself"
            self.add(
                f"{where}: the clipped gradient of an example depends on the others in its batch (by "
                f"{difference / self.bound:.2g} of the clipping norm, most at {worst}); "
                "every example must be computed, and clipped, by itself alone"
            )

    def _padding(self, own: list[int], before: Sums) -> None:
        self._same(
            before,
            self.sum([own], width=self.maker.length),
            "an example's clipped gradient depends on how far it is padded; mask the padding in attention and loss",
        )

    def _unlabelled(self, own: list[int], before: Sums) -> None:
        """An example without any label gives nothing, and is no division by zero."""
        self._same(
            before,
            self.sum([own, self.maker.example(5)], unlabelled=[1]),
            "an example without labels adds something; its loss must be 0, not a division by its number of labels",
        )

    def _not_finite(self, own: list[int], before: Sums) -> None:
        """An example whose gradient overflows gives nothing: a NaN in the sum would show that it is there."""
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
            self.add(f"{path}: changes when examples pass through; nothing may be kept from one batch for the next")
        self._same(
            before,
            self.sum([own]),
            "the same example gives another clipped gradient after other batches; something is kept from batch to "
            "batch, or there is randomness other than dropout: take it out",
        )

    def _same(self, one: Sums, other: Sums, fault: str) -> None:
        if not _length({name: one[name] - other[name] for name in one}) <= 2 * self.near * _length(one):
            self.add(fault)


def faults_of_rounding(
    model: nn.Module, logical_sum: ClippedSum, *, clipping_norm: float, vocabulary: int, length: int = 16
) -> list[str]:
    """Whether examples round each other's gradients, in the precision in which layers will compute.

    A gradient may be rounded as it likes, and is clipped afterwards. But what an example adds to a logical batch must
    be what it adds to one of its own: if it is rounded otherwise beside others, then one of them more or less changes
    what all of them add, on top of the clipping norm.

    Args:
        model: as training will use it, its frozen weights in that precision. Left as it was found.
        logical_sum: training's own clipped sum of a logical batch, divided as training divides it. Given batches in
            the processor's memory, as training is.
        clipping_norm: C.
        vocabulary: how many token ids there are.
        length: tokens of the longest random example.
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
            with _moved(model, maker.generator):
                whole, alone = sum_of(examples), [sum_of([example]) for example in examples]
        except Exception as error:  # random tokens only: its words cannot quote the data
            return [f"a logical batch of random tokens fails with {type(error).__name__} ({error}); mend that first"]
    longest = max(map(_length, alone))
    if not longest <= clipping_norm * (1 + UNIT_NEAR):
        return [
            f"in the device's precision, the contribution of one example is {longest / clipping_norm:.5g} times as "
            "long as the clipping norm; take another model or device (DPSYNTH_DEVICE)"
        ]
    rest = _length({name: whole[name] - sum(part[name] for part in alone) for name in whole})
    if not rest <= UNIT_NEAR * clipping_norm * len(examples):
        return [
            f"in the device's precision, {len(examples)} examples together differ by {rest / clipping_norm:.2g} of the "
            "clipping norm from what each adds by itself: they are rounded by each other; take another model or device "
            "(DPSYNTH_DEVICE)"
        ]
    return []


def faults_of_noise(noised: Sums, model: nn.Module, *, deviation: float) -> list[str]:
    """What is wrong with the noised sum of an empty batch, which must be nothing but noise, new in every coordinate.

    A parameter's squared length over deviation**2 is chi-squared with as many degrees of freedom as it has coordinates;
    outside of the bounds of Laurent & Massart (2000, lemma 1) the noise is refused, by chance with a probability of at
    most `FALSE_ALARM` for the whole model.

    Args:
        noised: by the name of each trainable parameter.
        model: as training will use it.
        deviation: the noise's on each coordinate of the sum, noise multiplier times clipping norm.
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
            faults.append(f"{name} and {seen[head]} get the same noise; draw it for each anew")
        seen[head] = name
    return faults


def faults_of_sampler(draw: Draw, *, probability: float) -> list[str]:
    """What is wrong with a sampler that should draw each of `SAMPLER_UNITS` made-up units by its own coin.

    Shuffled batches of a fixed size are refused (guide, section 7.3): their batch sizes, or the number of times that
    each unit is drawn, vary too little. Both are compared with what coins give, whose dispersion index is about
    chi-squared with 399 degrees of freedom over 399: beyond 0.5 and 1.6 by chance less than once in 1e10 (Laurent &
    Massart 2000, lemma 1).

    Args:
        draw: one batch: positions of units, below `SAMPLER_UNITS`.
        probability: of each coin; between 0.1 and 0.9, so that the normal limit holds.
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
    """What is wrong with a whole step of training on random tokens: every trainable parameter moves, and nothing else.

    Args:
        model: left as the step leaves it.
        step: takes one step, noise included.
    """
    frozen, remembered = trial.frozen_digests(model), trial.state(model)
    before = {name: parameter.detach().clone() for name, parameter in trial.trainable(model).items()}
    try:
        step()
    except Exception as error:  # random tokens only: its words cannot quote the data
        return [f"a step of training fails on random tokens with {type(error).__name__} ({error}); mend that first"]
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
def _moved(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Trainable weights at a random place near their own; afterwards as before, exactly."""
    kept = [(parameter, parameter.detach().clone()) for parameter in trial.trainable(model).values()]
    with torch.no_grad():
        for parameter, before in kept:
            size = 0.1 * float(before.double().square().mean().sqrt()) or 0.02
            noise = torch.randn(before.shape, generator=generator).to(before)
            parameter.add_(size * noise)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in kept:
                parameter.copy_(before)


@contextmanager
def _loud(model: nn.Module) -> Iterator[None]:
    """The model's gradients times `LOUD`, with the very same scores: scaled scores would be rounded as much more."""

    def scale(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return _with_loud_gradient(output)
        output.logits = _with_loud_gradient(output.logits)
        return output

    handle = model.register_forward_hook(scale)
    try:
        yield
    finally:
        handle.remove()


def _with_loud_gradient(scores: Tensor) -> Tensor:
    """The same numbers, in a tensor of its own: what a head's own hooks see is behind it, and scaled."""
    same = scores.view_as(scores)
    if same.requires_grad:
        same.register_hook(lambda gradient: gradient * LOUD)  # type: ignore[no-untyped-call]
    return same


@contextmanager
def _overflowing(model: nn.Module, maker: Maker) -> Iterator[None]:
    """The reserved token's embedding is no number."""

    def overflow(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        tokens = args[0] if args else None
        if not isinstance(tokens, Tensor) or not isinstance(output, Tensor) or module.num_embeddings < maker.vocabulary:
            return output
        return output.masked_fill((tokens == maker.reserved).unsqueeze(-1), math.nan)

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(overflow) for module in embeddings]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _length(sums: Sums) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in sums.values()))


def _inner(one: Sums, other: Sums) -> float:
    return sum(float((one[name].double() * other[name].double()).sum()) for name in one)
