"""Alembic's entry: runs the migrations on the connection that `ledger.database` hands over, in its transaction."""

from alembic import context

import dpsynth_platform.ledger.lineage_tables  # noqa: F401 - adds its tables to the metadata
from dpsynth_platform.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
