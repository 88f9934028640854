"""Commands about release candidates and releases: review, decide, verify.

What belongs here: arguments and words of `dpsynth release`. What does not: what they show and record (`reviewing`),
and the evidence that a release rests on (`release`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import Dataset, Json, Period, TerminalOutput, command
from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    pass

_KEPT = "kept in the ledger for ever, so it must hold no data"

release_app = typer.Typer(no_args_is_help=True, help="Release candidates and releases: review, decide, verify.")


@release_app.command("list")
@command
def release_list(as_json: Json = False) -> None:
    """Candidates that wait for a decision, and published releases."""
    from dpsynth_platform.reviewing import releases

    output = TerminalOutput(as_json)
    listing = releases.listing(Settings.from_environment())
    output.json(listing)
    if not listing:
        output.print("No candidate waits for a decision, and nothing is published; start with: dpsynth run DATASET")
        return
    output.table(
        ("dataset", "state", "release or candidate", "where"),
        [(item["place"], item["state"], item["id"], item["where"]) for item in listing],
    )


@release_app.command("show")
@command
def release_show(dataset: Dataset, period: Period = None, as_json: Json = False) -> None:
    """A candidate as a reviewer needs it: guarantee, audit, quality, approvals; and its whole dossier (restricted)."""
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.reviewing import decisions
    from dpsynth_platform.reviewing.review_text import review_text

    output = TerminalOutput(as_json)
    review = decisions.review(Settings.from_environment(), Place(dataset, period))
    output.json(review.to_json())
    review_text(output, review)


@release_app.command("approve")
@command
def release_approve(
    dataset: Dataset,
    period: Period = None,
    by: Annotated[str | None, typer.Option("--as", help="Who approves; default: DPSYNTH_USER or the login.")] = None,
    reason: Annotated[str, typer.Option(help=f"Free words; {_KEPT}.")] = "",
    after_withdrawal: Annotated[
        bool,
        typer.Option("--after-withdrawal", help="The word for content of which a release was withdrawn before."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Records an approval of exactly this content and, if that was the last one needed, publishes.

    Not by whoever ran any of its steps, or withdrew a release of it; and only of what could be released otherwise.
    """
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.operations.operating import publish_if_approved
    from dpsynth_platform.reviewing import decisions
    from dpsynth_platform.synth.planning import load_dataset

    output = TerminalOutput(as_json)
    settings = Settings.from_environment()
    place = Place(dataset, period)
    load_dataset(settings, dataset)
    who = acting(by, settings.user)
    words = recorded(reason, "--reason", optional=True)
    decision = decisions.approve(settings, place, who, words, after_withdrawal=after_withdrawal)
    output.print(f"approved by {decision.by}: candidate {decision.candidate}")
    outcome = publish_if_approved(settings, place, output.print)
    output.json({"candidate": decision.candidate, "by": decision.by, "at": decision.at} | outcome.to_json())
    for line in outcome.next_steps:
        output.print(line)
    if outcome.failures:
        for step, message in outcome.failures:
            if not as_json:
                print(f"{step} failed: {message}", file=sys.stderr)
        raise typer.Exit(1)


@release_app.command("refuse")
@command
def release_refuse(
    dataset: Dataset,
    reason: Annotated[str, typer.Option(help=f"Why; {_KEPT}.")],
    period: Period = None,
    by: Annotated[str | None, typer.Option("--as", help="Who refuses; default: DPSYNTH_USER or the login.")] = None,
    as_json: Json = False,
) -> None:
    """Records a refusal of this content, under whatever description; an approval afterwards takes it back.

    Not of what is public, which `withdraw` takes back.
    """
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.reviewing import decisions
    from dpsynth_platform.synth.planning import load_dataset

    output = TerminalOutput(as_json)
    settings = Settings.from_environment()
    load_dataset(settings, dataset)
    place = Place(dataset, period)
    decision = decisions.refuse(settings, place, acting(by, settings.user), recorded(reason, "--reason"))
    output.json({"candidate": decision.candidate, "by": decision.by, "at": decision.at})
    output.print(f"refused by {decision.by}: candidate {decision.candidate}")
    for line in decisions.next_steps(settings, decision):
        output.print(line)


@release_app.command("withdraw")
@command
def release_withdraw(
    release: Annotated[str, typer.Argument(help="Id of the release, as `dpsynth release list` shows it.")],
    reason: Annotated[
        str, typer.Option(help="Why, in one sentence; it is published, kept for ever, and must hold no data.")
    ],
    by: Annotated[str | None, typer.Option("--as", help="Who withdraws; default: DPSYNTH_USER or the login.")] = None,
    as_json: Json = False,
) -> None:
    """Withdraws a published release for ever: its rows are deleted, its dossier stays beside a signed tombstone.

    What it cost stays spent. Copies that others made are beyond reach. Repeat the command if it was interrupted.
    """
    from dpsynth_platform.reviewing.withdrawing import withdraw

    output = TerminalOutput(as_json)
    settings = Settings.from_environment()
    done = withdraw(settings, release, acting(by, settings.user), recorded(reason, "--reason"))
    output.json(done.to_json())
    output.print(f"{', '.join(done.paths)}: withdrawn by {done.by} at {moment(done.at)} ({done.reason})")
    output.print("its rows are deleted" if done.deleted else "its rows were deleted before")
    for warning in done.warnings:
        print(warning, file=sys.stderr)


@release_app.command("verify")
@command
def release_verify(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RELEASE...", help="Directory of a release, its id, or a dataset (its newest release)."),
    ],
    public_key: Annotated[
        Path | None, typer.Option(help="The publisher's key (PEM); default: this deployment's, if it has one.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="An export of the publisher's ledger, in which the releases' heads must stand.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verifies published releases offline: signature, every byte, schema, table, and the ledger heads that they name.

    Several are also held against one another: their heads must be of one chain. With --json, a list if several. Exit
    status 4: all is as it was signed, but a release was withdrawn.
    """
    from dpsynth_platform.release.verify import exit_status
    from dpsynth_platform.reviewing import verification

    output = TerminalOutput(as_json)
    reports = verification.verify_all(Settings.from_environment(), names, public_key, ledger)
    output.json([report.to_json() for report in reports] if len(reports) > 1 else reports[0].to_json())
    for report in reports:
        own = report.ok and public_key is None and report.key_trusted
        note = f"Signed by this deployment's own key (fingerprint {report.key_fingerprint})." if own else None
        if report.ok:
            output.print(report.words_with(note))
    damaged = [report.words_with(None) for report in reports if not report.ok]
    if damaged and not as_json:
        raise VerificationFailed("\n".join(damaged))
    raise typer.Exit(exit_status(reports))


@release_app.command("key")
@command
def release_key(as_json: Json = False) -> None:
    """Prints this deployment's public key (PEM), for those who verify its releases."""
    from dpsynth_platform.reviewing import verification

    output = TerminalOutput(as_json)
    pem, fingerprint = verification.public_key(Settings.from_environment())
    output.json({"public_key": pem, "fingerprint": fingerprint})
    output.print(pem.rstrip())
