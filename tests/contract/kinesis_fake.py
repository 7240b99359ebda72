"""A server with Kinesis' protocol whose answers a test chooses: emulators do not fail on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, Any]]
SHARD = "shardId-000000000000"


def error(code: str, message: str = "because") -> Answer:
    return 400, {"__type": code, "message": message}


class FakeKinesis:
    """``answers`` has one function an operation: it takes the request and gives status and body."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.endpoint = f"http://{address[0]}:{address[1]}"
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "DescribeStreamSummary": lambda request: (
                200,
                {
                    "StreamDescriptionSummary": {
                        "StreamName": "s",
                        "StreamStatus": "ACTIVE",
                        "RetentionPeriodHours": 24,
                        "OpenShardCount": 1,
                    }
                },
            ),
            "ListShards": lambda request: (200, {"Shards": [shard(SHARD)]}),
            "GetShardIterator": lambda request: (
                200,
                {"ShardIterator": f"from {request['ShardIteratorType']}"},
            ),
            "GetRecords": lambda request: (200, records([], "more")),
        }

    def count(self, operation: str) -> int:
        return sum(1 for name, _ in self.requests if name == operation)

    def connection_fields(self) -> dict[str, Any]:
        return {
            "stream_name": "s",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "tests",
            "secret_access_key": "anything-goes-here",
        }


def shard(id: str, *parents: str, closed: bool = False) -> dict[str, Any]:
    sequences = {"StartingSequenceNumber": "1"} | ({"EndingSequenceNumber": "99"} if closed else {})
    names = ("ParentShardId", "AdjacentParentShardId")
    return {
        "ShardId": id,
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
        "SequenceNumberRange": sequences,
        **dict(zip(names, parents, strict=False)),
    }


def records(sequences: list[int], following: str | None, behind: int = 0) -> dict[str, Any]:
    found = [
        {"SequenceNumber": str(each), "Data": "eA==", "PartitionKey": "k", "ApproximateArrivalTimestamp": 1}
        for each in sequences
    ]
    return {"Records": found, "NextShardIterator": following, "MillisBehindLatest": behind}


@contextmanager
def fake_kinesis() -> Iterator[FakeKinesis]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            operation = self.headers["X-Amz-Target"].rpartition(".")[2]
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((operation, request))
            status, body = fake.answers[operation](request)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeKinesis(("127.0.0.1", server.server_port))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
