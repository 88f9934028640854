"""The stored graph: every lineage event once, and the datasets, models and mechanisms that follow from them.

What belongs here: deciding whether an event is recorded, what it adds to the graph, and queries of the graph. What does
not: the shape of events (`intake`), rows (`graph_rows`), sending events on (`outbox`), and judging results (clearance).

    store = LineageStore(settings.ledger_url)
    store.record(event)                                            # ours: START once, one terminal event, else no-op
    store.record(event, origin="ingested", source="team-search")   # of others
    store.ancestry([name])                                         # everything that it came from, with the paths

Events of other producers can only add findings. They never change or remove what we wrote about our own datasets, and
end no run of ours. A guarantee that they claim counts only if the ledger confirms it. Times are stored, and no decision
uses them: a backdated event changes no relation. Relations hold for all versions of a dataset, since a name that was
once derived from something may still hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.foundation.people import person_key, recorded, recorded_name
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger import rows as ledger_rows
from dpsynth_platform.ledger.database import Database
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.lineage import distrust as distrusting
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage import intake
from dpsynth_platform.lineage.distrust import Distrust
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName, canonical, dataset_name, is_place
from dpsynth_platform.lineage.nodes import (
    LEDGER_NAMESPACE,
    PRODUCT_NAMESPACE,
    Ancestry,
    Declaration,
    Edge,
    Node,
    OpenRun,
    Origin,
    Purpose,
    Recorded,
    StoredEvent,
    Use,
)
from dpsynth_platform.lineage.walks import walk

PURPOSES: tuple[Purpose, ...] = ("train", "evaluate", "other")
_PAGE = 500


class LineageStore:
    """The lineage of a deployment, in the ledger's database at `url`.

    Raises:
        LedgerError: the database cannot be used. Every method raises it if the database is out of reach.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url)

    # Events

    def record(
        self,
        event: Mapping[str, Any],
        *,
        origin: Origin = "own",
        source: str = "",
        targets: Iterable[str] = (),
        as_sent: Mapping[str, Any] | None = None,
    ) -> Recorded:
        """Records an OpenLineage event (run, job or dataset event) durably; the same event again changes nothing.

        A second START or terminal event of our own run is not recorded either.

        Args:
            source: the producer that sent it, for events of others.
            targets: the outbox's receivers.
            as_sent: the event in its sender's spelling, if different: earlier versions recorded that.

        Raises:
            LineageRefused: it is no usable event. Or (`conflict`), from others, it names our jobs or runs, or another
                producer's run, or ends a run a second time.
            LedgerError: the database is out of reach; nothing was recorded.
        """
        arrived = _Arrived.of(event, origin, source, as_sent)
        chosen = tuple(targets)
        return self.database.write(lambda connection: _record(connection, arrived, chosen), guards=("lineage_event",))

    def import_record(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Imports an earlier record of our own events in one transaction, if none of ours is here; returns how many.

        Unusable events are skipped: they were none of ours.
        """
        earlier = []
        for event in events:
            with suppress(LineageRefused):
                earlier.append(_Arrived.of(event, "own", ""))

        def work(connection: Connection) -> int:
            if not rows.has_own(connection):
                return sum(_record(connection, arrived, ()).new for arrived in earlier)
            return 0

        return self.database.write(work, guards=("lineage_event",)) if earlier else 0

    def events(self, *, after: int = 0, run_id: str | None = None) -> Iterator[StoredEvent]:
        """Events after a number, in the order in which they were recorded: of all runs, or of one."""

        def page(after: int) -> list[StoredEvent]:
            return self.database.read(
                lambda connection: rows.events(connection, after=after, run_id=run_id, most=_PAGE)
            )

        return rows.all_pages(page, after)

    def has_own(self) -> bool:
        """Whether an event of ours was ever recorded."""
        return self.database.read(rows.has_own)

    def open_runs(self) -> list[OpenRun]:
        """Our own runs that started and have no terminal event, in the order in which they started."""
        return [OpenRun.of(start) for start in self.database.read(rows.unfinished)]

    # The graph

    def node(self, name: DatasetName) -> Node | None:
        """One node by its exact name, or None."""
        return self.database.read(lambda connection: rows.find_nodes(connection, [name]).get(name))

    def find(self, text: str) -> list[Node]:
        """Nodes by a name that people use: name, `namespace:name`, logical name, path or URI, or a release's id.

        A name that is only a symlink gives its target.
        """
        names = [DatasetName(JOB_NAMESPACE, text), DatasetName(PRODUCT_NAMESPACE, text)]
        if is_place(text):
            names.append(dataset_name(text))
        return self.database.read(lambda connection: rows.search(connection, text, names))

    def containing(self, text: str, *, most: int, accepted: Callable[[Node], bool] = lambda _: True) -> list[Node]:
        """Nodes whose name or namespace contains a text, in any case, newest first; without mere aliases.

        Those that are not `accepted` do not count among `most`, so that nothing tells that there are any.
        """
        return self.database.read(lambda connection: rows.containing(connection, text, most, accepted))

    def described_with(self, text: str, *, most: int) -> list[Node]:
        """Nodes whose facets contain a text, in any case, newest first: in whatever place, so the caller must look.

        A text that is not ASCII gives all nodes that any such text describes.
        """
        return self.database.read(lambda connection: rows.described_with(connection, text, most))

    def jobs(
        self, text: str, *, most: int, accepted: Callable[[DatasetName], bool] = lambda _: True
    ) -> list[tuple[DatasetName, list[Node]]]:
        """Jobs whose name contains a text, in any case, last active first, with what the last complete run wrote.

        Those that are not `accepted` do not count among `most`.
        """
        return self.database.read(lambda connection: rows.jobs(connection, text, most, accepted))

    def edges(self, name: DatasetName) -> list[Edge]:
        """Every edge at a node, above and below, as reported."""
        return self.database.read(lambda connection: rows.edges_at(connection, name))

    def ancestry(self, start: Iterable[DatasetName]) -> Ancestry:
        """Everything that the starts were made from: data, checkpoints, releases and mechanisms."""
        names = list(start)
        return self.database.read(lambda connection: ancestry_in(connection, names))

    def descent(self, start: Iterable[DatasetName]) -> Ancestry:
        """Everything that was made from the starts."""
        names = list(start)
        return self.database.read(lambda connection: walk(connection, names, upward=False))

    # Statements of people

    def declare_public(self, name: DatasetName, *, by: str, reason: str) -> Declaration:
        """Records in the ledger's chain a person's declaration that a checkpoint or dataset holds no guarded data.

        The same declaration of the same person again changes nothing.

        Raises:
            ConfigurationError: the name or the reason is empty or invalid.
            LineageRefused: it is our own, so its origin is known, or a guarded table.
        """
        if name.namespace.strip().casefold() in (JOB_NAMESPACE, LEDGER_NAMESPACE):
            raise LineageRefused(
                f"{name} is a name of this platform's own; only what others made can be declared public"
            )
        payload = {
            "namespace": name.namespace,
            "name": name.name,
            "by": recorded_name(by, "who declares it"),
            "reason": recorded(reason, "the reason"),
        }

        def work(connection: Connection) -> Declaration:
            node = rows.find_nodes(connection, [name]).get(name)
            if node is not None and (node.own or node.kind == "mechanism"):
                raise LineageRefused(f"{name} is this platform's own; only what others made can be declared public")
            if node is not None and node.is_reported_by_us and "dpsynth_privacyUnit" in node.facets:
                raise LineageRefused(f"{name} is a guarded table; no declaration makes its people's data public")
            before = declared_public(connection).get(canonical(name))
            if before is not None and (person_key(before.by), before.reason) == (person_key(by), reason):
                return before
            if node is None:
                rows.insert_nodes(connection, {name: "checkpoint"})
            at = ledger_rows.now_text(connection)
            return _declaration(chain.append(connection, at, chain.DECLARED_PUBLIC, _subject(name), payload))

        return self.database.write(work, guards=("event", "lineage_event"))

    def public(self, name: DatasetName) -> Declaration | None:
        """The latest declaration that a node is public, or None."""
        return self.database.read(declared_public).get(canonical(name))

    def distrust(self, event: int, *, by: str, reason: str) -> Distrust:
        """Removes what an event of another producer reported, with the other events of its run (`lineage.distrust`).

        Raises:
            ConfigurationError: the name or the reason is empty or invalid.
            LineageRefused: there is no such event, it is our own, or it is distrusted already.
        """
        who, why = recorded_name(by, "who distrusts it"), recorded(reason, "the reason")

        def work(connection: Connection) -> Distrust:
            events = distrusting.distrustable(connection, event)
            (named,) = (item for item in events if item.sequence == event)
            payload = {
                "event": event,
                "through": events[-1].sequence,
                "digest": named.digest,
                "source": named.source,
                "by": who,
                "reason": why,
            }
            at = ledger_rows.now_text(connection)
            entry = chain.append(connection, at, chain.DISTRUSTED, f"lineage-event:{event}", payload)
            distrusting.remove_reports(connection, events, declared_public(connection))
            return Distrust.of(entry)

        return self.database.write(work, guards=("event", "lineage_event"))

    def distrusts(self, name: DatasetName) -> list[Distrust]:
        """Distrusts of events that reported a node, in order."""
        return self.database.read(lambda connection: distrusting.distrusts_about(connection, name))

    def foreign_events(self, name: DatasetName) -> list[StoredEvent]:
        """Events of other producers that reported an edge at a node, in order."""
        return self.database.read(lambda connection: distrusting.events_about(connection, name))

    def use(
        self, release: DatasetName | str, *, by: str, purpose: Purpose, product: str | DatasetName = "", reason: str
    ) -> Use:
        """Registers that a release was used elsewhere: a product that was trained on it descends from it.

        Args:
            release: a release's name or id, or anything that `find` accepts.
            product: the model that was trained or evaluated on it: a name in the graph, path or URI, or a new name.

        Raises:
            ConfigurationError: a name or the reason is empty or invalid.
            LineageRefused: there is no such release, several, or no such purpose; the product is our own.
        """
        from dpsynth_platform.lineage.events import use_event

        if purpose not in PURPOSES:
            raise LineageRefused(f"purpose {purpose!r}; accepted: {', '.join(PURPOSES)}")
        who, why = recorded_name(by, "who registers it"), recorded(reason, "the reason")
        found = self.release(release)
        made = self._product(product) if product else None
        event = use_event(found, made, purpose, who, why)
        sequence = self.record(event, targets=("file",)).sequence
        assert sequence is not None  # noqa: S101 - its run id is new
        return Use(found.name, purpose, made, sequence)

    def release(self, release: DatasetName | str) -> Node:
        """One release of ours by its name or id, or anything that `find` accepts.

        Raises:
            LineageRefused: there is none, or several.
        """
        releases = [node for node in self._named(release) if node.kind == "release"]
        if len(releases) != 1:
            many = ", ".join(str(node.name) for node in releases) or "none"
            raise LineageRefused(f"{str(release)!r} names no single release in the lineage graph; found: {many}")
        return releases[0]

    def _named(self, name: str | DatasetName) -> list[Node]:
        if isinstance(name, str):
            return self.find(name)
        return [node] if (node := self.node(name)) else []

    def _product(self, product: str | DatasetName) -> DatasetName:
        if isinstance(product, str):
            recorded(product, "the product")
        found = self._named(product)
        if len(found) > 1:
            raise LineageRefused(f"{str(product)!r} names several nodes of the lineage graph; give one's full name")
        if found and (found[0].own or found[0].kind == "mechanism"):
            raise LineageRefused(f"{found[0].name} is this platform's own; its lineage is known")
        if found:
            return found[0].name
        if isinstance(product, DatasetName):
            return product
        return dataset_name(product) if is_place(product) else DatasetName(PRODUCT_NAMESPACE, product)


def ancestry_in(connection: Connection, start: Iterable[DatasetName]) -> Ancestry:
    """`LineageStore.ancestry` on an open connection, for a decision in the same transaction."""
    return walk(connection, list(start), upward=True, public=declared_public(connection))


def declared_public(connection: Connection) -> dict[DatasetName, Declaration]:
    """The latest declaration of each node that was declared public, on an open connection."""
    found = map(_declaration, chain.events(connection, kinds=[chain.DECLARED_PUBLIC]))
    return {declaration.name: declaration for declaration in found}


@dataclass(frozen=True)
class _Arrived:
    """A received event, read and ready to be recorded."""

    facts: intake.Facts
    text: str
    digests: tuple[str, ...]
    origin: Origin
    source: str

    @classmethod
    def of(
        cls, event: Mapping[str, Any], origin: Origin, source: str, as_sent: Mapping[str, Any] | None = None
    ) -> _Arrived:
        """Reads an event. Raises `LineageRefused` for an unusable event, or one of others that uses our names."""
        facts = intake.facts_of(event)
        text, digest = intake.canonical(event)
        if origin == "ingested":
            _check_names(facts)
            recorded(source, "the source of a lineage event")
        digests = (digest,) if as_sent is None or as_sent == event else (digest, intake.canonical(as_sent)[1])
        return cls(facts, text, digests, origin, source)


def _record(connection: Connection, arrived: _Arrived, targets: tuple[str, ...]) -> Recorded:
    facts, origin = arrived.facts, arrived.origin
    known = rows.sequence_of(connection, *arrived.digests)
    if known is not None:
        return Recorded(known, new=False)
    if origin == "own" and rows.is_repeated(connection, facts):
        return Recorded(None, new=False)
    kind = facts.kind if origin == "own" else _kind_among(connection, facts, arrived.source)
    sequence = rows.insert_event(connection, facts, kind, arrived.text, arrived.digests[0], origin, arrived.source)
    rows.relate(connection, facts, origin, sequence)
    if targets:
        connection.execute(insert(tables.outbox), [{"target": item, "sequence": sequence} for item in targets])
    return Recorded(sequence, new=True)


def _check_names(facts: intake.Facts) -> None:
    if facts.job.namespace.strip().casefold() == JOB_NAMESPACE:
        raise LineageRefused(f"jobs of namespace {JOB_NAMESPACE!r} are this platform's own", conflict=True)
    if any(name.namespace.strip().casefold() == LEDGER_NAMESPACE for name in facts.names):
        raise LineageRefused(f"the namespace {LEDGER_NAMESPACE!r} is this platform's own", conflict=True)


def _kind_among(connection: Connection, facts: intake.Facts, source: str) -> str:
    """The kind under which an event of others is recorded, given its run's events. Raises `LineageRefused`."""
    if not facts.run_id:
        return facts.kind
    before = rows.reports_of_run(connection, facts.run_id)
    if any(item.origin == "own" for item in before):
        raise LineageRefused("the run is this platform's own", conflict=True)
    if any(item.source != source for item in before):
        raise LineageRefused("the run is another producer's", conflict=True)
    kinds = {item.kind for item in before}
    if facts.kind in tables.TERMINAL and kinds & set(tables.TERMINAL):
        raise LineageRefused("the run has ended before, with another event", conflict=True)
    # Some producers repeat START with more inputs, which are added.
    return "RUNNING" if facts.kind == tables.START and tables.START in kinds else facts.kind


def _subject(name: DatasetName) -> str:
    """The chain's subject for a name, which may itself be longer than a subject may be."""
    return f"lineage:{rows.key_of(name)}"


def _declaration(event: ChainEvent) -> Declaration:
    payload = event.payload
    name = canonical(DatasetName(payload["namespace"], payload["name"]))
    return Declaration(name, payload["by"], payload["reason"], event.at, event.sequence)
