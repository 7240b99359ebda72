"""Kinesis in a notebook or script: ``KinesisBackend.open(stream_name)``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.backends.brokers.direct_backend import CONNECTION_NAME, MessageBackend
from ematix_flow.backends.kinesis import backend
from ematix_flow.backends.kinesis.positions import ShardPosition
from ematix_flow.backends.messages.base import Message, ReadRequest, Receiver, Sender
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.spec.connections import KinesisConnection


class KinesisBackend(MessageBackend):
    """The streams of one account and region; an empty place means the stream it was opened with.

    Kinesis stores no positions of readers. `commit_offsets` stores them in this object, and
    `committed_positions` returns them for the next ``open``.
    """

    batch_size = 1000

    def __init__(
        self,
        stream: backend.KinesisStreamBackend,
        payload: PayloadSpec,
        starting: str | dt.datetime,
        positions: Mapping[str, str],
        options: Mapping[str, str],
    ) -> None:
        super().__init__(payload)
        self._stream, self._starting, self._options = stream, starting, options
        self._committed: dict[str, str] = dict(positions)

    @classmethod
    def open(
        cls,
        stream_name: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        profile: str | None = None,
        verify_tls: bool = True,
        payload_format: str = "json",
        starting: str | dt.datetime = "earliest",
        positions: Mapping[str, str] | None = None,
        batch_size: int | None = None,
        batch_bytes: int | None = None,
        idle_poll_ms: int = 250,
    ) -> KinesisBackend:
        """Does not connect yet. ``positions``, from `committed_positions`, override ``starting``."""
        connection = KinesisConnection(
            name=CONNECTION_NAME,
            stream_name=stream_name,
            region=region or "",
            endpoint=endpoint or "",
            access_key_id=access_key_id or "",
            secret_access_key=secret_access_key or "",
            session_token=session_token or "",
            profile=profile or "",
            verify_tls=verify_tls,
        )
        opened = cls(
            backend.KinesisStreamBackend(connection),
            PayloadSpec(format=payload_format),
            starting,
            positions or {},
            {"idle_poll_ms": str(idle_poll_ms)},
        )
        return opened._with_limits(batch_size, batch_bytes)

    def ping(self) -> str:
        return self._stream.check()

    def commit_offsets(self) -> None:
        """Store the positions of all batches that were yielded so far."""
        for receipts in self._pending.values():
            self._committed.update(receipts)
        super().commit_offsets()

    def committed_positions(self) -> dict[str, str]:
        """The committed position of each shard."""
        return dict(self._committed)

    def _open_receiver(self, place: str) -> Receiver:
        reading = ReadRequest(place, starting=self._starting, options=self._options)
        return self._stream.stream_source().receiver(reading, self._committed)

    def _receipts(self, messages: Sequence[Message]) -> Sequence[Any]:
        """The last message of each shard; it covers the earlier ones."""
        last = {message.partition: message for message in messages}
        return [
            (shard, str(ShardPosition((message.position or "").partition(":")[0], message.timestamp)))
            for shard, message in last.items()
        ]

    def _sender(self, place: str) -> Sender:
        target = self._stream.message_target()
        target.check_destination(place)
        return target.sender(place, {})
