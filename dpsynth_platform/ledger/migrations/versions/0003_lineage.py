"""The stored graph of lineage: events, nodes, what runs read and wrote, edges, and the outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ONE_START = sa.text("kind = 'START'")
_ONE_END = sa.text("kind IN ('COMPLETE', 'FAIL', 'ABORT')")


def upgrade() -> None:
    """Creates the tables, empty; an earlier record of events is taken in at the first emission."""
    op.create_table(
        "lineage_event",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("received_at", sa.String(40), nullable=False),
        sa.Column("event_time", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(10), nullable=False),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("run_id", sa.String(200), nullable=False, index=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("job_namespace", sa.Text, nullable=False),
        sa.Column("job_name", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    for name, condition in (("lineage_one_start", _ONE_START), ("lineage_one_end", _ONE_END)):
        op.create_index(
            name,
            "lineage_event",
            ["origin", "run_id"],
            unique=True,
            sqlite_where=condition,
            postgresql_where=condition,
        )
    op.create_table(
        "lineage_node",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("kind", sa.String(20), nullable=False, index=True),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("own", sa.Boolean, nullable=False),
        sa.Column("facets", sa.Text, nullable=False),
    )
    op.create_table(
        "lineage_access",
        sa.Column("origin", sa.String(10), primary_key=True),
        sa.Column("run_id", sa.String(200), primary_key=True),
        sa.Column("node", sa.Integer, sa.ForeignKey("lineage_node.id"), primary_key=True),
        sa.Column("role", sa.String(10), primary_key=True),
        sa.Column("version", sa.String(200), primary_key=True),
    )
    op.create_table(
        "lineage_edge",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("child", sa.Integer, sa.ForeignKey("lineage_node.id"), nullable=False),
        sa.Column("parent", sa.Integer, sa.ForeignKey("lineage_node.id"), nullable=False, index=True),
        sa.Column("relation", sa.String(20), nullable=False),
        sa.Column("run_id", sa.String(200), nullable=False),
        sa.Column("child_version", sa.String(200), nullable=False),
        sa.Column("parent_version", sa.String(200), nullable=False),
        sa.Column("event", sa.BigInteger, sa.ForeignKey("lineage_event.sequence"), nullable=False),
        sa.UniqueConstraint(
            "child", "parent", "relation", "run_id", "child_version", "parent_version", name="lineage_edge_once"
        ),
    )
    op.create_table(
        "lineage_outbox",
        sa.Column("target", sa.String(20), primary_key=True),
        sa.Column(
            "sequence",
            sa.BigInteger,
            sa.ForeignKey("lineage_event.sequence"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("next_at", sa.String(40)),
        sa.Column("delivered_at", sa.String(40)),
        sa.Column("refused", sa.String(200)),
    )
    op.create_index("lineage_outbox_state", "lineage_outbox", ["target", "delivered_at", "sequence"])
    op.create_table(
        "lineage_lease",
        sa.Column("target", sa.String(20), primary_key=True),
        sa.Column("holder", sa.String(400), nullable=False),
        sa.Column("until", sa.String(40), nullable=False),
    )


def downgrade() -> None:
    """A ledger is never taken back."""
    raise NotImplementedError("the ledger's schema cannot be downgraded; restore a backup")
