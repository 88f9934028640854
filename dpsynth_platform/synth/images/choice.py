"""The method that `auto` stands for in contracts with pictures, and the reason.

What belongs here: the choice, from public facts only. What does not: the methods, and the choices for tables and texts.
"""

from __future__ import annotations

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.automatic import Choice


def image_method_for(contract: DataContract) -> Choice:
    """The method for a contract's pictures."""
    return Choice("image_moments", "no public pictures or simulator are declared that resemble the data")
