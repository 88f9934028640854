"""An isolated deployment: one contract with its family, and separate zones, keys and ledger.

What belongs here: writing its files, for trials that must not reach the real ledger. What does not: running anything
in it (`rehearsal`, `demonstration_year`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.foundation.yaml_files import dump


def isolated_deployment(
    settings: Settings, contract: Mapping[str, Any], family: Mapping[str, Any], place: Path
) -> Settings:
    """A deployment below `place`, otherwise with these settings; its mechanisms run on this machine.

    Overwrites the files of an earlier call, and keeps everything that was made there.

    Args:
        contract: as a contract's file has it.
        family: as its family's file has it.
    """
    home, deploy = place / "home", place / "deploy"
    for kind, name, document in (
        ("contracts", contract["dataset"], contract),
        ("families", family["family"], family),
    ):
        (deploy / kind).mkdir(parents=True, exist_ok=True)
        (deploy / kind / f"{name}.yaml").write_text(dump(document), encoding="utf-8")
    return replace(settings, home=home, deploy=deploy, ledger_url=embedded_ledger(home / "ledger"), worker=None)
