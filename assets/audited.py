"""audited: the model that the audit attacks, where canaries would hurt the one that is released.

What belongs here: declaring the step. What does not: training, which is `model`'s own: the same mechanism by the same
sealed plan, with noise of its own, over the same people and the canaries. Nothing that is released is drawn from it.
"""

from assets import model
from dpsynth_platform.foundation.storage import AUDITED
from dpsynth_platform.operations.roles import ATTACKED
from dpsynth_platform.operations.step import Outcome, Step, StepContext


def body(step: StepContext) -> Outcome:
    """Trains once, under a ledger entry of its own, before the released model's mechanism may start."""
    return model.train(step, ATTACKED)


STEP = Step(
    name=AUDITED,
    description=(
        "The model that is attacked in the released one's place: trained apart by the same sealed plan, with the "
        "canaries, at a cost of its own. Never sampled from for a release; restricted."
    ),
    upstream=("clearance", "canaries", "bounded"),
    kinds=model.STEP.kinds,
    zone=model.STEP.zone,
    code_version="1",
    body=body,
    fields=model.STEP.fields,
    pool=model.STEP.pool,
)
