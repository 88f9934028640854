"""The generator `table_diffusion`: a network that takes noise off rows, trained by DP-SGD (TableDiffusion, Truda 2023).

What belongs here: its parts. What does not: the network (`diffusion_network`), training and counts
(`network_generator`), and the mixture that rows are drawn from (`mixture_generator`).

What differs from the paper: a part of the budget buys counts of single columns, with which the network starts and which
correct what is drawn; and the last step's distributions are kept, in place of one draw from each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsynth_platform.synth.neural.mixture_generator import MixtureNetworkGenerator

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dpsynth_platform.synth.neural.network_plan import NetworkParameters
    from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork
    from dpsynth_platform.synth.tabular.column_states import Array


class TableDiffusion(MixtureNetworkGenerator):
    """The generator `table_diffusion`."""

    method = "table_diffusion"

    def network(self, shares: Sequence[Array], width: int) -> StatesNetwork:
        from dpsynth_platform.synth.neural.diffusion_network import DiffusionNetwork

        return DiffusionNetwork(shares, width)

    def rows(self) -> type[StateRows]:
        from dpsynth_platform.synth.neural.diffusion_network import DiffusionRows

        return DiffusionRows

    def products(self, network: StatesNetwork, components: int, source: Generator) -> Sequence[Tensor]:
        import torch

        with torch.no_grad():
            found: list[Tensor] = network.denoised(components, source)  # type: ignore[operator]
        return found

    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        return 2 * sum(sizes) * parameters.width + parameters.width**2 + 5 * parameters.width
