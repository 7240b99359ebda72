"""Opens the store of a stream's dead letters. A new kind of store needs a module and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from ematix_flow.errors import ConfigError
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.connections import Connection, connection_from_mapping
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.dead_letters.base import MAX_ATTEMPTS, DeadLetterStore
from ematix_flow.state.state_root import state_root

DEFAULT_FILE = "dead_letters.db"
DEFAULT_TABLE = "dead_letters"

# kind -> (module with open_store, the extra that brings its driver)
_STORES: dict[str, tuple[str, str | None]] = {
    "sqlite": ("ematix_flow.backends.sqlite.dead_letters", None),
    "duckdb": ("ematix_flow.backends.duckdb.dead_letters", None),
    "postgres": ("ematix_flow.backends.postgres.dead_letters", "postgres"),
    "mysql": ("ematix_flow.backends.mysql.dead_letters", "mysql"),
    "kafka": ("ematix_flow.backends.kafka.dead_letters", "kafka"),
}


def open_dead_letters(
    where: str | Connection | None = None,
    *,
    env: Mapping[str, str],
    table: str | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> DeadLetterStore:
    """Open the store at a URL or a connection (a name or a value); None is the file in the state root.

    ``table`` is ``name`` or ``schema.name``; the default is ``dead_letters``, in the schema ``ematix_flow``
    where there are schemas. For Kafka it is the topic, which must exist.
    """
    if max_attempts < 1:
        raise ConfigError(f"max_attempts is {max_attempts}", next_step="give 1 or more")
    if where is None:
        from ematix_flow.state.dead_letters.sql import open_dead_letter_file

        _, name = _split_table_name(table)
        return open_dead_letter_file(state_root(env) / DEFAULT_FILE, table=name, max_attempts=max_attempts)
    if isinstance(where, str) and "://" in where:
        where = connection_from_mapping("dead_letters", {"url": where})
    connection = resolve_for_use(where)
    if connection.kind not in _STORES:
        raise ConfigError(
            f"connection {connection.name!r} is of kind {connection.kind!r}, which cannot store dead letters",
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
    if connection.kind == "kafka":
        return cast(
            DeadLetterStore, module.open_store(connection, _require_topic(connection, table), max_attempts)
        )
    schema, name = _split_table_name(table)
    return cast(DeadLetterStore, module.open_store(connection, schema, name, max_attempts))


def open_stream_dead_letters(spec: StreamSpec, *, env: Mapping[str, str]) -> DeadLetterStore:
    """Open the store that a stream declares for its dead letters."""
    letters = spec.dead_letters
    wants_topic = letters.store == "topic" or (letters.store == "auto" and letters.topic is not None)
    if not wants_topic:
        return open_dead_letters(
            letters.connection, env=env, table=letters.table, max_attempts=letters.max_attempts
        )
    if letters.topic is None:
        raise ConfigError(
            f"stream {spec.name!r} wants its dead letters in a topic, but names none",
            next_step='add  dead_letter_topic = "…"',
        ).with_location(spec.where)
    for reference in (letters.connection, *[source.connection for source in spec.sources]):
        if reference is not None and resolve_for_use(reference).kind == "kafka":
            return open_dead_letters(
                reference, env=env, table=letters.topic, max_attempts=letters.max_attempts
            )
    raise ConfigError(
        f"stream {spec.name!r} wants its dead letters in the topic {letters.topic!r}, but has no Kafka",
        next_step="name a Kafka connection as dead_letter_connection, or use dead_letter_table",
    ).with_location(spec.where)


def _require_topic(connection: Connection, topic: str | None) -> str:
    if not topic:
        raise ConfigError(
            f"connection {connection.name!r} is a Kafka cluster, and no topic is named for the dead letters",
            next_step="name the topic as table",
        )
    return topic


def _split_table_name(table: str | None) -> tuple[str | None, str]:
    if table is None:
        return None, DEFAULT_TABLE
    schema, dot, name = table.rpartition(".")
    if not name or (dot and not schema) or len(table) > 100 or not table.isprintable():
        raise ConfigError(
            f"{table!r} is not a valid name for the dead-letter table",
            next_step="write it as  table  or  schema.table",
        )
    return schema or None, name
