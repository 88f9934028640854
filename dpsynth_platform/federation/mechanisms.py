"""The mechanisms of federated runs by the method that a sealed plan names.

What belongs here: their list. What does not: what they do (`marginals`, `moments`, `text_evolution`,
`picture_evolution`), and what all share (`plans`).
"""

from __future__ import annotations

from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.moments import PictureMomentsPlan
from dpsynth_platform.federation.picture_evolution import PictureEvolutionPlan
from dpsynth_platform.federation.plans import FederatedPlan
from dpsynth_platform.federation.text_evolution import TextEvolutionPlan
from dpsynth_platform.synth.interface import SealedPlan

PLANS: tuple[type[FederatedPlan], ...] = (MarginalsPlan, PictureMomentsPlan, TextEvolutionPlan, PictureEvolutionPlan)


OF_PICTURES: dict[str, type[PictureMomentsPlan | PictureEvolutionPlan]] = {
    "image_moments": PictureMomentsPlan,
    "image_pe": PictureEvolutionPlan,
}
"""Those for a column of pictures, by method."""


def plan_of(text: str) -> FederatedPlan:
    """The plan of a text, checked, whatever its mechanism.

    Raises:
        GrantRefused, AccountingError: as `FederatedPlan.from_json`; also for a method that no federated run has.
    """
    method = SealedPlan.from_json(text).method
    kind = next((each for each in PLANS if method in each.METHODS), MarginalsPlan)
    return kind.from_json(text)
