"""How fast private training of networks of convolutions is, beside Opacus and beside training without privacy.

    python tests/benchmarks/bench_picture_training.py

Not a test: run it for a table. What belongs here: gradients a processor second, of one row each, and the peak of memory
of a physical batch, for the sizes of the network of `image_diffusion` on 28 x 28 pictures. What does not: that
gradients are right (`tests/training/test_hooked_gradients.py`). A picture has several rows, one for each draw of noise;
its mean gradient is clipped. *plain* is training without privacy. *hooks* are Opacus' `GradSampleModule`, whose
gradients of rows are averaged for each picture. *ghost* is Opacus' fast clipping: it clips rows, so it has the figures
for one draw only, and it has no mean of several. *func* is `torch.func`: vmap of grad over pictures.

Each kind runs in a process of its own, so that its peak of memory is its own. Machines are not alike and not quiet:
compare the ratios, which are of processor time, with one thread.

Measured on one thread of a shared machine of two cores (physical batches of 64 rows), memory above the network in MiB:

    | network | draws | without privacy | ours | Opacus hooks | Opacus ghost | torch.func | ours / without |
    | --- | --- | --- | --- | --- | --- | --- | --- |
    | small, 0.13M | 1 | 262 (172) | 204 (194) | 128 (335) | 111 (400) | 162 (530) | 0.78 |
    | small, 0.13M | 8 | 252 (171) | 203 (185) | 129 (379) | - | 167 (514) | 0.81 |
    | medium, 0.52M | 1 | 102 (331) | 82 (452) | 48 (573) | 38 (570) | 71 (989) | 0.80 |
    | medium, 0.52M | 8 | 91 (330) | 82 (376) | 44 (593) | - | 76 (904) | 0.90 |
    | large, 1.65M | 1 | 38 (543) | 25 (1099) | 19 (1209) | 14 (886) | 22 (1892) | 0.65 |
    | large, 1.65M | 8 | 36 (514) | 34 (568) | 19 (1087) | - | 29 (1548) | 0.94 |
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images.diffusion_loss import Rows, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss
from dpsynth_platform.synth.images.unet import SIZES, UNet, weights_of
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.plan import TrainingPlan

KINDS = ("plain", "ours", "hooks", "ghost", "func")
FORM, CLASSES = ImageForm(28, 28, 1), 10
PLAN = TrainingPlan(units=1000, batch_size=100, steps=1, noise_multiplier=1.0)
Batch = dict[str, torch.Tensor]
Pass = Callable[[Batch], None]


def plain(network: UNet, draws: int) -> Pass:
    """One backward pass of the mean loss."""

    def step(rows: Batch) -> None:
        network.zero_grad(set_to_none=True)
        losses(network, rows).mean().backward()

    return step


def ours(network: UNet, draws: int) -> Pass:
    """The clipped sum of pictures' mean gradients."""
    sums = GridSums(network, PLAN, losses).__enter__()

    def step(rows: Batch) -> None:
        pictures = len(rows["level"]) // draws
        sums.add(rows, torch.full((pictures, draws), 1 / draws))

    return step


def hooks(network: UNet, draws: int) -> Pass:
    """The same by Opacus' gradients of rows."""
    from opacus import GradSampleModule

    wrapped = GradSampleModule(network, loss_reduction="sum")

    def step(rows: Batch) -> None:
        losses(wrapped, rows).sum().backward()
        single = [value.grad_sample.unflatten(0, (-1, draws)).mean(1) for value in network.parameters()]
        clip_and_sum(single)
        wrapped.zero_grad()

    return step


