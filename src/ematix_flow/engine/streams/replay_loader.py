"""Replays dead letters: loads them as the stream would load them now.

The same loader loads them as a separate batch. The batch key is a hash of the messages, so that a replay that
crashed after its commit changes nothing when it runs again with the same messages.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.backends.messages.base import MESSAGE_DDL, message_schema
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.streams.batch_report import BatchReport, RejectedMessage
from ematix_flow.engine.streams.decoding import ORIGIN
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.sinks import BatchName
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.engine.streams.stream_runner import StreamRunner
from ematix_flow.errors import SourceFailed, Unsupported
from ematix_flow.spec.streams import StreamSpec

_NAMES = [field.split()[0] for field in MESSAGE_DDL.split(", ")]


class ReplayLoader:
    """Loads messages into all targets of a stream, also while the stream itself runs."""

    def __init__(self, spec: StreamSpec, connections: Connections, folder: StreamFolder) -> None:
        self.rejected: list[RejectedMessage] = []
        self.spec = replace(spec, on_error="dlq")
        self.stream = StreamRunner(self.spec, connections, folder, letters=self)
        if any(source.kind_of_rows != "messages" for source in self.stream.sources):
            raise Unsupported(
                f"stream {spec.name!r} follows files or tables, which have no messages to replay"
            )

    def add(self, letters: Sequence[RejectedMessage], batch: str) -> None:
        """Collect the messages that fail again."""
        self.rejected += letters

    def load(self, messages: Sequence[Mapping[str, Any]], attempt: str) -> dict[int, str]:
        """Load the messages.

        Returns the reason for each one that failed, by index; all others are in every target.

        ``attempt`` distinguishes one try from the next.
        """
        self.rejected = []
        try:
            for loader in self.stream.replay_loaders(self._frame(messages)):
                own = {sink.label for sink in loader.sinks}
                wanted = [m for m in messages if m.get("target") is None or m["target"] in own]
                if wanted:
                    key = str(self._batch_id(wanted, attempt))
                    name = BatchName(self.spec.name, key, 0, None, kind="dlq")
                    loader.load(name, IncomingBatch(self._frame(wanted), len(wanted)), BatchReport(0))
        finally:
            self.stream.lookups.stop()
        reasons: dict[int, str] = {}
        for letter in self.rejected:
            for index, message in enumerate(messages):
                if index not in reasons and all(
                    _same_value(message, letter.message, key) for key in _NAMES[:5]
                ):
                    reasons[index] = letter.reason
                    break
        if len(reasons) < len(self.rejected):
            raise SourceFailed(
                "a message that could not be replayed was not found among those that were tried"
            )
        return reasons

    def _frame(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        import pyarrow as pa

        listed = [{name: message.get(name) for name in _NAMES} for message in messages]
        rows = pa.Table.from_pylist(listed, message_schema())
        origins = pa.array([self._source_number(message.get("topic")) for message in messages], pa.int32())
        return (
            self.stream.connections.spark().newSession().createDataFrame(rows.append_column(ORIGIN, origins))
        )

    def _source_number(self, topic: str | None) -> int:
        """The number of the source that names the message's topic."""
        for number, source in enumerate(self.spec.sources):
            if topic in [name.strip() for name in source.query.split(",")]:
                return number
        return 0

    def _batch_id(self, messages: Sequence[Mapping[str, Any]], attempt: str) -> uuid.UUID:
        digest = hashlib.blake2b(digest_size=16)
        for part in [self.spec.name, attempt, *(repr([m.get(key) for key in _NAMES[:5]]) for m in messages)]:
            digest.update(part.encode() + b"\0")
        return uuid.UUID(bytes=digest.digest())


def _same_value(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    left, right = one.get(key), other.get(key)
    if isinstance(right, bytearray | memoryview):
        right = bytes(right)
    return bool(left == right)
