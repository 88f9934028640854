"""`dpsynth purge`, `dpsynth hold add|list|remove`, `dpsynth owner fingerprint|readmit`: deleting on request, or not.

What belongs here: arguments, standard input, and showing what the library returns. What does not: what is due
(`retention`), deleting (`purging`), holds (`holds`), and the list of erased owners (`erasure`).

Ids of people come on standard input only: arguments stay in a shell's history and are seen by others of the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_platform.cli.terminal import Json, Period, TerminalOutput, command
from dpsynth_platform.foundation.errors import ConfigurationError, NotFound
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.lifecycle.holds import Hold
    from dpsynth_platform.lifecycle.retention import Expired

purge_app = typer.Typer()
hold_app = typer.Typer(no_args_is_help=True, help="Legal holds: outputs that must not be deleted for now.")
owner_app = typer.Typer(no_args_is_help=True, help="Single owners: the fingerprint that they are known by. Restricted.")

By = Annotated[str | None, typer.Option("--as", help="Who says so; default: DPSYNTH_USER or the login.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the ledger for ever, so it names nobody.")]
HeldDataset = Annotated[str, typer.Argument(help="A dataset that has a contract, or outputs.")]
Namespace = Annotated[
    str | None, typer.Option(help="The identity namespace of a fingerprint, where there are several.")
]
_LINES = "-"


@purge_app.command()
@command
def purge(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    owner: Annotated[
        str | None,
        typer.Option(
            help="An erasure request: the owner's fingerprint, or - for one a line on standard input. See: dpsynth "
            "owner fingerprint."
        ),
    ] = None,
    namespace: Namespace = None,
    reason: Annotated[str, typer.Option(help="With --owner: why; kept in the ledger, so it names nobody.")] = "",
    by: By = None,
    as_json: Json = False,
) -> None:
    """Deletes sensitive intermediates (and old logs) that have outlived their retention, and records it.

    With --owner, those besides that may hold the owner's records: whole outputs with rows, of every dataset of the
    identity namespace, which later runs make again without the owner.
    """
    from dpsynth_platform.lifecycle import erasure
    from dpsynth_platform.lifecycle.purging import due_and_held, purge_all
    from dpsynth_platform.synth.planning import load_all

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    if owner is None and (namespace or reason):
        raise ConfigurationError("--namespace, --reason: accepted: with --owner only")
    if owner is not None:
        if dry_run:
            raise ConfigurationError(
                "--dry-run: accepted without --owner; a request deletes every output with rows of its identity "
                "namespace, and every log"
            )
        _erase(settings, owner, namespace, reason, by)
    loaded, faults = load_all(settings)
    for fault in faults:
        print(f"left out: {fault}", file=sys.stderr)
    contracts = [contract for contract, _ in loaded]
    # What cannot be looked at is told by the purge itself.
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
        output.print(f"{item.label}/{item.step} stays: {_words(hold)}")
    if owner is not None:
        output.print(
            "Later runs make the deleted outputs again, without the owner; what a running mechanism reads goes with "
            "the first sweep after its end. What cannot be deleted:"
        )
        for words in erasure.REMAINS:
            output.print(f"  {words}.")
        if kept:
            output.print("A legal hold outweighs the request: what is on hold goes with the first sweep after its end")
    if purged.failed and as_json:  # said above
        raise typer.Exit(1)
    purged.require()


def _erase(settings: Settings, owner: str, namespace: str | None, reason: str, by: str | None) -> None:
    """Records the request; what must go because of it is due from then on, also if this command is cut short."""
    from dpsynth_platform.lifecycle import erasure
    from dpsynth_platform.reviewing import accounts

    owners = erasure.parse_owners(_lines() if owner == _LINES else [owner])
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    store = accounts.ledger(settings)
    account = erasure.account_of(store, namespace)
    erasure.erase(settings.restricted, store, account, owners, by=who, reason=why)


_COLUMNS = ("dataset", "step", "reason", "age")


def _row(item: Expired) -> tuple[str, str, str, str]:
    return item.label, item.step, item.reason, str(item.age).split(".")[0]


def _words(hold: Hold) -> str:
    return f"hold {hold.number} on {hold.place.label} by {hold.by} since {hold.at[:10]}: {hold.reason}"


@hold_app.command("add")
@command
def hold_add(dataset: HeldDataset, reason: Reason, period: Period = None, by: By = None, as_json: Json = False) -> None:
    """Keeps a dataset's outputs (of one period, or of all) from being deleted until the hold is removed."""
    from dpsynth_platform.lifecycle.holds import place_hold
    from dpsynth_platform.reviewing import accounts

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    place, store = _known(settings, dataset, period), accounts.ledger(settings)
    hold = place_hold(store, place, by=acting(by, settings.user), reason=recorded(reason, "--reason"))
    output.json(_as_json(hold))
    output.print(f"{place.label} is on hold ({hold.number}); nothing of it is deleted until: {_way_out(hold)}")


