"""Utility of drawn pictures: a classifier trained on them, tested on real ones. Not a test: it prints a table.

    python tests/benchmarks/bench_images.py mnist=MNIST.parquet fashion=/usr/share/datasets/fashion-mnist
    python tests/benchmarks/bench_images.py mnist=MNIST.parquet --methods real image_moments --epsilons 1 --seeds 1

What belongs here: whole training sets through the methods' own functions, with time and memory, beside published
figures. What does not: asserting; `tests/synth/images` holds what must hold.

A parquet file has the columns split (train, test), label and pixels; a directory has the four files of Fashion-MNIST in
IDX form (Debian's package `dataset-fashion-mnist`). A method gets the whole training set at an epsilon (add or remove
one record, delta 1e-5), with labels as private as pixels. It draws 20,000 labelled pictures, as many of each class as
its noisy counts say. The quality report's classifier (`quality.images.classifier`, all of whose settings are fixed) is
trained on them and tested on the real test set, for each seed with another run of the method. `real` trains it on
20,000 real pictures. `image_pe` and `image_mixed` run on `mnist` only: their public material is the digits of the fonts
in /usr/share/fonts, and a network that is trained on them anew each time. `image_diffusion`, `image_embedding` and
`image_gan` have their default settings, and count labels with a part of epsilon; `image_diffusion_large` is for a GPU,
and runs only if named. `image_diffusion_table` and `image_diffusion_nearest` first learn from glyphs, and
`image_finetune` and `image_finetune_latent` start from a model of glyphs, of pixels or of latents. It is made in the
temporary directory where it is not there yet, within the seconds of the first run. Each run is a process of its own
with one thread. `Fréchet` is the distance of 2,000 pictures to 2,000 real ones of the test set, on features of
EfficientNet-lite0 (`quality.images`); that of `real` is the floor. `seconds` is measuring, fitting and drawing, on the
clock and of the processor; `MB` the peak of its memory.

Published figures are of DPImageBench (Gong et al., CCS 2025), whose classifiers are others: indicative only.

Three runs, on a machine with other work:

| set | method | epsilon | accuracy | each seed | processor s | MB |
| --- | --- | --- | --- | --- | --- | --- |
| mnist | image_mixed | 1 | 96.5 | 96.5 96.5 96.6 | 117 | 1314 |
| mnist | image_mixed | 10 | 96.5 | 96.4 96.9 96.2 | 130 | 1421 |
| mnist | image_pe | 1 | 93.8 | 93.7 94.4 93.3 | 42 | 1276 |
| mnist | image_pe | 10 | 95.1 | 95.3 94.8 95.0 | 53 | 1339 |
| mnist | image_moments | 1 | 95.8 | 95.7 95.7 95.9 | 80 | 1055 |
| mnist | image_moments | 10 | 96.8 | 96.7 96.8 96.9 | 75 | 1062 |
| mnist | real | - | 98.5 | 98.5 98.4 98.6 | | |
| fashion | image_moments | 1 | 80.8 | 80.8 80.7 81.0 | 92 | 814 |
| fashion | image_moments | 10 | 83.6 | 83.5 83.5 84.0 | 78 | 822 |
| fashion | real | - | 88.4 | 88.3 88.5 88.3 | | |
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from string import ascii_uppercase, digits
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.ledger.grants import Grant
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN
from dpsynth_platform.sources.pictures import encoded, read_pictures
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.images import evolution
from dpsynth_platform.synth.images import image_mixed as mixed
from dpsynth_platform.synth.images.encoders_network import trained
from dpsynth_platform.synth.images.evolution_votes import ImageVoters
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.generator import Draw
from dpsynth_platform.synth.images.moments_measuring import fit, measure
from dpsynth_platform.synth.images.moments_model import Model
from dpsynth_platform.synth.images.moments_plan import planned
from dpsynth_platform.synth.images.simulators import Fonts
from dpsynth_platform.synth.interface import Checkpoints, MechanismRun, generator

Labels = npt.NDArray[np.int64]
DELTA = 1e-5
DRAWN = 20_000
BATCH = 4096
FONTS = Path("/usr/share/fonts")
PUBLIC = "Glyphs of public fonts."
GLYPHS = 1000
"""Of each label, in a public table."""
PRETRAINED, AUTOENCODER_STEPS, UNET_STEPS = 20_000, 500, 1500
"""Glyphs that a public model learns from, and steps on 64 of them for each of its networks."""
FINETUNE = {"public": PUBLIC, "steps": 60, "batch_size": 1024, "learning_rate": 5e-3, "rank": 4}
SETS = ("mnist", "fashion")
COMPARED = 2000
"""Pictures of each side of a Fréchet distance."""
PUBLISHED = {
    "DP-MERF": ("80.3 / 81.3", "62.2 / 62.2"),
    "DP-NTK": ("50.0 / 91.3", "64.4 / 76.3"),
    "DP-Kernel": ("94.0 / 93.6", "68.4 / 70.0"),
    "PE": ("27.9 / 32.7", "47.9 / 57.8"),
    "GS-WGAN": ("72.4 / 75.3", "52.7 / 56.7"),
    "DPDM": ("89.2 / 97.7", "76.4 / 85.6"),
    "DP-FETA": ("95.6 / 98.1", "81.7 / 87.3"),
    "PDP-Diffusion": ("94.5 / 97.4", "79.2 / 85.4"),
    "DP-LDM": ("44.2 / 95.5", "62.3 / 86.3"),
    "DP-LoRA": ("82.2 / 97.1", "63.5 / 83.8"),
    "PrivImage": ("94.0 / 97.8", "79.9 / 87.1"),
}
"""Accuracy at epsilon 1 / 10 on MNIST and Fashion-MNIST, from the paper's table of downstream accuracy."""


