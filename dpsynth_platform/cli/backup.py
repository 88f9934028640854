"""`dpsynth backup` and `dpsynth restore`.

What belongs here: arguments and output. What does not: taking and restoring backups (`backup`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import Commands, TerminalOutput
from dpsynth_platform.foundation.errors import VerificationFailed, file_problem
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.ledger.records import Head

backup_app = Commands()


@backup_app.command()
def backup(
    output: TerminalOutput,
    out: Annotated[Path, typer.Option(help="A new directory; it will contain fingerprints of owners (mode 0700).")],
) -> None:
    """Backs up a consistent state of ledger and lineage during operation, and checks the copy. Contains no key."""
    from dpsynth_platform.backup.taking import take

    settings = Settings.from_environment()
    taken = take(settings, out)
    output.json({"backup": str(out), **asdict(taken)})
    output.print(
        f"{out}: {taken.head.sequence} events of the ledger's chain, {taken.entries} entries, {taken.lineage_events} "
        "lineage events; checked as for a restore"
    )
    output.print(
        f"Restricted: it contains fingerprints of owners. It contains no keys: back up {settings.vault} separately"
    )


@backup_app.command()
def restore(
    output: TerminalOutput,
    directory: Annotated[Path, typer.Argument(help="Directory from `dpsynth backup`.")],
    check: Annotated[bool, typer.Option("--check", help="Only check whether it could be restored.")] = False,
    ledger_export: Annotated[
        Path | None,
        typer.Option(help="The latest file from `dpsynth ledger export`: the backup must contain all of it."),
    ] = None,
    at_least: Annotated[
        int,
        typer.Option(
            help="Number of events of the chain, by the last value of the metric dpsynth_ledger_events.", min=0
        ),
    ] = 0,
    public_key: Annotated[
        Path | None, typer.Option(help="The deployment's public key (PEM), where its vault is lost.")
    ] = None,
) -> None:
    """Restores a backup of ledger and lineage where there is no ledger, unless evidence shows that it is too old."""
    from dpsynth_platform.backup import restoring
    from dpsynth_platform.ledger.words import whole_words

    settings = Settings.from_environment()
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
    output.print("Nothing was written: --check" if check else "Restored as the deployment's ledger and lineage")
    for family in found.frozen:
        output.print(f"The vault lacks the fingerprint keys of family {family}: frozen until they are restored")
    output.print(
        f"No evidence here is later than the backup. Spending after {found.manifest.taken_at} that left no record, "
        "notice, lineage event or release cannot be detected: if a run may have started since, use a later backup"
    )


def _key(path: Path | None) -> bytes | None:
    try:
        return None if path is None else read_regular(path)
    except OSError as error:
        raise VerificationFailed(f"{path}: the key cannot be read: {file_problem(error)}") from None


def _head(export: Path | None) -> list[Head]:
    from dpsynth_platform.ledger.records import Head
    from dpsynth_platform.release.heads import KnownChain

    if export is None:
        return []
    hashes = KnownChain.of_export(export).hashes
    return [Head(last, hashes[last]) for last in [max(hashes, default=0)] if last]
