"""Pictures of one form as an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.image_form import ImageForm

__all__ = ["ImageForm", "Pixels"]

Pixels = npt.NDArray[np.uint8]
"""Pictures of one form: shape (pictures, height, width, channels)."""
