"""Pub/Sub in a notebook or script: ``PubSubBackend.open(project_id)``."""

from __future__ import annotations

from ematix_flow.backends.brokers.notebook import BATCH_BYTES, MessageBackend
from ematix_flow.backends.messages.contract import ReadRequest, Receiver, Sender
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.pubsub import backend
from ematix_flow.backends.pubsub.receiver import PubSubReceiver
from ematix_flow.spec.connections import PubSubConnection

CONNECTION_NAME = "notebook"


class PubSubBackend(MessageBackend):
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
        opened.batch_size = cls.batch_size if batch_size is None else batch_size
        opened.batch_bytes = BATCH_BYTES if batch_bytes is None else batch_bytes
        return opened

    def ping(self) -> str:
        return self._project.check()

    def nack_pending(self) -> int:
        """Give back the messages that were yielded and not committed, and return their number.

        They are delivered again, or go where the subscription's dead-letter policy says.
        """
        count = 0
        for place, receipts in self._pending.items():
            receiver = self._receivers[place]
            assert isinstance(receiver, PubSubReceiver)
            receiver.nack(receipts)
            count += len(receipts)
        self._pending.clear()
        return count

    def pending_count(self) -> int:
        """The number of messages that were yielded and not committed."""
        return sum(len(receipts) for receipts in self._pending.values())

    def _open_receiver(self, place: str) -> Receiver:
        return self._project.stream_source().receiver(ReadRequest(place), {})

    def _sender(self, place: str) -> Sender:
        target = self._project.message_target()
        target.check_destination(place)
        return target.sender(place, {})
