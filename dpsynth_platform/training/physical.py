"""Physical batches: how a logical batch passes through memory.

What belongs here: dividing a logical batch into parts that fit, and determining what fits. What does not: which units
are in it (`sampler`) and the computation (`clipping`). Every unit is clipped separately and noise is added once for a
logical batch, so the division changes no result, up to rounding. It depends on the rows' lengths, and so does the
duration of a step.

**Rounding.** The shape of a part decides the order in which kernels add. If other units decided on it, one more or less
would change the rounding of many gradients, in addition to the change by itself. In bfloat16 that moved a sum over 48
units by 3% of the clipping norm. In single precision most units move by 5e-6 of it, but back-propagation through 30
layers amplifies the rounding of some texts: of 210 random ones, another shape moved one by 9e-4, and four by 1e-4 to
3e-4. So the shape of a unit's part depends on this unit alone: lengths and numbers of rows are rounded up to a power of
two of the longest, and parts are filled up with units of weight 0. On a processor, a unit's gradient was then the same
in every bit, at each place of a part and beside all others. Memory is tested before any record is read, in the largest
shapes that records and owners may have: if one owner made memory short, the others' gradients would be computed
differently. If other processes make it short nevertheless, the step is divided further, and the next step starts with
the full size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.families import IGNORED
from dpsynth_platform.training.interface import Batch, Part
from dpsynth_platform.training.memory import free_memory
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.world import World

# Tokens in a physical batch; more are not faster.
MOST_TOKENS = {"cpu": 1024, "cuda": 32_768}
# Devices that raise errors on short memory; on others the system kills the process.
TRIED = ("cuda",)
# Least tokens of a fixed-shape part: below, padding costs nothing.
SHORTEST = 16
# Part of the free memory for a physical batch.
MEMORY_PART = 0.5
# Numbers kept for each token: of each layer its inputs and outputs, with the gradients at those; of the vocabulary the
# scores, their logarithms, their gradients and temporaries.
COPIES = 4
# Tokens of the first pass, which finds faults other than short memory.
TRIAL_TOKENS = 8


class TokenDivision:
    """`interface.Division` of batches of tokens; sizes are numbers of tokens.

    Arguments are those of `first_size`.
    """

    def __init__(
        self, sums: ClippedSums, model: nn.Module, plan: TrainingPlan, longest: int, device: torch.device, rows: int
    ) -> None:
        self._planned, self._device = plan.batch_size, device
        self.least = longest
        self.size = first_size(sums, model, longest, device, rows)

    def parts(self, rows: Batch, sizes: Sequence[int], size: int) -> Iterator[list[Part]]:
        return fixed_shape_parts(rows, sizes, size, self._device, self.least, self._planned)

    def smaller(self, size: int) -> int:
        return smaller(size, self.least)


def fixed_shape_parts(
    rows: Batch, sizes: Sequence[int], tokens: int, device: torch.device, longest: int, planned: int
) -> Iterator[list[Part]]:
    """Divides a logical batch; the shape of a unit's part depends on this unit and public numbers alone.

    These are the most tokens of a record, `longest`, and the expected units of a logical batch, `planned`. Parts have
    at most a quarter of them, which limits padding. A unit that is too large is divided by its records; a record never
    is, so a part may have more than the requested most `tokens`, padding included. `rows` are those of all units, in
    their order, and `sizes` the rows of each unit, at least one.

    Yields:
        One part with some units, or several parts of one unit.
    """
    lengths, units = _lengths(rows["attention_mask"]), _units(sizes)
    by_shape: defaultdict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for unit in units:
        wide = _power_of_two(len(unit))
        long = min(longest, _power_of_two(max(SHORTEST, *(lengths[row] for row in unit))))
        if len(unit) > 1 and wide * long > tokens:
            yield _divided(rows, unit, long, tokens, device)
        else:
            by_shape[wide, long].append(unit)
    for (wide, long), together in sorted(by_shape.items(), reverse=True):
        number = max(1, min(tokens // (wide * long), planned // 4))
        for start in range(0, len(together), number):
            yield [_part(rows, together[start : start + number], (number, wide, long), None, device)]


def first_size(sums: ClippedSums, model: nn.Module, longest: int, device: torch.device, rows: int = 1) -> int:
    """The initial number of tokens, by trial with random tokens on an accelerator and by estimate elsewhere.

    The sums of the model are empty before and afterwards. The most tokens of a record, `longest`, and the most records
    of a unit, `rows`, are public. Raises `MechanismFailed` if not even one record fits, or a trainable layer is not
    used.
    """
    _try(sums, model, (1, 1, min(longest, TRIAL_TOKENS)), device)
    if unused := sums.unused_layers():
        raise MechanismFailed(f"the model does not use the trainable layers {', '.join(unused)}; accepted: freeze them")
    tokens = MOST_TOKENS.get(device.type, MOST_TOKENS["cpu"])
    if device.type not in TRIED:
        return min(tokens, max(longest, _estimated_tokens(model)))
    while not fits(partial(_try_largest, sums, model, tokens, longest, rows, device)):
        tokens = smaller(tokens, longest)
    return tokens


def smaller(tokens: int, longest: int) -> int:
    """Half as many tokens; raises `MechanismFailed` if one record at a time did not fit."""
    if tokens <= longest:
        raise MechanismFailed(
            f"one record of up to {longest} tokens does not fit in memory; accepted: shorter records, a smaller model, "
            "an adapter, or more memory"
        )
    return tokens // 2


def fits(work: Callable[[], None]) -> bool:
    """Calls `work`, and returns whether memory was sufficient; it raises other errors."""
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    else:
        return True
    # Only here is the error's memory free.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is due to short memory."""
    words = ("out of memory", "not enough memory", "can't allocate memory")
    known = isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and any(part in str(error).lower() for part in words))


