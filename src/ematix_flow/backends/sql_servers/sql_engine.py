"""A SQLAlchemy engine for a database server, for run logs, slots and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa


def server_engine(
    url: str, open_connection: Callable[[], Any], *, keep_open: bool, **options: Any
) -> sa.Engine:
    """An engine without a pool: its calls are rare, and a pooled connection might break in between.

    With ``keep_open`` one connection stays open for frequent calls; it is tested before each use and replaced
    if broken.
    """
    return sa.create_engine(
        url,
        creator=open_connection,
        poolclass=sa.pool.QueuePool if keep_open else sa.pool.NullPool,
        pool_pre_ping=keep_open,
        hide_parameters=True,
        **options,
    )
