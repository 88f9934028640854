"""The intended examiners find mistakes planted in mechanisms, and find none in right mechanisms.

`planted_mistakes` fixes examiners, epsilon and number of runs before any run. A right mechanism fails with a
probability of 1e-7 (each bound of the laboratory) or 1e-9 (gate and watch); a planted mistake is missed with one of
2e-7, as the first test computes.
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
    assert {finding.examiner for finding in findings} >= set(mistake.found_by), "an examiner did not run"
    assert not [finding for finding in findings if finding.found]
