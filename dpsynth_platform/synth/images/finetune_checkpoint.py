"""A public diffusion model in a directory that diffusers saved: what it must be, its digest, and loading it.

What belongs here: reading the directory, whose files are data and never programs. What does not: which part of it
is trained (`finetune_network`), what an autoencoder is for (`picture_codecs`), and what either was trained on, which is
a record of the lineage graph (clearance).

    model_index.json                                  a pipeline of `unet`, `scheduler`, and perhaps an autoencoder
    unet/config.json                                  a UNet2DModel on pixels between -1 and 1, or on latents
    unet/diffusion_pytorch_model.safetensors
    vae/ or vqvae/                                    likewise an AutoencoderKL or VQModel, where there is one
    scheduler/scheduler_config.json                   with levels of noise by betas, such as a DDPMScheduler's
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.text.base_models import BaseModel

if TYPE_CHECKING:
    from dpsynth_platform.synth.images.picture_codecs import Codec

INDEX, SCHEDULER = "model_index.json", "scheduler/scheduler_config.json"
CONFIG, WEIGHTS = "unet/config.json", "unet/diffusion_pytorch_model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
AUTOENCODERS = ("vae", "vqvae")
_NETWORKS = {"unet": ("UNet2DModel",)} | dict.fromkeys(AUTOENCODERS, ("AutoencoderKL", "VQModel"))
"""Networks of a pipeline, and their classes in diffusers."""
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
MOST_SCALE = 1e6
PREDICTIONS = ("epsilon", "v_prediction")
"""What the network may predict, as diffusers calls it."""


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds.

    Attributes:
        unet: a `UNet2DModel` in evaluation mode, without class embedding or, where the checkpoint has one, with the
            mean of its classes as the only one.
        levels: the deviation of the noise at each time step, for data between -1 and 1 or latents, shape (steps,),
            ascending.
        prediction: one of `PREDICTIONS`.
        codec: what turns pictures into what the network knows, and back.
        classes: the checkpoint's embedding of its classes, shape (classes, width); None where it has none.
    """

    unet: Any
    levels: npt.NDArray[np.float64]
    prediction: str
    codec: Codec
    classes: Any = None


def checkpoint(declared: str) -> BaseModel:
    """The checkpoint in a declared directory.

    Raises:
        ConfigurationError: there is none, it is incomplete, its weights are pickles, or it needs more than a UNet and
            an autoencoder.
    """
    directory = Path(declared)
    names = [INDEX, SCHEDULER]
    for network in _networks(directory, declared):
        config, weights = _files(network)
        _json(directory, config, declared)
        if not (directory / weights).is_file():
            pickled = any(file.suffix in PICKLES for file in (directory / network).iterdir())
            found = "its weights are pickles, which are programs" if pickled else "it has no weights"
            raise _refused(declared, found, weights)
        names += [config, weights]
    _json(directory, SCHEDULER, declared)
    try:
        content = canonical_digest({name: digest_file(directory / name) for name in names})
    except OSError:
        raise _refused(declared, "its files cannot be read", "readable files") from None
    return BaseModel(directory.resolve().name, directory, content, declared, content)


def weight_bytes(base: BaseModel) -> int:
    """The size of its weights on disk. Raises as `checkpoint`."""
    networks = _networks(base.directory, base.declared)
    return sum((base.directory / _files(network)[1]).stat().st_size for network in networks)


def sealed(plan: SealedPlan) -> tuple[BaseModel, str]:
    """The checkpoint that a plan starts from, on this machine, and the digest in the plan; raises as `checkpoint`."""
    return checkpoint(str(plan.parameters["checkpoint"])), str(plan.parameters["checkpoint_digest"])


def load(base: BaseModel, form: ImageForm) -> Loaded:
    """What a checkpoint holds, for pictures of a form.

    Raises:
        ConfigurationError: it is for pictures of another form, of a kind that cannot be trained, or damaged.
    """
    import torch
    from diffusers import UNet2DModel

    from dpsynth_platform.synth.images.picture_codecs import AsPixels

    networks = _networks(base.directory, base.declared)
    codec: Codec = AsPixels(form)
    if len(networks) > 1:
        codec = _autoencoder(base, networks[1], form)
    config = _json(base.directory, CONFIG, base.declared)
    for key, (accepted, words) in _MUST_BE.items():
        if config.get(key, accepted) != accepted:
            raise _refused(base.declared, f"{CONFIG}: {key} is {config[key]!r}", words)
    _check_form(base.declared, config, codec.form, "latents" if codec.latent else "pixels")
    scheduler = _json(base.directory, SCHEDULER, base.declared)
    _check_size(base.declared, SCHEDULER, scheduler, "num_train_timesteps", MOST_STEPS)
    with _unreadable(base.declared):
        levels, prediction = _levels(scheduler)
    if prediction not in PREDICTIONS:
        raise _refused(base.declared, f"{SCHEDULER}: prediction_type is {prediction!r}", " or ".join(PREDICTIONS))

    known = None

    def with_mean_class(network: Any, weights: dict[str, Any]) -> None:
        nonlocal known
        known = classes = weights.pop(_CLASSES, None)
        if classes is not None:
            mean = classes.mean(0, keepdim=True)
            if mean.shape[1] != network.time_embedding.linear_2.out_features:
                raise ValueError
            network.class_embedding = torch.nn.Embedding(1, mean.shape[1])
            weights[_CLASSES] = mean

    plain = {"dropout": 0.0, "num_class_embeds": None}
    unet = _network(base, "unet", UNet2DModel, config | plain, with_mean_class)
    if checkpoint(base.declared).digest != base.digest:
        raise _refused(base.declared, "its files change while they are read", "files that stay as they are")
    return Loaded(unet, levels, prediction, codec, known)


