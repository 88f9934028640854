"""How fast private training is, beside Opacus and beside training without privacy. Not a test: run it for a table.

    python tests/benchmarks/bench_training.py

What belongs here: tokens a second and the peak of memory of one logical step (all examples in physical batches, then
noise and the optimizer), of SmolLM2-135M (the packaged weights, else random ones of its shape), with an adapter and in
full, with layers in float32 and in bfloat16. What does not: that gradients are right (`tests/training`). In bfloat16,
training without privacy holds all that is frozen in it and rounds the rest by autocast, as is usual; so does Opacus.
Opacus is used as its tutorials do: `PrivacyEngine` with gradients of single examples (`GradSampleModule`), its
optimizer and `BatchMemoryManager`. Embeddings are untied for Opacus' sake in `full`, for all. Lengths go up evenly from
the shortest, in random order; padding is cut from every physical batch of every kind, and only ours puts like lengths
together (where all are alike, say so: --shortest 64). Tokens are counted without padding.

Each kind runs in a process of its own, so that its peak of memory is its own; that after loading the model is taken
off. Machines are not alike and not quiet: compare the ratios, which are of processor time (with one thread, that is the
time on a quiet machine).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.training.adapter import with_adapter
from dpsynth_platform.training.clipping import ClippedSums, example_losses
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.optimizer import Optimizer
from dpsynth_platform.training.physical import fixed_shape_parts
from dpsynth_platform.training.plan import Adapter, TrainingPlan
from dpsynth_platform.training.precision import EXACT, lower_frozen

KINDS = ("plain", "ours", "opacus")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VOCABULARY = 49_152
CPU = torch.device("cpu")


def smollm(tied: bool) -> Any:
    """SmolLM2-135M; where the weights are not installed, its shape with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    try:
        from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, load

        cache = Path(tempfile.gettempdir()) / "dpsynth-bench-models"
        model, _ = load(base_model(DEFAULT, cache))
    except ConfigurationError as error:
        print(f"random weights ({type(error).__name__})", file=sys.stderr)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def rows_of(examples: int, tokens: int, shortest: int) -> dict[str, torch.Tensor]:
    """Random tokens; lengths go up evenly from the shortest, in random order."""
    ids = torch.randint(VOCABULARY, (examples, tokens))
    positions = torch.arange(tokens).repeat(examples, 1)
    lengths = torch.linspace(shortest, tokens, examples).round()[torch.randperm(examples)]
    mask = (positions < lengths[:, None]).long()
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "position_ids": positions}


