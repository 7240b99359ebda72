"""Queues as what a stream follows."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.rabbitmq.address import Address
from ematix_flow.backends.rabbitmq.failures import DriverErrors, lost, source_refused
from ematix_flow.backends.rabbitmq.receiver import PATIENCE, PREFETCH, RabbitMQReceiver
from ematix_flow.backends.streams import Reading, Received
from ematix_flow.errors import ConfigError, Unsupported, did_you_mean

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
                raise lost(self._address.name, self._address.label, error, 0) from error

    def receiver(self, reading: Reading, progress: Mapping[str, str]) -> RabbitMQReceiver:
        prefetch, patience = _limits(reading)
        return RabbitMQReceiver(self._address, reading.query, prefetch=prefetch, patience=patience)


def _limits(reading: Reading) -> tuple[int, float]:
    for name in reading.options:
        if name not in OPTIONS:
            raise ConfigError(f"a RabbitMQ source has no option {name!r}.{did_you_mean(name, OPTIONS)}")
    prefetch = _number(reading, "prefetch", PREFETCH)
    if not 1 <= prefetch <= _MOST_PREFETCHED:
        raise ConfigError(f"prefetch is {prefetch}; it is from 1 to {_MOST_PREFETCHED}")
    return prefetch, float(_number(reading, "reconnect_seconds", int(PATIENCE)))


def _number(reading: Reading, name: str, default: int) -> int:
    given = str(reading.options.get(name, default)).replace("_", "")
    if not given.isdecimal():
        raise ConfigError(f"{name} is {given!r}; it is a whole number")
    return int(given)
