"""Attacks on texts: what released texts, or a language model, say of single ones.

| module | attack |
| --- | --- |
| ngrams | probability under an n-gram model of the release over that under one of other texts (Meeus et al. 2025) |
| similarity | shared n-grams with the most similar released texts (Meeus et al. 2025) |
| outliers | which targets to ask about: the unusual ones are remembered best (by TF-IDF; SynBench embeds) |
| copies | copies of members beside copies of held-out texts |
| reconstruction | what a language model gives back of a text whose beginning it is told (Carlini et al. 2023) |

`attacks(evidence)` runs those on membership that the evidence allows. `canary_texts` is no attack: it draws texts of
canaries from the base model.
"""

from dpsynth_platform.audit.texts.evidence import TextEvidence
from dpsynth_platform.audit.texts.registry import TEXT_ONLY_ATTACKS, attacks

__all__ = ["TEXT_ONLY_ATTACKS", "TextEvidence", "attacks"]
