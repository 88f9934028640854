"""The method that `auto` stands for in contracts with pictures, and the reason.

What belongs here: the choice, from public facts only. What does not: the methods, and the choices for tables and texts.

A contract that declares public material, or a training, asks for the methods that use it. Without either,
`image_moments` needs nothing public and no accelerator, and was as good as any other on the sets that were measured.
"""

from __future__ import annotations

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.synth.automatic import Choice


def image_method_for(contract: DataContract) -> Choice:
    """The method for a contract's pictures."""
    image = contract.generate.image
    if image is not None and image.evolution is not None:
        return Choice(
            "image_mixed", f"the contract declares {image.evolution.foundation} from which candidates can be made"
        )
    if image is not None and image.finetune is not None:
        return Choice("image_finetune", "the contract declares a public diffusion model to start from")
    if image is not None and image.diffusion is not None:
        return Choice("image_diffusion", "the contract declares the training of a diffusion model")
    if image is not None and image.embedding is not None:
        return Choice("image_embedding", "the contract declares a mean embedding")
    if image is not None and image.gan is not None:
        return Choice("image_gan", "the contract declares two networks against each other")
    return Choice("image_moments", "no public pictures or simulator are declared that resemble the data")
