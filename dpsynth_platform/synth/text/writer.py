"""A writer: a base model with an adapter that has learned, on public texts, to write a text from its aspects.

What belongs here: training it without privacy, and continuing after a crash. What does not: aspects (`aspects`),
reading a writer (`writer_files`), whether texts are public (`one_table.public_writer`), and private training.

The generator of CTCL (Tan et al. 2025, section 3.1) is such a model, of all weights and 430 million documents. Private
training then starts from a model that knows the form of its prompts. A writer's directory holds

    writer.json           what it was made of; written last
    adapter.safetensors   the trained weights, some megabytes
    training/             the state of an incomplete training, which the same command continues

and is a base model (`base_models`) wherever its own base is installed. Batches depend on the texts and the step alone:
the same command makes the same writer on the same machine, interrupted or not.
"""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ConfigurationError, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import HeldByAnother, held, remove_unfinished, write_durably
from dpsynth_platform.synth.text.aspects import Aspects, Row
from dpsynth_platform.synth.text.base_models import BaseModel, context_length, load
from dpsynth_platform.synth.text.trained import batch_of, rows_log_likelihoods
from dpsynth_platform.synth.text.writer_files import (
    ADAPTER,
    FORMAT,
    WRITER,
    Writer,
    adapter_of,
    is_writer,
    write_adapter,
)

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "training on public texts"
LEAST_TEXTS = 20
MOST_TEXTS = 20_000
"""Distinct texts, from the table's beginning: their features take milliseconds each."""
HELD_OUT, MOST_HELD_OUT = 20, 200
"""One text of so many is held out, and at most so many."""
CHECKPOINT_STEPS = 25
_TRAINING, _TASK, _STATE = "training", "task.json", "state.pt"
_AT_ONCE = 8
"""Texts of a physical batch."""
_WARMUP = 0.05
"""Of the steps, in which the learning rate rises."""
_BOUND = 1.0
"""Of a gradient's norm."""
_TRAINED_ON, _ORDER, _JUDGED, _INITIAL = 0, 1, 2, 3
"""Begin the seeds of what is drawn of public things alone: a text's aspects in training, the order of texts, aspects of
held-out texts, the adapter's first weights."""


@dataclass(frozen=True)
class WriterTraining:
    """How a writer is trained. Public.

    Attributes:
        learning_rate: the highest one, after warm-up; it falls linearly to 0.
        max_tokens: the most tokens of a prompt and its text, which is cut off there.

    Raises:
        ConfigurationError: a value is impossible.
    """

    steps: int = 500
    batch_size: int = 16
    learning_rate: float = 1e-3
    max_tokens: int = 128
    rank: int = 16

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "max_tokens", "rank"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise ConfigurationError(f"--{option}: {getattr(self, name)}; accepted: a whole number from 1")
        if not 0 < self.learning_rate <= 1:
            raise ConfigurationError(f"--learning-rate: {self.learning_rate:g}; accepted: above 0, at most 1")

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        warmup = max(1, round(_WARMUP * self.steps))
        return self.learning_rate * min((step + 1) / warmup, (self.steps - step) / max(1, self.steps - warmup))


@dataclass(frozen=True)
class PublicTexts:
    """Distinct public texts with the values of other columns, each once. Public.

    Attributes:
        column: of the texts.
        columns: values of the others by name, one for each text.
        about: where they are from: the file's name, why it is public, and the digest of what is read.
    """

    texts: Sequence[str]
    column: str
    columns: Mapping[str, Sequence[str | None]]
    about: Mapping[str, Any]


def train_writer(
    public: PublicTexts, base: BaseModel, training: WriterTraining, directory: Path, progress: Progress, device: str
) -> tuple[dict[str, Any], bool]:
    """Trains a writer, or continues; returns the content of `writer.json`, and whether it was there before.

    Raises:
        ConfigurationError: there are too few texts, prompts leave no room, the directory is in use, of another
            training or damaged, or the base model cannot be loaded.
        MechanismFailed: the weights are no longer finite.
    """
    if len(public.texts) < LEAST_TEXTS:
        raise ConfigurationError(f"{len(public.texts)} distinct texts; accepted: {LEAST_TEXTS} at least")
    about = {
        "format": FORMAT,
        "base": {"declared": base.declared, "name": base.name, "digest": base.digest},
        "public": {**public.about, "column": public.column, "conditions": list(public.columns)},
        "training": asdict(training),
    }
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"{directory}: a file; accepted: a new directory")
    private_directory(directory)
    try:
        with held(directory):
            _check_place(directory, about)
            was_there = is_writer(directory)
            if was_there:
                Writer.read(directory, str(directory))
            else:
                private_directory(directory / _TRAINING)
                write_durably(directory / _TRAINING / _TASK, json.dumps(about))
                judged = _trained(public, base, training, directory, progress, device)
                found = about | {"adapter": digest_file(directory / ADAPTER), "held_out": judged}
                write_durably(directory / WRITER, json.dumps(found, indent=1))
            shutil.rmtree(directory / _TRAINING, ignore_errors=True)
            for file in (WRITER, ADAPTER):
                remove_unfinished(directory / file)
            return json.loads((directory / WRITER).read_text(encoding="utf-8")), was_there
    except HeldByAnother:
        raise ConfigurationError(f"{directory}: another training writes there; wait for its end") from None


