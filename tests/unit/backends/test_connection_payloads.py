"""The payload settings of a connection, the same for a stream and for a notebook."""

from __future__ import annotations

from ematix_flow import KafkaConnection, RabbitMQConnection
from ematix_flow.backends.kafka.direct_backend import KafkaBackend
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.connection_payloads import payload_of
from ematix_flow.spec.connections import SchemaRegistryConnection

LONG = SchemaRegistryConnection(name="registry", url="http://localhost:8081")


def kafka(**fields: object) -> KafkaConnection:
    return KafkaConnection(name="k", bootstrap_servers="localhost:9092", **fields)  # type: ignore[arg-type]


def test_payloads_are_json_by_default() -> None:
    assert payload_of(kafka(), "events") == PayloadSpec(topic="events")
    assert payload_of(RabbitMQConnection(name="r", amqp_url="amqp://localhost")) == PayloadSpec()


def test_all_payload_settings_are_used() -> None:
    said = {
        "payload_format": "protobuf",
        "subject_strategy": "record_name",
        "protobuf_message": "shop.Order",
        "schema_registry": LONG,
    }
    found = payload_of(kafka(**said), "events")
    assert (found.format, found.subject_strategy, found.message) == ("protobuf", "record_name", "shop.Order")
    assert found.registry == LONG
    opened = KafkaBackend.open("localhost:9092", **said)
    assert (opened._payload.subject_strategy, opened._payload.message) == ("record_name", "shop.Order")


def test_the_short_form_of_a_registry_is_one_too() -> None:
    short = kafka(
        payload_format="avro",
        schema_registry_url="http://localhost:8081",
        schema_registry_basic_auth_user="ann",
        schema_registry_basic_auth_password="hunter22",
    )
    registry = payload_of(short).registry
    assert isinstance(registry, SchemaRegistryConnection)
    assert (registry.url, registry.basic_auth_user) == ("http://localhost:8081", "ann")
    assert registry.basic_auth_password == "hunter22"
