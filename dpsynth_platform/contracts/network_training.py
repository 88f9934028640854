"""How DP-SGD trains a network: the keys that all such methods share.

What belongs here: sampling, clipping and repeats. What does not: the numbers that depend on what is learned.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dpsynth_platform.contracts.base import Part
from dpsynth_platform.contracts.text_generation import Adapter


class NetworkTraining(Part):
    """How DP-SGD trains a network."""

    sampled: Literal["records", "owners"] = Field(
        default="records", description="What a step samples and clips; owners by the mean gradient of their records."
    )
    steps: int = Field(default=120, ge=1, le=1_000_000)
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Expected records of a step; by default a 16th, 1024 at most.",
    )
    clipping_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    replay_steps: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Paid for repeats after an interruption; by default a tenth."
    )


_TBART = {"width": 32, "steps": 200, "learning_rate": 0.015}
_GAN = {"width": 64, "steps": 800, "learning_rate": 0.0005}
_VAE = {"width": 64, "steps": 200, "learning_rate": 0.02}
NETWORK_DEFAULTS: dict[str, dict[str, Any]] = {
    "arn": {},
    "tbart": _TBART,
    "dp_vae": _VAE,
    "table_diffusion": _VAE,
    "dp_gan": _GAN,
    "great": {"fixed_order": 0.0},
    "dp_2stage": {"first": {}},
}
"""Of methods for tables, where they differ from those of `TableNetwork`. A sealed contract holds all of them."""


def _columns_share(default: float, learner: str) -> Any:
    return Field(
        default=default,
        gt=0,
        lt=1,
        description=f"Of epsilon and delta, for noisy counts of single columns: they decide which values the {learner} "
        "distinguishes, and correct how often it draws them.",
    )


class TableTraining(NetworkTraining):
    """How DP-SGD trains what draws rows of one table."""

    batch_size: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Expected records or owners of a step; by default a thirtieth."
    )


class TableNetwork(TableTraining):
    """A network over the columns of one table, which DP-SGD trains."""

    columns_share: float = _columns_share(0.45, "network")
    steps: int = Field(
        default=100,
        ge=1,
        le=1_000_000,
        description=f"Steps of DP-SGD; by default of `arn` 100, of `dp_gan` {_GAN['steps']:g}, of others "
        f"{_TBART['steps']:g}.",
    )
    learning_rate: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description=f"The optimizer's highest learning rate; by default of `tbart` "
        f"{_TBART['learning_rate']:g}, of `dp_vae` and `table_diffusion` "
        f"{_VAE['learning_rate']:g}, of `dp_gan` {_GAN['learning_rate']:g}.",
    )
    width: int = Field(
        default=16,
        ge=1,
        le=1024,
        description=f"Units of a hidden layer, or of a token; by default of `tbart` {_TBART['width']:g}, of `dp_vae`, "
        f"`table_diffusion` and `dp_gan` {_VAE['width']:g}.",
    )
    fixed_order: float = Field(
        default=0.7,
        ge=0,
        le=1,
        description="The part of gradients in the columns' own order, in which rows are drawn. Others are in random "
        "orders, so that rows can be drawn with given values of any columns; with 1, only of the first ones. Of "
        "`arn` and `tbart`.",
    )


class FirstStage(Part):
    """What a language model learns before it reads a private record: the form of rows."""

    rows: Literal["counted", "uniform", "public"] = Field(
        default="counted",
        description="`counted`: rows of independent columns by the noisy counts, `uniform`: all values equally often, "
        "`public`: those of generate.public (the default with such a table).",
    )
    steps: int = Field(default=300, ge=1, le=1_000_000)
    batch_size: int = Field(default=32, ge=1, le=100_000)
    learning_rate: float = Field(default=3e-3, gt=0, le=1)


class RowLanguage(TableTraining):
    """A language model that DP-SGD trains to write rows as `column is value, column is value`."""

    columns_share: float = _columns_share(0.3, "model")
    steps: int = Field(default=100, ge=1, le=1_000_000)
    learning_rate: float | None = Field(  # type: ignore[assignment]
        default=None,
        gt=0,
        le=1,
        description="The optimizer's highest learning rate; by default 0.002 with an adapter, 0.01 for all weights.",
    )
    fixed_order: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="The part of gradients in the columns' own order, in which rows are drawn; by default of `great` "
        "0. Others are in random orders, so that rows can be drawn with given values of any columns.",
    )
    value_weight: float = Field(
        default=0.65,
        gt=0,
        le=1,
        description="Of a value's tokens in the loss; those of names and commas have the rest.",
    )
    number_distance: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="Of a distance of one range between a number or moment and the true one, beside the loss of "
        "tokens; with 0, near numbers are as wrong as far ones.",
    )
    adapter: Adapter | Literal["auto", "none"] = Field(
        default="auto", description="`none` trains all weights, and so does `auto` of models with up to a million."
    )
    first: FirstStage | None = Field(default=None, description="For `dp_2stage`.")
