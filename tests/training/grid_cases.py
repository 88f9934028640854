"""Small networks on grids with their losses, and gradients of one unit after the other, for tests of training."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

CLASSES = 5


class Grid(nn.Module):
    """Convolutions of several kinds, GroupNorm, an embedding, and attention made of Linear, in any memory layout."""

    def __init__(self, channels=1, width=8, kernel=3, stride=1, bias=True, last=False, attention=True):
        super().__init__()
        self.last, self.attention = last, attention
        self.enter = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=bias)
        self.classes = nn.Embedding(CLASSES, width)
        self.scale = nn.Linear(width, 2 * width)
        self.norm = nn.GroupNorm(2, width)
        self.down = nn.Conv2d(width, width, kernel, stride=stride, padding=kernel // 2, dilation=1, bias=bias)
        self.wide = nn.Conv2d(width, width, 3, padding=2, dilation=2)
        if attention:
            self.attend, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.leave = nn.Conv2d(width, channels, 1, bias=bias)

    def forward(self, pictures, labels):
        if self.last:
            pictures = pictures.to(memory_format=torch.channels_last)
        found = self.enter(pictures)
        gain, shift = self.scale(functional.silu(self.classes(labels)))[:, :, None, None].chunk(2, dim=1)
        found = functional.silu(self.norm(found) * (1 + gain) + shift)
        found = self.wide(functional.silu(self.down(found)))
        if self.attention:
            places = found.flatten(2).transpose(1, 2)
            query, key, value = self.attend(places).chunk(3, dim=2)
            weights = (query @ key.transpose(1, 2) / query.shape[2] ** 0.5).softmax(2)
            # As in diffusers: what leaves attention lies with channels last in memory.
            found = found + self.attended(weights @ value).transpose(1, 2).reshape(found.shape).contiguous(
                memory_format=torch.channels_last if self.last else torch.contiguous_format
            )
            if self.last:
                found = found.contiguous(memory_format=torch.channels_last)
        return self.leave(found)


def losses(made, batch):
    """Of each row: the mean square of the output's difference to random targets of the input's size or less."""
    found = made(batch["pictures"], batch["labels"])
    height, width = found.shape[2:]
    return (found - batch["targets"][:, :, :height, :width]).square().flatten(1).mean(1)


def rows_of(number, size=(7, 5), channels=1):
    height, width = size
    return {
        "pictures": torch.randn(number, channels, height, width),
        "labels": torch.randint(CLASSES, (number,)),
        "targets": 3 * torch.randn(number, channels, height, width),
    }


def network(**how):
    made = Grid(**how)
    with torch.no_grad():
        for value in made.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return made


def unit_gradients(made, batch, weights, of=losses):
    """Of each unit's weighted mean loss, by plain autograd in double precision, row by row: [units, coordinates]."""
    made = copy.deepcopy(made).double()
    wanted = [value for value in made.parameters() if value.requires_grad]
    units, rows = weights.shape
    found = torch.zeros(units, sum(value.numel() for value in wanted), dtype=torch.double)
    for unit in range(units):
        for number in range(rows):
            row = unit * rows + number
            one = {
                name: value[row : row + 1].double() if value.is_floating_point() else value[row : row + 1]
                for name, value in batch.items()
            }
            got = torch.autograd.grad(of(made, one).sum(), wanted)
            found[unit] += float(weights[unit, number]) * torch.cat([part.flatten() for part in got])
    return found
