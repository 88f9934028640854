"""A public diffusion model in a directory that diffusers saved: what it must be, its digest, and loading it.

What belongs here: reading the directory, whose files are data and never programs. What does not: which part of it
is trained (`finetune_network`), and what it was trained on, which is a record of the lineage graph (clearance).

    model_index.json                                  a pipeline of nothing but `unet` and `scheduler`
    unet/config.json                                  a UNet2DModel on pixels between -1 and 1
    unet/diffusion_pytorch_model.safetensors
    scheduler/scheduler_config.json                   with levels of noise by betas, such as a DDPMScheduler's
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.base_models import BaseModel

INDEX, CONFIG, SCHEDULER = "model_index.json", "unet/config.json", "scheduler/scheduler_config.json"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CLASSES = "class_embedding.weight"
_MUST_BE = {
    "_class_name": ("UNet2DModel", "UNet2DModel"),
    "time_embedding_type": ("positional", "positional"),
    "center_input_sample": (False, "false, so pixels between -1 and 1"),
    "class_embed_type": (None, "null, with or without num_class_embeds"),
}
"""Keys of the network's config with their default and only accepted value, and words for it."""
MOST_BYTES = 2**20
"""Of a JSON file."""
MOST_STEPS, MOST_LAYERS = 10_000, 16
"""Time steps of a schedule, and layers of a block: more take hours, and memory, before anything is compared."""
PREDICTIONS = ("epsilon", "v_prediction")
"""What the network may predict, as diffusers calls it."""


def checkpoint(declared: str) -> BaseModel:
    """The checkpoint in a declared directory.

    Raises:
        ConfigurationError: there is none, it is incomplete, its weights are a pickle, or it needs more than a UNet.
    """
    directory = Path(declared)
    parts = _json(directory, INDEX, declared)
    needed = {name: part for name, part in parts.items() if not name.startswith("_") and _is_given(part)}
    if needed.keys() != {"unet", "scheduler"} or list(needed["unet"]) != ["diffusers", "UNet2DModel"]:
        named = ", ".join(f"{name} ({part[-1]})" if isinstance(part, list) else name for name, part in needed.items())
        raise _refused(declared, f"its pipeline has {named or 'no part'}", "a unet (UNet2DModel) and a scheduler")
    _json(directory, CONFIG, declared)
    _json(directory, SCHEDULER, declared)
    if not (directory / WEIGHTS).is_file():
        pickled = any(file.suffix in PICKLES for file in (directory / "unet").iterdir())
        found = "its weights are pickles, which are programs" if pickled else "it has no weights"
        raise _refused(declared, found, WEIGHTS)
    try:
        content = canonical_digest(
            {name: digest_file(directory / name) for name in (INDEX, CONFIG, SCHEDULER, WEIGHTS)}
        )
    except OSError:
        raise _refused(declared, "its files cannot be read", "readable files") from None
    return BaseModel(directory.resolve().name, directory, content, declared, content)


def sealed(plan: SealedPlan) -> tuple[BaseModel, str]:
    """The checkpoint that a plan starts from, on this machine, and the digest in the plan; raises as `checkpoint`."""
    return checkpoint(str(plan.parameters["checkpoint"])), str(plan.parameters["checkpoint_digest"])


