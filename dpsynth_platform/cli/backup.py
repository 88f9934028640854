"""`dpsynth backup` and `dpsynth restore`.

What belongs here: arguments and words. What does not: the doing (`backup`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import Json, TerminalOutput, command
from dpsynth_platform.foundation.errors import VerificationFailed, file_problem
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.ledger.records import Head

backup_app = typer.Typer()


@backup_app.command()
@command
def backup(
    out: Annotated[Path, typer.Option(help="A new directory; it will hold fingerprints of owners (mode 0700).")],
    as_json: Json = False,
) -> None:
    """Backs up ledger and lineage of one moment, while others go on, and checks what was written. Holds no key."""
    from dpsynth_platform.backup.taking import take

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    taken = take(settings, out)
    output.json({"backup": str(out), **asdict(taken)})
    output.print(
        f"{out}: {taken.head.sequence} events of the ledger's chain, {taken.entries} entries, {taken.lineage_events} "
        "lineage events; whole, as it would be restored"
    )
    output.print(
        f"Restricted: it holds fingerprints of owners. The keys are not in it: back up {settings.vault} elsewhere"
    )


@backup_app.command()
@command
def restore(
    directory: Annotated[Path, typer.Argument(help="What `dpsynth backup` wrote.")],
    check: Annotated[bool, typer.Option("--check", help="Only say whether it would be put back.")] = False,
    ledger_export: Annotated[
        Path | None, typer.Option(help="What `dpsynth ledger export` wrote last: the backup must know all of it.")
    ] = None,
    at_least: Annotated[
        int, typer.Option(help="How many events the chain had, as the metric dpsynth_ledger_events said last.", min=0)
    ] = 0,
    public_key: Annotated[
        Path | None, typer.Option(help="The deployment's public key (PEM), where its vault is lost.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Puts a backup of ledger and lineage back, where there is no ledger, unless anything proves that it is too old."""
    from dpsynth_platform.backup import restoring
    from dpsynth_platform.ledger.words import whole_words

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    act = restoring.check if check else restoring.restore
    found = act(settings, directory, public_key=_key(public_key), known=_head(ledger_export), at_least=at_least)
    report = found.report
    output.json(
        {
            "restored": not check,
            "manifest": asdict(found.manifest),
            "dossiers": report.dossiers,
            "frozen": found.frozen,
        }
    )
    output.print(f"{directory}: {whole_words(report.events, report.entries, report.last_at, report.dossiers)}")
    output.print("Nothing was written: --check" if check else "It is the deployment's ledger and lineage now")
    for family in found.frozen:
        output.print(f"The vault lacks the fingerprint keys of family {family}: frozen until they are put back")
    output.print(
        f"Nothing that survives here is later. What was spent after {found.manifest.taken_at} and left no record, "
        "notice, lineage event or release cannot be known: if a run may have started since, look for a later backup"
    )


def _key(path: Path | None) -> bytes | None:
    try:
        return None if path is None else read_regular(path)
    except OSError as error:
        raise VerificationFailed(f"{path}: the key cannot be read: {file_problem(error)}") from None


def _head(export: Path | None) -> list[Head]:
    """The last link of an export."""
    from dpsynth_platform.ledger.records import Head
    from dpsynth_platform.release.heads import KnownChain

    if export is None:
        return []
    hashes = KnownChain.of_export(export).hashes
    return [Head(last, hashes[last]) for last in [max(hashes, default=0)] if last]
