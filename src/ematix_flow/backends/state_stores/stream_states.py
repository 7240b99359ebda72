"""Opens the state store that a stream declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.registry import require_driver
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.spec.windows import StateStore

if TYPE_CHECKING:
    from ematix_flow.backends.postgres.stream_state import PostgresStreamStates


def open_stream_states(store: StateStore) -> PostgresStreamStates:
    """Open the store of kind ``postgres``. References in its URL are replaced; nothing is connected yet."""
    assert store.kind == "postgres" and store.url is not None
    connection = resolve_for_use(PostgresConnection(name="state_store", url=store.url))
    assert isinstance(connection, PostgresConnection)
    require_driver(connection, "the state store")
    from ematix_flow.backends.postgres.stream_state import PostgresStreamStates

    return PostgresStreamStates(connection, store.schema)
