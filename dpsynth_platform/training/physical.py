"""Physical batches: how a logical batch passes through memory.

What belongs here: dividing a logical batch into parts that fit, and telling what fits. What does not: which units are
in it (`sampler`) and what is computed (`clipping`). Every unit is clipped by itself and noise is added once for a
logical batch, so the division changes no result, up to rounding. It follows the rows' lengths, so how long a step takes
is not hidden.

**Rounding.** By the shape of a part, kernels choose the order in which they sum up, so a unit's gradient is rounded
otherwise beside other units; and one unit more or less changes the parts of many. In single precision that moves a sum
over 48 units by 3e-5 of the clipping norm, which is next to nothing; in bfloat16 it was 3%, growing with the root of
the batch size, and all of it would come on top of what one unit may change. Where layers compute in bfloat16
(`precision`), the shape of a unit's part therefore follows from this unit alone: lengths and numbers of rows are
rounded up to a power of two of the longest, and parts that are not full are filled up with units of weight 0. Memory
is tried before any record is read, in the largest shapes that records and owners may have: who runs short of it because
of one owner would compute the others otherwise than without that one. Where it runs out all the same, for others take
it, the step is divided further, and the next one begins as if nothing had been.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.families import IGNORED
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.memory import free_memory
from dpsynth_platform.training.world import World

# Tokens in a physical batch: beyond, more of them at once are not faster.
MOST_TOKENS = {"cpu": 1024, "cuda": 32_768}
# Devices that say when their memory is short, where others end the process.
TRIED = ("cuda",)
# Parts for these are no shorter: below, padding costs nothing.
SHORTEST = 16
# Of the free memory, this part is for a physical batch.
MEMORY_PART = 0.5
# Numbers kept for each token: of each layer its inputs and outputs, with the gradients at those; of the vocabulary the
# scores, their logarithms, their gradients and what is made of them on the way.
COPIES = 4
# Tokens of the first pass, which finds what memory does not hinder.
TRIAL_TOKENS = 8


@dataclass(frozen=True)
class Part:
    """Some units of a logical batch, or some records of a single one.

    Attributes:
        batch: rows of the units, one unit after the other.
        weights: [units, rows of each]; 0 fills up.
    """

    batch: Batch
    weights: Tensor


def parts_of(rows: Batch, sizes: Sequence[int], tokens: int, device: torch.device) -> Iterator[list[Part]]:
    """Divides a logical batch.

    Units of like size and length go together, the largest first. A unit that is too large by itself is divided by its
    records; a single record never is, so a part may have more tokens than asked for.

    Args:
        rows: of all units, one after the other.
        sizes: how many rows each unit has, at least one.
        tokens: the most in a part, padding included.
        device: where the parts go.

    Yields:
        One part with some units, or several parts that are one unit together.
    """
    lengths, units = _lengths(rows["attention_mask"]), _units(sizes)
    longest = [max(lengths[row] for row in unit) for unit in units]
    order = sorted(range(len(units)), key=lambda unit: (len(units[unit]), longest[unit]), reverse=True)
    together: list[int] = []
    for unit in order:
        size, length = len(units[unit]), longest[unit]
        if size > 1 and size * length > tokens:
            yield _divided(rows, units[unit], length, tokens, device)
            continue
        wide = max(len(units[first]) for first in [*together, unit])
        long = max(longest[first] for first in [*together, unit])
        if together and (len(together) + 1) * wide * long > tokens:
            yield [_together(rows, units, longest, together, device)]
            together = []
        together.append(unit)
    if together:
        yield [_together(rows, units, longest, together, device)]


def parts_alike(
    rows: Batch, sizes: Sequence[int], tokens: int, device: torch.device, longest: int, planned: int
) -> Iterator[list[Part]]:
    """As `parts_of`, but the shape of a unit's part follows from this unit and public numbers alone.

    Args:
        rows: of all units, one after the other.
        sizes: how many rows each unit has, at least one.
        tokens: the most in a part, padding included.
        device: where the parts go.
        longest: the most tokens of a record. Public.
        planned: how many units a logical batch has on average. Public. Parts are for a quarter of them at most, so that
            not too much is filled up.

    Yields:
        See `parts_of`.
    """
    lengths, units = _lengths(rows["attention_mask"]), _units(sizes)
    alike: defaultdict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for unit in units:
        wide = _power_of_two(len(unit))
        long = min(longest, _power_of_two(max(SHORTEST, *(lengths[row] for row in unit))))
        if len(unit) > 1 and wide * long > tokens:
            yield _divided(rows, unit, long, tokens, device)
        else:
            alike[wide, long].append(unit)
    for (wide, long), together in sorted(alike.items(), reverse=True):
        number = max(1, min(tokens // (wide * long), planned // 4))
        for start in range(0, len(together), number):
            yield [_part(rows, together[start : start + number], (number, wide, long), None, device)]


def first_size(sums: ClippedSums, model: nn.Module, longest: int, device: torch.device, rows: int = 1) -> int:
    """How many tokens to begin with, by trial with random tokens on an accelerator and by estimate elsewhere.

    Args:
        sums: empty; empty again afterwards.
        model: whose gradients they sum.
        longest: the most tokens of a record. Public.
        device: of the model.
        rows: the most records of a unit. Public.

    Raises:
        MechanismFailed: not even one record fits, or a trainable layer is not passed.
    """
    _try(sums, model, (1, 1, min(longest, TRIAL_TOKENS)), device)
    if unused := sums.unused_layers():
        raise MechanismFailed(f"nothing passes through the trainable layers {', '.join(unused)}; accepted: freeze them")
    tokens = MOST_TOKENS.get(device.type, MOST_TOKENS["cpu"])
    if device.type not in TRIED:
        return min(tokens, max(longest, _estimated_tokens(model)))
    while not fits(partial(_try_largest, sums, model, tokens, longest, rows, device)):
        tokens = smaller(tokens, longest)
    return tokens


def smaller(tokens: int, longest: int) -> int:
    """Half as many tokens.

    Raises:
        MechanismFailed: already one record at a time did not fit.
    """
    if tokens <= longest:
        raise MechanismFailed(
            f"one record of up to {longest} tokens does not fit in memory; accepted: shorter records, a smaller model, "
            "an adapter, or more memory"
        )
    return tokens // 2


def fits(work: Callable[[], None]) -> bool:
    """Does something and tells whether memory was enough for it. Other errors pass."""
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    else:
        return True
    # Only here, as the error has gone and with it what it held.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    words = ("out of memory", "not enough memory", "can't allocate memory")
    known = isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and any(part in str(error).lower() for part in words))


def _units(sizes: Sequence[int]) -> list[list[int]]:
    """The rows of each unit."""
    return [list(range(start, end)) for start, end in pairwise(accumulate(sizes, initial=0))]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _divided(rows: Batch, unit: list[int], length: int, tokens: int, device: torch.device) -> list[Part]:
    """One unit in parts of as many rows as fit."""
    most = max(1, tokens // length)
    pieces = [unit[start : start + most] for start in range(0, len(unit), most)]
    return [_part(rows, [piece], (1, len(piece), length), 1 / len(unit), device) for piece in pieces]


def _together(rows: Batch, units: list[list[int]], longest: list[int], chosen: list[int], device: torch.device) -> Part:
    shape = len(chosen), max(len(units[unit]) for unit in chosen), max(longest[unit] for unit in chosen)
    return _part(rows, [units[unit] for unit in chosen], shape, None, device)


def _part(
    rows: Batch, units: list[list[int]], shape: tuple[int, int, int], weight: float | None, device: torch.device
) -> Part:
    """Units side by side, in a shape of units, rows and tokens; a row weighs its part of its unit, or what is given."""
    number, wide, long = shape
    filled = units + units[:1] * (number - len(units))
    chosen = [row for unit in filled for row in unit + unit[:1] * (wide - len(unit))]
    weights = [[weight or 1 / len(unit)] * len(unit) + [0.0] * (wide - len(unit)) for unit in units]
    weights += [[0.0] * wide] * (number - len(units))
    batch = {name: _as_long(name, values[chosen], long).to(device) for name, values in rows.items()}
    return Part(batch, torch.tensor(weights, device=device))


def _as_long(name: str, values: Tensor, length: int) -> Tensor:
    """Rows cut off after a length, or with more padding up to it."""
    missing = length - values.shape[1]
    if missing <= 0:
        return values[:, :length]
    if name == "position_ids":
        return torch.cat([values, values[:, -1:] + torch.arange(1, missing + 1)], dim=1)
    return functional.pad(values, (0, missing), value=IGNORED if name == "labels" else 0)


def _lengths(mask: Tensor) -> list[int]:
    """Of each row, the tokens up to the last that counts; at least one."""
    places = torch.arange(1, mask.shape[1] + 1)
    lengths: list[int] = (mask.cpu() * places).amax(1).clamp(min=1).tolist()
    return lengths


def _try_largest(
    sums: ClippedSums, model: nn.Module, tokens: int, longest: int, rows: int, device: torch.device
) -> None:
    """Passes over random tokens: what takes most memory of all that `parts_of` and `parts_alike` may yield."""
    for shape in largest_shapes(tokens, longest, rows):
        _try(sums, model, shape, device)
    if rows * longest > tokens:
        _try(sums, model, (1, max(1, tokens // longest), longest), device, parts=2)


def largest_shapes(tokens: int, longest: int, rows: int) -> list[tuple[int, int, int]]:
    """Units, rows and tokens of a row: many units of one row each, and the units of most rows that are not divided.

    Products of tokens are taken for each unit, of all its rows together: the fewer and larger the units, the more.

    Args:
        tokens: the most in a part, padding included.
        longest: the most tokens of a record.
        rows: the most records of a unit.
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
    """One pass over random tokens in a shape of units, rows and tokens; or one unit in several parts of it."""
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
    """How many tokens fit into this process's part of the free memory."""
    widths = sum(sum(value.shape) for value in model.parameters() if value.dim() == 2)
    numbers = COPIES * (_vocabulary(model) + widths)
    return int(MEMORY_PART * free_memory() / (4 * numbers * World().size))
