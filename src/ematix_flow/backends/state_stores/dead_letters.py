"""Opens the store of a stream's dead letters, and the topic that it also sends them to.

A new kind of store needs a module and one line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from ematix_flow.errors import ConfigError
from ematix_flow.graph.connections import resolve, resolve_for_use
from ematix_flow.spec.connections import Connection, connection_from_mapping
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.dead_letters.base import MAX_ATTEMPTS, DeadLetterPublisher, DeadLetterStore
from ematix_flow.state.state_root import state_root

DEFAULT_FILE = "dead_letters.db"
DEFAULT_TABLE = "dead_letters"

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
    """Open the store at a URL or a connection (a name or a value); None is the file in the state root.

    ``table`` is ``name`` or ``schema.name``; the default is ``dead_letters``, in the schema ``ematix_flow``
    where there are schemas.
    """
    if max_attempts < 1:
        raise ConfigError(f"max_attempts is {max_attempts}", next_step="give 1 or more")
    schema, name = _split_table_name(table)
    if where is None:
        from ematix_flow.state.dead_letters.sql import open_dead_letter_file

        return open_dead_letter_file(state_root(env) / DEFAULT_FILE, table=name, max_attempts=max_attempts)
    connection = resolve_for_use(_as_connection(where))
    if connection.kind not in _STORES:
        raise _not_a_store(connection)
    module = _import_backend(connection, *_STORES[connection.kind])
    return cast(DeadLetterStore, module.open_store(connection, schema, name, max_attempts))


def open_stream_dead_letters(spec: StreamSpec, *, env: Mapping[str, str]) -> DeadLetterStore:
    """Open the store of a stream's dead letters. A topic does not change where it is."""
    letters = spec.dead_letters
    return open_dead_letters(
        _store_connection(spec), env=env, table=letters.table, max_attempts=letters.max_attempts
    )


def open_declared_dead_letters(
    specs: Iterable[StreamSpec], *, env: Mapping[str, str], opened: ExitStack
) -> list[DeadLetterStore]:
    """Open the default store and the stores of these streams, each once; ``opened`` closes them."""
    stores = [opened.enter_context(open_dead_letters(env=env))]
    known: list[object] = [(None, _split_table_name(None))]
    for spec in specs:
        where = _store_connection(spec)
        # two names of one database are one store
        database = None if where is None else replace(resolve(_as_connection(where)), name="any")
        place = (database, _split_table_name(spec.dead_letters.table))
        if place not in known and spec.dead_letters.store != "broker":
            known.append(place)
            stores.append(opened.enter_context(open_stream_dead_letters(spec, env=env)))
    return stores


def open_dead_letter_topic(spec: StreamSpec) -> DeadLetterPublisher | None:
    """Open the topic that a stream also sends its dead letters to; None if it declares none."""
    topic = _topic_name(spec)
    if topic is None:
        return None
    for reference in (spec.dead_letters.connection, *[source.connection for source in spec.sources]):
        if reference is not None and resolve(reference).kind == "kafka":
            connection = resolve_for_use(reference)
            module = _import_backend(connection, "ematix_flow.backends.kafka.dead_letters", "kafka")
            return cast(DeadLetterPublisher, module.DeadLetterTopic(connection, topic))
    raise ConfigError(
        f"stream {spec.name!r} declares dead_letter_topic={topic!r} but no Kafka connection",
        next_step="name a Kafka connection as dead_letter_connection, or use dead_letter_table",
    ).with_location(spec.where)


def _as_connection(where: str | Connection) -> str | Connection:
    """The connection of a URL; a name or a connection as it is."""
    if isinstance(where, str) and "://" in where:
        return connection_from_mapping("dead_letters", {"url": where})
    return where


def _store_connection(spec: StreamSpec) -> str | Connection | None:
    where = spec.dead_letters.connection
    if where is not None and _topic_name(spec) is not None and resolve(where).kind == "kafka":
        return None  # it is the connection of the topic
    return where


def _topic_name(spec: StreamSpec) -> str | None:
    letters = spec.dead_letters
    if letters.store == "topic" and letters.topic is None:
        raise ConfigError(
            f"stream {spec.name!r} declares dlq_store='topic' but no topic",
            next_step='add  dead_letter_topic = "…"',
        ).with_location(spec.where)
    return letters.topic if letters.store in ("topic", "auto") else None


def _not_a_store(connection: Connection) -> ConfigError:
    if connection.kind == "kafka":
        return ConfigError(
            f"connection {connection.name!r} is a Kafka cluster, which cannot store dead letters",
            next_step="name a database as the store; to send letters to a topic too, set dead_letter_topic. "
            "flow dlq list --pipeline NAME  shows the letters of a stream with a topic",
        )
    return ConfigError(
        f"connection {connection.name!r} is of kind {connection.kind!r}, which cannot store dead letters",
        next_step=f"kinds that can: {', '.join(_STORES)}",
    )


def _import_backend(connection: Connection, module_name: str, extra: str | None) -> Any:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        if extra is None or (error.name or "").startswith("ematix_flow"):
            raise
        raise ConfigError(
            f"connection {connection.name!r} needs the Python package {error.name!r}, which is not installed",
            next_step=f'pip install "ematix-flow-spark[{extra}]"',
        ) from error


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
