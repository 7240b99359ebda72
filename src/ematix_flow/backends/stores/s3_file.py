"""An object of a bucket as a seekable file."""

from __future__ import annotations

import io
from typing import Any

from ematix_flow.backends.stores.s3_client import s3_client
from ematix_flow.backends.stores.s3_failures import is_missing_object, translate_errors
from ematix_flow.spec.connections.lakes import S3Connection


class S3File(io.RawIOBase):
    """Reads an object piece by piece; all pieces are of the version that was opened.

    FileNotFoundError if it does not exist. Wrap it in a buffer: each read is a request.
    """

    def __init__(self, connection: S3Connection, key: str) -> None:
        from botocore.exceptions import ClientError

        self._connection, self._at = connection, 0
        self._object = {"Bucket": connection.bucket, "Key": key}
        self._doing = f"to read s3a://{connection.bucket}/{key}"
        with translate_errors(connection, self._doing):
            try:
                found = s3_client(connection).head_object(**self._object)
            except ClientError as error:
                if is_missing_object(error):
                    raise FileNotFoundError(f"s3a://{connection.bucket}/{key}") from error
                raise
        self.size, self.etag = int(found["ContentLength"]), found["ETag"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        """Read the rest in one request; the standard method reads a few kilobytes at a time."""
        rest = bytearray(max(0, self.size - self._at))
        return bytes(rest[: self.readinto(rest)])

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self.size - self._at)
        if wanted <= 0:
            return 0
        pieces = {"Range": f"bytes={self._at}-{self._at + wanted - 1}", "IfMatch": self.etag}
        with translate_errors(self._connection, self._doing):
            answer = s3_client(self._connection).get_object(**self._object, **pieces)
            piece = answer["Body"].read()
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