def _check_place(directory: Path, about: Mapping[str, Any]) -> None:
    """Refuses a directory with anything but this very training."""
    accepted = "accepted: the command that began it, or a new directory"
    found: dict[str, Any] = {}
    for file in (directory / WRITER, directory / _TRAINING / _TASK):
        if file.is_file():
            try:
                found = json.loads(file.read_text(encoding="utf-8"))
                differs = [key for key in about if found.get(key) != about[key]]
            except (OSError, ValueError, AttributeError):
                raise ConfigurationError(f"{file}: it cannot be read; {accepted}") from None
            if differs:
                parts = {"base": "base model", "public": "public texts", "training": "settings"}
                what = ", ".join(parts.get(key, key) for key in differs)
                raise ConfigurationError(f"{directory}: holds a writer of other {what}; {accepted}")
            return
    if any(directory.iterdir()):
        raise ConfigurationError(f"{directory}: not empty, and no writer; accepted: a new directory")


def _trained(
    public: PublicTexts,
    base: BaseModel,
    training: WriterTraining,
    directory: Path,
    progress: Progress,
    device: str,
) -> dict[str, Any]:
    """Trains from the last state, writes the adapter, and says how likely held-out texts are before and after."""
    import torch

    from dpsynth_platform.training.adapter import adapted

    model, tokenizer = load(base)
    if training.max_tokens > context_length(model):
        raise ConfigurationError(
            f"--max-tokens: {training.max_tokens}; accepted: {context_length(model)} at most, as the base model"
        )
    aspects = Aspects(
        public.texts,
        public.columns,
        written=public.column,
        tokenizer=tokenizer,
        max_tokens=training.max_tokens,
        progress=progress,
    )
    order = np.random.default_rng([_ORDER]).permutation(len(public.texts)).tolist()
    size = min(MOST_HELD_OUT, math.ceil(len(order) / HELD_OUT))
    held_out = [aspects.row(number, [_JUDGED, number]) for number in order[:size]]
    filler = int(tokenizer.eos_token_id)
    place = torch.device(device)
    before = _nats(model, held_out, filler)
    model = adapted(model, adapter_of(training.rank)).to(place)
    weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
    _initialize(weights)
    optimizer = torch.optim.AdamW(weights.values(), lr=training.learning_rate, weight_decay=0.0)
    state = directory / _TRAINING / _STATE
    begin = _restore(state, weights, optimizer)
    for step in range(begin, training.steps):
        progress(STAGE, step, training.steps)
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        _step(model, _batch(aspects, order[size:], step, training.batch_size), filler, place)
        torch.nn.utils.clip_grad_norm_(weights.values(), _BOUND)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % CHECKPOINT_STEPS == 0 and step + 1 < training.steps:
            _keep(state, weights, optimizer, step + 1)
    progress(STAGE, training.steps, training.steps)
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise MechanismFailed(
            "the writer's weights are not finite; accepted: a smaller --learning-rate, in a new --out"
        )
    write_adapter(directory, weights)
    after = _nats(model.cpu(), held_out, filler)
    return {"texts": size, "nats_a_token": {"before": before, "after": after}}


def _initialize(weights: Mapping[str, Tensor]) -> None:
    """Redraws the adapter's first weights as peft draws them (A uniform, B 0), with no seed of torch's generator."""
    import torch

    rng = np.random.default_rng([_INITIAL])
    with torch.no_grad():
        for name, value in weights.items():
            if ".lora_A." in name:
                value.copy_(torch.from_numpy(rng.uniform(-1.0, 1.0, tuple(value.shape)) / math.sqrt(value.shape[1])))


def _batch(aspects: Aspects, order: Sequence[int], step: int, size: int) -> list[Row]:
    """The texts of a step: each pass over all has an order of its own."""
    rows = []
    for place in range(step * size, (step + 1) * size):
        turn, at = divmod(place, len(order))
        number = order[int(np.random.default_rng([_ORDER, turn]).permutation(len(order))[at])]
        rows.append(aspects.row(number, [_TRAINED_ON, place]))
    return rows


def _step(model: Any, rows: Sequence[Row], filler: int, place: Any) -> None:
    """Adds the gradient of the mean loss of the rows, shortest together."""
    from dpsynth_platform.training.clipping import example_losses
    from dpsynth_platform.training.families import as_called

    by_length = sorted(rows, key=lambda row: len(row[0]) + len(row[1]))
    for start in range(0, len(by_length), _AT_ONCE):
        batch = {name: value.to(place) for name, value in batch_of(by_length[start : start + _AT_ONCE], filler).items()}
        inputs, labels = as_called(model, batch)
        losses = example_losses(model(**inputs, use_cache=False).logits, labels)
        (losses.sum() / len(rows)).backward()  # type: ignore[no-untyped-call]


def _nats(model: Any, rows: Sequence[Row], filler: int) -> float:
    """The mean of the texts' log-likelihoods a token."""
    return float(rows_log_likelihoods(model.eval(), rows, filler).mean())


def _keep(state: Path, weights: Mapping[str, Tensor], optimizer: Any, step: int) -> None:
    import torch

    kept = io.BytesIO()
    values = {name: value.detach().cpu() for name, value in weights.items()}
    torch.save({"step": step, "weights": values, "optimizer": optimizer.state_dict()}, kept)
    write_durably(state, kept.getvalue())


def _restore(state: Path, weights: Mapping[str, Tensor], optimizer: Any) -> int:
    """The step to continue with; 0 without a state. Raises `ConfigurationError` if it cannot be read."""
    import torch

    if not state.exists():
        return 0
    try:
        kept = torch.load(state, map_location="cpu", weights_only=True)
        with torch.no_grad():
            for name, value in weights.items():
                value.copy_(kept["weights"][name])
        optimizer.load_state_dict(kept["optimizer"])
        return int(kept["step"])
    except Exception as error:
        raise ConfigurationError(
            f"{state}: it cannot be read ({type(error).__name__}); remove the directory and begin anew"
        ) from None
