"""The tables of actions and holds. They are next to the run log's tables and have the same version."""

from __future__ import annotations

import sqlalchemy as sa

from ematix_flow.state.sql.column_types import ExactText, UtcDateTime

metadata = sa.MetaData()

actions = sa.Table(
    "flow_actions",
    metadata,
    sa.Column("action_id", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("subject", ExactText(512), nullable=False),
    sa.Column("arguments", sa.JSON, nullable=False),
    # of an action that has not ended, else NULL: so that the same one is not requested twice
    sa.Column("request_key", sa.String(64), unique=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("requested_by", sa.String(255), nullable=False),
    sa.Column("via", sa.String(32), nullable=False),
    sa.Column("requested_at", UtcDateTime, nullable=False),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(255)),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("outcome", sa.Text),
    sa.Column("run_ids", sa.JSON, nullable=False),
    sa.Column("begun", sa.Boolean, nullable=False),
    sa.Column("deaths", sa.BigInteger, nullable=False),
    sa.Index("flow_actions_by_time", "requested_at", "action_id"),
    sa.Index("flow_actions_by_subject", "subject", "requested_at"),
    sa.Index("flow_actions_by_status", "status", "requested_at"),
)

holds = sa.Table(
    "flow_holds",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", ExactText(180), primary_key=True),
    sa.Column("by", sa.String(255), nullable=False, quote=True),
    sa.Column("since", UtcDateTime, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("held_run", sa.String(64)),
    sa.Column("held_at", sa.Text),
)
