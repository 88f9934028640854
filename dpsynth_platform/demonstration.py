"""The demonstration: the main job on fictional people, from the source to a verified release.

What belongs here: the demo's own steps (making the source, playing the reviewer) around the ordinary ones. What does
not: anything that an ordinary run does differently; there is no such thing.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.demo.census import prepare_census
from dpsynth_platform.demo.visits import prepare_visits
from dpsynth_platform.errors import DpsynthError
from dpsynth_platform.operating import Outcome, publish_if_approved, run_dataset
from dpsynth_platform.reviewing import decisions, verification
from dpsynth_platform.settings import Settings
from dpsynth_platform.storage import Place

if TYPE_CHECKING:
    from dpsynth_platform.terminal import Shown

DATASET = "census"
REVIEWER = "demo-reviewer"


class DemoFailed(DpsynthError):
    """A step of the demo's run failed; the message names it."""

    code = "demo"


def make_source(settings: Settings, name: str) -> Path:
    """Makes one demonstration source, or leaves it where it is there already; returns its path."""
    if name == DATASET:
        return prepare_census(settings.home, settings.home / "cache")
    return prepare_visits(settings.home)


def run_demo(settings: Settings, shown: Shown) -> dict[str, Any]:
    """Makes the source, runs the line, approves as a second person, publishes, verifies; returns a summary."""
    from dpsynth_platform.release_command import review_text

    place = Place(DATASET)
    shown.head("1. The source: UCI Adult, dressed up as a company would hold it (all people are fictional)")
    shown.say(f"Delta table {make_source(settings, DATASET)}")
    shown.head("2. The line: raw, scrubbed, canaries, clearance, bounded, model, synthetic, audit, quality")
    outcome = _ended_well(run_dataset(settings, DATASET, None, None, shown.say))
    review = decisions.review(settings, place)
    review_text(shown, review)
    if outcome.release is None:
        shown.head("3. The decision")
        shown.say(
            f"An approver must not be the one who ran it. This demo plays both parts: {settings.user!r} ran it and "
            f"{REVIEWER!r} approves. In earnest a second person would decide."
        )
        decisions.approve(settings, place, REVIEWER, "approved by the demonstration")
        published = _ended_well(publish_if_approved(settings, place, shown.say))
    else:
        published = outcome
    report = verification.verify(settings, str(published.release), None)
    report.raise_for_problems()
    shown.head("The release")
    for line in published.next_steps:
        shown.say(line)
    shown.say(f"verified: {report.files} files, {report.rows} rows")
    spent = f"ledger entry {', '.join(outcome.new_entries)}" if outcome.new_entries else "nothing"
    shown.say(f"newly spent by this run: {spent}")
    shown.head("To look further")
    if shutil.which("dpsynth") is None:
        shown.say(f"  first: export PATH={Path(sys.executable).parent}:$PATH DPSYNTH_HOME={settings.home}")
    for command, what in (
        ("dpsynth ledger show", "what was spent and what is left"),
        ("dpsynth release show census", "the candidate as a reviewer sees it"),
        ("dpsynth plan census", "what another run would do and cost"),
        ("make up", "Dagster with the asset graph, at http://127.0.0.1:3000"),
    ):
        shown.say(f"  {command:30} {what}")
    return {
        "release": published.release,
        "verified": report.ok,
        "new_entries": outcome.new_entries,
        "guarantee": review.guarantee,
        "audit": review.audit,
        "quality": review.quality_rows,
    }


def _ended_well(outcome: Outcome) -> Outcome:
    if outcome.failures:
        raise DemoFailed("\n".join(f"{step}: {message}" for step, message in outcome.failures))
    return outcome
