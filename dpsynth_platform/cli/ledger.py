"""`dpsynth ledger`: accounts, their history, and the commands of the budget's authority and of auditors.

What belongs here: arguments, files, and showing what the ledger answers. What does not: deciding (`ledger`).
`check-export` needs no deployment: auditors run it anywhere.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.cli.terminal import By, Commands, Reason, TerminalOutput
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError, file_problem
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.privacy.guarantee import WEAK_DELTA

if TYPE_CHECKING:
    from dpsynth_platform.ledger.export import ExportReport
    from dpsynth_platform.ledger.records import Head

ledger_app = Commands(no_args_is_help=True, help="The privacy budget: what was spent, what is left.")

Family = Annotated[str, typer.Argument(help="The family that owns the cap.")]


@ledger_app.command("show")
def ledger_show(output: TerminalOutput) -> None:
    """Accounts with their caps, remaining budget and entries."""
    from dpsynth_platform.ledger.words import change_words
    from dpsynth_platform.reviewing import accounts

    listing = accounts.listing(Settings.from_environment())
    output.json(listing)
    if not listing:
        output.print("There is no account yet; the first run of a dataset opens the account of its family.")
    for account in listing:
        output.heading(f"{account['family']} ({account['mode']})")
        cap = account["cap"]
        output.print(f"cap: epsilon {cap['epsilon']:g}, delta {cap['delta']:g}")
        for sentence in account["left_in_words"]:
            output.print(sentence)
        for asked in account["raises_asked"]:
            output.print(
                f"event {asked['event']}: {asked['by']} asks for {change_words(asked['was'], asked['cap'])} "
                f"({asked['reason']}); another person approves it with: dpsynth ledger approve-raise "
                f"{account['family']} {asked['event']}"
            )
        output.table(
            ("entry", "dataset", "epsilon", "delta", "state", "since", "pays for"),
            [
                (
                    item["entry_id"],
                    item["place"],
                    f"{item['epsilon']:g}",
                    upper_bound(item["delta"]),
                    item["state"],
                    item["since"],
                    "a learned bound" if item["purpose"] == "bound" else "a release",
                )
                for item in account["entries"]
            ],
        )


@ledger_app.command("history")
def ledger_history(output: TerminalOutput) -> None:
    """Every event of the ledger's hash chain, oldest first."""
    from dpsynth_platform.ledger.words import SHORT, in_words
    from dpsynth_platform.reviewing import accounts

    events = accounts.ledger(Settings.from_environment()).history()
    output.json([asdict(event) for event in events])
    output.table(
        ("#", "at (UTC)", "event", "about", "by", "words", "hash"),
        [
            (event.sequence, event.at[:19], event.kind, event.subject, by, words, event.hash[:SHORT])
            for event, (by, words) in zip(events, in_words(events), strict=True)
        ],
    )


@ledger_app.command("verify")
def ledger_verify(output: TerminalOutput) -> None:
    """Recomputes the hash chain and everything that follows from it."""
    from dpsynth_platform.ledger.words import broken_words, whole_words
    from dpsynth_platform.reviewing import verification

    report = verification.verify_ledger(Settings.from_environment())
    output.json({"ok": report.ok} | asdict(report))
    for problem in report.problems:
        output.print(problem)
    if not report.ok:
        output.print(broken_words(report.events, report.entries))
        raise typer.Exit(1)
    output.print(whole_words(report.events, report.entries, report.last_at, report.dossiers))


@ledger_app.command("raise")
def ask_raise(
    output: TerminalOutput,
    family: Family,
    epsilon: Annotated[float, typer.Option(help="The new cap's epsilon, for life.")],
    delta: Annotated[float, typer.Option(help="The new cap's delta, for life.")],
    reason: Reason,
    accept_weak_guarantee: Annotated[
        str | None,
        typer.Option(help=f"Why the cap may be above epsilon {WEAK_EPSILON:g}, or its delta {WEAK_DELTA:g} or more."),
    ] = None,
    by: By = None,
) -> None:
    """Asks for a larger cap; it holds once another person approves it and the family's file declares it."""
    from dpsynth_platform.reviewing import raises

    settings = Settings.from_environment()
    accepted = accept_weak_guarantee
    event = raises.ask(
        settings,
        family,
        epsilon=epsilon,
        delta=delta,
        by=acting(by, settings.user),
        reason=recorded(reason, "--reason"),
        accept_weak=None if accepted is None else recorded(accepted, "--accept-weak-guarantee"),
    )
    output.json({"family": family, "asked": event.sequence} | event.payload)
    output.print(f"event {event.sequence}: {event.payload['by']} asks for epsilon {epsilon:g}, delta {delta:g}")
    output.print(f"another person approves it with: dpsynth ledger approve-raise {family} {event.sequence}")