def _autoencoder(base: BaseModel, name: str, form: ImageForm) -> Codec:
    """The frozen autoencoder; raises as `load`."""
    import diffusers

    from dpsynth_platform.synth.images.picture_codecs import AsLatents

    file = _files(name)[0]
    config = _json(base.directory, file, base.declared)
    kind = config.get("_class_name")
    if kind not in _NETWORKS[name]:
        raise _refused(base.declared, f"{file}: _class_name is {kind!r}", " or ".join(_NETWORKS[name]))
    _check_form(base.declared, config | {"sample_size": None}, form, "pixels")
    for key in ("latents_mean", "latents_std"):
        if config.get(key) is not None:
            raise _refused(base.declared, f"{file}: {key} is given", "null: a scaling_factor, and no other scale")
    scale, shift = config.get("scaling_factor", 0.18215), config.get("shift_factor") or 0.0
    for key, number, fits in (("scaling_factor", scale, scale != 0), ("shift_factor", shift, True)):
        if type(number) not in (int, float) or not (fits and abs(number) < MOST_SCALE):
            raise _refused(base.declared, f"{file}: {key} is {number!r}", f"a number below {MOST_SCALE:g}, not 0")
    network = _network(base, name, getattr(diffusers, str(kind)), config)
    channels = network.config.get("vq_embed_dim") or network.config.latent_channels
    return AsLatents(network, form, int(channels), float(shift), float(scale))


def _network(
    base: BaseModel,
    name: str,
    kind: Any,
    config: dict[str, Any],
    changed: Callable[[Any, dict[str, Any]], None] = lambda network, weights: None,
) -> Any:
    """A network of diffusers with its saved weights, in evaluation mode and frozen; it has no memory without them.

    Args:
        changed: changes the network and its weights in single precision before they are loaded.
    """
    import torch
    from safetensors.torch import load_file

    file, saved = _files(name)
    _check_size(base.declared, file, config, "layers_per_block", MOST_LAYERS)
    with _unreadable(base.declared):
        weights = {key: value.to(torch.float32, copy=True) for key, value in load_file(base.directory / saved).items()}
        with torch.device("meta"):
            network = kind.from_config(config)
            changed(network, weights)
        missing, unknown = network.load_state_dict(weights, strict=False, assign=True)
    if wrong := [*missing, *unknown]:
        raise _refused(base.declared, f"{saved}: {wrong[0]!r} is missing or unknown", f"the weights of {file}")
    with _unreadable(base.declared):
        finite = all(bool(value.isfinite().all()) for value in (*network.parameters(), *network.buffers()))
    if not finite:
        raise _refused(base.declared, f"{saved}: it has weights that are not finite", "finite weights")
    return network.eval().requires_grad_(False)


def _networks(directory: Path, declared: str) -> list[str]:
    """The directories of the pipeline's networks: the UNet's, then the autoencoder's, if it has one."""
    index = _json(directory, INDEX, declared)
    parts = {name: part for name, part in index.items() if not name.startswith("_") and _is_given(part)}
    networks = [name for name in _NETWORKS if name in parts]
    fits = all(parts[name] in (["diffusers", kind] for kind in _NETWORKS[name]) for name in networks)
    if not fits or "unet" not in parts or len(networks) > 2 or parts.keys() != {*networks, "scheduler"}:
        named = ", ".join(f"{name} ({part[-1]})" for name, part in parts.items())
        accepted = "a unet (UNet2DModel), a scheduler, and at most one vae or vqvae (AutoencoderKL, VQModel)"
        raise _refused(declared, f"its pipeline has {named or 'no part'}", accepted)
    return networks


def _files(network: str) -> tuple[str, str]:
    """Config and weights of a network."""
    return f"{network}/config.json", f"{network}/diffusion_pytorch_model.safetensors"


def _check_size(declared: str, name: str, config: Mapping[str, Any], key: str, most: int) -> None:
    size = config.get(key, 1)
    if not isinstance(size, int) or not 1 <= size <= most:
        raise _refused(declared, f"{name}: {key} is {size!r}", f"from 1 to {most}")


def _check_form(declared: str, config: Mapping[str, Any], form: ImageForm, what: str) -> None:
    size, channels = config.get("sample_size"), (config.get("in_channels", 3), config.get("out_channels", 3))
    height, width = size if isinstance(size, list) and len(size) == 2 else (size, size)
    if size is not None and (height, width) != (form.height, form.width):
        raise _refused(
            declared,
            f"it is for pictures of {height} x {width} {what}, and the column has {form.height} x {form.width}",
            f"a checkpoint for {form.height} x {form.width}, or columns.*.size of the checkpoint with resize: fit",
        )
    if channels != (form.channels, form.channels):
        raise _refused(
            declared,
            f"it reads {channels[0]} and writes {channels[1]} channels of {what}, and the column has {form.channels}",
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
