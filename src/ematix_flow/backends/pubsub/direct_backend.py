"""Pub/Sub in a notebook or script: ``PubSubBackend.open(project_id)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.backends.brokers.direct_backend import CONNECTION_NAME, RefusableBackend
from ematix_flow.backends.messages.base import ReadRequest, Receiver, Sender
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.pubsub import backend
from ematix_flow.backends.pubsub.receiver import PubSubReceiver
from ematix_flow.spec.connections import PubSubConnection


class PubSubBackend(RefusableBackend):
    """One project. Places are subscriptions to read from, and topics to write to.

    Deadlines are not extended while your code works on a batch: messages that are committed after more than a
    minute, or in the first batch after more than the subscription's deadline, may be delivered again.
    """

    batch_size = 1000

    def __init__(self, project: backend.PubSubStreamBackend, payload: PayloadSpec) -> None:
        super().__init__(payload)
        self._project = project

    @classmethod
    def open(
        cls,
        project_id: str,
        *,
        endpoint: str | None = None,
        anonymous_auth: bool = False,
        credentials_path: str | None = None,
        payload_format: str = "json",
        batch_size: int | None = None,
        batch_bytes: int | None = None,
    ) -> PubSubBackend:
        """Does not connect yet. ``endpoint`` and ``anonymous_auth`` are for the emulator."""
        connection = PubSubConnection(
            name=CONNECTION_NAME,
            project_id=project_id,
            endpoint=endpoint or "",
            anonymous_auth=anonymous_auth,
            credentials_path=credentials_path or "",
        )
        opened = cls(backend.PubSubStreamBackend(connection), PayloadSpec(format=payload_format))
        return opened._with_limits(batch_size, batch_bytes)

    def ping(self) -> str:
        return self._project.check()

    def nack_pending(self) -> int:
        """Give back the messages that were yielded and not committed, and return their number.

        They are delivered again, or go where the subscription's dead-letter policy says.
        """

        def refuse(receiver: Receiver, receipts: Sequence[Any]) -> None:
            assert isinstance(receiver, PubSubReceiver)
            receiver.nack(receipts)

        return self._refuse_pending(refuse)

    def _open_receiver(self, place: str) -> Receiver:
        return self._project.stream_source().receiver(ReadRequest(place), {})

    def _sender(self, place: str) -> Sender:
        target = self._project.message_target()
        target.check_destination(place)
        return target.sender(place, {})
