"""Lineage's tables, in the same database as the ledger's and under the same schema version.

What belongs here: table definitions. What does not: the ledger's `migrations`, which must produce exactly these tables
(a test compares), and queries (`store`, `outbox`).

`lineage_event` is authoritative: every event as received, once. `lineage_access` (what each run read and wrote),
`lineage_node` and `lineage_edge` follow from it and serve walks. Names of datasets may be longer than an index can
hold, so a node is found by `key`, the SHA-256 of its namespace and name.

Unique indexes enforce one START and one terminal event for each run, separately for our own events and received ones:
no other producer can end a run of ours by being first.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from dpsynth_platform.ledger.schema import metadata

START = "START"
TERMINAL = ("COMPLETE", "FAIL", "ABORT")

_ONE_START = text("kind = 'START'")
_ONE_END = text("kind IN ('COMPLETE', 'FAIL', 'ABORT')")

event = Table(
    "lineage_event",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("received_at", String(40), nullable=False),
    Column("event_time", String(64), nullable=False),
    Column("origin", String(10), nullable=False),
    Column("source", String(200), nullable=False),
    Column("run_id", String(200), nullable=False, index=True),
    Column("kind", String(20), nullable=False),
    Column("job_namespace", Text, nullable=False),
    Column("job_name", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Index("lineage_one_start", "origin", "run_id", unique=True, sqlite_where=_ONE_START, postgresql_where=_ONE_START),
    Index("lineage_one_end", "origin", "run_id", unique=True, sqlite_where=_ONE_END, postgresql_where=_ONE_END),
)

node = Table(
    "lineage_node",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("kind", String(20), nullable=False, index=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("own", Boolean, nullable=False),
    Column("facets", Text, nullable=False),
)

access = Table(
    "lineage_access",
    metadata,
    Column("origin", String(10), primary_key=True),
    Column("run_id", String(200), primary_key=True),
    Column("node", Integer, ForeignKey("lineage_node.id"), primary_key=True),
    Column("role", String(10), primary_key=True),
    Column("version", String(200), primary_key=True),
)

edge = Table(
    "lineage_edge",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("child", Integer, ForeignKey("lineage_node.id"), nullable=False),
    Column("parent", Integer, ForeignKey("lineage_node.id"), nullable=False, index=True),
    Column("relation", String(20), nullable=False),
    Column("run_id", String(200), nullable=False),
    Column("child_version", String(200), nullable=False),
    Column("parent_version", String(200), nullable=False),
    Column("event", BigInteger, ForeignKey("lineage_event.sequence"), nullable=False),
    UniqueConstraint(
        "child", "parent", "relation", "run_id", "child_version", "parent_version", name="lineage_edge_once"
    ),
)

outbox = Table(
    "lineage_outbox",
    metadata,
    Column("target", String(20), primary_key=True),
    Column("sequence", BigInteger, ForeignKey("lineage_event.sequence"), primary_key=True, autoincrement=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_at", String(40)),
    Column("delivered_at", String(40)),
    Column("refused", String(200)),
    Index("lineage_outbox_state", "target", "delivered_at", "sequence"),
)

lease = Table(
    "lineage_lease",
    metadata,
    Column("target", String(20), primary_key=True),
    Column("holder", String(400), nullable=False),
    Column("until", String(40), nullable=False),
)