def cut(part: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the columns that nobody needs."""
    longest = int(part["attention_mask"].sum(1).max())
    return {name: values[:, :longest] for name, values in part.items()}


def inputs_of(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a model is called with."""
    return {name: values for name, values in batch.items() if name != "labels"}


class Run:
    """A model, a plan and a logical batch, in one precision."""

    def __init__(self, adapted: bool, arguments: argparse.Namespace) -> None:
        self.physical, self.precision = arguments.physical, PRECISIONS[arguments.precision]
        self.plan = TrainingPlan(
            units=10 * arguments.examples,
            batch_size=arguments.examples,
            steps=1,
            noise_multiplier=1.0,
            learning_rate=1e-5,
            adapter=Adapter(16) if adapted else None,
        )
        self.model = with_adapter(smollm(tied=adapted), self.plan)
        self.rows = rows_of(arguments.examples, arguments.tokens, arguments.shortest)
        lower_frozen(self.model, self.precision)

    def losses(self, model: Any, part: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Of each example, by automatic mixed precision."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision != EXACT):
            logits = model(**inputs_of(part), use_cache=False).logits
        return example_losses(logits, part["labels"])

    def adam(self) -> torch.optim.Optimizer:
        """Torch's."""
        moving = [value for value in self.model.parameters() if value.requires_grad]
        return torch.optim.AdamW(moving, self.plan.learning_rate)


def plain(run: Run) -> Callable[[], None]:
    """Gradient accumulation and AdamW."""
    optimizer = run.adam()

    def step() -> None:
        optimizer.zero_grad()
        for start in range(0, len(run.rows["labels"]), run.physical):
            part = cut({name: values[start : start + run.physical] for name, values in run.rows.items()})
            run.losses(run.model, part).sum().backward()
        optimizer.step()

    return step


def ours(run: Run) -> Callable[[], None]:
    """The parts of the loop, without its sampler."""
    plan, rows = run.plan, run.rows
    sums = ClippedSums(run.model.eval(), plan, run.precision).__enter__()
    optimizer, noise = Optimizer(plan, sums.parameters), GaussianNoise()
    sizes, longest = [1] * len(rows["labels"]), rows["labels"].shape[1]
    tokens = run.physical * longest

    def step() -> None:
        sums.reset()
        for (part,) in fixed_shape_parts(rows, sizes, tokens, CPU, longest, plan.batch_size):
            sums.add(part.batch, part.weights)
        for total in sums.totals.values():
            noise.add_(total, plan.noise_deviation)
        optimizer.step(1, {name: (total / plan.batch_size).float() for name, total in sums.totals.items()})

    return step


def opacus(run: Run) -> Callable[[], None]:
    """`PrivacyEngine` and `BatchMemoryManager`; all examples are drawn, so that steps are alike."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    names, count = list(run.rows), len(run.rows["labels"])
    loader = DataLoader(TensorDataset(*run.rows.values()), batch_size=count)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=run.model.train(),
        optimizer=run.adam(),
        data_loader=loader,
        noise_multiplier=run.plan.noise_multiplier,
        max_grad_norm=run.plan.clipping_norm,
        poisson_sampling=False,
    )

    def parts(managed: Any) -> Iterator[dict[str, torch.Tensor]]:
        for values in managed:
            yield cut(dict(zip(names, values, strict=True)))

    def step() -> None:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=run.physical, optimizer=optimizer
        ) as managed:
            for part in parts(managed):
                optimizer.zero_grad()
                run.losses(private, part).mean().backward()
                optimizer.step()

    return step


def resident(line: str) -> float:
    """MiB of this process in memory: VmRSS now, VmHWM at most."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(f"{line}:") + 1]) / 1024


def measure(kind: str, adapted: bool, arguments: argparse.Namespace) -> None:
    """Runs one kind and prints processor seconds a step (the least of several) and the peak of memory in MiB."""
    torch.set_num_threads(arguments.threads)
    run = Run(adapted, arguments)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = resident("VmRSS")
    step = {"plain": plain, "ours": ours, "opacus": opacus}[kind](run)
    seconds = []
    for _ in range(arguments.rounds):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    print(json.dumps({"seconds": min(seconds), "memory": resident("VmHWM") - before}))


def table_row(trained: str, precision: str, arguments: argparse.Namespace) -> str:
    """All kinds, each in a process of its own, as a line of the table."""
    speeds: dict[str, float] = {}
    cells = []
    tokens = arguments.examples * (arguments.shortest + arguments.tokens) / 2
    for kind in KINDS:
        given = [*sys.argv[1:], "--kind", kind, "--only", trained, "--precision", precision]
        output = subprocess.run([sys.executable, __file__, *given], capture_output=True, text=True)
        if output.returncode:
            print(f"{trained} {precision} {kind}: {output.stderr.splitlines()[-1:]}", file=sys.stderr)
            cells.append("fails")
            continue
        found = json.loads(output.stdout.splitlines()[-1])
        speeds[kind] = tokens / found["seconds"]
        cells.append(f"{speeds[kind]:.0f} ({found['memory']:.0f})")
    ratios = [f"{speeds['ours'] / speeds[kind]:.2f}" if {kind, "ours"} <= speeds.keys() else "" for kind in KINDS[::2]]
    return f"| {' | '.join([trained, precision, *cells, *ratios])} |"


def main() -> None:
    """Prints a table of all kinds, with an adapter and in full, in both precisions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, usual in (
        ("tokens", 64),
        ("shortest", 16),
        ("examples", 32),
        ("physical", 8),
        ("rounds", 2),
        ("threads", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--kind", choices=KINDS, help="of the process that runs one kind")
    parser.add_argument("--only", choices=("adapter", "full"))
    parser.add_argument("--precision", choices=PRECISIONS)
    arguments = parser.parse_args()
    if arguments.kind:
        measure(arguments.kind, arguments.only == "adapter", arguments)
        return
    print("tokens a second (MiB above the model)\n")
    print("| trained | layers in | without privacy | ours | Opacus | ours / without | ours / Opacus |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for trained in ("adapter", "full") if arguments.only is None else (arguments.only,):
        for precision in PRECISIONS if arguments.precision is None else (arguments.precision,):
            print(table_row(trained, precision, arguments), flush=True)


if __name__ == "__main__":
    main()
