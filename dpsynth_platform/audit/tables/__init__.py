"""Attacks on tables: what a release, and its model, reveal of single records.

`attacks(evidence)` runs those on membership that the evidence allows; `fit_shadows` adds shadow models to it. Attribute
inference (`attributes`) and copies (`copies`) are separate.
"""

from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.registry import ATTACKS, attacks

__all__ = ["ATTACKS", "Evidence", "attacks"]
