"""Which store keeps a pipeline's dead letters. Adding one is adding a module and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from ematix_flow.errors import ConfigError
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.connections import Connection, connection_from_mapping
from ematix_flow.state.dead_letters import MAX_ATTEMPTS, DeadLetterStore
from ematix_flow.state.root import state_root

FILE = "dead_letters.db"
TABLE = "dead_letters"

# kind -> (module with open_store, the extra that brings its driver)
_STORES: dict[str, tuple[str, str | None]] = {
    "sqlite": ("ematix_flow.backends.sqlite.dead_letters", None),
    "duckdb": ("ematix_flow.backends.duckdb.dead_letters", None),
    "postgres": ("ematix_flow.backends.postgres.dead_letters", "postgres"),
    "mysql": ("ematix_flow.backends.mysql.dead_letters", "mysql"),
}


def open_dead_letters(
    where: str | Connection | None = None,
    *,
    env: Mapping[str, str],
    table: str | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> DeadLetterStore:
    """The store at a URL or a connection, by name or as it is; None is the file in the state root.

    ``table`` is ``name`` or ``schema.name``; without it ``dead_letters``, in the schema ``ematix_flow``
    where there are schemas.
    """
    if max_attempts < 1:
        raise ConfigError(f"max_attempts is {max_attempts}", next_step="give 1 or more")
    schema, name = _split(table)
    if where is None:
        from ematix_flow.state.dead_letters_sql import open_dead_letter_file

        return open_dead_letter_file(state_root(env) / FILE, table=name, max_attempts=max_attempts)
    if isinstance(where, str) and "://" in where:
        where = connection_from_mapping("dead_letters", {"url": where})
    connection = resolve_for_use(where)
    if connection.kind not in _STORES:
        raise ConfigError(
            f"connection {connection.name!r} is of kind {connection.kind!r}, which keeps no dead letters",
            next_step=f"kinds that can: {', '.join(_STORES)}",
        )
    module_name, extra = _STORES[connection.kind]
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if extra is None or (error.name or "").startswith("ematix_flow"):
            raise
        raise ConfigError(
            f"connection {connection.name!r} needs the Python package {error.name!r}, which is not installed",
            next_step=f'pip install "ematix-flow-spark[{extra}]"',
        ) from error
    store: DeadLetterStore = module.open_store(connection, schema, name, max_attempts)
    return store


def _split(table: str | None) -> tuple[str | None, str]:
    if table is None:
        return None, TABLE
    schema, dot, name = table.rpartition(".")
    if not name or (dot and not schema) or len(table) > 100 or not table.isprintable():
        raise ConfigError(
            f"{table!r} is no name for the table of the dead letters",
            next_step="write it as  table  or  schema.table",
        )
    return schema or None, name
