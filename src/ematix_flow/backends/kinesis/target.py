"""A Kinesis stream as a message target."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.kinesis.client import kinesis_client, short_name
from ematix_flow.backends.kinesis.sender import LONGEST_PREFIX, KinesisSender
from ematix_flow.backends.kinesis.stream_check import describe_stream
from ematix_flow.backends.messages.base import MessageTarget, Sender
from ematix_flow.errors import ConfigError, TargetFailed
from ematix_flow.spec.connections import KinesisConnection

_OPTIONS = ("partition_key_prefix",)


class KinesisTarget(MessageTarget):
    """At least once: a record is sent again when its confirmation is lost."""

    def __init__(self, connection: KinesisConnection) -> None:
        self._connection = connection

    def check_destination(self, destination: str) -> None:
        stream = destination or self._connection.stream_name
        client = kinesis_client(self._connection)
        try:
            summary = describe_stream(self._connection, client, stream, TargetFailed)
        finally:
            client.close()
        if summary is not None and summary["StreamStatus"] not in ("ACTIVE", "UPDATING"):
            raise TargetFailed(
                f"Kinesis stream {short_name(stream)!r} is {summary['StreamStatus']}",
                next_step="wait until it is ACTIVE, and run it again",
            )

    def sender(self, destination: str, options: Mapping[str, str]) -> Sender:
        """``partition_key_prefix`` starts the partition keys of messages without a key."""
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(f"a Kinesis target has no option {unknown[0]!r}; it has  partition_key_prefix")
        prefix = options.get("partition_key_prefix", "")
        if len(prefix) > LONGEST_PREFIX:
            raise ConfigError(
                f"partition_key_prefix has {len(prefix)} characters; the maximum is {LONGEST_PREFIX}"
            )
        return KinesisSender(self._connection, destination or self._connection.stream_name, prefix)
