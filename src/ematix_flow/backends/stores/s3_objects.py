"""The run log's object store on S3, with the client and error handling of `s3_store`."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from ematix_flow.aws.errors import http_status
from ematix_flow.backends.stores.s3_client import s3_client
from ematix_flow.backends.stores.s3_failures import (
    is_failed_condition,
    is_missing_object,
    translate_errors,
)
from ematix_flow.backends.stores.s3_store import S3Store
from ematix_flow.spec.connections.lakes import S3Connection
from ematix_flow.state.object_store import ObjectStore

_CONFLICTING_WRITE = 409  # another write of the same key is in progress: try again
_TRIES = 6
_ATTEMPTS = 3


class _FewRetriesStore(S3Store):
    """A store with few retries, so that no run waits half a minute for its record."""

    @property
    def _client(self) -> Any:
        return s3_client(self.connection, attempts=_ATTEMPTS)


class S3ObjectStore(ObjectStore):
    def __init__(self, connection: S3Connection) -> None:
        super().__init__()
        self._connection = connection
        self._files = _FewRetriesStore(connection)
        self.location = f"s3://{connection.bucket}/{self._files.root}".rstrip("/")
        self._files.require_conditional_writes()

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        from botocore.exceptions import ClientError

        with translate_errors(self._connection, f"to read {self._files.uri(key)}"):
            try:
                found = self._client.get_object(**self._key_arguments(key))
                return found["Body"].read(), found["ETag"]
            except ClientError as error:
                if is_missing_object(error):
                    return None
                raise

    def store(self, key: str, content: bytes, *, new: bool = False, tag: str | None = None) -> bool:
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if new else {} if tag is None else {"IfMatch": tag}
        with translate_errors(self._connection, f"to write {self._files.uri(key)}"):
            for attempt in range(_TRIES):
                try:
                    self._client.put_object(**self._key_arguments(key), Body=content, **condition)
                    return True
                except ClientError as error:
                    if tag is not None and is_missing_object(error):
                        return False
                    if not condition or not is_failed_condition(error):
                        raise
                    if http_status(error) != _CONFLICTING_WRITE or attempt == _TRIES - 1:
                        return False
                time.sleep(0.1 * 2**attempt)
        return False

    def remove(self, keys: Sequence[str]) -> None:
        if len(keys) == 1:
            self._files.remove(keys[0])
        elif keys:
            self._files.remove_all(keys)

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        begins, root = self._files.key(prefix) if prefix.strip("/") else "", self._files.key("")
        if prefix.endswith("/"):
            begins += "/"
        cut = len(root) + 1 if root else 0
        request: dict[str, Any] = {"Bucket": self._connection.bucket, "Prefix": begins}
        if after:
            request["StartAfter"] = self._files.key(after)
        with translate_errors(self._connection, f"to list {self._files.uri(prefix)}"):
            for page in self._client.get_paginator("list_objects_v2").paginate(**request):
                for entry in page.get("Contents", ()):
                    yield entry["Key"][cut:]

    def server_time(self) -> dt.datetime:
        with translate_errors(self._connection, "to list the bucket", reaching=True):
            answer = self._client.list_objects_v2(
                Bucket=self._connection.bucket, Prefix=self._files.key("clock"), MaxKeys=1
            )
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])

    @property
    def _client(self) -> Any:
        return s3_client(self._connection, attempts=_ATTEMPTS)

    def _key_arguments(self, key: str) -> dict[str, str]:
        return {"Bucket": self._connection.bucket, "Key": self._files.key(key)}
