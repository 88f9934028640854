"""The generator `great`: a language model learns rows with their columns in random orders (Borisov et al. 2023).

What belongs here: its name. What does not: all else (`language_generator`).
"""

from __future__ import annotations

from dpsynth_platform.synth.neural.language_generator import LanguageGenerator


class Great(LanguageGenerator):
    """The generator `great`."""

    method = "great"