@ledger_app.command("approve-raise")
def approve_raise(
    output: TerminalOutput,
    family: Family,
    asked: Annotated[int, typer.Argument(help="Number of the event that asks for the raise.")],
    by: By = None,
    reason: Reason = "",
) -> None:
    """Raises a cap as another person asked; from then on the family's file must declare it."""
    from dpsynth_platform.reviewing import raises

    settings = Settings.from_environment()
    words = recorded(reason, "--reason", optional=True)
    account = raises.approve(settings, family, asked, by=acting(by, settings.user), reason=words)
    file = settings.families / f"{family}.yaml"
    output.json({"family": family, "cap": {"epsilon": account.epsilon, "delta": account.delta}, "file": str(file)})
    output.print(f"the cap of {family} is epsilon {account.epsilon:g}, delta {account.delta:g}")
    output.print(f"runs are refused until {file} declares: cap: {{epsilon: {account.epsilon}, delta: {account.delta}}}")


@ledger_app.command("void")
def void(
    output: TerminalOutput,
    entry: Annotated[str, typer.Argument(help="Id of a ledger entry that is reserved but not started.")],
    reason: Reason,
    by: By = None,
) -> None:
    """Withdraws a reservation, so that it charges no owner; a started entry is never refunded."""
    from dpsynth_platform.reviewing import accounts

    settings = Settings.from_environment()
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    store = accounts.ledger(settings)
    was_void = store.entry(entry).state == "void"
    found = store.void(entry, why, by=who)
    output.json({"entry": entry, "dataset": found.request.place, "state": found.state, "reason": found.void_reason})
    output.print(
        f"entry {entry} of {found.request.place} {'was void already' if was_void else 'is void; nothing was spent'}"
    )


@ledger_app.command("rotate-key")
def rotate_key(
    output: TerminalOutput,
    namespace: Annotated[str, typer.Argument(help="The identity namespace, as family files name it.")],
    reason: Reason,
    by: By = None,
) -> None:
    """Adds a fingerprint key and moves all accounts of a namespace to it; no owner's spend changes."""
    from dpsynth_platform.foundation.storage import Storage
    from dpsynth_platform.lifecycle import owner_keys
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.secrets.vault import Vault

    settings = Settings.from_environment()
    done = owner_keys.rotate(
        Vault(settings.vault),
        accounts.ledger(settings),
        Storage(settings.restricted),
        namespace,
        by=acting(by, settings.user),
        reason=recorded(reason, "--reason"),
    )
    output.json(
        {
            "namespace": namespace,
            "key_id": done.key_id,
            "families": [event.subject for event in done.events],
            "events": [event.sequence for event in done.events],
            "erased": done.still_held is None,
            "still_held": done.still_held,
            "outdated": [place.label for place in done.outdated],
        }
    )
    output.print(f"namespace {namespace}: from now on, owners are fingerprinted with key {done.key_id}")
    for event in done.events:
        output.print(f"  family {event.subject}: event {event.sequence}; every owner's spend is unchanged")
    for place in done.outdated:
        output.print(f"  {place.label}/scrubbed is outdated; renew it with: dpsynth run {place.arguments}")
    if done.still_held is not None:
        output.print(f"  The earlier fingerprints are not deleted yet: {done.still_held}")
    output.print(
        f"Back up {settings.vault} now: the accounts depend on the new key and on all earlier keys. Backups of ledger "
        "and tables still contain the earlier fingerprints"
    )


