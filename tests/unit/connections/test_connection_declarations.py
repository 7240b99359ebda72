"""Declaring connections in Python: class bodies, instances, and the registry they land in."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow import connections
from ematix_flow.api.connection import (
    clear_registry,
    connection,
    get_connection,
    register_connection,
    registered_connections,
)
from ematix_flow.errors import DeclarationError, UnknownConnection
from ematix_flow.graph.registry import Registry, current_registry, use_registry
from ematix_flow.spec.connections import (
    KINDS,
    DuckDBConnection,
    KafkaConnection,
    PostgresConnection,
    SQLiteConnection,
)


def line_of(name: str) -> int:
    where = current_registry().connections[name].where
    assert where is not None
    assert where.file == __file__
    return where.line


def test_a_class_body_becomes_a_typed_registered_instance() -> None:
    @connection
    class warehouse:
        """Our warehouse."""

        kind = "postgres"
        url = "${WAREHOUSE_URL}"

    assert warehouse == PostgresConnection(name="warehouse", url="${WAREHOUSE_URL}")
    assert get_connection("warehouse") is warehouse
    assert line_of("warehouse") > 0


def test_the_kind_may_follow_from_the_url() -> None:
    @connection
    class lake:
        url = "duckdb://lake.duckdb"

    assert lake == DuckDBConnection(name="lake", path="lake.duckdb")


def test_a_kafka_body_of_the_documents_is_accepted() -> None:
    @connection
    class kafka_prod:
        kind = "kafka"
        bootstrap_servers = "${KAFKA_BOOTSTRAP}"
        group_id = "ematix-flow"
        sasl_plain_username = "${KAFKA_USER}"
        sasl_plain_password = "${KAFKA_PASS}"

    assert isinstance(kafka_prod, KafkaConnection)
    assert "sasl_plain_password='${KAFKA_PASS}'" in repr(kafka_prod)


def test_fields_may_be_inherited_from_a_plain_class() -> None:
    class Shared:
        kind = "postgres"
        sslmode = "require"

    @connection
    class wh(Shared):
        url = "postgres://h/d"

    assert wh == PostgresConnection(name="wh", url="postgres://h/d", sslmode="require")


def declare_with(**body: Any) -> None:
    connection(type("wh", (), body))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"kind": "postgres", "urll": "postgres://h"}, "no field 'urll'. Did you mean 'url'"),
        ({"kind": "postgress", "url": "postgres://h"}, "Did you mean 'postgres'"),
        ({"url": "${X}"}, "the kind of connection 'wh' is unknown"),
        ({}, "neither kind nor url"),
        ({"kind": "postgres", "url": "postgres://h", "helper": lambda self: 1}, "no field 'helper'"),
    ],
)
def test_a_wrong_body_is_refused_at_its_line(body: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as caught:
        declare_with(**body)
    assert caught.value.where is not None
    assert (caught.value.where.file, caught.value.where.line) == (
        __file__,
        declare_with.__code__.co_firstlineno + 1,
    )
    assert not registered_connections()


def test_only_a_plain_class_can_be_decorated() -> None:
    with pytest.raises(DeclarationError, match="decorates a class"):
        connection("postgres://h")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="is a connection class"):

        @connection
        class wh(PostgresConnection):
            url = "postgres://h"


def test_an_instance_is_registered_and_returned() -> None:
    instance = PostgresConnection(name="wh", url="postgres://localhost/wh")
    assert register_connection(instance) is instance
    assert registered_connections() == {"wh": instance}
    assert line_of("wh") > 0
    clear_registry()
    assert not registered_connections()


def test_only_connections_are_registered() -> None:
    with pytest.raises(TypeError, match="takes a connection, not str"):
        register_connection("postgres://h")  # type: ignore[type-var]


def test_a_later_declaration_of_a_name_replaces_the_earlier() -> None:
    register_connection(SQLiteConnection(name="x", path="one.db"))
    register_connection(SQLiteConnection(name="x", path="two.db"))
    assert get_connection("x") == SQLiteConnection(name="x", path="two.db")


def test_an_unregistered_name_gets_a_did_you_mean() -> None:
    register_connection(SQLiteConnection(name="orders", path="a.db"))
    with pytest.raises(KeyError, match="Did you mean 'orders'"):
        get_connection("order")
    with pytest.raises(UnknownConnection):
        get_connection("x")


def test_registries_do_not_mix() -> None:
    register_connection(SQLiteConnection(name="x", path="a.db"))
    with use_registry(Registry()):
        assert not registered_connections()
        assert connections.resolve(SQLiteConnection(name="x", path="b.db")) == SQLiteConnection(
            name="x", path="b.db"
        )
    assert list(registered_connections()) == ["x"]


def test_every_class_is_public() -> None:
    assert {cls.__name__ for cls in KINDS.values()} <= set(connections.__all__)
    assert all(getattr(connections, name) is not None for name in connections.__all__)
