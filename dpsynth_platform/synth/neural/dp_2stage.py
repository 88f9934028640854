"""The generator `dp_2stage`: a language model learns the form of rows first, then private rows (Afonja et al. 2025).

What belongs here: its name. What does not: all else (`language_generator`).

As in the paper, the first stage reads no private record, rows have one order with the target first, and values weigh
more than names in the loss. What differs:

- The paper's uniform rows (DP-2Stage-U) have ranges and values of the private table, which nothing pays for. Here they
  are declared, or come from the noisy counts that the plan pays for.
- A value is drawn among those that exist (`row_reading`), not freely with rejection.
- A part of the budget buys the counts of single columns.
"""

from __future__ import annotations

from dpsynth_platform.synth.neural.language_generator import LanguageGenerator


class Dp2Stage(LanguageGenerator):
    """The generator `dp_2stage`."""

    method = "dp_2stage"
