"""Drawing from a model by the contract's settings."""

from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.synth.interface import Drawing, generator


def drawn_as_asked(step: StepContext, contract: DataContract, method: str, model: Path) -> Drawing:
    """Rows of a model, in the number and by the settings of a release."""
    asked = contract.generate
    rows = None if asked.rows == "auto" else asked.rows
    if contract.text_column is None and contract.image_column is None:
        return generator(method).draw(model, rows, constraints=asked.constraints)
    # Late: these load large libraries.
    from dpsynth_platform.synth.endpoint_access import transport_of
    from dpsynth_platform.worker.run import resolve_device

    if contract.image_column is None:
        from dpsynth_platform.synth.text.sampling import TEXTS as SHOWN
        from dpsynth_platform.synth.text.terms import terms_of

        texts, counted = terms_of(contract), step.counted("synthetic texts")
    else:
        from dpsynth_platform.synth.images.generator import DRAWING as SHOWN

        texts, counted = None, step.counted("synthetic pictures")
    return generator(method).draw(
        model,
        rows,
        constraints=asked.constraints,
        texts=texts,
        transport=transport_of(contract),
        device=resolve_device(step.device),
        progress=lambda stage, done, total, beside="": counted(done, total) if stage == SHOWN else None,
    )
