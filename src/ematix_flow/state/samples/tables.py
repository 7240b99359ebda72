"""The table of stream samples. It is next to the run log's tables and has the same version."""

from __future__ import annotations

import sqlalchemy as sa

from ematix_flow.state.sql.column_types import ExactText, UtcDateTime

metadata = sa.MetaData()

samples = sa.Table(
    "flow_stream_samples",
    metadata,
    sa.Column("stream", ExactText(512), primary_key=True),
    sa.Column("at", UtcDateTime, primary_key=True, quote=True),
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("sample", sa.JSON, nullable=False),
)
