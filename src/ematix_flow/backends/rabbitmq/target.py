"""Queues and exchanges as targets."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.rabbitmq.address import Address
from ematix_flow.backends.rabbitmq.failures import DriverErrors, target_refused
from ematix_flow.backends.rabbitmq.sender import RabbitMQSender, place_of
from ematix_flow.backends.streams import MessageTarget
from ematix_flow.errors import ConfigError, did_you_mean

OPTIONS = ("content_type",)


class RabbitMQTarget(MessageTarget):
    """At least once: RabbitMQ has no way to commit messages together with a token."""

    transactions = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def check_place(self, place: str) -> None:
        """Whether the queue or the exchange is there."""
        where = place_of(place)
        with self._address.connected() as connection:
            try:
                channel = connection.channel()
                if where.is_queue:
                    channel.queue_declare(where.routing_key, passive=True)
                else:
                    channel.exchange_declare(where.exchange, passive=True)
            except DriverErrors as error:
                if connection.is_open:
                    raise target_refused(error, self._address.name, place) from error
                raise self._address.failed(error) from error

    def sender(self, place: str, options: Mapping[str, str]) -> RabbitMQSender:
        place_of(place)
        for name in options:
            if name not in OPTIONS:
                raise ConfigError(f"a RabbitMQ target has no option {name!r}.{did_you_mean(name, OPTIONS)}")
        return RabbitMQSender(self._address, place, options.get("content_type"))
