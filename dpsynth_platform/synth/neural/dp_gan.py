"""The generator `dp_gan`: a network learns to make rows that a discriminator, trained by DP-SGD, cannot tell.

What belongs here: its parts. What does not: the networks (`adversarial_network`), training and counts
(`network_generator`), and the mixture that rows are drawn from (`mixture_generator`).

What differs from CTGAN (Xu et al. 2019): records are a Poisson sample, none is chosen by its value; a part of the
budget buys counts of single columns, with which the generator starts and which correct what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.neural.mixture_generator import MixtureNetworkGenerator
from dpsynth_platform.synth.neural.network_generator import LearnedColumns
from dpsynth_platform.synth.tabular.cost import TrainingWork

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dpsynth_platform.synth.network_training import Prepared
    from dpsynth_platform.synth.neural.network_plan import NetworkParameters
    from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork
    from dpsynth_platform.synth.tabular.column_states import Array


class DpGan(MixtureNetworkGenerator):
    """The generator `dp_gan`."""

    method = "dp_gan"

    def network(self, shares: Sequence[Array], width: int) -> StatesNetwork:
        from dpsynth_platform.synth.neural.adversarial_network import RowGenerator

        return RowGenerator(shares, width)

    def rows(self) -> type[StateRows]:
        from dpsynth_platform.synth.neural.adversarial_network import PairedRows

        return PairedRows

    def ready(
        self, parameters: NetworkParameters, learned: LearnedColumns, device: str, progress: Progress = silent
    ) -> Prepared:
        from dpsynth_platform.synth.neural.adversarial_network import prepared

        return prepared(parameters, learned.shares, device)

    def products(self, network: StatesNetwork, components: int, source: Generator) -> Sequence[Tensor]:
        import torch

        with torch.no_grad():
            points, condition = network.at_random(components, source)  # type: ignore[operator]
            found: list[Tensor] = network(points, condition)
            for column, part in enumerate(found):
                given = condition[:, network.own(column)]
                part[given.sum(1) > 0] = given[given.sum(1) > 0].log()
        return found

    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        return 2 * sum(sizes) * parameters.width + 18 * parameters.width

    def work(self, parameters: NetworkParameters, sizes: Sequence[int]) -> TrainingWork:
        """Two rows of each record, and the generator's steps, whose rows pass both networks forwards and backwards."""
        from dpsynth_platform.synth.neural.adversarial_network import GENERATED

        found = super().work(parameters, sizes)
        return replace(found, rows=2 * found.rows + 2 * GENERATED * parameters.training.steps)
