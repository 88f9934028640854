"""The generator `dp_vae`: a variational autoencoder of rows, trained by DP-SGD.

What belongs here: its parts. What does not: the network (`vae_network`), training and counts (`network_generator`), and
the mixture that rows are drawn from (`mixture_generator`).

A row's whole loss, reconstruction and divergence together, is one gradient, which is clipped as one. What differs from
other such methods: a part of the budget buys counts of single columns, with which the decoder starts and which correct
what is drawn.
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


class DpVae(MixtureNetworkGenerator):
    """The generator `dp_vae`."""

    method = "dp_vae"

    def network(self, shares: Sequence[Array], width: int) -> StatesNetwork:
        from dpsynth_platform.synth.neural.vae_network import VaeNetwork

        return VaeNetwork(shares, width)

    def rows(self) -> type[StateRows]:
        from dpsynth_platform.synth.neural.vae_network import VaeRows

        return VaeRows

    def products(self, network: StatesNetwork, components: int, source: Generator) -> Sequence[Tensor]:
        import torch

        from dpsynth_platform.synth.neural.vae_network import POINTS

        with torch.no_grad():
            found: list[Tensor] = network.decoded(torch.randn(components, POINTS, generator=source))  # type: ignore[operator]
        return found

    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        return 2 * sum(sizes) * parameters.width + 24 * parameters.width
