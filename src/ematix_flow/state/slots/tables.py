"""The tables of slots and leases. They are next to the run log's tables and have the same version."""

from __future__ import annotations

import sqlalchemy as sa

from ematix_flow.state.sql.column_types import ExactText, UtcDateTime

metadata = sa.MetaData()

slots = sa.Table(
    "flow_slots",
    metadata,
    sa.Column("pipeline", ExactText(180), primary_key=True),
    sa.Column("fires_at", UtcDateTime, primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("failures", sa.BigInteger, nullable=False),
    sa.Column("deaths", sa.BigInteger, nullable=False),
    sa.Column("begun", sa.Boolean, nullable=False),
    sa.Column("not_before", UtcDateTime, nullable=False),
    sa.Column("holder", sa.String(255)),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("reason", sa.Text),
    sa.Index("flow_slots_by_status", "status", "fires_at"),
)

leases = sa.Table(
    "flow_leases",
    metadata,
    sa.Column("name", ExactText(180), primary_key=True),
    sa.Column("holder", sa.String(255), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)
