"""`dpsynth ledger raise|approve-raise|rotate-key|owners|export|check-export`: the budget's authority and its auditors.

What belongs here: arguments, files, and showing what the ledger answers. What does not: deciding (`ledger`). The
command line adds `authority_app` to its `ledger` group. `check-export` needs no deployment: auditors run it anywhere.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.errors import ConfigurationError, LedgerError
from dpsynth_platform.settings import Settings
from dpsynth_platform.terminal import Json, Shown, command

if TYPE_CHECKING:
    from dpsynth_platform.ledger.export import ExportReport
    from dpsynth_platform.ledger.records import Head

authority_app = typer.Typer()

Family = Annotated[str, typer.Argument(help="The family whose cap it is.")]
By = Annotated[str | None, typer.Option("--as", help="Who says so; default: DPSYNTH_USER or the login.")]
Reason = Annotated[str, typer.Option(help="Free words, kept in the ledger.")]


@authority_app.command("raise")
@command
def ask_raise(
    family: Family,
    epsilon: Annotated[float, typer.Option(help="The new cap's epsilon, for life.")],
    delta: Annotated[float, typer.Option(help="The new cap's delta, for life.")],
    by: By = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Asks for a larger cap; nothing changes before somebody else approves."""
    from dpsynth_platform.ledger.store import Ledger

    shown, settings = Shown(as_json), Settings.from_environment()
    event = Ledger(settings.ledger_url).ask_raise(
        family, epsilon=epsilon, delta=delta, by=by or settings.user, reason=reason
    )
    shown.json({"family": family, "asked": event.sequence} | event.payload)
    shown.say(f"event {event.sequence}: {event.payload['by']} asks for epsilon {epsilon:g}, delta {delta:g}")
    shown.say(f"somebody else approves it with: dpsynth ledger approve-raise {family} {event.sequence}")


@authority_app.command("approve-raise")
@command
def approve_raise(
    family: Family,
    asked: Annotated[int, typer.Argument(help="Number of the event that asks for the raise.")],
    by: By = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Raises a cap as somebody else asked; from then on the family's file must declare it."""
    from dpsynth_platform.ledger.store import Ledger

    shown, settings = Shown(as_json), Settings.from_environment()
    account = Ledger(settings.ledger_url).approve_raise(family, asked, by=by or settings.user, reason=reason)
    shown.json({"family": family, "cap": {"epsilon": account.epsilon, "delta": account.delta}})
    shown.say(
        f"the cap of {family} is epsilon {account.epsilon:g}, delta {account.delta:g}; its file must declare that now"
    )


@authority_app.command("rotate-key")
@command
def rotate_key(
    namespace: Annotated[str, typer.Argument(help="The identity namespace, as family files name it.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the ledger.")],
    by: By = None,
    as_json: Json = False,
) -> None:
    """Adds a fingerprint key and carries all accounts of a namespace over to it; nobody's spend changes."""
    from dpsynth_platform import owner_keys, reviewing
    from dpsynth_platform.storage import Storage
    from dpsynth_platform.vault import Vault

    shown, settings = Shown(as_json), Settings.from_environment()
    done = owner_keys.rotate(
        Vault(settings.vault),
        reviewing.ledger(settings),
        Storage(settings.restricted),
        namespace,
        by=by or settings.user,
        reason=reason,
    )
    shown.json(
        {
            "namespace": namespace,
            "key_id": done.key_id,
            "families": [event.subject for event in done.events],
            "events": [event.sequence for event in done.events],
            "outdated": [place.label for place in done.outdated],
        }
    )
    shown.say(f"namespace {namespace}: owners are fingerprinted under key {done.key_id} from now on")
    for event in done.events:
        shown.say(f"  family {event.subject}: event {event.sequence}; everybody keeps what they were charged")
    for place in done.outdated:
        shown.say(f"  {place.label}/scrubbed is outdated; made anew by: dpsynth run {place.arguments}")
    shown.say(
        f"Back up {settings.vault} now: the accounts depend on the new key, and on all before it. Backups of ledger "
        "and tables still hold the fingerprints as they were"
    )


@authority_app.command("export")
@command
def export(
    file: Annotated[Path, typer.Argument(help="Where to write it; a file that is there is not replaced.")],
    as_json: Json = False,
) -> None:
    """Writes the ledger for an auditor, signed: chain, accounts and entries; nothing of owners."""
    from dpsynth_platform.ledger.export import sign_export
    from dpsynth_platform.ledger.store import Ledger
    from dpsynth_platform.release.signature import fingerprint
    from dpsynth_platform.vault import Vault

    shown, settings = Shown(as_json), Settings.from_environment()
    key = Vault(settings.vault).signing_key()
    document = sign_export(Ledger(settings.ledger_url).export(), key)
    _write_new(file, document)
    name = fingerprint(key.public_key())
    shown.json({"file": str(file), "head": document["head"], "key_fingerprint": name})
    shown.say(f"{file}: {len(document['events'])} events; its head is {document['head']['hash']}")
    shown.say(f"signed by key {name}; the auditor gets it from: dpsynth release key")


@authority_app.command("owners")
@command
def owners(
    family: Annotated[str, typer.Argument(help="A family of mode per-owner.")],
    file: Annotated[Path, typer.Argument(help="Where to write it; a file that is there is not replaced.")],
    as_json: Json = False,
) -> None:
    """Writes what single owners have left: the worst, the distribution, the classes. Restricted."""
    from dpsynth_platform import reviewing

    shown = Shown(as_json)
    _write_new(file, reviewing.ledger(Settings.from_environment()).owner_spending(family).to_json())
    shown.json({"family": family, "file": str(file)})
    shown.say(f"{file}: for those who may see restricted numbers only; nobody is named, and who took part shows in it")


@authority_app.command("check-export")
@command
def check_export(
    file: Annotated[Path, typer.Argument(help="What `dpsynth ledger export` wrote.")],
    dossier: Annotated[
        list[Path] | None, typer.Option(help="A published dossier.json whose ledger head must be in the chain.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="The deployment's public key (PEM), got over another channel.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verifies an export offline; exit status 1 if anything does not fit."""
    from dpsynth_platform.ledger.export import verify_export

    shown = Shown(as_json)
    key = None if public_key is None else _text(public_key).encode()
    report = verify_export(_text(file), [_head(path) for path in dossier or []], key)
    shown.json(asdict(report) | {"ok": report.ok})
    for problem in report.problems:
        shown.say(problem)
    for family in report.unchecked:
        shown.say(f"family {family}: its cap holds owner by owner; only `dpsynth ledger verify` can check that")
    shown.say(_signer(report))
    shown.say(f"{report.events} events, {report.entries} entries: {'whole' if report.ok else 'NOT as it was written'}")
    if not report.ok:
        raise typer.Exit(1)


def _signer(report: ExportReport) -> str:
    if report.key_fingerprint is None:
        return "no signature that could be checked: anybody can have written this"
    if report.key_trusted:
        return f"held against your key {report.key_fingerprint}"
    return (
        f"held against key {report.key_fingerprint}, which the export itself names: compare it with the deployment's, "
        "or give that with --public-key"
    )


def _write_new(file: Path, document: dict[str, Any]) -> None:
    """Writes a file that nobody else may read, and none over another."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written ({type(error).__name__})") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(document, out, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({type(error).__name__})") from None


def _head(path: Path) -> Head:
    from dpsynth_platform.ledger.records import Head

    try:
        head = json.loads(_text(path))["ledger"]["head"]
        return Head(int(head["sequence"]), str(head["hash"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError(f"{path}: no dossier with a ledger head") from None
