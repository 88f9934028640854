"""`dpsynth purge`, `dpsynth hold`, `dpsynth owner`: retention, erasure requests and legal holds.

What belongs here: arguments, standard input, and output. What does not: retention, purging, holds and erasure
(`lifecycle`).

Ids of people come from standard input only: arguments stay in a shell's history, and other users of the machine see
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import By, Commands, Period, Reason, TerminalOutput
from dpsynth_platform.foundation.errors import ConfigurationError, NotFound
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.lifecycle.holds import Hold
    from dpsynth_platform.lifecycle.retention import Expired

purge_app = Commands()
hold_app = Commands(no_args_is_help=True, help="Legal holds: outputs that must not be deleted for now.")
owner_app = Commands(no_args_is_help=True, help="Single owners: their fingerprints, and erased owners. Restricted.")

HeldDataset = Annotated[str, typer.Argument(help="A dataset that has a contract, or outputs.")]
Namespace = Annotated[
    str | None, typer.Option(help="The identity namespace of a fingerprint, where there are several.")
]
_LINES = "-"


@purge_app.command()
def purge(
    output: TerminalOutput,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    owner: Annotated[
        str | None,
        typer.Option(
            help="An erasure request: the owner's fingerprint (see dpsynth owner fingerprint); -: one a line on "
            "standard input."
        ),
    ] = None,
    namespace: Namespace = None,
    reason: Annotated[str, typer.Option(help="With --owner: why; kept forever, so it must name no person.")] = "",
    by: By = None,
) -> None:
    """Deletes sensitive intermediates and old logs whose retention has ended, and records it.

    With --owner, also deletes all outputs that may contain the owner's records: every output with rows, of all datasets
    of the identity namespace. Later runs make them again without the owner.
    """
    from dpsynth_platform.lifecycle import erasure
    from dpsynth_platform.lifecycle.purging import due_and_held, purge_all
    from dpsynth_platform.synth.planning import load_all

    settings = Settings.from_environment()
    if owner is None and (namespace or reason):
        raise ConfigurationError("--namespace, --reason: accepted: with --owner only")
    if owner is not None:
        if dry_run:
            raise ConfigurationError(
                "--dry-run: accepted only without --owner; an erasure request deletes every output with rows of its "
                "identity namespace, and every log"
            )
        # The outputs are due from now on, even if this command is interrupted.
        _record_request(erasure.erase, settings, owner, namespace, reason, by)
    loaded, faults = load_all(settings)
    for fault in faults:
        print(f"left out: {fault}", file=sys.stderr)
    contracts = [contract for contract, _ in loaded]
    # The purge itself reports what cannot be read.
    looked = due_and_held(settings, contracts, onerror=lambda _, __: None)
    kept = [(item, hold) for item, hold in looked if hold is not None]
    purged = purge_all(settings, contracts, dry_run=dry_run)
    rows = [_row(item) for item in purged.deleted]
    output.json(
        {
            "deleted": [dict(zip(_COLUMNS, row, strict=True)) for row in rows],
            "on_hold": [dict(zip(_COLUMNS, _row(item), strict=True)) | {"hold": hold.number} for item, hold in kept],
            "failed": dict(purged.failed),
        }
        | ({} if owner is None else {"remains": list(erasure.REMAINS)})
    )
    output.print(f"{len(rows)} outputs and logs {'would be' if dry_run else 'were'} deleted")
    if rows:
        output.table(("dataset", "step", "why", "age"), rows)
    for item, hold in kept:
        output.print(f"{item.label}/{item.step} is kept: {_describe(hold)}")
    if owner is not None:
        output.print(
            "Later runs make the deleted outputs again, without the owner. Inputs of a running mechanism are deleted "
            "by the first purge after its end. What cannot be deleted:"
        )
        for words in erasure.REMAINS:
            output.print(f"  {words}.")
        if kept:
            output.print("Legal holds have priority: outputs on hold are deleted by the first purge after the hold")
    if purged.failed and output.as_json:  # the JSON lists them
        raise typer.Exit(1)
    purged.require()


def _record_request(
    record: Callable[..., object],
    settings: Settings,
    owner: str,
    namespace: str | None,
    reason: str,
    by: str | None,
) -> tuple[str, int]:
    """Records an erasure or readmission; returns the namespace and the number of owners."""
    from dpsynth_platform.lifecycle import erasure
    from dpsynth_platform.reviewing import accounts

    owners = erasure.parse_owners(_lines() if owner == _LINES else [owner])
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    store = accounts.ledger(settings)
    account = erasure.account_of(store, namespace)
    record(settings.restricted, store, account, owners, by=who, reason=why)
    return account.namespace, len(owners)


_COLUMNS = ("dataset", "step", "reason", "age")


def _row(item: Expired) -> tuple[str, str, str, str]:
    return item.label, item.step, item.reason, str(item.age).split(".")[0]


def _describe(hold: Hold) -> str:
    return f"hold {hold.number} on {hold.place.label} by {hold.by} since {hold.at[:10]}: {hold.reason}"


@hold_app.command("add")
def hold_add(
    output: TerminalOutput, dataset: HeldDataset, reason: Reason, period: Period = None, by: By = None
) -> None:
    """Keeps a dataset's outputs (of one period, or of all) from being deleted until the hold is removed."""
    from dpsynth_platform.lifecycle.holds import place_hold
    from dpsynth_platform.reviewing import accounts

    settings = Settings.from_environment()
    place, store = _known(settings, dataset, period), accounts.ledger(settings)
    hold = place_hold(store, place, by=acting(by, settings.user), reason=recorded(reason, "--reason"))
    output.json(_as_json(hold))
    output.print(
        f"{place.label} is on hold ({hold.number}); its outputs are kept until: "
        f"dpsynth hold remove {hold.place.arguments} --reason ..."
    )