@dataclass(frozen=True)
class Pictures:
    """Pictures of shape (pictures, height, width, channels) with their labels."""

    pixels: Pixels
    labels: Labels


def read(source: str, form: ImageForm) -> tuple[Pictures, Pictures]:
    """The training and the test set of a parquet file or of a directory."""
    if Path(source).is_dir():
        return _idx(Path(source), "train"), _idx(Path(source), "t10k")
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(source, columns=["split", "label", "pixels"])
    parts = (table.filter(pc.equal(table["split"], name)).combine_chunks() for name in ("train", "test"))
    train, test = (
        Pictures(form.read(part["pixels"].combine_chunks()), part["label"].to_numpy().astype(np.int64))
        for part in parts
    )
    return train, test


def _idx(directory: Path, name: str) -> Pictures:
    pixels = gzip.decompress((directory / f"{name}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((directory / f"{name}-labels-idx1-ubyte.gz").read_bytes())[8:]
    return Pictures(
        np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 28, 28, 1),
        np.frombuffer(labels, dtype=np.uint8).astype(np.int64),
    )


# Methods: the training set and an epsilon to labelled pictures.


def real(train: Pictures, epsilon: float, contributions: int) -> Pictures:
    """Real pictures, at any epsilon."""
    chosen = np.random.default_rng().permutation(len(train.labels))[:DRAWN]
    return Pictures(train.pixels[chosen], train.labels[chosen])


def image_moments(train: Pictures, epsilon: float, contributions: int) -> Pictures:
    """Class moments, clusters and a classifier, all measured with noise."""
    model = _moments(train, _guarantee(epsilon, contributions), None)
    return _drawn(model.draw, model.class_counts)


def image_pe(train: Pictures, epsilon: float, contributions: int) -> Pictures:
    """Votes for glyphs of public fonts."""
    draw, counts, _ = _evolved(train, _guarantee(epsilon, contributions), 1.0)
    return _drawn(draw, counts)


def image_mixed(train: Pictures, epsilon: float, contributions: int) -> Pictures:
    """Both, with the shares that the method has."""
    guarantee = _guarantee(epsilon, contributions)
    voted, _, cost = _evolved(train, guarantee, mixed.VOTES_SHARE)
    model = _moments(train, guarantee, cost)
    return _drawn(mixed.both(voted, model.draw), model.class_counts)


def _guarantee(epsilon: float, contributions: int) -> Guarantee:
    unit = "example" if contributions == 1 else "user"
    return Guarantee(epsilon, DELTA, unit, "add-or-remove", contributions)


def _moments(train: Pictures, guarantee: Guarantee, already: DpEvent | None) -> Model:
    number, classes = len(train.labels), int(train.labels.max()) + 1
    expected = number // guarantee.max_contributions
    plan = planned(ImageForm(*train.pixels.shape[1:]), classes, expected, guarantee, already)

    def batches() -> Iterator[Batch]:
        for start in range(0, number, BATCH):
            yield Batch(train.pixels[start : start + BATCH], train.labels[start : start + BATCH])

    with tempfile.TemporaryDirectory() as directory:
        measure(plan, batches, Path(directory))
        return fit(Path(directory), plan)


def _evolved(train: Pictures, guarantee: Guarantee, share: float) -> tuple[Draw, npt.NDArray[np.float64], DpEvent]:
    """What draws by the votes, the noisy votes of each class, and what they cost."""
    form, labels = ImageForm(*train.pixels.shape[1:]), [str(label) for label in range(int(train.labels.max()) + 1)]
    foundation = fonts(form, "".join(labels))
    encoder = trained(foundation, labels)
    expected = len(train.labels) // guarantee.max_contributions
    plan = evolution.planned(guarantee, labels, expected, foundation.digest, encoder.digest, share=share)
    owners = np.arange(len(train.labels)) // guarantee.max_contributions
    voters = ImageVoters.of(train.pixels, train.labels, owners, encoder)
    with (
        tempfile.TemporaryDirectory() as directory,
        EvolutionJournal.opened(Path(directory), "benchmark", resuming=False) as journal,
    ):
        survivors = evolution.evolve(plan, voters, foundation, encoder, journal)
    votes = np.bincount(survivors.groups, np.maximum(survivors.votes, 0), len(labels)).astype(np.float64)

    def draw(number: int, pictures: int, generator: np.random.Generator) -> Pixels:
        return evolution.draw(plan, survivors, labels[number], pictures, foundation, generator)

    return draw, votes, evolution.event(plan, guarantee)


def _drawn(draw: Draw, counts: npt.NDArray[np.float64]) -> Pictures:
    generator = np.random.default_rng()
    numbers = np.rint(DRAWN * counts / counts.sum()).astype(int)
    drawn = [draw(label, int(pictures), generator) for label, pictures in enumerate(numbers)]
    return Pictures(np.concatenate(drawn), np.repeat(np.arange(len(counts)), numbers))


def by_contract(method: str, settings: dict[str, Any], train: Pictures, epsilon: float, contributions: int) -> Pictures:
    """A method's whole plan with some settings of `generate.image`, labels counted."""
    number, names = len(train.labels), [str(label) for label in range(int(train.labels.max()) + 1)]
    height, width, channels = train.pixels.shape[1:]
    contract = parse_contract(
        {
            "dataset": "pictures",
            "description": "Public pictures, as if they were private.",
            "owners": ["nobody@example.org"],
            "source": {"uri": "/nowhere", "key": ["picture"]},
            "family": "pictures",
            "privacy": {
                "unit": "user",
                "owner_columns": ["owner"],
                "namespace": "owner",
                "max_contributions": contributions,
                "guarantee": {"epsilon": epsilon, "delta": DELTA},
                "expected_units": number // contributions,
            },
            "columns": {
                "picture": {"type": "identifier"},
                "owner": {"type": "identifier"},
                "label": {"type": "categorical", "values": names},
                "image": {
                    "type": "image",
                    "size": [height, width],
                    "channels": channels,
                    "accept_unscrubbed": "The pictures are public.",
                },
            },
            "generate": {
                "method": method,
                "image": {"given": ["label"], "columns_share": 0.02} | settings,
            },
            "release": {"uri": "/nowhere/public"},
        },
        where="bench_images.py",
        variables={},
    )
    schema = pa.schema([(name, pa.binary() if name == "image" else pa.string()) for name in contract.columns])
    mechanism = generator(method)
    plan = mechanism.plan(contract, schema, Guarantee.target(contract))
    rows = pa.table(
        {
            "label": [names[label] for label in train.labels],
            "image": pa.array([picture.tobytes() for picture in train.pixels], pa.binary()),
            OWNER_COLUMN: [f"{row // contributions:032x}" for row in range(number)],
            RECORD_COLUMN: [f"{row:032x}" for row in range(number)],
        }
    )
    with tempfile.TemporaryDirectory() as directory:
        bounded, model = Path(directory) / "bounded", Path(directory) / "model"
        model.mkdir()
        write_table(bounded, rows.schema, rows.to_batches(BATCH))
        mechanism.run(
            MechanismRun(
                plan,
                bounded,
                Grant("0" * 32, plan.digest, *([""] * 6)),
                model,
                checkpoints=Checkpoints(None, secrets.token_bytes(32), resume=False),
            )
        )
        drawn = mechanism.sample(model, DRAWN)
    pixels, _, _ = read_pictures(drawn["image"], ImageForm(height, width, channels), "refuse", raw=False)
    return Pictures(pixels, np.array([names.index(label) for label in drawn["label"].to_pylist()]))


def image_diffusion_table(train: Pictures, epsilon: float, contributions: int, **table: Any) -> Pictures:
    """It first learns from glyphs of public fonts; further keys are of the contract's `table`."""
    height, width, channels = train.pixels.shape[1:]
    with tempfile.TemporaryDirectory() as directory:
        labels = (ascii_uppercase if table else "") + digits
        glyphs = fonts(ImageForm(height, width, channels), labels)
        random = np.random.default_rng()
        for label in labels:
            (Path(directory) / label).mkdir()
            for number, picture in enumerate(glyphs.pixels(glyphs.random(label, GLYPHS, random))):
                (Path(directory) / label / f"{number}.png").write_bytes(encoded(picture, "png"))
        part = {"warm_up": "table", "table": {"directory": directory, "public": PUBLIC} | table}
        return by_contract("image_diffusion", {"diffusion": part}, train, epsilon, contributions)


def fonts(form: ImageForm, labels: str) -> Fonts:
    """Glyphs of public fonts."""
    return Fonts(FONTS, form, {label: label for label in labels})


def image_finetune(train: Pictures, epsilon: float, contributions: int, *, latent: bool) -> Pictures:
    """A part of a public model of glyphs, which is made if it is not there yet."""
    place = glyph_model(ImageForm(*train.pixels.shape[1:]), latent)
    return by_contract(
        "image_finetune", {"finetune": FINETUNE | {"checkpoint": str(place)}}, train, epsilon, contributions
    )


def glyph_model(form: ImageForm, latent: bool) -> Path:
    """A directory of diffusers in the temporary directory: a model of digits in fonts, of pixels or of latents."""
    import torch
    from diffusers import AutoencoderKL, DDPMPipeline, DDPMScheduler, LDMPipeline, UNet2DModel

    place = Path(tempfile.gettempdir()) / f"glyph-model-{'latents' if latent else 'pixels'}-{form.height}x{form.width}"
    if place.exists():
        return place
    glyphs, random = fonts(form, digits), np.random.default_rng()
    made = [glyphs.pixels(glyphs.random(label, PRETRAINED // 10, random)) for label in digits]
    values = torch.from_numpy(np.concatenate(made)).permute(0, 3, 1, 2).float() / 127.5 - 1
    blocks = 3 if latent else 0
    if latent:
        autoencoder = AutoencoderKL(
            form.channels,
            form.channels,
            ("DownEncoderBlock2D",) * blocks,
            ("UpDecoderBlock2D",) * blocks,
            (16, 32, 32),
            latent_channels=4,
            norm_num_groups=8,
            mid_block_add_attention=False,
        )

        def rebuilt(pictures: Any) -> Any:
            latents = autoencoder.encode(pictures).latent_dist
            return (autoencoder.decode(latents.sample()).sample - pictures).square().mean() + 1e-5 * latents.kl().mean()

        learn_publicly(autoencoder, rebuilt, values, AUTOENCODER_STEPS)
        with torch.no_grad():
            values = torch.cat([autoencoder.encode(part).latent_dist.mean for part in values.split(256)])
        autoencoder.register_to_config(scaling_factor=1 / float(values.std()))
        values = values / values.std()
    widths = (48,) if latent else (16, 32, 32)
    plain = len(widths) - 1
    unet = UNet2DModel(
        tuple(values.shape[2:]),
        values.shape[1],
        values.shape[1],
        block_out_channels=widths,
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D",) * plain + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * plain,
    )
    scheduler = DDPMScheduler()

    def denoised(clean: Any) -> Any:
        noise, times = torch.randn_like(clean), torch.randint(scheduler.config.num_train_timesteps, (len(clean),))
        return (unet(scheduler.add_noise(clean, noise, times), times).sample - noise).square().mean()

    learn_publicly(unet, denoised, values, UNET_STEPS)
    whole = LDMPipeline(autoencoder, unet, scheduler) if latent else DDPMPipeline(unet, scheduler)
    whole.save_pretrained(place.with_suffix(".new"))
    place.with_suffix(".new").rename(place)
    return place


def learn_publicly(network: Any, loss: Callable[[Any], Any], values: Any, steps: int) -> None:
    """Adam on public pictures, with a rate that falls to 0; keeps the average of the last quarter's weights."""
    import torch

    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    averaged = torch.optim.swa_utils.AveragedModel(network)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 100, 2 * (steps - step) / steps)
        loss(values[torch.randint(len(values), (64,))]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 3 * steps // 4:
            averaged.update_parameters(network)
    network.load_state_dict(averaged.module.state_dict())


LARGE = {"diffusion": {"size": "large", "steps": 1000, "draws": 8, "warm_up_steps": 10_000}}
"""As much as an hour of a GPU has."""
METHODS: dict[str, Callable[[Pictures, float, int], Pictures]] = {
    "real": real,
    "image_moments": image_moments,
    "image_pe": image_pe,
    "image_mixed": image_mixed,
    "image_diffusion": partial(by_contract, "image_diffusion", {}),
    "image_diffusion_table": image_diffusion_table,
    "image_diffusion_nearest": partial(image_diffusion_table, nearest_classes=1),
    "image_finetune": partial(image_finetune, latent=False),
    "image_finetune_latent": partial(image_finetune, latent=True),
    "image_diffusion_large": partial(by_contract, "image_diffusion", LARGE),
    "image_embedding": partial(by_contract, "image_embedding", {}),
    "image_gan": partial(by_contract, "image_gan", {}),
}
DIGITS = (
    "image_pe",
    "image_mixed",
    "image_diffusion_table",
    "image_diffusion_nearest",
    "image_finetune",
    "image_finetune_latent",
)
"""Methods that know public digits, and nothing else."""


@dataclass(frozen=True)
class Measured:
    """Accuracy, Fréchet distance, seconds on the clock and of the processor, and the peak of memory in MB."""

    accuracy: float
    frechet: float
    seconds: float
    processor: float
    memory: float


def run(source: str, form: ImageForm, method: str, epsilon: float, seed: int, contributions: int) -> Measured:
    """One run, and the classifier of its pictures."""
    import torch

    from dpsynth_platform.quality.images.classifier import PictureClassifier, accuracy
    from dpsynth_platform.quality.images.distances import frechet_distance
    from dpsynth_platform.quality.images.features import PictureEncoder

    torch.set_num_threads(1)
    train, test = read(source, form)
    clock, processor = time.monotonic(), time.process_time()
    made = METHODS[method](train, epsilon, contributions)
    clock, processor = time.monotonic() - clock, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    order = np.random.default_rng().permutation(len(made.labels))
    sides = [
        made.pixels[order[:COMPARED]],
        test.pixels[np.random.default_rng().permutation(len(test.labels))[:COMPARED]],
    ]
    frechet = frechet_distance(*map(PictureEncoder().encode, sides))
    judge = PictureClassifier(made.pixels[order], made.labels[order], int(test.labels.max()) + 1, seed)
    return Measured(accuracy(judge.probabilities(test.pixels), test.labels), frechet, clock, processor, memory)


def main() -> None:
    """Prints a line for each set, method and epsilon as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", help="NAME=PATH of a parquet file or an IDX directory")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:3])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--contributions", type=int, default=1, help="pictures of a (made-up) owner, who is protected")
    parser.add_argument("--size", nargs=3, type=int, default=[28, 28, 1], help="height, width and channels in a file")
    asked = parser.parse_args()
    form = ImageForm(*asked.size)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    print("| set | method | epsilon | accuracy | each seed | Fréchet | seconds (processor) | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, source in (word.split("=", 1) for word in asked.sources):
        for method in (method for method in asked.methods if name == "mnist" or method not in DIGITS):
            for epsilon in asked.epsilons[:1] if method == "real" else asked.epsilons:
                found = []
                for seed in range(asked.seeds):
                    with ProcessPoolExecutor(1, get_context("spawn")) as process:
                        found.append(
                            process.submit(run, source, form, method, epsilon, seed, asked.contributions).result()
                        )
                each = " ".join(f"{100 * one.accuracy:.1f}" for one in found)
                mean, frechet, seconds, processor = (
                    np.mean([getattr(one, part) for one in found])
                    for part in ("accuracy", "frechet", "seconds", "processor")
                )
                shown = "-" if method == "real" else f"{epsilon:g}"
                print(
                    f"| {name} | {method} | {shown} | {100 * mean:.1f} | {each} | {frechet:.0f} | "
                    f"{seconds:.0f} ({processor:.0f}) | {max(one.memory for one in found):.0f} |",
                    flush=True,
                )
        for method, figures in PUBLISHED.items() if name in SETS else ():
            print(f"| {name} | {method}, published | 1 / 10 | {figures[SETS.index(name)]} | | | | |", flush=True)


if __name__ == "__main__":
    main()
