"""`dpsynth lineage`: the graph, its producers and receivers, declarations about it, and clearance forecasts.

What belongs here: arguments and output. What does not: the graph itself (`lineage`), its texts (`lineage.words`) and
verdicts (`lineage.clearance`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpsynth_platform.cli.terminal import BLOCKED, By, Commands, Period, Reason, TerminalOutput
from dpsynth_platform.foundation.errors import ConfigurationError, LineageRefused
from dpsynth_platform.foundation.figures import moment, number_of
from dpsynth_platform.foundation.people import acting, recorded
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage.naming import without_secrets

if TYPE_CHECKING:
    from dpsynth_platform.ledger.records import Decision
    from dpsynth_platform.lineage.naming import DatasetName
    from dpsynth_platform.lineage.nodes import Node
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.lineage.uses import Contamination

CONTAMINATED = 5
_MOST_NAMES = 30

lineage_app = Commands(no_args_is_help=True, help="Lineage: origins, descendants, producers of events, contamination.")


@lineage_app.command("show")
def show(
    output: TerminalOutput,
    dataset: Annotated[
        str | None, typer.Option(help="A dataset with a contract (for its source table), or a dataset's name or path.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="A release: its id, name or path.")] = None,
    model: Annotated[str | None, typer.Option(help="A model or checkpoint: its name or path.")] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="With --release: what is kept to check further privacy loss (restricted parts by reference).",
        ),
    ] = False,
) -> None:
    """Ancestors, descendants and uses of a dataset, release or model."""
    from dpsynth_platform.lineage import uses, words
    from dpsynth_platform.lineage.records import SyntheticRecord
    from dpsynth_platform.reviewing import accounts

    settings = Settings.from_environment()
    if sum(item is not None for item in (dataset, release, model)) != 1 or (record and release is None):
        raise typer.BadParameter("name one of --dataset, --release and --model; --record goes with --release")
    store = _store(settings)
    if release is not None:
        node = store.release(release)
    else:
        node = _data(settings, store, dataset) if dataset is not None else _one(store, str(model), models=True)
    above, below = store.ancestry([node.name]), store.descent([node.name])
    declared, used = store.public(node.name), uses.registered(store, node) if node.kind == "release" else []
    withdrawn = _withdrawal(settings, node)
    foreign, distrusts = store.foreign_events(node.name), store.distrusts(node.name)
    found: dict[str, Any] = words.node_json(node) | {
        "upstream": words.walk_json(above),
        "downstream": words.walk_json(below),
        "unknown": [without_secrets(str(name)) for name in above.unknown],
        "declared_public": None if declared is None else asdict(declared),
        "uses": [without_secrets(asdict(use)) for use in used],
        "withdrawn": None if withdrawn is None else asdict(withdrawn),
        "told_by_others": [{"event": item.sequence, "source": item.source} for item in foreign],
        "distrusted": [asdict(item) for item in distrusts],
    }
    if record:
        found["record"] = SyntheticRecord.of(store, accounts.ledger(settings), node.name).to_json()
    output.json(found)
    output.print(words.node_words(node))
    if withdrawn is not None:
        output.print(words.withdrawn_words(withdrawn))
    for other in words.other_names(above, node):
        output.print(f"also called {other}")
    if declared is not None:
        output.print(f"declared public by {declared.by} at {moment(declared.at)}: {declared.reason}")
    for heading, walk in (("Ancestors", above), ("Descendants", below)):
        output.heading(heading)
        lines = list(words.tree(walk))
        for line in lines or ["  none in the graph"]:
            output.print(line)
    for name in above.unknown:
        output.print(
            f"unknown: the origin of {without_secrets(str(name))} is not recorded, and it was not declared public"
        )
    for line in words.unverified_source_lines(foreign):
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


@lineage_app.command("impact")
def impact(
    output: TerminalOutput,
    dataset: Annotated[
        str, typer.Option(help="A dataset with a contract (for its source table), or a dataset's or release's name.")
    ],
    column: Annotated[str | None, typer.Option(help="A column of it; without one, the whole dataset.")] = None,
) -> None:
    """Everything that is drawn from a column: columns, tables, models and releases after it, nearest first."""
    from dpsynth_platform.lineage import column_walks, words

    settings = Settings.from_environment()
    store = _store(settings)
    node = _data(settings, store, dataset)
    known = column_walks.columns_of(node.facets)
    if column is not None and known and column not in known:
        some = ", ".join(list(known)[:_MOST_NAMES]) + (", ..." if len(known) > _MOST_NAMES else "")
        raise LineageRefused(f"{without_secrets(str(node.name))} has no column {column!r}; accepted: {some}")
    found = column_walks.impact(store, node.name, column, lambda item: item.facets)
    rows = [] if found is None else words.impact_rows(found)
    output.json({"name": without_secrets(str(node.name)), "column": column, "drawn": rows})
    if not rows:
        output.print(f"{without_secrets(str(node.name))}: nothing in the graph is drawn from it")
        return
    output.table(
        ("dataset", "column", "kind", "values", "original values", "steps", "how"),
        [
            (
                row["name"],
                row["column"] or "(the whole)",
                row["kind"],
                *words.impact_words(row),
                row["steps"],
                row["how"],
            )
            for row in rows
        ],
    )


@lineage_app.command("check")
def check(
    output: TerminalOutput,
    dataset: Annotated[str, typer.Option(help="The dataset: its contract's file name without the suffix.")],
    period: Period = None,
    base_model: Annotated[
        str | None, typer.Option(help="The checkpoint that training would start from: a name, a path or a release.")
    ] = None,
) -> None:
    """Shows earlier releases that a run would add to, by public facts alone, and the guarantee of all. Spends nothing.

    Exit status 3 where the run would not be cleared. With `on_overlap: block` a run may still be refused: only the run
    itself sees whether an owner took part before.
    """
    from dpsynth_platform.reviewing.forecasts import clearance_forecast

    if base_model is not None and not base_model.strip():
        raise ConfigurationError("--base-model is empty; accepted: a name or a path")
    cleared, entry = clearance_forecast(Settings.from_environment(), dataset, period, base_model)
    output.json(cleared.to_json() | {"entry": None if entry is None else entry.entry_id})
    for sentence in cleared.words:
        output.print(sentence)
    if entry is not None:
        output.print(
            f"That is the clearance of the run against what was before it. Ledger entry {entry.entry_id} "
            f"({entry.state}) belongs to the run itself: it is charged to the family {entry.family}, once, and "
            "counts for every later run."
        )
    if cleared.findings:
        output.table(
            ("finding", "entry", "family", "dataset", "path"),
            [
                (item.kind, item.entry or "", item.family or "", item.place or "", " -> ".join(item.path))
                for item in cleared.findings
            ],
        )
    if cleared.decision == "refuse":
        raise typer.Exit(BLOCKED)


@lineage_app.command("use")
def use(
    output: TerminalOutput,
    release: Annotated[str, typer.Option(help="The release: its id, name or path.")],
    purpose: Annotated[Literal["train", "evaluate", "other"], typer.Option(help="What it was used for.")],
    reason: Reason,
    product: Annotated[str, typer.Option(help="What was trained or evaluated on it: an own name, path or URI.")] = "",
    by: By = None,
) -> None:
    """Registers a use of a release; what is trained on it then descends from it in the graph."""
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.lineage.words import withdrawn_words

    settings = Settings.from_environment()
    if purpose != "other" and not product:
        raise typer.BadParameter("--product is missing: what was trained or evaluated on the release")
    store = _store(settings)
    done = store.use(
        release,
        by=acting(by, settings.user),
        purpose=purpose,
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
    for item in found:
        output.print(item.words)


@lineage_app.command("contamination")
def contamination(
    output: TerminalOutput,
    product: Annotated[str, typer.Option(help="A model, or another product of releases: its name or path.")],
    on: Annotated[
        list[str] | None,
        typer.Option(help="A dataset, table or release for its evaluation, in addition to the registered ones."),
    ] = None,
) -> None:
    """Checks whether a product is evaluated on the origin of its synthetic training data, or weighs data twice.

    Exit status 5 if so, so that a pipeline can stop.
    """
    settings = Settings.from_environment()
    store = _store(settings)
    named = _one(store, product)
    found = _contaminations(settings, store, named.name, [_data(settings, store, item).name for item in on or []])
    output.json(without_secrets({"product": str(named.name), "contamination": [item.to_json() for item in found]}))
    for item in found:
        output.print(without_secrets(item.words))
    if found:
        raise typer.Exit(CONTAMINATED)
    output.print(f"{without_secrets(str(named.name))}: no contamination in the graph")


@lineage_app.command("declare-public")
def declare_public(
    output: TerminalOutput,
    model: Annotated[str, typer.Argument(help="A checkpoint or dataset of other origin: its name, path or URI.")],
    reason: Reason,
    by: By = None,
) -> None:
    """Declares in the ledger's chain that a checkpoint or dataset of other origin contains no protected person's data.

    The public statement of each release that starts from it contains your name and the reason.
    """
    from dpsynth_platform.lineage.naming import is_place
    from dpsynth_platform.lineage.survey import model_name

    settings = Settings.from_environment()
    store = _store(settings)
    recorded(model, "MODEL")
    found = [] if is_place(model) else store.find(model)  # another node of the same name is not the file at a path
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
        output.print(f"event {done.sequence} of the ledger already declares this: nothing is recorded")
        return
    output.print(f"event {done.sequence} of the ledger: {done.by} declares {name} public")
    if not known:
        output.print(f"no lineage event names it yet: the declaration holds for exactly the name {name}")
    if before is not None:
        output.print(f"{before.by} declared it public before, at {moment(before.at)}; statements name the latest one")
    output.print("its ancestors in the graph still count; a declaration withdraws nothing")


@lineage_app.command("distrust")
def distrust(
    output: TerminalOutput,
    event: Annotated[int, typer.Argument(help="Number of an event of another producer (dpsynth lineage show).", min=1)],
    reason: Reason,
    by: By = None,
) -> None:
    """Revokes a wrong event of another producer, with the rest of its run, by a record in the ledger's chain.

    The event stays stored, and its content is ignored. Earlier releases and clearances stay as they are.
    """
    settings = Settings.from_environment()
    done = _store(settings).distrust(event, by=acting(by, settings.user), reason=recorded(reason, "--reason"))
    output.json(asdict(done))
    output.print(
        f"event {done.sequence} of the ledger: {done.by} distrusts lineage event {event} of the producer "
        f"{done.source}, and all events of its run up to event {done.through}"
    )
    output.print("what is unknown without it must be reported again, or declared public")


@lineage_app.command("status")
def status(output: TerminalOutput) -> None:
    """Shows which recorded events reached their receivers, wait or were refused. Exit status 1 if there is an alert."""
    from dpsynth_platform.lineage import outbox
    from dpsynth_platform.lineage.emitter import LineageEmitter

    settings = Settings.from_environment()
    delivery = LineageEmitter.of(settings).status()
    refused, alerts = outbox.refusals(_store(settings)), delivery.alerts()
    output.json(asdict(delivery) | {"refusals": [asdict(item) for item in refused], "alerts": list(alerts)})
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
            for item in delivery.targets
        ],
    )
    output.print(f"{delivery.spooled} events wait for the database; {delivery.unrecorded} could not be recorded")
    for event in refused:
        output.print(f"{event.target} refused event {event.sequence}, {event.kind} of {event.job}: {event.reason}")
    for alert in alerts:
        output.print(alert)
    if alerts:
        raise typer.Exit(1)


@lineage_app.command("flush")
def flush(
    output: TerminalOutput,
    give_up: Annotated[
        str | None,
        typer.Option(help="A receiver that will not return: events that wait for it then count as refused."),
    ] = None,
) -> None:
    """Delivers all waiting events now, without waiting for the next retry. Exit status 1 if a delivery fails."""
    from dpsynth_platform.lineage import outbox
    from dpsynth_platform.lineage.emitter import LineageEmitter

    settings = Settings.from_environment()
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
def ingest(
    output: TerminalOutput,
    file: Annotated[Path, typer.Argument(help="One OpenLineage event, a list of events, or one event on each line.")],
    source: Annotated[str, typer.Option(help="Short name of the producer of the events.")],
) -> None:
    """Records another producer's events; known events change nothing. Exit status 1 if an event is refused."""
    from dpsynth_platform.lineage import ingest as ingestion

    store = _store(Settings.from_environment())
    outcomes = []
    for outcome in ingestion.record_file(store, file, ingestion.producer_name(source)):
        outcomes.append(outcome)
        if not outcome.accepted:
            output.print(f"{outcome.place} {outcome.number}: {outcome.state}: {outcome.reason}")
    counts = {state: sum(item.state == state for item in outcomes) for state in ("recorded", "known")}
    refused = [asdict(item) for item in outcomes if not item.accepted]
    output.json(counts | {"refused": refused})
    output.print(f"{counts['recorded']} recorded, {counts['known']} known before, {len(refused)} refused")
    if refused:
        raise typer.Exit(1)


