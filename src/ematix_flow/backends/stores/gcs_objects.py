"""The run log's object store on Google Cloud Storage, with Google's client and generation preconditions."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.state.object_store import ObjectStore

_SECONDS = (10.0, 30.0)  # to connect, and to wait for an answer
_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class GcsStoreUrl:
    """A prefix of a bucket. Without a key file the default credentials are used."""

    bucket: str
    prefix: str = ""
    project: str = ""
    endpoint: str = ""
    credentials_path: str = ""
    anonymous: bool = False


class GcsObjectStore(ObjectStore):
    def __init__(self, place: GcsStoreUrl) -> None:
        super().__init__()
        self.location = f"gs://{place.bucket}/{place.prefix}".rstrip("/")
        self._place, self._root = place, f"{place.prefix}/" if place.prefix else ""
        self._local = threading.local()  # its sessions are not thread-safe
        self._clients: list[Any] = []
        with self._translate_errors("reached"):
            found = self._bucket.client.list_blobs(
                self._bucket, prefix=self._root, max_results=1, **self._call_options
            )
            next(iter(found), None)

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        from google.cloud.exceptions import NotFound

        with self._translate_errors("read"):
            blob = self._blob(key)
            try:
                content: bytes = blob.download_as_bytes(**self._call_options)
            except NotFound as error:
                if _is_bucket_missing(error):
                    raise
                return None
            if blob.generation is None:  # a server that does not return it with the content
                blob.reload(**self._call_options)
                content = blob.download_as_bytes(if_generation_match=blob.generation, **self._call_options)
        return content, str(blob.generation)

    def store(self, key: str, content: bytes, *, new: bool = False, tag: str | None = None) -> bool:
        from google.cloud.exceptions import PreconditionFailed

        generation = 0 if new else None if tag is None else int(tag)
        with self._translate_errors("written"):
            try:
                self._blob(key).upload_from_string(
                    content,
                    content_type="application/json",
                    if_generation_match=generation,
                    **self._call_options,
                )
            except PreconditionFailed:
                return False
        return True

    def remove(self, keys: Sequence[str]) -> None:
        with self._translate_errors("changed"):
            for first in range(0, len(keys), 100):
                some = [self._blob(key) for key in keys[first : first + 100]]
                self._bucket.delete_blobs(some, on_error=lambda blob: None, **self._call_options)

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        start = f"{self._root}{after}" if after else None
        with self._translate_errors("listed"):
            found = self._bucket.client.list_blobs(
                self._bucket,
                prefix=f"{self._root}{prefix}",
                start_offset=start,
                fields="items(name),nextPageToken",
                **self._call_options,
            )
            for blob in found:
                if blob.name != start:  # an offset is inclusive
                    yield blob.name[len(self._root) :]

    def server_time(self) -> dt.datetime:
        """The time of a new write: the client does not show the time of a response."""
        with self._translate_errors("written"):
            blob = self._blob("clock")
            blob.upload_from_string(b"", **self._call_options)
            written: dt.datetime | None = blob.updated
        if written is None:
            raise CannotConnect(f"{self.location} does not report when an object was written")
        return written

    def close(self) -> None:
        super().close()
        while self._clients:
            self._clients.pop().close()
        self._local = threading.local()

    @property
    def _call_options(self) -> dict[str, Any]:
        """Timeouts and retries. They are short, so that no run waits long for its record. Writes are retried
        too: each document carries the name of its write."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        return {"timeout": _SECONDS, "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)}

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(f"{self._root}{key}")

    @property
    def _bucket(self) -> Any:
        if not hasattr(self._local, "bucket"):
            client = _client(self._place)
            self._clients.append(client)
            self._local.bucket = client.bucket(self._place.bucket)
        return self._local.bucket

    @contextmanager
    def _translate_errors(self, done: str) -> Iterator[None]:
        from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        try:
            yield
        except (Forbidden, Unauthorized, GoogleAuthError) as error:
            raise CannotConnect(
                f"the run log {self.location} cannot be {done}: {_error_text(error)}",
                next_step="give its user the right to list, read, write and delete in that bucket, "
                "or name a key file with ?credentials_path=",
            ) from error
        except NotFound as error:
            raise CannotConnect(
                f"there is no bucket {self._place.bucket!r}: {_error_text(error)}",
                next_step="create it, or fix the URL of the run log; buckets are never created here",
            ) from error
        except (GoogleAPIError, RequestException) as error:
            raise CannotConnect(
                f"the run log {self.location} cannot be {done}: {_error_text(error)}",
                next_step="check the network and the endpoint",
            ) from error


def _client(place: GcsStoreUrl) -> Any:
    try:
        import google.cloud.storage as storage
        from google.auth.credentials import AnonymousCredentials
        from google.oauth2 import service_account
    except ImportError as error:
        raise ConfigError(
            f"a run log at gs://{place.bucket} needs the Python package 'google-cloud-storage'",
            next_step='pip install "ematix-flow-spark[gcs]"',
        ) from error

    found: Any = None
    if place.anonymous:
        found = AnonymousCredentials()  # type: ignore[no-untyped-call]
    elif place.credentials_path:
        load: Any = service_account.Credentials.from_service_account_file
        found = load(place.credentials_path)
    project = place.project or getattr(found, "project_id", None) or ("none" if place.anonymous else None)
    options = {"api_endpoint": place.endpoint} if place.endpoint else None
    return storage.Client(project, credentials=found, client_options=options)


def _is_bucket_missing(error: Any) -> bool:
    return "bucket" in str(getattr(error, "message", error)).lower() and "object" not in str(error).lower()


def _error_text(error: Exception) -> str:
    return str(getattr(error, "message", None) or error).strip()
