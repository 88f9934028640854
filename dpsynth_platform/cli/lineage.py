"""`dpsynth lineage`: the graph, who reports to it, and what is said of it.

What belongs here: arguments and words. What does not: the graph itself (`lineage`), and how it reads (`lineage_words`).

Exit status of `contamination`: 5 where something was found, so that a pipeline can stop there.
"""

from __future__ import annotations

import enum
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.cli.clearance import clearance_app
from dpsynth_platform.cli.terminal import Json, TerminalOutput, command
from dpsynth_platform.foundation.errors import ConfigurationError, LineageRefused
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.ledger.records import Decision
    from dpsynth_platform.lineage.naming import DatasetName
    from dpsynth_platform.lineage.nodes import Node
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.lineage.uses import Contamination

CONTAMINATED = 5

lineage_app = typer.Typer(no_args_is_help=True, help="Lineage: what came of what, who reports it, and what follows.")
lineage_app.add_typer(clearance_app)

By = Annotated[str | None, typer.Option("--as", help="Who says so; default: DPSYNTH_USER or the login.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the record.")]


class Purpose(enum.StrEnum):
    """What a release is used for."""

    train = "train"
    evaluate = "evaluate"
    other = "other"


@lineage_app.command("show")
@command
def show(
    dataset: Annotated[
        str | None, typer.Option(help="A dataset's contract (its source table), or a dataset's name or path.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="A release: its id, name or path.")] = None,
    model: Annotated[str | None, typer.Option(help="A model or checkpoint: its name or path.")] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="With --release: what is kept to check for further loss (restricted parts by reference)."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """What something came from, what came of it, and what it was used for."""
    from dpsynth_platform.lineage import uses
    from dpsynth_platform.lineage import words as words

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    if sum(item is not None for item in (dataset, release, model)) != 1 or (record and release is None):
        raise typer.BadParameter("name one of --dataset, --release and --model; --record goes with --release")
    store = _store(settings)
    node = _node(settings, store, dataset, release, model)
    above, below = store.ancestry([node.name]), store.descent([node.name])
    declared, used = store.public(node.name), uses.registered(store, node) if node.kind == "release" else []
    withdrawn = _withdrawal(settings, node)
    foreign, distrusts = store.foreign_events(node.name), store.distrusts(node.name)
    found: dict[str, Any] = words.node_json(node) | {
        "upstream": words.walk_json(above),
        "downstream": words.walk_json(below),
        "unknown": [str(name) for name in above.unknown],
        "declared_public": None if declared is None else asdict(declared),
        "uses": [asdict(use) for use in used],
        "withdrawn": None if withdrawn is None else asdict(withdrawn),
        "told_by_others": [{"event": item.sequence, "source": item.source} for item in foreign],
        "distrusted": [asdict(item) for item in distrusts],
    }
    if record:
        found["record"] = _record(settings, store, node)
    output.json(found)
    output.print(words.node_words(node))
    if withdrawn is not None:
        output.print(words.withdrawn_words(withdrawn))
    for other in words.other_names(above, node):
        output.print(f"also called {other}")
    if declared is not None:
        output.print(f"declared public by {declared.by} at {moment(declared.at)}: {declared.reason}")
    for heading, walk in (("It came from", above), ("What came of it", below)):
        output.heading(heading)
        lines = list(words.tree(walk))
        for line in lines or ["  nothing that the graph knows of"]:
            output.print(line)
    for name in above.unknown:
        output.print(f"unknown: nobody has told what {name} was made from, and nobody declared it public")
    for line in words.foreign_words(foreign):
        output.print(line)
    for item in distrusts:
        output.print(words.distrust_words(item))
    if node.kind == "release":
        output.heading("Registered uses")
        for use in used:
            output.print(words.use_words(use))
        if not used:
            output.print("  none; register one with: dpsynth lineage use")
    if record:
        output.heading("Records")
        output.print(json.dumps(found["record"], indent=2, ensure_ascii=False))


@lineage_app.command("use")
@command
def use(
    release: Annotated[str, typer.Option(help="The release: its id, name or path.")],
    purpose: Annotated[Purpose, typer.Option(help="What it was used for.")],
    reason: Reason,
    product: Annotated[
        str, typer.Option(help="What was trained, or evaluated, on it: a name of its own, path or URI.")
    ] = "",
    by: By = None,
    as_json: Json = False,
) -> None:
    """Registers that a release was used elsewhere; what is trained on it descends from it from then on."""
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.lineage.words import withdrawn_words

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    if purpose is not Purpose.other and not product:
        raise typer.BadParameter("--product: what was trained, or evaluated, on the release")
    store = _store(settings)
    done = store.use(
        release,
        by=acting(by, settings.user),
        purpose=purpose.value,
        product=recorded(product, "--product", optional=True),
        reason=recorded(reason, "--reason"),
    )
    report = LineageEmitter.of(settings).flush()
    found = _contaminations(settings, store, done.product, []) if done.product is not None else []
    withdrawn = _withdrawal(settings, store.release(done.release))
    output.json(
        {
            "withdrawn": None if withdrawn is None else asdict(withdrawn),
            "event": done.event,
            "release": str(done.release),
            "purpose": done.purpose,
            "product": None if done.product is None else str(done.product),
            "contamination": [item.to_json() for item in found],
        }
    )
    output.print(f"event {done.event}: {done.release} is used to {done.purpose} {done.product or 'something unnamed'}")
    if withdrawn is not None:
        output.print(withdrawn_words(withdrawn))
    for warning in report.warnings:
        output.print(warning)
    _say_found(output, found)


@lineage_app.command("contamination")
@command
def contamination(
    product: Annotated[str, typer.Option(help="A model, or whatever was made of releases: its name or path.")],
    on: Annotated[
        list[str] | None,
        typer.Option(help="A dataset, table or release that it is to be evaluated on, beside those registered."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Whether a product is evaluated on data that its synthetic training data came from, or weighs data twice.

    Exit status 5 if so.
    """
    output, settings = TerminalOutput(as_json), Settings.from_environment()
    store = _store(settings)
    named = _one(store, product)
    found = _contaminations(settings, store, named.name, [_data(settings, store, item).name for item in on or []])
    output.json({"product": str(named.name), "contamination": [item.to_json() for item in found]})
    _say_found(output, found)
    if found:
        raise typer.Exit(CONTAMINATED)
    output.print(f"{named.name}: nothing that the graph knows of contaminates it")


@lineage_app.command("declare-public")
@command
def declare_public(
    model: Annotated[str, typer.Argument(help="A checkpoint or dataset of others: its name, path or URI.")],
    reason: Reason,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Puts your word into the ledger's chain that no guarded person's data is in something that others made.

    Your name and the reason stand in the public statement of each release that starts from it.
    """
    from dpsynth_platform.lineage.naming import is_place
    from dpsynth_platform.lineage.survey import model_name

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    store = _store(settings)
    recorded(model, "MODEL")
    found = [] if is_place(model) else store.find(model)  # what is called so elsewhere is not what is there
    if len(found) > 1:
        raise _several(model, found)
    name = found[0].name if found else model_name(model)
    known, before = store.node(name) is not None, store.public(name)
    done = store.declare_public(name, by=acting(by, settings.user), reason=recorded(reason, "--reason"))
    new = before is None or before.sequence != done.sequence
    output.json(
        {"name": str(name), "by": done.by, "reason": done.reason, "at": done.at, "event": done.sequence}
        | {"known": known, "new": new}
    )
    if not new:
        output.print(f"event {done.sequence} of the ledger says so already: nothing is recorded")
        return
    output.print(f"event {done.sequence} of the ledger: {done.by} declares {name} public")
    if not known:
        output.print(f"no lineage event has named it so far: the declaration is for exactly this name, {name}")
    if before is not None:
        output.print(f"{before.by} declared it public before, at {moment(before.at)}; statements name the latest word")
    output.print("what the graph knows that it was made from still counts; a declaration takes nothing back")


@lineage_app.command("distrust")
@command
def distrust(
    event: Annotated[int, typer.Argument(help="Number of an event of another producer (dpsynth lineage show).", min=1)],
    reason: Reason,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Takes a mistaken event of another producer back, by your word in the ledger's chain, with the rest of its run.

    It stays stored, and its content is ignored. Releases and clearances that were made under it stay as they are.
    """
    output, settings = TerminalOutput(as_json), Settings.from_environment()
    done = _store(settings).distrust(event, by=acting(by, settings.user), reason=recorded(reason, "--reason"))
    output.json(asdict(done))
    output.print(
        f"event {done.sequence} of the ledger: {done.by} distrusts lineage event {event} of the producer "
        f"{done.source}, and what else its run told up to event {done.through}"
    )
    output.print("what is unknown without it has to be told anew, or declared public")


@lineage_app.command("status")
@command
def status(as_json: Json = False) -> None:
    """Whether every recorded event reached its receivers, and what waits or was refused. Exit status 1 if it alerts."""
    from dpsynth_platform.lineage import outbox
    from dpsynth_platform.lineage.emitter import LineageEmitter

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    standing = LineageEmitter.of(settings).status()
    refused, alerts = outbox.refusals(_store(settings)), standing.alerts()
    output.json(asdict(standing) | {"refusals": [asdict(item) for item in refused], "alerts": list(alerts)})
    output.table(
        ("receiver", "delivered", "refused", "waiting", "since (UTC)", "tried", "next (UTC)"),
        [
            (
                item.target,
                item.delivered,
                item.refused,
                item.waiting,
                (item.waiting_since or "")[:19],
                item.attempts,
                (item.next_at or "")[:19],
            )
            for item in standing.targets
        ],
    )
    output.print(f"{standing.spooled} events wait for the database; {standing.unrecorded} could not be recorded")
    for event in refused:
        output.print(f"{event.target} refused event {event.sequence}, {event.kind} of {event.job}: {event.reason}")
    for alert in alerts:
        output.print(alert)
    if alerts:
        raise typer.Exit(1)


@lineage_app.command("flush")
@command
def flush(
    give_up: Annotated[
        str | None,
        typer.Option(help="A receiver that is gone for good: what waits for it counts as refused from now on."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Delivers now what waits for its receivers, whatever pause they were given. Exit status 1 if any of it fails."""
    from dpsynth_platform.lineage import outbox
    from dpsynth_platform.lineage.emitter import LineageEmitter

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    given_up = 0
    if give_up is not None:
        store = _store(settings)
        known = [item.target for item in outbox.status(store)]
        if give_up not in known:
            raise ConfigurationError(f"--give-up {give_up!r}; accepted: {', '.join(known) or 'no receiver yet'}")
        given_up = outbox.give_up(store, give_up)
    report = LineageEmitter.of(settings).flush()
    output.json({"delivered": report.delivered, "given_up": given_up, "warnings": report.warnings})
    for target, count in report.delivered.items():
        output.print(f"{target}: {count} delivered")
    if give_up is not None:
        output.print(f"{give_up}: {given_up} given up")
    for warning in report.warnings:
        output.print(warning)
    if report.warnings:
        raise typer.Exit(1)


@lineage_app.command("ingest")
@command
def ingest(
    file: Annotated[Path, typer.Argument(help="One OpenLineage event, a list of events, or one event on each line.")],
    source: Annotated[str, typer.Option(help="The producer whose events they are, by a short name.")],
    as_json: Json = False,
) -> None:
    """Takes in another producer's events; what is known already changes nothing. Exit status 1 if any is refused."""
    from dpsynth_platform.lineage import ingest as taking

    output, store = TerminalOutput(as_json), _store(Settings.from_environment())
    outcomes = []
    for outcome in taking.take_file(store, file, taking.producer_name(source)):
        outcomes.append(outcome)
        if not outcome.taken:
            output.print(f"{outcome.place} {outcome.number}: {outcome.state}: {outcome.reason}")
    counts = {state: sum(item.state == state for item in outcomes) for state in ("recorded", "known")}
    refused = [asdict(item) for item in outcomes if not item.taken]
    output.json(counts | {"refused": refused})
    output.print(f"{counts['recorded']} recorded, {counts['known']} known before, {len(refused)} refused")
    if refused:
        raise typer.Exit(1)


@lineage_app.command("serve")
@command
def serve(
    host: Annotated[str, typer.Option(help="Address; other than this machine's only with tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 5000,
    as_json: Json = False,
) -> None:
    """Receives the events of other producers (POST /api/v1/lineage) until it is stopped."""
    from dpsynth_platform.lineage import server
    from dpsynth_platform.lineage.producers import load_producers

    output, settings = TerminalOutput(as_json), Settings.from_environment()
    producers = load_producers(settings.lineage_tokens) if settings.lineage_tokens else ()
    listening = server.listen(host, port, producers)
    app = server.application(_store(settings), producers)
    url = f"http://{host}:{listening.getsockname()[1]}"
    who = f"{len(producers)} tokens" if producers else "whoever is on this machine"
    output.json({"url": url, "tokens": len(producers)})
    output.print(f"receiving lineage at {url}{server.PATH} from {who}; stop with Ctrl-C")
    server.serve(listening, app)


@lineage_app.command("token")
@command
def token(
    producer: Annotated[str, typer.Argument(help="Who will report with it, by a short name.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the producer's earlier tokens out; else they count beside it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Makes a token for a producer, shows it once, and adds its hash to the file that DPSYNTH_LINEAGE_TOKENS names."""
    from dpsynth_platform.lineage.producers import add_token

    output, file = TerminalOutput(as_json), Settings.from_environment().lineage_tokens
    if file is None:
        raise ConfigurationError("DPSYNTH_LINEAGE_TOKENS is not set; accepted: the path of the file of tokens")
    made = add_token(file, producer, replace=replace)
    output.json(
        {
            "producer": producer,
            "token": made.token,
            "file": str(file),
            "earlier_tokens": made.earlier,
            "replaced": replace and made.earlier > 0,
        }
    )
    output.print(made.token)
    output.print(
        f"its hash stands in {file}; the token itself is kept nowhere. The receiver reads the file when it starts"
    )
    if made.earlier:
        count = number_of(made.earlier, "earlier token")
        fate = (
            "are taken out" if replace else f"still count; --replace takes them out (or delete their lines in {file})"
        )
        output.print(f"{count} of {producer} {fate}")


def _withdrawal(settings: Settings, node: Node) -> Decision | None:
    """The withdrawal of a release, or None."""
    from dpsynth_platform.ledger import Ledger

    release = node.facets.get("version", {}).get("datasetVersion") if node.kind == "release" else None
    if release is None:
        return None
    return next((item for item in Ledger(settings.ledger_url).withdrawals() if item.release == release), None)


def _store(settings: Settings) -> LineageStore:
    from dpsynth_platform.lineage.store import LineageStore

    return LineageStore(settings.ledger_url)


def _node(settings: Settings, store: LineageStore, dataset: str | None, release: str | None, model: str | None) -> Node:
    if release is not None:
        return store.release(release)
    return _data(settings, store, dataset) if dataset is not None else _one(store, str(model), models=True)


def _data(settings: Settings, store: LineageStore, text: str) -> Node:
    """The source table of a dataset of ours, or what else is called so."""
    from dpsynth_platform.lineage.naming import dataset_name
    from dpsynth_platform.synth.planning import load_dataset

    if not os.path.lexists(settings.contracts / f"{text}.yaml"):
        return _one(store, text)
    contract, _ = load_dataset(settings, text)
    return _one(store, str(dataset_name(contract.source.uri)))


def _one(store: LineageStore, text: str, *, models: bool = False) -> Node:
    """The one node that people call so. Raises `LineageRefused`."""
    from dpsynth_platform.lineage.nodes import MODELS

    named = store.find(text)
    found = [node for node in named if not models or node.kind in MODELS]
    if not found and named:
        raise LineageRefused(
            f"the lineage graph knows {text!r} as a {named[0].kind}: nobody said that it is a model (by the facet "
            f"datasetType, MODEL); accepted: --{'release' if named[0].kind == 'release' else 'dataset'} {text}"
        )
    if not found:
        kind = "model" if models else "dataset, model or release"
        raise LineageRefused(
            f"the lineage graph knows no {kind} {text!r}; accepted: what some event has named, by name, "
            "NAMESPACE:NAME, path, URI or a release's id"
        )
    if len(found) > 1:
        raise _several(text, found)
    return found[0]


def _several(text: str, found: list[Node]) -> LineageRefused:
    return LineageRefused(f"{text!r} names several; accepted: one of {', '.join(str(node.name) for node in found)}")


def _record(settings: Settings, store: LineageStore, release: Node) -> dict[str, Any]:
    from dpsynth_platform.lineage.records import SyntheticRecord
    from dpsynth_platform.reviewing import accounts

    return SyntheticRecord.of(store, accounts.ledger(settings), release.name).to_json()


def _contaminations(
    settings: Settings, store: LineageStore, product: DatasetName, on: list[DatasetName]
) -> list[Contamination]:
    from dpsynth_platform.ledger import Ledger
    from dpsynth_platform.lineage.naming import dataset_name
    from dpsynth_platform.lineage.uses import Families, contaminations
    from dpsynth_platform.synth.planning import load_all

    contracts, _ = load_all(settings)
    families = Families(
        tables={dataset_name(contract.source.uri): contract.family for contract, _ in contracts},
        entries={entry.entry_id: entry.family for entry in Ledger(settings.ledger_url).entries()},
    )
    return contaminations(store, product, families, on=on)


def _say_found(output: TerminalOutput, found: list[Contamination]) -> None:
    for item in found:
        output.print(item.words)
