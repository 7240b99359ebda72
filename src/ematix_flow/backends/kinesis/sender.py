"""Sends messages to a stream, in requests as large as the service allows.

Delivery is at least once. Refused records of a request are sent again before the next request, so records of
one key may change their order within a request, as ``PutRecords`` documents. Kinesis has no headers, so they
are not sent.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.kinesis.client import shared_client, short_name, stream_argument
from ematix_flow.backends.kinesis.failures import THROTTLED, translate_errors
from ematix_flow.backends.messages.base import KEY, VALUE, BatchToken
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.connections import KinesisConnection

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_RECORDS = 500
REQUEST_BYTES = 5 * 1024 * 1024  # including partition keys
RECORD_BYTES = 1024 * 1024  # including its partition key
LONGEST_KEY = 256
LONGEST_PREFIX = 200
ATTEMPTS = 6  # for a request that fails as a whole
_RETRIED = THROTTLED | {"InternalFailure", "ServiceUnavailable"}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(frozen=True)
class KinesisSender:
    """Picklable. ``patience`` is how many seconds refused records are retried while none is accepted."""

    connection: KinesisConnection
    stream: str
    partition_key_prefix: str = ""
    patience: float = 60.0

    def keep_open(self) -> KinesisSender:
        return self  # each batch opens its own connection

    def check(self, batch: pa.RecordBatch) -> None:
        for _ in self._requests([batch]):
            pass

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        sent = 0
        client = shared_client(self.connection, attempts=ATTEMPTS)
        for request in self._requests(batches):
            self._put_records(client, request)
            sent += len(request)
        return sent

    def _requests(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
        request: list[dict[str, Any]] = []
        size = row = 0
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in (VALUE, KEY))
            for value, key in zip(*columns, strict=True):
                data, partition_key = value or b"", self._partition_key(key)
                weight = len(data) + len(partition_key.encode())
                if weight > RECORD_BYTES:
                    raise RowRejected(
                        f"message {row} has {weight:,} bytes with its key; Kinesis allows {RECORD_BYTES:,}",
                        next_step="send less data, or store the content elsewhere and send its address",
                    )
                if len(request) == REQUEST_RECORDS or size + weight > REQUEST_BYTES:
                    yield request
                    request, size = [], 0
                request.append({"Data": data, "PartitionKey": partition_key})
                size += weight
                row += 1
        if request:
            yield request

    def _partition_key(self, key: bytes | None) -> str:
        """The message's key; its hash when it is too long or not text; a random key when there is none."""
        if not key:
            return f"{self.partition_key_prefix}{uuid.uuid4().hex}"
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return hashlib.sha256(key).hexdigest()
        return text if len(text) <= LONGEST_KEY else hashlib.sha256(key).hexdigest()

    def _put_records(self, client: Any, records: Sequence[dict[str, Any]]) -> None:
        """Send records until the service has accepted every one."""
        left = list(records)
        refused, gives_up = 0, time.monotonic() + self.patience
        while left:
            doing = f"send {len(left)} records to stream {short_name(self.stream)!r}"
            with translate_errors(self.connection, doing, TargetFailed, away=TargetFailed):
                answer = client.put_records(**stream_argument(self.stream), Records=left)
            failed = [
                (record, results)
                for record, results in zip(left, answer["Records"], strict=True)
                if results.get("ErrorCode")
            ]
            if len(failed) < len(left):
                refused, gives_up = 0, time.monotonic() + self.patience
            left = [record for record, _ in failed]
            if not left:
                return
            refused += 1
            results = [each for _, each in failed]
            if any(each["ErrorCode"] not in _RETRIED for each in results) or time.monotonic() >= gives_up:
                raise self._refusal(results)
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**refused)
            time.sleep(random.uniform(longest / 2, longest))

    def _refusal(self, results: Sequence[Mapping[str, Any]]) -> TargetFailed:
        counts = Counter(each["ErrorCode"] for each in results)
        codes = ", ".join(f"{count} × {code}" for code, count in counts.most_common())
        final = [each for each in results if each["ErrorCode"] not in _RETRIED]
        words = (final or results)[0].get("ErrorMessage") or "no reason given"
        step = f"aws kinesis update-shard-count --stream-name {short_name(self.stream)} …  adds capacity"
        return TargetFailed(
            f"Kinesis stream {short_name(self.stream)!r} refused {len(results)} records ({codes}): {words}",
            state="records that were sent before stay; a new attempt sends all again",
            next_step="check the first of them" if final else step,
        )
