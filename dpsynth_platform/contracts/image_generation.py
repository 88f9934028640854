"""The contract's `generate.image`: the column of pictures, and what they are conditioned by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from dpsynth_platform.contracts.base import ColumnName, Part, text_like
from dpsynth_platform.contracts.columns import conditioning_values
from dpsynth_platform.contracts.network_training import NetworkTraining
from dpsynth_platform.contracts.text_generation import DrawnPictures, Endpoint

MOST_CLASSES = 1000
"""The most classes of pictures."""
MOST_POPULATION = 10_000
"""The most survivors of a class."""
MOST_ROUNDS = 50


class Glyphs(Part):
    """Characters of public fonts as first candidates."""

    directory: str = Field(
        default="/usr/share/fonts", min_length=1, max_length=500, description="Directory of .ttf and .otf files."
    )
    characters: dict[str, Annotated[str, StringConstraints(min_length=1, max_length=50)]] = Field(
        default_factory=dict,
        max_length=MOST_CLASSES,
        description="Characters that a class's candidates show; by default the class's own value, if it is one.",
    )


class PublicPictures(Part):
    """A directory of public pictures: first candidates, or what a network learns from first."""

    directory: str = Field(
        min_length=1, max_length=500, description="With metadata.csv or class folders, as a source of format images."
    )
    public: str = Field(min_length=10, description="Why these pictures are public. Printed in every statement.")
    label: ColumnName = Field(default="label", description="Column of metadata.csv with the labels.")
    labels: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict,
        max_length=MOST_CLASSES,
        description="Labels whose pictures resemble a class; by default those of the same name. A class without any "
        "has all pictures as candidates; a network learns from other pictures without a class.",
    )


class PictureEndpoint(Endpoint):
    """A remote model that makes pictures. Requests hold public words and pictures that it made before."""

    url: str = Field(
        max_length=500,
        description="Address that answers POST requests for `/images/random` and `/images/variation`; https, or http "
        "on this machine.",
    )
    model: str = Field(
        min_length=1, max_length=200, description="Its name there, by which clearance looks for its origin."
    )
    words: dict[str, Annotated[str, StringConstraints(min_length=1, max_length=500)]] = Field(
        default_factory=dict,
        max_length=MOST_CLASSES,
        description="What a class's pictures show, in public words; by default the description and the class's value.",
    )


class WarmUpPictures(PublicPictures):
    """Public pictures that a network learns from first: all, or those that a paid count selects."""

    nearest_classes: int | None = Field(
        default=None,
        ge=1,
        lt=MOST_CLASSES,
        description="Pictures of so many labels only, for each class: those that a public classifier sees most often "
        "in private pictures, by noisy counts. It replaces `labels`.",
    )
    nearest_share: float = Field(
        default=0.05, gt=0, lt=1, description="Of the pictures' part of epsilon, for these counts."
    )

    @model_validator(mode="after")
    def _one_choice(self) -> WarmUpPictures:
        if self.nearest_classes is not None and self.labels:
            raise ValueError("labels: with nearest_classes, which selects labels; accepted: one of both")
        return self


class ImageEvolution(Part):
    """Private evolution: what makes candidates, and the votes of private pictures."""

    foundation: Literal["shapes", "fonts", "table", "endpoint"] = Field(
        default="shapes",
        description="What makes candidates without any data: random `shapes`, glyphs of public `fonts`, variations "
        "of a public `table` of pictures, or a remote model behind an `endpoint`.",
    )
    fonts: Glyphs | None = None
    table: PublicPictures | None = None
    endpoint: PictureEndpoint | None = Field(default=None, exclude_if=lambda part: part is None)
    encoder: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="File of a network that `dpsynth synth encoder` trained on the foundation's own pictures, by whose "
        "features pictures are near; by default means over 14 x 14 cells.",
    )
    rounds: int | Literal["auto"] = Field(
        default="auto",
        json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]},
        description="Number of votes; the budget pays for all together. `auto`: more where votes exceed their noise.",
    )
    variations: int = Field(
        default=2, ge=1, le=50, description="New variations of each survivor, per round; with a number of rounds."
    )
    lookahead: int = Field(
        default=0,
        ge=0,
        le=50,
        description="Variations whose mean features represent a candidate; 0: its own. With a number of rounds.",
    )
    population: int | Literal["auto"] = Field(
        default="auto",
        json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]},
        description="Survivors of each class; `auto`: as many as keep a candidate's votes at three times their noise.",
    )

    @field_validator("population", "rounds", mode="before")
    @classmethod
    def _size(cls, number: Any, info: ValidationInfo) -> Any:
        most = MOST_POPULATION if info.field_name == "population" else MOST_ROUNDS
        whole = isinstance(number, int) and not isinstance(number, bool)
        if number != "auto" and not (whole and 1 <= number <= most):
            raise ValueError(f"{number!r}; accepted: auto, or a number from 1 to {most}")
        return number

    @model_validator(mode="after")
    def _of_the_foundation(self) -> ImageEvolution:
        for name in ("fonts", "table", "endpoint"):
            if getattr(self, name) is not None and self.foundation != name:
                raise ValueError(f"{name}: with foundation {self.foundation!r}; accepted: none, or foundation: {name}")
        if self.foundation == "table" and self.table is None:
            raise ValueError("table: missing; accepted: a directory of public pictures, with the reason")
        if self.foundation == "endpoint" and self.endpoint is None:
            raise ValueError("endpoint: missing; accepted: its url, and the model's name there")
        return self


class PictureTraining(NetworkTraining):
    """How DP-SGD trains a network on pictures."""

    steps: int = Field(
        default=120,
        ge=1,
        le=1_000_000,
        description="Each takes batch_size times draws gradients, some 200 a second of a core.",
    )


class DiffusionTraining(PictureTraining):
    """How DP-SGD trains a diffusion model."""

    draws: int = Field(
        default=1, ge=1, le=64, description="Draws of noise whose mean gradient is clipped, for each picture."
    )


class ImageDiffusion(DiffusionTraining):
    """A diffusion model that is trained by DP-SGD."""

    size: Literal["small", "medium", "large"] = Field(
        default="small", description="Of the network: some 0.13, 0.52 or 1.65 million weights."
    )
    warm_up: Literal["none", "moments", "table", "table-and-moments"] = Field(
        default="moments",
        description="What the network first learns from. `moments`: pictures by image_moments, which has "
        "`warm_up_share` of the budget. `table`: a public `table` of pictures, at no cost. `table-and-moments`: the "
        "table, then the moments.",
    )
    table: WarmUpPictures | None = Field(
        default=None, exclude_if=lambda part: part is None, description="For `warm_up` by a table."
    )
    warm_up_share: float = Field(default=0.3, gt=0, lt=1, description="Of the pictures' part of epsilon.")
    warm_up_steps: int = Field(default=1200, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _of_the_warm_up(self) -> ImageDiffusion:
        if self.by_table and self.table is None:
            raise ValueError(
                f"table: missing with warm_up {self.warm_up!r}; accepted: a directory of public pictures, with the "
                "reason, or another warm_up"
            )
        if self.table is not None and not self.by_table:
            raise ValueError(
                f"table: with warm_up {self.warm_up!r}; accepted: none, or warm_up: table or table-and-moments"
            )
        nearest = 0.0 if self.table is None or self.table.nearest_classes is None else self.table.nearest_share
        if self.by_moments and self.warm_up_share + nearest >= 1:
            raise ValueError(
                f"warm_up_share and table.nearest_share: {self.warm_up_share:g} and {nearest:g}; accepted: together "
                "below 1"
            )
        return self

    @property
    def by_table(self) -> bool:
        """Whether the network first learns from the public table."""
        return self.warm_up in ("table", "table-and-moments")

    @property
    def by_moments(self) -> bool:
        """Whether it first learns from draws of noisy moments."""
        return self.warm_up in ("moments", "table-and-moments")


class ImageFinetune(DiffusionTraining):
    """A public diffusion model from disk, a part of which is trained by DP-SGD."""

    checkpoint: Annotated[str, text_like("^/", "an absolute path, such as /srv/models/digits")] = Field(
        max_length=500,
        description="Absolute path of a directory that diffusers saved: a pipeline of a `UNet2DModel` on pixels of the "
        "column's form, or on latents of an `AutoencoderKL` or `VQModel` beside it, and a scheduler; weights as "
        "safetensors. Clearance checks its lineage.",
    )
    public: str = Field(
        min_length=10,
        description="Why the pictures that it, and its autoencoder, were trained on are public. Printed in every "
        "statement.",
    )
    trained: Literal["lora", "attention"] = Field(
        default="lora",
        description="Beside an embedding of the classes: `lora`, matrices of low rank beside its layers, or "
        "`attention`, its attention layers.",
    )
    rank: int = Field(default=4, ge=1, le=256, description="Of the matrices of `lora`.")
    classes: dict[str, Annotated[int, Field(ge=0, lt=MOST_CLASSES)]] = Field(
        default_factory=dict,
        max_length=MOST_CLASSES,
        exclude_if=lambda classes: not classes,
        description="The model's own number of a class, by whose embedding the class begins; all others begin at the "
        "mean of its classes. For a model with `num_class_embeds`.",
    )


class ImageEmbedding(Part):
    """Noisy mean features of each class, which a small network learns to match (DP-MERF)."""

    frequencies: int = Field(
        default=1000, ge=1, le=20_000, description="Random, public ones; each gives two features of a picture."
    )
    steps: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Of the network's training on the noisy means, which cost nothing more.",
    )


class ImageGan(PictureTraining):
    """A discriminator that is trained by DP-SGD, and a generator that learns from it (DP-GAN).

    For comparison: do not take it where pictures are to be used.
    """

    steps: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        description="Of the discriminator. Each takes batch_size gradients, some 500 a second of a core.",
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Expected records of a step; by default a 16th, 64 at most."
    )
    generator_steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Of the generator, spread evenly over `steps`; they cost nothing more. By default as many.",
    )


class ImageGeneration(Part):
    """The column of pictures, its conditioning columns, and the part of the budget for all other columns."""

    column: ColumnName | None = Field(default=None, description="The image column; by default the only one.")
    given: list[ColumnName] | None = Field(
        default=None,
        description=(
            "Modelled columns with a list of values by which pictures are made: each combination of their values is a "
            "class. By default the only such column; records with other values are not learned from."
        ),
    )
    evolution: ImageEvolution | None = Field(
        default=None, exclude_if=lambda part: part is None, description="For `image_pe` and `image_mixed`."
    )
    diffusion: ImageDiffusion | None = Field(
        default=None, exclude_if=lambda part: part is None, description="For `image_diffusion`."
    )
    finetune: ImageFinetune | None = Field(
        default=None, exclude_if=lambda part: part is None, description="For `image_finetune`."
    )
    embedding: ImageEmbedding | None = Field(
        default=None, exclude_if=lambda part: part is None, description="For `image_embedding`."
    )
    gan: ImageGan | None = Field(default=None, exclude_if=lambda part: part is None, description="For `image_gan`.")
    columns_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description=(
            "Part of epsilon for the modelled columns; the pictures have the rest, or all where no column is modelled."
        ),
    )


def image_column_of(image: ImageGeneration | DrawnPictures, columns: Mapping[str, Any]) -> str | None:
    """The named image column, else the only one, else None."""
    found = [name for name, column in columns.items() if column and column.type == "image"]
    return image.column or (found[0] if len(found) == 1 else None)


def conditions_of(image: ImageGeneration, columns: Mapping[str, Any], modelled: list[str]) -> list[str]:
    """The declared conditioning columns, else the only modelled column with a list of values, else none."""
    listed = [name for name in modelled if columns[name] and conditioning_values(columns[name])]
    if image.given is None:
        return listed if len(listed) == 1 else []
    return [name for name in listed if name in image.given]
