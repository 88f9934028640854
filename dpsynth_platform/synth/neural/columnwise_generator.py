"""The common part of networks that predict columns one after the other: the distribution that rows are drawn from.

What belongs here: the network as a distribution. What does not: counts and training (`network_generator`), and drawing
(`columnwise`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.neural.states_generator import StatesGenerator

if TYPE_CHECKING:
    from dpsynth_platform.synth.tabular.joint import Joint


class ColumnwiseGenerator(StatesGenerator):
    """A generator whose network is a `columnwise_network.ColumnwiseNetwork`."""

    def joint(self, plan: SealedPlan, directory: Path) -> Joint:
        """See `Generator.joint`; raises as `trained`."""
        from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint

        learned, network = self.trained(plan, directory)
        evidence = self.form(plan).evidence
        return ColumnwiseJoint(network, learned.shares, evidence=evidence)  # type: ignore[arg-type]  # `network` is one
