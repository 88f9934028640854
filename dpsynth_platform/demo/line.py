"""Demonstrations of a whole line, from the source to a verified release, of a table, of texts or of pictures.

What belongs here: the extra steps (making the source, approving as the reviewer) around an ordinary run. What does not:
the steps of the run, which are the same as everywhere.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.demo.census import prepare_census
from dpsynth_platform.demo.flights import prepare_flights
from dpsynth_platform.demo.images import prepare_images
from dpsynth_platform.demo.mail import prepare_mail
from dpsynth_platform.demo.visits import prepare_visits
from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.release_layout import PAGE, SHEET
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import NEAREST, NEAREST_DRAWING, Place, Storage, read_table
from dpsynth_platform.operations.operating import Outcome, publish_if_approved, run_dataset
from dpsynth_platform.reviewing import decisions, verification
from dpsynth_platform.reviewing.review_text import review_text
from dpsynth_platform.synth.planning import load_dataset

if TYPE_CHECKING:
    from dpsynth_platform.foundation.output import Output
    from dpsynth_platform.operations.running import CodeLocation

LINES = {
    "census": "UCI Adult, extended to a company's table (all people are fictional)",
    "mail": "the SpamAssassin public mail corpus; its people are real, and are its owners as senders and recipients",
    "images": "pictures of clothing (Fashion-MNIST) or handwritten digits (MNIST); their owners are made up",
}
"""Datasets of the demonstrations, with descriptions of their sources."""
REVIEWER = "demo-reviewer"
_BASE_MODEL_REASON = (
    "demonstration: its publishers say that it was trained on public corpora, and name them; nobody here looked further"
)
_TEXTS_SHOWN = 3


class DemoFailed(DpsynthError):
    """A step of the demo's run failed; the message names it."""

    code = "demo"


def make_source(settings: Settings, name: str) -> Path:
    """Makes a demonstration source unless it exists; returns its path."""
    made_here = {"visits": prepare_visits, "flights": prepare_flights}
    if name in made_here:
        return made_here[name](settings.home)
    fetched = {"census": prepare_census, "mail": prepare_mail, "images": prepare_images}
    return fetched[name](settings.home, settings.home / "cache")


def run_demo(
    settings: Settings, dataset: str, output: Output, *, in_process: CodeLocation | None = None
) -> dict[str, Any]:
    """Makes the source of one of `LINES`, runs it, approves, publishes and verifies; returns a summary.

    Args:
        in_process: see `running.run_line`.
    """
    place = Place(dataset)
    contract, _ = load_dataset(settings, dataset)
    output.heading(f"1. The source: {LINES[dataset]}")
    output.print(f"Delta table {make_source(settings, dataset)}")
    if contract.generate.base_model is not None:
        output.print(_declared(settings, contract.generate.base_model))
    output.heading("2. The line: raw, scrubbed, canaries, clearance, bounded, model, synthetic, audit, quality")
    outcome = _require_success(run_dataset(settings, dataset, None, None, output.print, in_process=in_process))
    review = decisions.review(settings, place)
    review_text(output, review)
    if outcome.release is None:
        output.heading("3. The decision")
        output.print(
            f"The person who ran it must not approve it. This demo acts as both: {settings.user!r} ran it and "
            f"{REVIEWER!r} approves. In production a second person decides."
        )
        decisions.approve(settings, place, REVIEWER, "approved by the demonstration")
        published = _require_success(publish_if_approved(settings, place, output.print, in_process=in_process))
    else:
        published = outcome
    report = verification.verify(settings, str(published.release), None)
    report.raise_for_problems()
    output.heading("The release")
    for line in published.next_steps:
        output.print(line)
    output.print(f"verified: {report.files} files, {report.rows} rows")
    spent = f"ledger entry {', '.join(outcome.new_entries)}" if outcome.new_entries else "nothing"
    output.print(f"newly spent by this run: {spent}")
    if contract.text_column is not None:
        output.heading(f"Some of what is in column {contract.text_column}, written by the language model")
        for text in islice(_texts(contract, Path(str(published.release))), _TEXTS_SHOWN):
            output.print(f"- {text}")
    if contract.image_column is not None:
        output.heading(f"The pictures in column {contract.image_column}")
        for what, file in _pictures(settings, place, Path(str(published.release))).items():
            output.print(f"{what}: {file}")
    to_look_further(
        settings,
        output,
        {
            "dpsynth ledger show": "what was spent and what is left",
            f"dpsynth release show {dataset}": "the candidate as a reviewer sees it",
            f"dpsynth plan {dataset}": "what another run would do and cost",
            "make up": "Dagster with the asset graph, at http://127.0.0.1:3000",
            "dpsynth console user add NAME --role reviewer": "an account for the governance console: dpsynth console",
        },
    )
    return {
        "release": published.release,
        "verified": report.ok,
        "new_entries": outcome.new_entries,
        "guarantee": review.guarantee,
        "audit": review.audit,
        "quality": review.quality_rows,
    }


def to_look_further(settings: Settings, output: Output, commands: Mapping[str, str]) -> None:
    """Prints commands and what they show."""
    output.heading("To look further")
    if shutil.which("dpsynth") is None:
        output.print(f"  first: export PATH={Path(sys.executable).parent}:$PATH DPSYNTH_HOME={settings.home}")
    width = max(30, *map(len, commands))
    for command, what in commands.items():
        output.print(f"  {command:{width}} {what}")


def _declared(settings: Settings, base_model: str) -> str:
    """Records the user's declaration that a base model is public, unless there is one; returns words about it."""
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.lineage.survey import model_name

    store, name = LineageStore(settings.ledger_url), model_name(base_model)
    declaration = store.public(name) or store.declare_public(name, by=settings.user, reason=_BASE_MODEL_REASON)
    return (
        f"{declaration.by!r} declares the base model {base_model} public, in the ledger: {declaration.reason}. In "
        "production a responsible person declares what it was trained on: dpsynth lineage declare-public"
    )


def _texts(contract: DataContract, release: Path) -> Iterator[str]:
    """The released texts, each on one line."""
    for batch in read_table(release / "data"):
        for text in batch.column(str(contract.text_column)).to_pylist():
            yield " ".join(str(text).split())


def _pictures(settings: Settings, place: Place, release: Path) -> dict[str, Path]:
    """Files to look at, by what they show."""
    nearest = Storage(settings.restricted).require(place, NEAREST).directory / NEAREST_DRAWING
    return {
        "the first synthetic ones of each class, published": release / SHEET,
        "the dossier with them, published": release / PAGE,
        **({"synthetic ones beside the nearest real ones, for reviewers only": nearest} if nearest.is_file() else {}),
    }


def _require_success(outcome: Outcome) -> Outcome:
    if outcome.failures:
        raise DemoFailed("\n".join(f"{step}: {message}" for step, message in outcome.failures))
    return outcome
