"""RabbitMQ in a notebook or script: ``RabbitMQBackend.open(amqp_url)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.backends.brokers.direct_backend import CONNECTION_NAME, RefusableBackend
from ematix_flow.backends.messages.base import Receiver
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.rabbitmq.address import RabbitMQAddress, address_of
from ematix_flow.backends.rabbitmq.receiver import PREFETCH, RabbitMQReceiver
from ematix_flow.backends.rabbitmq.sender import RabbitMQSender
from ematix_flow.spec.connections.brokers import RabbitMQConnection

_CONTENT_TYPES = {"json": "application/json"}


class RabbitMQBackend(RefusableBackend):
    """One server. Places are queues; for writing also ``exchange:name`` or ``exchange:name/routing.key``."""

    batch_size = 1000

    def __init__(self, address: RabbitMQAddress, payload: PayloadSpec, prefetch: int = PREFETCH) -> None:
        super().__init__(payload)
        self._address = address
        self._prefetch = prefetch

    @classmethod
    def open(
        cls,
        amqp_url: str,
        *,
        consumer_tag: str | None = None,
        payload_format: str = "json",
        batch_size: int | None = None,
        batch_bytes: int | None = None,
        prefetch: int = PREFETCH,
        tls_ca_path: str = "",
        tls_cert_path: str = "",
        tls_key_path: str = "",
        tls_verify: bool = True,
    ) -> RabbitMQBackend:
        """Does not connect yet. A batch has at most ``prefetch`` messages, until they are committed."""
        connection = RabbitMQConnection(
            name=CONNECTION_NAME,
            amqp_url=amqp_url,
            consumer_tag=consumer_tag or "",
            tls_ca_path=tls_ca_path,
            tls_cert_path=tls_cert_path,
            tls_key_path=tls_key_path,
            tls_verify=tls_verify,
        )
        opened = cls(address_of(connection), PayloadSpec(format=payload_format), prefetch)
        return opened._with_limits(batch_size, batch_bytes)

    def ping(self) -> str:
        server = self._address.server_properties()
        return f"{server.get('product', 'AMQP server')} {server.get('version', '')} at {self._address.label}"

    def nack_pending(self, requeue: bool = False) -> int:
        """Refuse the messages that were yielded and not committed, and return their number.

        They go to the queue's dead-letter exchange, or with ``requeue`` back into the queue.
        """

        def refuse(receiver: Receiver, receipts: Sequence[Any]) -> None:
            assert isinstance(receiver, RabbitMQReceiver)
            receiver.reject(receipts, requeue=requeue)

        return self._refuse_pending(refuse)

    def _open_receiver(self, place: str) -> RabbitMQReceiver:
        return RabbitMQReceiver(self._address, place, prefetch=self._prefetch)

    def _sender(self, place: str) -> RabbitMQSender:
        return RabbitMQSender(self._address, place, _CONTENT_TYPES.get(self._payload.format))
