"""Which examiner finds which planted mistake. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_mistakes.py

What belongs here: the table of `tests/audit/planted_mistakes.py`, each mistake planted and looked for once. What does
not: which of them must be found by whom (`tests/audit/test_planted_mistakes.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "synth"))
sys.path.insert(0, str(Path(__file__).parents[1] / "audit"))

from planted_mistakes import LABORATORY, MISTAKES, Finding


def main() -> None:
    """Prints a table in Markdown."""
    print("| mistake | laboratory: setting | claimed | proven | by | others who find it |")
    print("| --- | --- | --- | --- | --- | --- |")
    for mistake in MISTAKES:
        findings = mistake.examine(True)
        others = ", ".join(one.examiner for one in findings if one.found and one.examiner != LABORATORY) or "-"
        print(f"| {mistake.name} | {_laboratory(mistake.setting, findings)} | {others} |", flush=True)


def _laboratory(setting: str, findings: list[Finding]) -> str:
    for one in findings:
        if one.proven is not None:
            return f"{setting} | {one.claimed:.2f} | {one.proven:.2f} | {one.says or 'not found'}"
    return "- | - | - | -"


if __name__ == "__main__":
    main()
