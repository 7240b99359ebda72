"""A SQLAlchemy engine for a database server, for run logs, slots and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa


def server_engine(url: str, open_connection: Callable[[], Any], *, kept: bool, **options: Any) -> sa.Engine:
    """An engine without a pool: its calls are rare, and a pooled connection might break in between.

    With ``kept`` one connection stays open for frequent calls; it is tested before each use and replaced if
    broken.
    """
    return sa.create_engine(
        url,
        creator=open_connection,
        poolclass=sa.pool.QueuePool if kept else sa.pool.NullPool,
        pool_pre_ping=kept,
        hide_parameters=True,
        **options,
    )