@lineage_app.command("serve")
def serve(
    output: TerminalOutput,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other addresses than this machine's need tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.", min=0, max=65535)] = 5000,
) -> None:
    """Receives the events of other producers (POST /api/v1/lineage) until it is stopped."""
    from dpsynth_platform.lineage import server
    from dpsynth_platform.lineage.producers import load_producers

    settings = Settings.from_environment()
    producers = load_producers(settings.lineage_tokens) if settings.lineage_tokens else ()
    listening = server.listen(host, port, producers)
    app = server.application(_store(settings), producers)
    url = f"http://{host}:{listening.getsockname()[1]}"
    senders = f"holders of {len(producers)} tokens" if producers else "every process of this machine"
    output.json({"url": url, "tokens": len(producers)})
    output.print(f"receiving lineage at {url}{server.PATH} from {senders}; stop with Ctrl-C")
    server.serve(listening, app)


@lineage_app.command("token")
def token(
    output: TerminalOutput,
    producer: Annotated[str, typer.Argument(help="Short name of the producer that will use it.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Revoke the producer's earlier tokens; otherwise they stay valid.")
    ] = False,
) -> None:
    """Makes a token for a producer, shows it once, and adds its hash to the file in DPSYNTH_LINEAGE_TOKENS."""
    from dpsynth_platform.lineage.producers import add_token

    file = Settings.from_environment().lineage_tokens
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
        f"{file} contains its hash; the token itself is not stored. The receiver reads the file when it starts"
    )
    if made.earlier:
        count = number_of(made.earlier, "earlier token")
        still_valid = f"still valid; --replace revokes (or delete the lines in {file})"
        output.print(f"{count} of {producer}: {'revoked' if replace else still_valid}")