def _units(sizes: Sequence[int]) -> list[list[int]]:
    return [list(range(start, end)) for start, end in pairwise(accumulate(sizes, initial=0))]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _divided(rows: Batch, unit: list[int], length: int, tokens: int, device: torch.device) -> list[Part]:
    most = max(1, tokens // length)
    pieces = [unit[start : start + most] for start in range(0, len(unit), most)]
    return [_part(rows, [piece], (1, len(piece), length), 1 / len(unit), device) for piece in pieces]


def _part(
    rows: Batch, units: list[list[int]], shape: tuple[int, int, int], weight: float | None, device: torch.device
) -> Part:
    """Units in a shape of units, rows and tokens; a row's weight is its share of its unit, or the given one."""
    number, wide, long = shape
    filled = units + units[:1] * (number - len(units))
    chosen = [row for unit in filled for row in unit + unit[:1] * (wide - len(unit))]
    weights = [[weight or 1 / len(unit)] * len(unit) + [0.0] * (wide - len(unit)) for unit in units]
    weights += [[0.0] * wide] * (number - len(units))
    batch = {name: _as_long(name, values[chosen], long).to(device) for name, values in rows.items()}
    return Part(batch, torch.tensor(weights, device=device))


def _as_long(name: str, values: Tensor, length: int) -> Tensor:
    """Rows cut or padded to a length."""
    missing = length - values.shape[1]
    if missing <= 0:
        return values[:, :length]
    if name == "position_ids":
        return torch.cat([values, values[:, -1:] + torch.arange(1, missing + 1)], dim=1)
    return functional.pad(values, (0, missing), value=IGNORED if name == "labels" else 0)


def _lengths(mask: Tensor) -> list[int]:
    """Length of each row without padding, at least 1."""
    places = torch.arange(1, mask.shape[1] + 1)
    lengths: list[int] = (mask.cpu() * places).amax(1).clamp(min=1).tolist()
    return lengths


def _try_largest(
    sums: ClippedSums, model: nn.Module, tokens: int, longest: int, rows: int, device: torch.device
) -> None:
    """Passes over random tokens in the shapes that take most memory in `fixed_shape_parts`."""
    for shape in largest_shapes(tokens, longest, rows):
        _try(sums, model, shape, device)
    if rows * longest > tokens:
        _try(sums, model, (1, max(1, tokens // longest), longest), device, parts=2)


def largest_shapes(tokens: int, longest: int, rows: int) -> list[tuple[int, int, int]]:
    """Units, rows and tokens of a row: many units of one row each, and units of most rows that are not divided.

    Products of tokens are for each unit over all its rows, so fewer and larger units need more of them. Arguments are
    those of `first_size`, with the most `tokens` in a part.
    """
    shapes = [(max(1, tokens // longest), 1, longest)]
    for long in {longest, _power_of_two(longest + 1) // 2} if rows > 1 else ():
        wide = min(_power_of_two(rows), tokens // long)
        if wide > 1:
            shapes.append((tokens // (wide * long), wide, long))
    return shapes


def _try(
    sums: ClippedSums, model: nn.Module, shape: tuple[int, int, int], device: torch.device, parts: int = 1
) -> None:
    """One pass over random tokens in a shape of units, rows and tokens, or over one unit in several such parts."""
    units, wide, length = shape
    tokens = torch.randint(_vocabulary(model), (units * wide, length), device=device)
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens,
        "position_ids": torch.arange(length, device=device).repeat(units * wide, 1),
    }
    weights = torch.full((units, wide), 1 / (wide * parts), device=device)
    try:
        if parts == 1:
            sums.add(batch, weights)
        else:
            sums.add_large([(batch, weights)] * parts)
    finally:
        sums.reset()


def _vocabulary(model: nn.Module) -> int:
    size: int = model.get_input_embeddings().num_embeddings  # type: ignore[operator,union-attr]
    return size


def _estimated_tokens(model: nn.Module) -> int:
    """Number of tokens that fit into this process's part of the free memory."""
    widths = sum(sum(value.shape) for value in model.parameters() if value.dim() == 2)
    numbers = COPIES * (_vocabulary(model) + widths)
    return int(MEMORY_PART * free_memory() / (4 * numbers * World().size))
