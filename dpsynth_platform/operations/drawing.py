"""Drawing from a model by the contract's settings."""

from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.synth.interface import Drawing, generator


def drawn_as_asked(step: StepContext, contract: DataContract, method: str, model: Path) -> Drawing:
    """Rows of a model, in the number and by the settings of a release."""
    asked = contract.generate
    rows = None if asked.rows == "auto" else asked.rows
    if contract.text_column is None:
        return generator(method).draw(model, rows, constraints=asked.constraints)
    # Late: these load a library of language models.
    from dpsynth_platform.synth.endpoint_access import transport_of
    from dpsynth_platform.synth.text.sampling import TEXTS
    from dpsynth_platform.synth.text.terms import terms_of
    from dpsynth_platform.worker.run import resolve_device

    counted = step.counted("synthetic texts")
    return generator(method).draw(
        model,
        rows,
        constraints=asked.constraints,
        texts=terms_of(contract),
        transport=transport_of(contract),
        device=resolve_device(step.device),
        progress=lambda stage, done, total, beside="": counted(done, total) if stage == TEXTS else None,
    )
