"""Queues and exchanges as message targets."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.messages.base import MessageTarget
from ematix_flow.backends.rabbitmq.address import RabbitMQAddress
from ematix_flow.backends.rabbitmq.failures import DRIVER_ERRORS, target_refusal
from ematix_flow.backends.rabbitmq.sender import RabbitMQSender, parse_destination
from ematix_flow.errors import ConfigError, did_you_mean

OPTIONS = ("content_type",)


class RabbitMQTarget(MessageTarget):
    """At least once: RabbitMQ cannot commit messages together with a token."""

    transactions = False

    def __init__(self, address: RabbitMQAddress) -> None:
        self._address = address

    def check_destination(self, destination: str) -> None:
        """Check that the queue or the exchange exists."""
        parsed = parse_destination(destination)
        with self._address.open_connection() as connection:
            try:
                channel = connection.channel()
                if parsed.is_queue:
                    channel.queue_declare(parsed.routing_key, passive=True)
                else:
                    channel.exchange_declare(parsed.exchange, passive=True)
            except DRIVER_ERRORS as error:
                if connection.is_open:
                    raise target_refusal(error, self._address.name, destination) from error
                raise self._address.connection_error(error) from error

    def sender(self, destination: str, options: Mapping[str, str]) -> RabbitMQSender:
        parse_destination(destination)
        for name in options:
            if name not in OPTIONS:
                raise ConfigError(f"a RabbitMQ target has no option {name!r}.{did_you_mean(name, OPTIONS)}")
        return RabbitMQSender(self._address, destination, options.get("content_type"))
