"""Parts of a message other than its payload: a part that a broker lacks is refused at the declaration."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from ematix_flow import (
    BigInt,
    KafkaConnection,
    KinesisConnection,
    Lookup,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    Text,
    ematix,
    pk,
)
from ematix_flow.api.streaming import stream_spec
from ematix_flow.errors import DeclarationError
from ematix_flow.plan.stream_capabilities import check_source_message_parts, check_target_message_parts
from ematix_flow.spec.streams import StreamSpec

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
RABBIT = RabbitMQConnection(name="rabbit", amqp_url="amqp://localhost")
PUBSUB = PubSubConnection(name="pubsub", project_id="shop")
KINESIS = KinesisConnection(name="kinesis", stream_name="events", region="eu-west-1")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/db")
PLACES: dict[str, dict[str, Any]] = {
    "kafka": {"target": KAFKA, "target_topic": "out"},
    "rabbitmq": {"target": RABBIT, "target_queue": "out"},
    "pubsub": {"target": PUBSUB, "target_topic": "out"},
    "kinesis": {"target": KINESIS},
}


@ematix.table(schema="shop")
class WithHeaders:
    order_id: Annotated[BigInt, pk()]
    _headers: Text | None


def declare(**options: Any) -> StreamSpec:
    given = {"source": KAFKA, "target": WAREHOUSE, "target_table": "events", **options}
    return stream_spec(None, name="events", source_query="events", **given)


def into(kind: str, **options: Any) -> StreamSpec:
    return declare(**{"target_table": None, **PLACES[kind], **options})


@pytest.mark.parametrize(
    ("kind", "option", "having"),
    [
        ("rabbitmq", "partition_column", "kafka"),
        ("pubsub", "partition_column", "kafka"),
        ("kinesis", "partition_column", "kafka"),
        ("kinesis", "headers_column", "kafka or rabbitmq or pubsub"),
    ],
)
def test_a_target_without_that_part_refuses_its_column(kind: str, option: str, having: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        into(kind, **{f"target_{option}": "x"})
    assert f"{option}= is for a target of kind {having}: a message of {kind}" in caught.value.what


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *[(kind, "message_key_column") for kind in PLACES],
        *[(kind, "headers_column") for kind in ("kafka", "rabbitmq", "pubsub")],
        ("kafka", "partition_column"),
    ],
)
def test_a_target_takes_the_parts_that_its_messages_have(kind: str, option: str) -> None:
    assert getattr(into(kind, **{f"target_{option}": "x"}).targets[0], option) == "x"


@pytest.mark.parametrize(
    ("source", "column"), [(KINESIS, "_headers"), (RABBIT, "_partition"), (PUBSUB, "_partition")]
)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, {} FROM source",
        "SELECT s.id FROM source AS s WHERE s.{} IS NULL",
        "WITH a AS (SELECT {} h FROM source) SELECT h FROM a",
    ],
)
def test_sql_over_what_no_message_has_is_refused(source: Any, column: str, sql: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(source=source, transform_sql=sql.format(column))
    assert f"transform_sql names {column}, and a message of {source.kind} has no" in caught.value.what
    assert "kafka" in (caught.value.next_step or "")


@pytest.mark.parametrize("options", [{"target_table": WithHeaders}, {"source_columns": WithHeaders}])
def test_a_declared_table_with_what_no_message_has_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="names _headers, and a message of kinesis has no headers"):
        declare(source=KINESIS, **options)
    assert declare(source=RABBIT, **options).sources


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, _key, _topic, _partition, _offset, _event_ts FROM source",
        "SELECT id, 'none' AS _headers FROM source",
        "SELECT id, '_headers' AS what FROM source",
        "SELECT _headers FROM (SELECT 1 AS _headers FROM source)",
        "SELECT FROM WHERE _headers",
    ],
)
def test_sql_that_takes_no_such_part_from_the_stream_is_not_in_the_way(sql: str) -> None:
    assert declare(source=KINESIS, transform_sql=sql).transform_sql == sql


def test_a_lookup_may_have_a_column_of_that_name() -> None:
    users = {"users": Lookup(WAREHOUSE, table="users")}
    for sql in ("SELECT users._headers FROM source JOIN users USING (id)", "SELECT _headers FROM users"):
        assert declare(source=KINESIS, transform_sql=sql, lookups=users).lookups
    with pytest.raises(DeclarationError, match="has no headers"):
        declare(
            source=KINESIS,
            transform_sql="SELECT source._headers FROM source JOIN users USING (id)",
            lookups=users,
        )


def test_a_connection_that_is_known_later_is_judged_then() -> None:
    """Planning asks the same with the kinds that it finds."""
    read = declare(source="later", transform_sql="SELECT _headers FROM source")
    check_source_message_parts(read, ["kafka"])
    with pytest.raises(DeclarationError, match="a message of kinesis has no headers"):
        check_source_message_parts(read, ["kinesis"])
    (target,) = declare(
        target="later", target_table=None, target_topic="x", target_partition_column="p"
    ).targets
    check_target_message_parts(target, "kafka", None)
    with pytest.raises(DeclarationError, match="a message of pubsub has no partition"):
        check_target_message_parts(target, "pubsub", None)
