"""What each entry costs, and the running sums of what was started: of the account and of each owner."""

import json

import sqlalchemy as sa
from alembic import op

from dpsynth_platform.ledger.filter import RenyiFilter, add_up
from dpsynth_platform.ledger.owners import from_blob
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.standing import Standing

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ENTRY = sa.table("entry", *(sa.column(name) for name in ("entry_id", "family", "request", "cost")))
_ACCOUNT = sa.table("account", *(sa.column(name) for name in ("family", "terms", "settled")))
_PARTICIPANTS = sa.table("participants", sa.column("entry_id"), sa.column("fingerprints"))
_STANDING = sa.table("standing", *(sa.column(name) for name in ("family", "owners", "class_of", "sums")))
_EVENT = sa.table("event", *(sa.column(name) for name in ("sequence", "kind", "subject")))


def upgrade() -> None:
    """Adds the columns and fills them from what is recorded."""
    op.add_column("entry", sa.Column("cost", sa.Text, nullable=False, server_default="[]"))
    op.add_column("account", sa.Column("settled", sa.Text, nullable=False, server_default="[]"))
    op.create_table(
        "standing",
        sa.Column("family", sa.String(63), sa.ForeignKey("account.family"), primary_key=True),
        sa.Column("owners", sa.LargeBinary, nullable=False),
        sa.Column("class_of", sa.LargeBinary, nullable=False),
        sa.Column("sums", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_entry_family_state", "entry", ["family", "state"])
    connection = op.get_bind()
    started = sa.select(_EVENT.c.subject).where(_EVENT.c.kind == "started").order_by(_EVENT.c.sequence)
    in_order = connection.execute(started).scalars().all()
    for account in connection.execute(sa.select(_ACCOUNT.c.family, _ACCOUNT.c.terms)).all():
        terms = json.loads(account.terms)
        limits = RenyiFilter.from_json(terms["filter"], terms["cap"]["epsilon"], terms["cap"]["delta"])
        costs = {}
        rows = sa.select(_ENTRY.c.entry_id, _ENTRY.c.request).where(_ENTRY.c.family == account.family)
        for row in connection.execute(rows).all():
            request = CostRequest.from_json(json.loads(row.request))
            costs[row.entry_id] = limits.cost(request.curve, request.delta_slack)
            connection.execute(
                sa.update(_ENTRY).where(_ENTRY.c.entry_id == row.entry_id).values(cost=json.dumps(costs[row.entry_id]))
            )
        settled, standing, named = limits.nothing, Standing.empty(limits.nothing), False
        for entry_id in in_order:
            if entry_id not in costs:
                continue
            settled = add_up(settled, costs[entry_id])
            members = sa.select(_PARTICIPANTS.c.fingerprints).where(_PARTICIPANTS.c.entry_id == entry_id)
            blob = connection.execute(members).scalar_one_or_none()
            if blob is not None:
                standing, named = standing.charged(from_blob(blob), costs[entry_id]), True
        if named:
            connection.execute(sa.insert(_STANDING).values(family=account.family, **standing.to_blobs()))
        connection.execute(
            sa.update(_ACCOUNT).where(_ACCOUNT.c.family == account.family).values(settled=json.dumps(settled))
        )


def downgrade() -> None:
    """A ledger is never taken back."""
    raise NotImplementedError("the ledger's schema cannot be downgraded; restore a backup")
