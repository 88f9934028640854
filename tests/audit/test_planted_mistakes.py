"""Mistakes planted in mechanisms are found, each by whom it must be, and right mechanisms are left in peace.

Who must find what, at which epsilon and with how many runs, stands in `planted_mistakes`, fixed before any run. A right
mechanism is blamed with a probability of 1e-7 (each bound of the laboratory) or 1e-9 (gate and watch); a planted
mistake is missed with one of 2e-7, as the first test reckons.
"""

from __future__ import annotations

import pytest
from planted_mistakes import MISTAKES, Mistake

each_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)


@each_mistake
def test_the_laboratory_has_the_power_for_it_before_anything_is_run(mistake: Mistake) -> None:
    assert (mistake.chance is not None) == ("laboratory" in mistake.found_by)
    if mistake.chance is not None:
        claimed, expected = mistake.chance()
        assert expected > claimed


@each_mistake
def test_it_is_found(mistake: Mistake) -> None:
    found = {finding.examiner for finding in mistake.examine(True) if finding.found}
    assert found >= set(mistake.found_by)


@each_mistake
def test_without_it_nothing_is_found(mistake: Mistake) -> None:
    findings = mistake.examine(False)
    assert {finding.examiner for finding in findings} >= set(mistake.found_by), "somebody did not look"
    assert not [finding for finding in findings if finding.found]
