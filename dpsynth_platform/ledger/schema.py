"""The ledger's tables, the same on SQLite and PostgreSQL.

What belongs here: table definitions and the name of their schema version. What does not: `migrations`, which must
produce exactly these tables (a test compares), and queries (`rows`, `store`).

`event` is the hash chain and authoritative. `account` and `entry` follow from it; they serve queries, and `verify`
checks them. So do `entry.cost` (its part of each of its account's limits) and `account.settled` (the sum of started
entries): with them a decision takes the same time after ten entries and after ten thousand. `standing` is the same for
owners. `participants` and `standing` are restricted: fingerprints, the nonces that hide them in commitments, and what
each owner was charged. Lineage has its tables in the same database and version (`lineage_tables`).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = "0003"

metadata = MetaData()

event = Table(
    "event",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("kind", String(40), nullable=False, index=True),
    Column("subject", String(200), nullable=False, index=True),
    Column("payload", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
)

account = Table(
    "account",
    metadata,
    Column("family", String(63), primary_key=True),
    Column("terms", Text, nullable=False),
    Column("opened_at", String(40), nullable=False),
    Column("settled", Text, nullable=False, server_default="[]"),
)

entry = Table(
    "entry",
    metadata,
    Column("entry_id", String(32), primary_key=True),
    Column("family", String(63), ForeignKey("account.family"), nullable=False, index=True),
    Column("run_key", String(200), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    Column("request", Text, nullable=False),
    Column("commitment", String(64)),
    Column("replaces", String(32), ForeignKey("entry.entry_id")),
    Column("reserved_at", String(40), nullable=False),
    Column("deadline", String(40), nullable=False),
    Column("started_at", String(40)),
    Column("finished_at", String(40)),
    Column("model_digest", String(64)),
    Column("void_reason", String(200)),
    Column("cost", Text, nullable=False, server_default="[]"),
    UniqueConstraint("run_key", "attempt", name="entry_attempt"),
    Index("ix_entry_family_state", "family", "state"),
)

standing = Table(
    "standing",
    metadata,
    Column("family", String(63), ForeignKey("account.family"), primary_key=True),
    Column("owners", LargeBinary, nullable=False),
    Column("class_of", LargeBinary, nullable=False),
    Column("sums", LargeBinary, nullable=False),
)

participants = Table(
    "participants",
    metadata,
    Column("entry_id", String(32), ForeignKey("entry.entry_id"), primary_key=True),
    Column("nonce", LargeBinary, nullable=False),
    Column("fingerprints", LargeBinary, nullable=False),
)
