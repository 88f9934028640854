"""The hash chain, accounts, entries and participants."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the first schema."""
    op.create_table(
        "event",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False, index=True),
        sa.Column("subject", sa.String(200), nullable=False, index=True),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
    )
    op.create_table(
        "account",
        sa.Column("family", sa.String(63), primary_key=True),
        sa.Column("terms", sa.Text, nullable=False),
        sa.Column("opened_at", sa.String(40), nullable=False),
    )
    op.create_table(
        "entry",
        sa.Column("entry_id", sa.String(32), primary_key=True),
        sa.Column("family", sa.String(63), sa.ForeignKey("account.family"), nullable=False, index=True),
        sa.Column("run_key", sa.String(200), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("commitment", sa.String(64)),
        sa.Column("replaces", sa.String(32), sa.ForeignKey("entry.entry_id")),
        sa.Column("reserved_at", sa.String(40), nullable=False),
        sa.Column("deadline", sa.String(40), nullable=False),
        sa.Column("started_at", sa.String(40)),
        sa.Column("finished_at", sa.String(40)),
        sa.Column("model_digest", sa.String(64)),
        sa.Column("void_reason", sa.String(200)),
        sa.UniqueConstraint("run_key", "attempt", name="entry_attempt"),
    )
    op.create_table(
        "participants",
        sa.Column("entry_id", sa.String(32), sa.ForeignKey("entry.entry_id"), primary_key=True),
        sa.Column("nonce", sa.LargeBinary, nullable=False),
        sa.Column("fingerprints", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """A ledger is never taken back."""
    raise NotImplementedError("the ledger's schema cannot be downgraded; restore a backup")
