"""Queues as what a stream follows."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.rabbitmq.address import Address
from ematix_flow.backends.rabbitmq.failures import DriverErrors, source_refused
from ematix_flow.backends.rabbitmq.receiver import PATIENCE, PREFETCH, RabbitMQReceiver
from ematix_flow.backends.source_options import count, known_options, seconds
from ematix_flow.backends.streams import Reading, Received
from ematix_flow.errors import DeclarationError, Unsupported

_MOST_PREFETCHED = 65_535  # AMQP has 16 bits for it
OPTIONS = ("prefetch", "reconnect_seconds")


class RabbitMQSource(Received):
    """A queue is followed from its head: what is acknowledged is no longer in it."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def check(self, reading: Reading) -> None:
        _limits(reading)
        if reading.starting != "earliest":
            raise Unsupported(
                f"the queue {reading.query!r} cannot be followed from {reading.starting}: "
                "it holds what nobody has acknowledged, and is read from its head",
                next_step="leave the starting position out",
            )
        with self._address.connected() as connection:
            try:
                connection.channel().queue_declare(reading.query, passive=True)
            except DriverErrors as error:
                if connection.is_open:
                    raise source_refused(error, self._address.name, reading.query) from error
                raise self._address.failed(error) from error

    def receiver(self, reading: Reading, progress: Mapping[str, str]) -> RabbitMQReceiver:
        prefetch, patience = _limits(reading)
        return RabbitMQReceiver(self._address, reading.query, prefetch=prefetch, patience=patience)


def _limits(reading: Reading) -> tuple[int, float]:
    options = known_options(reading.options, OPTIONS)
    prefetch = count(options, "prefetch", PREFETCH)
    if prefetch > _MOST_PREFETCHED:
        raise DeclarationError(f"the option 'prefetch' is at most {_MOST_PREFETCHED}, not {prefetch}")
    return prefetch, seconds(options, "reconnect_seconds", PATIENCE)