@ledger_app.command("export")
def export(
    output: TerminalOutput,
    file: Annotated[Path, typer.Argument(help="File to write; an existing file is not replaced.")],
) -> None:
    """Writes a signed export of the ledger for an auditor: chain, accounts and entries; nothing about owners."""
    from dpsynth_platform.foundation.signature import fingerprint
    from dpsynth_platform.ledger.export import sign_export
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.secrets.vault import Vault

    settings = Settings.from_environment()
    content = accounts.ledger(settings).export()
    key = Vault(settings.vault).signing_key()
    document = sign_export(content, key)
    _write_new(file, document)
    name = fingerprint(key.public_key())
    output.json({"file": str(file), "head": document["head"], "key_fingerprint": name})
    output.print(f"{file}: {len(document['events'])} events; its head is {document['head']['hash']}")
    output.print(f"signed by key {name}; the auditor gets it from: dpsynth release key")


@ledger_app.command("owners")
def owners(
    output: TerminalOutput,
    family: Annotated[str, typer.Argument(help="A family of mode per-owner.")],
    file: Annotated[
        Path,
        typer.Argument(
            help="A new file in the restricted zone, DPSYNTH_HOME/restricted; only you may read it (mode 0600)."
        ),
    ],
) -> None:
    """Writes the remaining budget of single owners: the least, the distribution, the classes. Restricted."""
    from dpsynth_platform.reviewing import accounts

    settings = Settings.from_environment()
    if not file.resolve().is_relative_to(settings.restricted):
        raise ConfigurationError(
            f"{file}: the remaining budget of single owners is restricted; accepted: a file below {settings.restricted}"
        )
    _write_new(file, accounts.ledger(settings).owner_spending(family).to_json())
    output.json({"family": family, "file": str(file)})
    output.print(f"{file}: restricted; it names no owner, but allows conclusions about who took part")


@ledger_app.command("check-export")
def check_export(
    output: TerminalOutput,
    file: Annotated[Path, typer.Argument(help="File from `dpsynth ledger export`.")],
    dossier: Annotated[
        list[Path] | None,
        typer.Option(help="A release's directory, or its dossier.json, whose ledger head must be in the chain."),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="The deployment's public key (PEM), received over another channel.")
    ] = None,
) -> None:
    """Verifies an export offline; exit status 1 if it finds a problem."""
    from dpsynth_platform.ledger.export import verify_export
    from dpsynth_platform.ledger.words import broken_words, whole_words

    key = None if public_key is None else _text(public_key).encode()
    text, heads = _text(file), [_head(path / "dossier.json" if path.is_dir() else path) for path in dossier or []]
    report = verify_export(text, heads, key)
    output.json(asdict(report) | {"ok": report.ok})
    for problem in report.problems:
        output.print(problem)
    for family in report.unchecked:
        output.print(f"family {family}: its cap holds for each owner; only `dpsynth ledger verify` can check that")
    output.print(_signer(report))
    if not heads:
        output.print("without --dossier, a chain whose end was cut off is not detected")
    if not report.ok:
        output.print(broken_words(report.events, report.entries))
        raise typer.Exit(1)
    output.print(whole_words(report.events, report.entries, report.last_at, len(heads)))


def _signer(report: ExportReport) -> str:
    if report.key_fingerprint is None:
        return "no signature that could be checked: anyone can have written this export"
    if report.key_trusted:
        return f"checked with your key {report.key_fingerprint}"
    return (
        f"checked with key {report.key_fingerprint}, which the export itself names: compare it with the deployment's "
        "key, or name that with --public-key"
    )


def _write_new(file: Path, document: dict[str, Any]) -> None:
    """Writes a new file that only this user may read."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists and is not replaced; name another file") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {file_problem(error)}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(document, out, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _text(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {file_problem(error)}") from None


def _head(path: Path) -> Head:
    from dpsynth_platform.ledger.records import Head

    try:
        head = json.loads(_text(path))["ledger"]["head"]
        return Head(int(head["sequence"]), str(head["hash"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError(
            f"{path}: not a dossier with a ledger head; accepted: a release's directory, or its dossier.json"
        ) from None
