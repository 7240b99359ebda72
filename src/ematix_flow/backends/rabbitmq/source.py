"""Queues as stream sources."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.messages.base import ReadRequest, ReceivedSource
from ematix_flow.backends.messages.source_options import count_option, known_options, seconds_option
from ematix_flow.backends.rabbitmq.address import RabbitMQAddress
from ematix_flow.backends.rabbitmq.failures import DRIVER_ERRORS, source_refusal
from ematix_flow.backends.rabbitmq.receiver import PATIENCE, PREFETCH, RabbitMQReceiver
from ematix_flow.errors import DeclarationError, Unsupported

_MOST_PREFETCHED = 65_535  # a 16-bit field in AMQP
OPTIONS = ("prefetch", "reconnect_seconds")


class RabbitMQSource(ReceivedSource):
    """Reads a queue from its head; acknowledged messages are no longer in it."""

    def __init__(self, address: RabbitMQAddress) -> None:
        self._address = address

    def check(self, reading: ReadRequest) -> None:
        _parse_limits(reading)
        if reading.starting != "earliest":
            raise Unsupported(
                f"the queue {reading.query!r} cannot be followed from {reading.starting}: "
                "a queue has only unacknowledged messages, and is read from its head",
                next_step="remove the starting position",
            )
        with self._address.open_connection() as connection:
            try:
                connection.channel().queue_declare(reading.query, passive=True)
            except DRIVER_ERRORS as error:
                if connection.is_open:
                    raise source_refusal(error, self._address.name, reading.query) from error
                raise self._address.connection_error(error) from error

    def receiver(self, reading: ReadRequest, progress: Mapping[str, str]) -> RabbitMQReceiver:
        prefetch, patience = _parse_limits(reading)
        return RabbitMQReceiver(self._address, reading.query, prefetch=prefetch, patience=patience)


def _parse_limits(reading: ReadRequest) -> tuple[int, float]:
    options = known_options(reading.options, OPTIONS)
    prefetch = count_option(options, "prefetch", PREFETCH)
    if prefetch > _MOST_PREFETCHED:
        raise DeclarationError(f"the option 'prefetch' is at most {_MOST_PREFETCHED}, not {prefetch}")
    return prefetch, seconds_option(options, "reconnect_seconds", PATIENCE)