def load(base: BaseModel, form: ImageForm) -> tuple[Any, npt.NDArray[np.float64], str]:
    """The network for pictures of a form, its levels of noise, and what it predicts.

    Returns:
        A `UNet2DModel` in evaluation mode, without class embedding or, where the checkpoint has one, with the mean of
        its classes as the only one; the deviation of the noise at each time step, for data between -1 and 1, shape
        (steps,), ascending; one of `PREDICTIONS`.

    Raises:
        ConfigurationError: it is for pictures of another form, of a kind that cannot be trained, or damaged.
    """
    import torch
    from diffusers import UNet2DModel
    from safetensors.torch import load_file

    config = _json(base.directory, CONFIG, base.declared)
    for key, (accepted, words) in _MUST_BE.items():
        if config.get(key, accepted) != accepted:
            raise _refused(base.declared, f"{CONFIG}: {key} is {config[key]!r}", words)
    _check_form(base.declared, config, form)
    scheduler = _json(base.directory, SCHEDULER, base.declared)
    for name, sizes, key, most in (
        (CONFIG, config, "layers_per_block", MOST_LAYERS),
        (SCHEDULER, scheduler, "num_train_timesteps", MOST_STEPS),
    ):
        size = sizes.get(key, 1)
        if not isinstance(size, int) or not 1 <= size <= most:
            raise _refused(base.declared, f"{name}: {key} is {size!r}", f"from 1 to {most}")
    plain = {"dropout": 0.0, "num_class_embeds": None}
    with _unreadable(base.declared):
        levels, prediction = _levels(scheduler)
        network: Any = UNet2DModel.from_config(config | plain)
        weights = load_file(base.directory / WEIGHTS)
        classes = weights.pop(_CLASSES, None)
        if classes is not None:
            mean = classes.float().mean(0, keepdim=True)
            if mean.shape[1] != network.time_embedding.linear_2.out_features:
                raise ValueError
            network.class_embedding = torch.nn.Embedding(1, mean.shape[1], _weight=mean)
        missing, unknown = network.load_state_dict(weights, strict=False)
    if wrong := [*(name for name in missing if name != _CLASSES), *unknown]:
        raise _refused(
            base.declared, f"{WEIGHTS}: {wrong[0]!r} is missing or unknown", "the weights of unet/config.json"
        )
    if prediction not in PREDICTIONS:
        raise _refused(base.declared, f"{SCHEDULER}: prediction_type is {prediction!r}", " or ".join(PREDICTIONS))
    if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
        raise _refused(base.declared, "it has weights that are not finite", "finite weights")
    if checkpoint(base.declared).digest != base.digest:
        raise _refused(base.declared, "its files change while they are read", "files that stay as they are")
    return network.eval(), levels, prediction


def _check_form(declared: str, config: Mapping[str, Any], form: ImageForm) -> None:
    size, channels = config.get("sample_size"), (config.get("in_channels", 3), config.get("out_channels", 3))
    height, width = size if isinstance(size, list) and len(size) == 2 else (size, size)
    if size is not None and (height, width) != (form.height, form.width):
        raise _refused(
            declared,
            f"it is for pictures of {height} x {width} pixels, and the column has {form.height} x {form.width}",
            f"a checkpoint for {form.height} x {form.width}, or columns.*.size of the checkpoint with resize: fit",
        )
    if channels != (form.channels, form.channels):
        raise _refused(
            declared,
            f"it reads {channels[0]} and writes {channels[1]} channels, and the column has {form.channels}",
            f"a checkpoint that reads and writes {form.channels}",
        )


def _levels(config: Mapping[str, Any]) -> tuple[npt.NDArray[np.float64], str]:
    """The noise's deviation beside data of full size at each time step (Karras et al. 2022, table 1: VP)."""
    from diffusers import DDPMScheduler

    kept = DDPMScheduler.from_config(dict(config)).alphas_cumprod.double().numpy()
    kept = kept[kept > 0]  # a schedule may end in nothing but noise, whose level has no number
    levels = np.sqrt((1 - kept) / kept)
    if len(levels) < 2 or not (np.diff(levels) > 0).all():
        raise ValueError
    return levels, str(config.get("prediction_type", "epsilon"))


def _json(directory: Path, name: str, declared: str) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(directory / name, MOST_BYTES))
    except FileNotFoundError:
        raise _refused(
            declared, f"there is no {name}", "a directory that a pipeline of diffusers was saved to"
        ) from None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refused(declared, f"{name} cannot be read as a JSON object", "the file as diffusers saved it")
    return found


def _is_given(part: Any) -> bool:
    """Whether an entry of the pipeline's index names a part; a pair of nulls is an absent one, a number a setting."""
    return isinstance(part, list) and any(name is not None for name in part)


def _refused(declared: str, found: str, accepted: str) -> ConfigurationError:
    return ConfigurationError(f"generate.image.finetune.checkpoint: {declared!r}: {found}; accepted: {accepted}")


@contextmanager
def _unreadable(declared: str) -> Iterator[None]:
    """Turns all errors of readers of configs and weights into `ConfigurationError`."""
    try:
        yield
    except Exception as error:
        raise _refused(
            declared, f"it cannot be read ({type(error).__name__}), so it is damaged or too new", "a whole checkpoint"
        ) from None
