"""Attacks on texts: what released texts, or a language model, reveal of single ones.

`attacks(evidence)` runs those on membership that the evidence allows. Reconstruction by a language model
(`reconstruction`), copies (`copies`), the choice of unusual targets (`outliers`) and SynBench's attack on many releases
(`synbench`) are separate. `canary_texts` is no attack: it draws canary texts from the base model.
"""

from dpsynth_platform.audit.texts.evidence import TextEvidence
from dpsynth_platform.audit.texts.registry import TEXT_ONLY_ATTACKS, attacks

__all__ = ["TEXT_ONLY_ATTACKS", "TextEvidence", "attacks"]
