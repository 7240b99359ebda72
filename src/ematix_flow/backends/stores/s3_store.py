"""A file store under a prefix of a bucket, on Amazon S3 or a compatible server.

A file appears under its key when all of it is stored. What must happen once is a conditional write, so a
server that ignores conditions is refused before anything relies on them.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import io
import logging
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.aws.errors import error_code, http_status
from ematix_flow.backends.stores import s3_leases
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.s3_client import endpoint_of, s3_client
from ematix_flow.backends.stores.s3_failures import (
    is_access_denied,
    is_failed_condition,
    is_missing_object,
    translate_errors,
)
from ematix_flow.backends.stores.s3_file import S3File
from ematix_flow.backends.stores.s3_leases import S3Lease, S3LeaseStatus
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, PipelineLocked, TargetFailed
from ematix_flow.spec.connections.lakes import S3Connection
from ematix_flow.spec.generated_names import distinct_file_name

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig

HIDDEN = ".ematix_flow"
TABLE_LOCK_SECONDS = 6 * 3600.0  # loads compute and merge under it; a crashed load frees it much earlier
_MULTIPART_BYTES = 16 * 1024 * 1024
_DELETED_AT_ONCE = 1_000
_CREATE_TRIES = 8
_WRITER = "ematix-flow-writer"
_NO_UPLOADS = (403, 404, 405, 501)  # not allowed, already ended, or not supported by the server
_NO_BULK_DELETE = ("MissingContentMD5", "NotImplemented", "MalformedXML", "InvalidRequest")

_log = logging.getLogger(__name__)
_conditional_buckets: set[str] = set()  # stores of this process whose server honours conditions
_leases: dict[str, list[tuple[int, S3Lease]]] = {}  # the leases of this process by store, with their thread


@dataclass(frozen=True)
class S3Object:
    """An object below a folder: its path relative to that folder, its size, its ETag and its time."""

    path: str
    size: int
    etag: str
    modified: dt.datetime


@dataclass(frozen=True, repr=False)
class S3Store(Store):
    """The store holds no client: each process that unpickles it creates its own."""

    locks_expire = True

    connection: S3Connection

    def __post_init__(self) -> None:
        if importlib.util.find_spec("boto3") is None:
            raise ConfigError(
                f"connection {self.connection.name!r} needs the Python package 'boto3', "
                "which is not installed",
                next_step='pip install "ematix-flow-spark[s3]"',
            )

    def __repr__(self) -> str:
        return f"S3Store({self.uri('')})"

    @property
    def root(self) -> str:
        """The prefix, without slashes at its ends."""
        return self.connection.prefix.strip("/")

    def key(self, path: str) -> str:
        return "/".join(part for part in (self.root, path.strip("/")) if part)

    def uri(self, path: str) -> str:
        return f"s3a://{self.connection.bucket}/{self.key(path)}"

    # -------------------------------------------------------------- reading

    def names(self, folder: str) -> list[str]:
        return sorted(found.path for found in self._list_objects(folder, "/"))

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder, sorted."""
        prefix, found = self._prefix(folder), []
        with translate_errors(self.connection, f"to list {self.uri(folder)}"):
            for page in self._pages(Prefix=prefix, Delimiter="/"):
                found += [entry["Prefix"][len(prefix) : -1] for entry in page.get("CommonPrefixes", ())]
        return sorted(name for name in found if name)

    def files_below(self, folder: str, without: Collection[str] = ()) -> Iterator[tuple[str, int]]:
        # one listing of everything costs fewer requests than one per folder
        for found in self._list_objects(folder, ""):
            if "/" not in found.path or found.path.split("/", 1)[0] not in without:
                yield found.path, found.size

    def objects_below(self, folder: str) -> list[S3Object]:
        """The same as `files_below`, with the ETag to which a later read can be bound."""
        return list(self.iterate_below(folder))

    def iterate_below(self, folder: str) -> Iterator[S3Object]:
        """Yield the same objects, page by page."""
        return self._list_objects(folder, "")

    def object_at(self, path: str) -> S3Object:
        """Find an object; FileNotFoundError if it does not exist. It lists, because HEAD does not say why it
        is refused."""
        key = self.key(path)
        with translate_errors(self.connection, f"to list {self.uri(path)}"):
            found = self._client.list_objects_v2(**self._bucket_arguments(), Prefix=key, MaxKeys=1)
        for entry in found.get("Contents", ()):
            if entry["Key"] == key:  # it sorts before all keys that only begin with it
                return S3Object(path, entry["Size"], entry["ETag"], entry["LastModified"])
        raise FileNotFoundError(self.uri(path))

    def has_file(self, path: str) -> bool:
        try:
            self.object_at(path)
        except FileNotFoundError:
            return False
        return True

    def parent_store(self) -> tuple[S3Store, str] | None:
        """The store of the folder above the root, and the root's name in it; None for a whole bucket."""
        folder, _, name = self.root.rpartition("/")
        return (S3Store(replace(self.connection, prefix=folder)), name) if name else None

    def _list_objects(self, folder: str, delimiter: str) -> Iterator[S3Object]:
        prefix = self._prefix(folder)
        with translate_errors(self.connection, f"to list {self.uri(folder)}"):
            for page in self._pages(Prefix=prefix, Delimiter=delimiter):
                for entry in page.get("Contents", ()):
                    path = entry["Key"][len(prefix) :]
                    if path and not path.endswith("/"):  # a marker that some tools leave for a folder
                        yield S3Object(path, entry["Size"], entry["ETag"], entry["LastModified"])

    def _prefix(self, folder: str) -> str:
        key = self.key(folder)
        return f"{key}/" if key else ""

    def _pages(self, **request: str) -> Iterator[dict[str, Any]]:
        given = {name: value for name, value in request.items() if value}
        pages = self._client.get_paginator("list_objects_v2")
        yield from pages.paginate(Bucket=self.connection.bucket, **given)

    def read(self, path: str) -> str:
        from botocore.exceptions import ClientError

        with translate_errors(self.connection, f"to read {self.uri(path)}"):
            try:
                content: bytes = self._client.get_object(**self._key_arguments(self.key(path)))["Body"].read()
            except ClientError as error:
                if is_missing_object(error):
                    raise FileNotFoundError(self.uri(path)) from error
                raise
        return content.decode("utf-8")

    def open(self, path: str, buffer: int = 1 << 20) -> io.BufferedReader:
        return io.BufferedReader(S3File(self.connection, self.key(path)), buffer)

    # -------------------------------------------------------------- writing

    def create(self, path: str, text: str, *, durable: bool = True) -> None:
        self.require_conditional_writes()
        with translate_errors(self.connection, f"to write {self.uri(path)}"):
            self._create(self.key(path), text.encode())

    def _create(self, key: str, body: bytes) -> None:
        """Create an object; FileExistsError if it already exists. Each write carries an id, so that we know
        our own."""
        from botocore.exceptions import ClientError

        writer = uuid.uuid4().hex
        request: dict[str, Any] = {"Body": body, "Metadata": {_WRITER: writer}}
        for attempt in range(_CREATE_TRIES):
            try:
                self._client.put_object(**self._key_arguments(key), IfNoneMatch="*", **request)
                return
            except ClientError as error:
                if not is_failed_condition(error):
                    raise
                # the client repeats a write whose response was lost, and is then refused
                there = self._writer_of(key)
                if there == writer:
                    return
                if there is not None:
                    raise FileExistsError(f"s3a://{self.connection.bucket}/{key}") from error
                if attempt == _CREATE_TRIES - 1:
                    raise
            time.sleep(min(0.2 * 2**attempt, 5.0))  # another write of the key, maybe our own, is in progress

    def put(self, path: str, text: str) -> None:
        """Write or overwrite a small file. Only for names that no other process uses."""
        with translate_errors(self.connection, f"to write {self.uri(path)}"):
            self._client.put_object(**self._key_arguments(self.key(path)), Body=text.encode())

    def _writer_of(self, key: str) -> str | None:
        """The id of the object's writer, empty if it has none; None if the object does not exist."""
        from botocore.exceptions import ClientError

        try:
            found = self._client.head_object(**self._key_arguments(key))
        except ClientError as error:
            if is_missing_object(error):
                return None
            raise
        writer: str = found["Metadata"].get(_WRITER, "")
        return writer

    def upload(self, local: Path, path: str) -> None:
        with translate_errors(self.connection, f"to write {self.uri(path)}"):
            self._client.upload_file(str(local), self.connection.bucket, self.key(path), Config=_transfer())
        local.unlink()

    def download(self, path: str, local: Path) -> None:
        """Download a file to the local disk."""
        with translate_errors(self.connection, f"to read {self.uri(path)}"):
            self._client.download_file(self.connection.bucket, self.key(path), str(local), Config=_transfer())

    def copy(self, path: str, to: str) -> None:
        """Copy an object on the server."""
        source = {"Bucket": self.connection.bucket, "Key": self.key(path)}
        with translate_errors(self.connection, f"to copy {self.uri(path)}"):
            self._client.copy(source, self.connection.bucket, self.key(to), Config=_transfer())

    def remove(self, path: str) -> None:
        with translate_errors(self.connection, f"to remove {self.uri(path)}"):
            self._client.delete_object(**self._key_arguments(self.key(path)))

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove many files with few requests."""
        keys = [self.key(path) for path in paths]
        with translate_errors(self.connection, f"to remove files below {self.uri('')}"):
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._delete(keys[start : start + _DELETED_AT_ONCE])

    def _delete(self, keys: Sequence[str]) -> None:
        from botocore.exceptions import ClientError

        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._client.delete_objects(Bucket=self.connection.bucket, Delete=wanted)
        except ClientError as error:
            if error_code(error) not in _NO_BULK_DELETE:
                raise
            answer = {"Errors": [{"Key": key} for key in keys]}
        for failed in answer.get("Errors", ()):  # single deletes report what is wrong
            self._client.delete_object(**self._key_arguments(failed["Key"]))

    def remove_tree(self, folder: str) -> bool:
        """Remove everything below a folder, including uploads that a crash left unfinished: they are not
        listed, but cost money."""
        paths = [f"{folder}/{path}" for path, _ in self.files_below(folder)]
        self.remove_all(paths)
        with translate_errors(self.connection, f"to remove {self.uri(folder)}"):
            self._abort_uploads(folder)
        return bool(paths)

    def _abort_uploads(self, folder: str) -> None:
        """Abort unfinished uploads, if the user may and the server can. What is left is not visible."""
        from botocore.exceptions import ClientError

        pages = self._client.get_paginator("list_multipart_uploads")
        found: list[dict[str, Any]] = []
        try:
            for page in pages.paginate(Bucket=self.connection.bucket, Prefix=self._prefix(folder)):
                found += page.get("Uploads", ())
        except ClientError as error:
            if http_status(error) not in _NO_UPLOADS:
                raise
        for left in found:
            try:
                self._client.abort_multipart_upload(
                    **self._key_arguments(left["Key"]), UploadId=left["UploadId"]
                )
            except ClientError as error:
                if http_status(error) not in _NO_UPLOADS:
                    raise

    # -------------------------------------------------------------- locks

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        lease = self._lease(_lock_name(pipeline, target), f"pipeline {pipeline!r} on {target!r}", str(run_id))

        def lease_error(seen: S3LeaseStatus) -> FlowError:
            return PipelineLocked(
                f"pipeline {pipeline!r} is already running into {target!r}: {_holder_text(seen)}",
                state="this run has not begun; the target is untouched",
                next_step="wait for it to end; a crashed run frees it after "
                f"{s3_leases.LEASE_SECONDS:.0f} seconds",
            )

        try:
            self.require_conditional_writes()
            s3_leases.acquire_lease(lease, lease_error)
        except TargetFailed as error:  # nothing has begun: report only that the target cannot be reached
            raise CannotConnect(error.what, next_step=error.next_step) from error
        with self._hold_lease(lease):
            yield

    @contextmanager
    def table_lock(self, folder: str) -> Iterator[None]:
        lease = self._lease(_lock_name("table", folder), f"table {folder!r}")
        until = time.monotonic() + TABLE_LOCK_SECONDS

        logged = False

        def lease_error(seen: S3LeaseStatus) -> FlowError | None:
            nonlocal logged
            if time.monotonic() < until:
                if not logged:
                    _log.info("waiting for another load of %s to end: %s", folder, _holder_text(seen))
                logged = True
                return None
            return TargetFailed(
                f"another load has been changing {folder!r} for more than "
                f"{TABLE_LOCK_SECONDS / 3600:g} hours: {_holder_text(seen)}",
                state=f"{folder} is unchanged by this run",
                next_step="run it again when the other load has ended",
            )

        self.require_conditional_writes()
        s3_leases.acquire_lease(lease, lease_error)
        with self._hold_lease(lease):
            yield

    def require_locks_held(self) -> None:
        """Check the locks of this thread; a thread without locks checks those of the other threads."""
        held = list(_leases.get(self.identity(), ()))
        me = threading.get_ident()
        for lease in [lease for thread, lease in held if thread == me] or [lease for _, lease in held]:
            lease.renew_or_fail()

    def _lease(self, stem: str, what: str, run_id: str = "") -> S3Lease:
        return S3Lease(self.connection, self.key(f"{HIDDEN}/locks/{stem}.json"), what, run_id)

    @contextmanager
    def _hold_lease(self, lease: S3Lease) -> Iterator[None]:
        held, mine = _leases.setdefault(self.identity(), []), (threading.get_ident(), lease)
        held.append(mine)
        try:
            yield
        finally:
            held.remove(mine)
            lease.release()

    # -------------------------------------------------------------- the connection

    def require_reachable(self) -> None:
        """Raise CannotConnect if the server or the bucket cannot be reached."""
        with translate_errors(self.connection, "to list the bucket", reaching=True):
            self._client.list_objects_v2(**self._bucket_arguments(), Prefix=self._prefix(""), MaxKeys=1)

    def check(self) -> str:
        self.require_reachable()
        shown = f"s3://{self.connection.bucket}/{self.root}".rstrip("/")
        where = endpoint_of(self.connection)
        shown += f" on {where}" if where else ""
        try:
            self.require_conditional_writes()
        except FlowError as error:
            if is_access_denied(error):
                return f"{shown} (read only)"
            raise
        return shown

    def identity(self) -> str:
        return f"s3:{endpoint_of(self.connection) or 'aws'}/{self.connection.bucket}/{self.root}"

    def require_conditional_writes(self) -> None:
        """Refuse a server that ignores conditions on writes. Checked once per process."""
        if self.identity() in _conditional_buckets:
            return
        key = self.key(f"{HIDDEN}/locks/probe-{uuid.uuid4().hex}")
        with translate_errors(self.connection, "to write", reaching=True):
            self._create(key, b"1")
            try:
                second = self._accepts_write(key, IfNoneMatch="*")
                stale = self._accepts_write(key, IfMatch='"0123456789abcdef0123456789abcdef"')
            finally:
                self._client.delete_object(**self._key_arguments(key))
        if second or stale:
            raise CannotConnect(
                f"the S3 server of connection {self.connection.name!r} ignores conditions on writes "
                f"({'If-None-Match' if second else 'If-Match'}): two writers would both succeed",
                next_step="use a server that honours them: Amazon S3, or a recent compatible one",
            )
        _conditional_buckets.add(self.identity())

    def _accepts_write(self, key: str, **condition: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            self._client.put_object(**self._key_arguments(key), Body=b"2", **condition)
        except ClientError as error:
            if is_failed_condition(error):
                return False
            raise
        return True

    @property
    def _client(self) -> Any:
        return s3_client(self.connection)

    def _bucket_arguments(self) -> dict[str, str]:
        return {"Bucket": self.connection.bucket}

    def _key_arguments(self, key: str) -> dict[str, str]:
        return {"Bucket": self.connection.bucket, "Key": key}


def _transfer() -> TransferConfig:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=_MULTIPART_BYTES, multipart_chunksize=_MULTIPART_BYTES, max_concurrency=4
    )


def _lock_name(*names: str) -> str:
    return distinct_file_name(*names, default="lock", digits=20)


def _holder_text(seen: S3LeaseStatus) -> str:
    return str(seen.holder) if seen.holder is not None else "another process"
