"""Creates clients of librdkafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from ematix_flow.backends.kafka.failures import invalid_settings
from ematix_flow.spec.connections.brokers import KafkaConnection

Client = TypeVar("Client")


def open_client(
    kind: Callable[[dict[str, Any]], Client], connection: KafkaConnection, settings: dict[str, Any]
) -> Client:
    """A consumer, producer or admin client with these settings; ConfigError when they are invalid."""
    try:
        return kind(settings)
    except (KafkaException, ValueError, TypeError) as error:
        raise invalid_settings(connection, error) from error
