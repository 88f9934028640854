"""Commands about release candidates and releases: review, decide, verify.

What belongs here: arguments and output of `dpsynth release`. What does not: what they show and record (`reviewing`),
and the evidence of a release (`release`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.terminal import By, Commands, Dataset, Period, Reason, TerminalOutput
from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.settings import Settings

release_app = Commands(no_args_is_help=True, help="Release candidates and releases: review, decide, verify.")


@release_app.command("list")
def release_list(output: TerminalOutput) -> None:
    """Lists candidates that wait for a decision, and published releases."""
    from dpsynth_platform.reviewing import releases

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
def release_show(output: TerminalOutput, dataset: Dataset, period: Period = None) -> None:
    """Shows a candidate to its reviewer: guarantee, audit, quality, approvals; and its whole dossier (restricted)."""
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.reviewing import decisions
    from dpsynth_platform.reviewing.review_text import review_text

    review = decisions.review(Settings.from_environment(), Place(dataset, period))
    output.json(review.to_json())
    review_text(output, review)


@release_app.command("approve")
def release_approve(
    output: TerminalOutput,
    dataset: Dataset,
    period: Period = None,
    by: By = None,
    reason: Reason = "",
    after_withdrawal: Annotated[
        bool,
        typer.Option("--after-withdrawal", help="Confirms an approval of content whose release was withdrawn before."),
    ] = False,
) -> None:
    """Records an approval of exactly this content, and publishes it if no further approval is needed.

    Refused from a person who ran one of its steps or withdrew a release of it, and where other evidence is missing.
    """
    from dpsynth_platform.definitions import build_definitions
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.operations.operating import publish_if_approved
    from dpsynth_platform.reviewing import decisions
    from dpsynth_platform.synth.planning import load_dataset

    settings = Settings.from_environment()
    place = Place(dataset, period)
    load_dataset(settings, dataset)
    who, why = acting(by, settings.user), recorded(reason, "--reason", optional=True)
    decision = decisions.approve(settings, place, who, why, after_withdrawal=after_withdrawal)
    output.print(f"approved by {decision.by}: candidate {decision.candidate}")
    outcome = publish_if_approved(settings, place, output.print, in_process=build_definitions)
    output.json({"candidate": decision.candidate, "by": decision.by, "at": decision.at} | outcome.to_json())
    for line in outcome.next_steps:
        output.print(line)
    if outcome.failures:
        output.print_failures(outcome.failures)
        raise typer.Exit(1)


@release_app.command("refuse")
def release_refuse(
    output: TerminalOutput,
    dataset: Dataset,
    reason: Reason,
    period: Period = None,
    by: By = None,
) -> None:
    """Records a refusal of this content, whatever its description; a later approval revokes it.

    Published content cannot be refused: `dpsynth release withdraw` withdraws it.
    """
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.reviewing import decisions
    from dpsynth_platform.synth.planning import load_dataset

    settings = Settings.from_environment()
    load_dataset(settings, dataset)
    place = Place(dataset, period)
    decision = decisions.refuse(settings, place, acting(by, settings.user), recorded(reason, "--reason"))
    output.json({"candidate": decision.candidate, "by": decision.by, "at": decision.at})
    output.print(f"refused by {decision.by}: candidate {decision.candidate}")
    for line in decisions.next_steps(settings, decision):
        output.print(line)


@release_app.command("withdraw")
def release_withdraw(
    output: TerminalOutput,
    release: Annotated[str, typer.Argument(help="Id of the release, as `dpsynth release list` shows it.")],
    reason: Annotated[
        str, typer.Option(help="Why, in one sentence; published and kept forever, so it must contain no data.")
    ],
    by: By = None,
) -> None:
    """Withdraws a published release forever: deletes its rows, keeps its dossier and adds a signed tombstone.

    Its cost stays spent. Copies that others made remain. Repeat the command if it was interrupted.
    """
    from dpsynth_platform.reviewing.withdrawing import withdraw

    settings = Settings.from_environment()
    done = withdraw(settings, release, acting(by, settings.user), recorded(reason, "--reason"))
    output.json(done.to_json())
    output.print(f"{', '.join(done.paths)}: withdrawn by {done.by} at {moment(done.at)} ({done.reason})")
    output.print("its rows are deleted" if done.deleted else "its rows were deleted before")
    for warning in done.warnings:
        print(warning, file=sys.stderr)


@release_app.command("verify")
def release_verify(
    output: TerminalOutput,
    names: Annotated[
        list[str],
        typer.Argument(metavar="RELEASE...", help="Directory of a release, its id, or a dataset (its newest release)."),
    ],
    public_key: Annotated[
        Path | None, typer.Option(help="The publisher's key (PEM); default: this deployment's, if it has one.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="An export of the publisher's ledger, which must contain the releases' ledger heads."),
    ] = None,
) -> None:
    """Verifies published releases offline: signature, every byte, schema, table, and the ledger heads that they name.

    The ledger heads of several releases must belong to one chain; --json then prints a list. Exit status 4: everything
    is as signed, but a release was withdrawn.
    """
    from dpsynth_platform.release.verify import exit_status
    from dpsynth_platform.reviewing import verification

    reports = verification.verify_all(Settings.from_environment(), names, public_key, ledger)
    output.json([report.to_json() for report in reports] if len(reports) > 1 else reports[0].to_json())
    for report in reports:
        own = report.ok and public_key is None and report.key_trusted
        note = f"Signed by this deployment's own key (fingerprint {report.key_fingerprint})." if own else None
        if report.ok:
            output.print(report.words_with(note))
    damaged = [report.words_with(None) for report in reports if not report.ok]
    if damaged and not output.as_json:
        raise VerificationFailed("\n".join(damaged))
    raise typer.Exit(exit_status(reports))


@release_app.command("count")
def release_count(
    output: TerminalOutput,
    name: Annotated[
        str,
        typer.Argument(metavar="RELEASE", help="Directory of a release, its id, or a dataset (its newest release)."),
    ],
    where: Annotated[
        str, typer.Argument(help="Conditions as after WHERE, joined by AND: \"age >= 40 AND sex = 'f'\".")
    ],
    confidence: Annotated[
        float, typer.Option(help="Of the limits of one question; for k questions, 1 - (1 - confidence) / k.")
    ] = 0.95,
    public_key: Annotated[
        Path | None, typer.Option(help="The publisher's key (PEM); default: this deployment's, if it has one.")
    ] = None,
) -> None:
    """Says how many of the rows that a mechanism counted fulfil conditions, with limits, by its noisy counts. Free.

    These are the source's rows after bounding, with canaries. The release is verified first. What was never counted
    together has an upper limit at most.
    """
    from dpsynth_platform.release.row_counts import counted
    from dpsynth_platform.release.table import read_release
    from dpsynth_platform.reviewing import verification

    report = verification.verify(Settings.from_environment(), name, public_key)
    report.raise_for_problems()
    if report.withdrawn is not None:
        raise VerificationFailed(str(report))
    found = counted(*read_release(report.path), where, confidence)
    output.json(found.to_json())
    output.print(str(found))


@release_app.command("key")
def release_key(output: TerminalOutput) -> None:
    """Prints this deployment's public key (PEM), which verifies its releases."""
    from dpsynth_platform.reviewing import verification

    pem, fingerprint = verification.public_key(Settings.from_environment())
    output.json({"public_key": pem, "fingerprint": fingerprint})
    output.print(pem.rstrip())