def _withdrawal(settings: Settings, node: Node) -> Decision | None:
    from dpsynth_platform.ledger import Ledger

    release = node.facets.get("version", {}).get("datasetVersion") if node.kind == "release" else None
    if release is None:
        return None
    return next((item for item in Ledger(settings.ledger_url).withdrawals() if item.release == release), None)


def _store(settings: Settings) -> LineageStore:
    from dpsynth_platform.lineage.store import LineageStore

    return LineageStore(settings.ledger_url)


def _data(settings: Settings, store: LineageStore, text: str) -> Node:
    """The source table of a dataset with a contract, or the node of that name."""
    from dpsynth_platform.lineage.naming import dataset_name
    from dpsynth_platform.synth.planning import load_dataset

    if not os.path.lexists(settings.contracts / f"{text}.yaml"):
        return _one(store, text)
    contract, _ = load_dataset(settings, text)
    return _one(store, str(dataset_name(contract.source.place)))


def _one(store: LineageStore, text: str, *, models: bool = False) -> Node:
    """The only node with that name. Raises `LineageRefused`."""
    from dpsynth_platform.lineage.nodes import MODELS

    named = store.find(text)
    found = [node for node in named if not models or node.kind in MODELS]
    if not found and named:
        raise LineageRefused(
            f"the lineage graph contains {text!r} as a {named[0].kind}: no event declares it a model (facet "
            f"datasetType: MODEL); accepted: --{'release' if named[0].kind == 'release' else 'dataset'} {text}"
        )
    if not found:
        kind = "model" if models else "dataset, model or release"
        raise LineageRefused(
            f"the lineage graph contains no {kind} {text!r}; accepted: a name from an event, as name, NAMESPACE:NAME, "
            "path, URI or release id"
        )
    if len(found) > 1:
        raise _several(text, found)
    return found[0]


def _several(text: str, found: list[Node]) -> LineageRefused:
    names = ", ".join(without_secrets(str(node.name)) for node in found)
    return LineageRefused(f"{text!r} is ambiguous; accepted: one of {names}")


def _contaminations(
    settings: Settings, store: LineageStore, product: DatasetName, on: list[DatasetName]
) -> list[Contamination]:
    from dpsynth_platform.ledger import Ledger
    from dpsynth_platform.lineage.naming import dataset_name
    from dpsynth_platform.lineage.uses import Families, contaminations
    from dpsynth_platform.synth.planning import load_all

    contracts, _ = load_all(settings)
    families = Families(
        tables={dataset_name(contract.source.place): contract.family for contract, _ in contracts},
        entries={entry.entry_id: entry.family for entry in Ledger(settings.ledger_url).entries()},
    )
    return contaminations(store, product, families, on=on)
