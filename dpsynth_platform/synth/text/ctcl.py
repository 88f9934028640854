"""The generator `ctcl`: fine-tuning as in `dp_finetune`, with each text's public topic in the prompt.

What belongs here: its name. What does not: topics (`topics`, `topic_sorting`), the plan's other parts (`sealing`), and
all that `dp_finetune` does.

CTCL (Tan et al. 2025, section 3): a public topic model sorts the records; a noisy histogram gives the number of texts
of each topic; a small language model learns, with privacy, to write a text from a topic's keywords. The training is
calibrated in the same plan as the counts.
"""

from __future__ import annotations

from dpsynth_platform.synth.text.dp_finetune import DpFinetune


class Ctcl(DpFinetune):
    """The generator `ctcl`."""

    method = "ctcl"