def ghost(network: UNet, draws: int) -> Pass:
    """Opacus' fast clipping, of rows."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    if draws > 1:
        raise SystemExit("ghost clipping has no mean over rows")
    wrapped = GradSampleModuleFastGradientClipping(network, max_grad_norm=1.0, loss_reduction="mean")
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(network.parameters(), 0.0), noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=100
    )

    def row_losses(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return found

    row_losses.reduction = "mean"
    criterion = DPLossFastGradientClipping(wrapped, optimizer, row_losses, loss_reduction="mean")

    def step(rows: Batch) -> None:
        criterion(losses(wrapped, rows)[:, None], rows["level"][:, None]).backward()
        optimizer.zero_grad()

    return step


def func(network: UNet, draws: int) -> Pass:
    """Gradients of pictures by `torch.func`."""
    from torch.func import functional_call, grad, vmap

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, rows: Batch) -> torch.Tensor:
            return losses(self.network, rows).mean()

    values = {f"network.{name}": value.detach() for name, value in network.named_parameters()}
    of_units = vmap(grad(lambda values, rows: functional_call(Loss(), values, (rows,))), in_dims=(None, 0))

    def step(rows: Batch) -> None:
        units = {name: value.unflatten(0, (-1, draws)) for name, value in rows.items()}
        clip_and_sum(list(of_units(values, units).values()))

    return step


def clip_and_sum(single: list[torch.Tensor]) -> list[torch.Tensor]:
    """Clipped gradients of pictures, summed."""
    norms = torch.stack([part.flatten(1).norm(dim=1) for part in single]).norm(dim=0)
    factors = (PLAN.clipping_norm / norms).clamp(max=1)
    return [torch.tensordot(factors, part, dims=1) for part in single]


def resident(line: str) -> float:
    """MiB of this process in memory: VmRSS now, VmHWM at most."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(f"{line}:") + 1]) / 1024


def measure(kind: str, size: str, draws: int, arguments: argparse.Namespace) -> None:
    """Runs one kind and prints processor seconds of a pass (the least of several) and the peak of memory in MiB."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    network = UNet(FORM, CLASSES, size).train()
    rows = dict(Rows(DiffusionLoss(), FORM, CLASSES, torch.device("cpu")).made_up(arguments.rows))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = resident("VmRSS")
    step = {"plain": plain, "ours": ours, "hooks": hooks, "ghost": ghost, "func": func}[kind](network, draws)
    seconds = []
    for _ in range(arguments.rounds + 1):
        start = time.process_time()
        step(rows)
        seconds.append(time.process_time() - start)
    print(json.dumps({"seconds": min(seconds[1:]), "memory": resident("VmHWM") - before}))


def table_row(size: str, draws: int, arguments: argparse.Namespace) -> str:
    """All kinds, each in a process of its own, as a line of the table."""
    speeds: dict[str, float] = {}
    cells = []
    for kind in KINDS:
        given = ["--rows", str(arguments.rows), "--rounds", str(arguments.rounds)]
        given += ["--kind", kind, "--size", size, "--draws", str(draws)]
        output = subprocess.run([sys.executable, __file__, *given], capture_output=True, text=True, check=False)
        if output.returncode:
            cells.append("-")
            continue
        found = json.loads(output.stdout.splitlines()[-1])
        speeds[kind] = arguments.rows / found["seconds"]
        cells.append(f"{speeds[kind]:.0f} ({found['memory']:.0f})")
    beside = f"{speeds['ours'] / speeds['plain']:.2f}"
    return f"| {size}, {weights_of(UNet(FORM, CLASSES, size)) / 1e6:.2f}M | {draws} | {' | '.join(cells)} | {beside} |"


def main() -> None:
    """Prints a table of all kinds and sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=64, help="of a physical batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, help="of the process that runs one kind")
    parser.add_argument("--size", choices=tuple(SIZES))
    parser.add_argument("--draws", type=int, help="rows of a picture")
    arguments = parser.parse_args()
    if arguments.kind:
        measure(arguments.kind, arguments.size, arguments.draws, arguments)
        return
    print("gradients a processor second (MiB above the network)\n")
    print("| network | draws | without privacy | ours | Opacus hooks | Opacus ghost | torch.func | ours / without |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in SIZES if arguments.size is None else (arguments.size,):
        for draws in (1, 8) if arguments.draws is None else (arguments.draws,):
            print(table_row(size, draws, arguments), flush=True)


if __name__ == "__main__":
    main()
