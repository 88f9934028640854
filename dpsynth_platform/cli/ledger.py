"""`dpsynth ledger raise|approve-raise|void|rotate-key|owners|export|check-export`: the budget's authority and auditors.

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

from dpsynth_platform.cli.terminal import Json, TerminalOutput, command
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.errors import ConfigurationError, LedgerError, file_problem
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.privacy.guarantee import WEAK_DELTA

if TYPE_CHECKING:
    from dpsynth_platform.ledger.export import ExportReport
    from dpsynth_platform.ledger.records import Head

authority_app = typer.Typer()

Family = Annotated[str, typer.Argument(help="The family whose cap it is.")]
By = Annotated[str | None, typer.Option("--as", help="Who says so; default: DPSYNTH_USER or the login.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the ledger.")]


@authority_app.command("raise")
@command
def ask_raise(
    family: Family,
    epsilon: Annotated[float, typer.Option(help="The new cap's epsilon, for life.")],
    delta: Annotated[float, typer.Option(help="The new cap's delta, for life.")],
    reason: Reason,
    accept_weak_guarantee: Annotated[
        str | None,
        typer.Option(help=f"Why the cap may be above epsilon {WEAK_EPSILON:g}, or its delta {WEAK_DELTA:g} or more."),
    ] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Asks for a larger cap; nothing changes before somebody else approves, and the family's file declares it."""
    from dpsynth_platform.reviewing import raises

    output, settings = TerminalOutput(as_json), Settings.from_environment()
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
    output.print(f"somebody else approves it with: dpsynth ledger approve-raise {family} {event.sequence}")


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
    from dpsynth_platform.reviewing import raises

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    words = recorded(reason, "--reason", optional=True)
    account = raises.approve(settings, family, asked, by=acting(by, settings.user), reason=words)
    file = settings.families / f"{family}.yaml"
    output.json({"family": family, "cap": {"epsilon": account.epsilon, "delta": account.delta}, "file": str(file)})
    output.print(f"the cap of {family} is epsilon {account.epsilon:g}, delta {account.delta:g}")
    output.print(
        f"no run is admitted before {file} declares it: cap: {{epsilon: {account.epsilon}, delta: {account.delta}}}"
    )


@authority_app.command("void")
@command
def void(
    entry: Annotated[str, typer.Argument(help="Id of a ledger entry that is reserved and was not started.")],
    reason: Reason,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Withdraws a reservation, so that it charges nobody; what has started is never given back."""
    from dpsynth_platform.reviewing import accounts

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    store = accounts.ledger(settings)
    was_void = store.entry(entry).state == "void"
    found = store.void(entry, why, by=who)
    output.json({"entry": entry, "dataset": found.request.place, "state": found.state, "reason": found.void_reason})
    output.print(
        f"entry {entry} of {found.request.place} {'was void already' if was_void else 'is void; nothing was spent'}"
    )


@authority_app.command("rotate-key")
@command
def rotate_key(
    namespace: Annotated[str, typer.Argument(help="The identity namespace, as family files name it.")],
    reason: Reason,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Adds a fingerprint key and carries all accounts of a namespace over to it; nobody's spend changes."""
    from dpsynth_platform.foundation.storage import Storage
    from dpsynth_platform.lifecycle import owner_keys
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.secrets.vault import Vault

    output, settings = TerminalOutput(as_json), Settings.from_environment()
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
    output.print(f"namespace {namespace}: owners are fingerprinted under key {done.key_id} from now on")
    for event in done.events:
        output.print(f"  family {event.subject}: event {event.sequence}; everybody keeps what they were charged")
    for place in done.outdated:
        output.print(f"  {place.label}/scrubbed is outdated; made anew by: dpsynth run {place.arguments}")
    if done.still_held is not None:
        output.print(f"  The earlier fingerprints are not gone yet: {done.still_held}")
    output.print(
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
    from dpsynth_platform.foundation.signature import fingerprint
    from dpsynth_platform.ledger.export import sign_export
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.secrets.vault import Vault

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    content = accounts.ledger(settings).export()
    key = Vault(settings.vault).signing_key()
    document = sign_export(content, key)
    _write_new(file, document)
    name = fingerprint(key.public_key())
    output.json({"file": str(file), "head": document["head"], "key_fingerprint": name})
    output.print(f"{file}: {len(document['events'])} events; its head is {document['head']['hash']}")
    output.print(f"signed by key {name}; the auditor gets it from: dpsynth release key")


@authority_app.command("owners")
@command
def owners(
    family: Annotated[str, typer.Argument(help="A family of mode per-owner.")],
    file: Annotated[
        Path,
        typer.Argument(
            help="A new file in the restricted zone, DPSYNTH_HOME/restricted; nobody else may read it (mode 0600)."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Writes what single owners have left: the worst, the distribution, the classes. Restricted."""
    from dpsynth_platform.reviewing import accounts

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    if not file.resolve().is_relative_to(settings.restricted):
        raise ConfigurationError(
            f"{file}: what single owners have left is restricted; accepted: a file below {settings.restricted}"
        )
    _write_new(file, accounts.ledger(settings).owner_spending(family).to_json())
    output.json({"family": family, "file": str(file)})
    output.print(
        f"{file}: for those who may see restricted numbers only; nobody is named, and who took part shows in it"
    )


@authority_app.command("check-export")
@command
def check_export(
    file: Annotated[Path, typer.Argument(help="What `dpsynth ledger export` wrote.")],
    dossier: Annotated[
        list[Path] | None,
        typer.Option(help="A release's directory, or its dossier.json, whose ledger head must be in the chain."),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="The deployment's public key (PEM), got over another channel.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verifies an export offline; exit status 1 if anything does not fit."""
    from dpsynth_platform.ledger.export import verify_export
    from dpsynth_platform.ledger.words import broken_words, whole_words

    output = TerminalOutput(as_json)
    key = None if public_key is None else _text(public_key).encode()
    text, heads = _text(file), [_head(path / "dossier.json" if path.is_dir() else path) for path in dossier or []]
    report = verify_export(text, heads, key)
    output.json(asdict(report) | {"ok": report.ok})
    for problem in report.problems:
        output.print(problem)
    for family in report.unchecked:
        output.print(f"family {family}: its cap holds owner by owner; only `dpsynth ledger verify` can check that")
    output.print(_signer(report))
    if not heads:
        output.print("without --dossier it cannot be seen whether the chain's end was cut off")
    if not report.ok:
        output.print(broken_words(report.events, report.entries))
        raise typer.Exit(1)
    output.print(whole_words(report.events, report.entries, report.last_at, len(heads)))


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
    except FileExistsError:
        raise ConfigurationError(f"{file} is there already and is not replaced; name another file") from None
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
        raise LedgerError(f"{path}: no dossier with a ledger head") from None
