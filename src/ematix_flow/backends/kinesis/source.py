"""A Kinesis stream as a stream source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematix_flow.backends.kinesis.client import kinesis_client, short_name
from ematix_flow.backends.kinesis.stream_check import describe_stream
from ematix_flow.backends.messages.base import ReadRequest, ReceivedSource, Receiver
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.connections import KinesisConnection


class KinesisSource(ReceivedSource):
    """The query is the name or ARN of a stream; an empty query means the connection's stream."""

    def __init__(self, connection: KinesisConnection) -> None:
        self._connection = connection

    def check(self, reading: ReadRequest) -> None:
        client = kinesis_client(self._connection)
        try:
            self._require_active(client, self._stream(reading))
        finally:
            client.close()

    def receiver(self, reading: ReadRequest, progress: Mapping[str, str]) -> Receiver:
        from ematix_flow.backends.kinesis.receiver import AT_ONCE, KinesisReceiver

        stream = self._stream(reading)
        client = kinesis_client(self._connection, connections=AT_ONCE + 2)
        try:
            self._require_active(client, stream)
            return KinesisReceiver(self._connection, client, stream, reading, progress)
        except BaseException:
            client.close()
            raise

    def _stream(self, reading: ReadRequest) -> str:
        return reading.query or self._connection.stream_name

    def _require_active(self, client: Any, stream: str) -> None:
        summary = describe_stream(self._connection, client, stream, SourceFailed)
        if summary is not None and summary["StreamStatus"] in ("CREATING", "DELETING"):
            raise SourceFailed(
                f"Kinesis stream {short_name(stream)!r} is {summary['StreamStatus']}",
                next_step="wait until it is ACTIVE, and run it again",
            )
