"""The backend of a Kinesis connection: one stream and its account."""

from __future__ import annotations

from ematix_flow.backends.base import Backend
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.kinesis.client import kinesis_client, kinesis_connection, short_name
from ematix_flow.backends.kinesis.source import KinesisSource
from ematix_flow.backends.kinesis.stream_check import describe_stream
from ematix_flow.backends.kinesis.target import KinesisTarget
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import Connection


class KinesisStreamBackend(Backend):
    """A source and target of streams; batch pipelines cannot use it."""

    kind = "kinesis"
    capabilities = Capabilities(same_db=False, schemas=False)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._stream = kinesis_connection(connection)

    def check(self) -> str:
        name = self._stream.stream_name
        client = kinesis_client(self._stream)
        try:
            summary = describe_stream(self._stream, client, name, CannotConnect)
            where = f"Kinesis stream {short_name(name)} in {client.meta.region_name}"
        finally:
            client.close()
        if self._stream.endpoint:
            where += f", at {self._stream.endpoint}"
        if summary is None:
            return f"{where} (this user may not describe it)"
        shards = summary["OpenShardCount"]
        return f"{where}: {summary['StreamStatus']}, {shards} open shard{'' if shards == 1 else 's'}"

    def identity(self) -> str:
        stream = self._stream
        return f"kinesis:{stream.endpoint or stream.region}/{stream.stream_name}"

    def stream_source(self) -> KinesisSource:
        return KinesisSource(self._stream)

    def message_target(self) -> KinesisTarget:
        return KinesisTarget(self._stream)