@hold_app.command("list")
@command
def hold_list(as_json: Json = False) -> None:
    """The holds that stand."""
    standing = _standing(Settings.from_environment())
    output = TerminalOutput(as_json)
    output.json([_as_json(hold) for hold in standing])
    output.table(
        ("hold", "dataset", "since (UTC)", "by", "reason"),
        [(hold.number, hold.place.label, hold.at[:19], hold.by, hold.reason) for hold in standing],
    )


@hold_app.command("remove")
@command
def hold_remove(
    dataset: HeldDataset,
    reason: Reason,
    period: Period = None,
    number: Annotated[int | None, typer.Option(help="Which, where several holds stand on the same outputs.")] = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Ends a hold; what is due goes with the next sweep."""
    from dpsynth_platform.foundation.storage import Place
    from dpsynth_platform.lifecycle.holds import lift_hold
    from dpsynth_platform.reviewing import accounts

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    hold = lift_hold(accounts.ledger(settings), Place(dataset, period), by=who, reason=why, number=number)
    left = [other for other in _standing(settings) if other.covers(hold.place)]
    output.json(_as_json(hold) | {"left": [other.number for other in left]})
    output.print(f"hold {hold.number} on {hold.place.label} is removed")
    for other in left:
        output.print(f"still kept: {_words(other)}")


def _standing(settings: Settings) -> Sequence[Hold]:
    from dpsynth_platform.lifecycle.holds import holds
    from dpsynth_platform.reviewing import accounts

    return holds(accounts.ledger(settings)) if settings.has_ledger else []


def _known(settings: Settings, dataset: str, period: str | None) -> Place:
    """A place that there is or can be: a hold on a misspelt one would keep nothing.

    Raises:
        NotFound: there is neither a contract nor an output of the dataset, or no output of the period.
    """
    from dpsynth_platform.foundation.storage import Place, Storage
    from dpsynth_platform.synth.planning import load_all

    places = Storage(settings.restricted).places()
    datasets = {contract.dataset for contract, _ in load_all(settings)[0]} | {place.dataset for place in places}
    if dataset not in datasets:
        raise NotFound(f"dataset {dataset!r}: there is none; accepted: {', '.join(sorted(datasets)) or 'none yet'}")
    periods = sorted(place.period for place in places if place.dataset == dataset and place.period is not None)
    if period is not None and period not in periods:
        raise NotFound(f"{dataset}: period {period!r} has no outputs; accepted: {', '.join(periods) or 'no --period'}")
    return Place(dataset, period)


def _as_json(hold: Hold) -> dict[str, object]:
    return {"number": hold.number, **asdict(hold.place), "by": hold.by, "at": hold.at, "reason": hold.reason}


def _way_out(hold: Hold) -> str:
    return f"dpsynth hold remove {hold.place.arguments} --reason ..."


@owner_app.command("fingerprint")
@command
def owner_fingerprint(
    family: Annotated[str, typer.Argument(help="A family of the identity namespace that the id is of.")],
    as_json: Json = False,
) -> None:
    """Reads ids from standard input, one a line, and writes the fingerprints of their owners. Restricted.

    On a terminal it asks for one id, and what is typed does not show. Whether an owner occurs in any data is neither
    looked up nor shown.
    """
    from dpsynth_platform.lifecycle import owner_keys
    from dpsynth_platform.reviewing import accounts
    from dpsynth_platform.scrub.fingerprints import canonical_text, owner_fingerprint
    from dpsynth_platform.secrets.vault import Vault

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    account = accounts.ledger(settings).account(family)
    keys = owner_keys.keys_in_use(Vault(settings.vault), account)
    texts = [canonical_text(line, account.owner_normalization) for line in _lines("id")]
    found = [owner_fingerprint(text, keys) for text in texts if text is not None]
    if not found:
        raise ConfigurationError("standard input: no id; accepted: ids as the source has them, one a line")
    output.json(found)
    for fingerprint in found:
        output.print(fingerprint)


@owner_app.command("readmit")
@command
def owner_readmit(
    owner: Annotated[str, typer.Argument(help="The owner's fingerprint, or - for one a line on standard input.")],
    reason: Reason,
    namespace: Namespace = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Takes an owner off the list of those who were erased: what is scrubbed from now on holds their records again."""
    from dpsynth_platform.lifecycle import erasure
    from dpsynth_platform.reviewing import accounts

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    owners = erasure.parse_owners(_lines() if owner == _LINES else [owner])
    who, why = acting(by, settings.user), recorded(reason, "--reason")
    store = accounts.ledger(settings)
    account = erasure.account_of(store, namespace)
    erasure.readmit(settings.restricted, store, account, owners, by=who, reason=why)
    output.json({"namespace": account.namespace, "readmitted": len(owners)})
    output.print(
        f"{len(owners)} owners of namespace {account.namespace} take part again in what is scrubbed from now on"
    )


def _lines(asked: str = "fingerprint") -> list[str]:
    """Lines of standard input that are not empty; on a terminal one, which does not show."""
    if sys.stdin.isatty():
        return [typer.prompt(asked, hide_input=True)]
    return [line for line in sys.stdin.read().split("\n") if line]