@hold_app.command("list")
def hold_list(output: TerminalOutput) -> None:
    """Lists the active holds."""
    active = _active(Settings.from_environment())
    output.json([_as_json(hold) for hold in active])
    output.table(
        ("hold", "dataset", "since (UTC)", "by", "reason"),
        [(hold.number, hold.place.label, hold.at[:19], hold.by, hold.reason) for hold in active],
    )


@hold_app.command("remove")
def hold_remove(
    output: TerminalOutput,
    dataset: HeldDataset,
    reason: Reason,
    period: Period = None,
    number: Annotated[
        int | None, typer.Option(help="Number of the hold, where several apply to the same outputs.")
    ] = None,
    by: By = None,
) -> None:
    """Ends a hold; outputs that are due are deleted by the next purge."""
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.lifecycle.holds import lift_hold
    from dpsynth_platform.reviewing import accounts

    settings = Settings.from_environment()
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    hold = lift_hold(accounts.ledger(settings), Place(dataset, period), by=who, reason=why, number=number)
    left = [other for other in _active(settings) if other.covers(hold.place)]
    output.json(_as_json(hold) | {"left": [other.number for other in left]})
    output.print(f"hold {hold.number} on {hold.place.label} is removed")
    for other in left:
        output.print(f"still on hold: {_describe(other)}")


def _active(settings: Settings) -> Sequence[Hold]:
    from dpsynth_platform.lifecycle.holds import holds
    from dpsynth_platform.reviewing import accounts

    return holds(accounts.ledger(settings)) if settings.has_ledger else []


def _known(settings: Settings, dataset: str, period: str | None) -> Place:
    """The place of a dataset with a contract or outputs: a hold on a misspelt name would keep nothing."""
    from dpsynth_platform.foundation.storage import Place, Storage
    from dpsynth_platform.synth.planning import load_all

    places = Storage(settings.restricted).places()
    datasets = {contract.dataset for contract, _ in load_all(settings)[0]} | {place.dataset for place in places}
    if dataset not in datasets:
        raise NotFound(f"there is no dataset {dataset!r}; accepted: {', '.join(sorted(datasets)) or 'none yet'}")
    periods = sorted(place.period for place in places if place.dataset == dataset and place.period is not None)
    if period is not None and period not in periods:
        raise NotFound(f"{dataset}: period {period!r} has no outputs; accepted: {', '.join(periods) or 'no --period'}")
    return Place(dataset, period)


def _as_json(hold: Hold) -> dict[str, object]:
    return {"number": hold.number, **asdict(hold.place), "by": hold.by, "at": hold.at, "reason": hold.reason}


@owner_app.command("fingerprint")
def owner_fingerprint(
    output: TerminalOutput,
    family: Annotated[str, typer.Argument(help="A family whose identity namespace the ids belong to.")],
) -> None:
    """Reads ids from standard input, one a line, and prints the fingerprints of their owners. Restricted.

    On a terminal it asks for one id without showing it. It does not look up whether an owner occurs in any data.
    """
    from dpsynth_platform.lifecycle import owner_keys
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.scrub.fingerprints import canonical_text, owner_fingerprint
    from dpsynth_platform.secrets.vault import Vault

    settings = Settings.from_environment()
    account = accounts.ledger(settings).account(family)
    keys = owner_keys.keys_in_use(Vault(settings.vault), account)
    texts = [canonical_text(line, account.owner_normalization) for line in _lines("id")]
    found = [owner_fingerprint(text, keys) for text in texts if text is not None]
    if not found:
        raise ConfigurationError("standard input: no id; accepted: ids as in the source, one a line")
    output.json(found)
    for fingerprint in found:
        output.print(fingerprint)


@owner_app.command("readmit")
def owner_readmit(
    output: TerminalOutput,
    owner: Annotated[str, typer.Argument(help="The owner's fingerprint; -: one a line on standard input.")],
    reason: Reason,
    namespace: Namespace = None,
    by: By = None,
) -> None:
    """Removes an owner from the list of erased owners: later scrubbing keeps their records again."""
    from dpsynth_platform.lifecycle import erasure

    settings = Settings.from_environment()
    known, count = _record_request(erasure.readmit, settings, owner, namespace, reason, by)
    output.json({"namespace": known, "readmitted": count})
    output.print(f"{count} owners of namespace {known} are readmitted: later scrubbing keeps their records")


def _lines(prompt: str = "fingerprint") -> list[str]:
    """Lines of standard input that are not empty; on a terminal one hidden line."""
    if sys.stdin.isatty():
        return [typer.prompt(prompt, hide_input=True)]
    return [line for line in sys.stdin.read().split("\n") if line]
