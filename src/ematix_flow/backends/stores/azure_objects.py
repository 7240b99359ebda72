"""The run log's object store on Azure Blob Storage, with Microsoft's client and conditions on ETags."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.state.object_store import ObjectStore
from ematix_probe.redaction import remember_secret

_RETRIES = 2


@dataclass(frozen=True)
class AzureStoreUrl:
    """A prefix of a container. Without a key or token, the credentials of the environment or the machine are
    used."""

    account: str
    container: str
    prefix: str = ""
    endpoint: str = ""
    account_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)

    @property
    def account_url(self) -> str:
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"


class AzureObjectStore(ObjectStore):
    def __init__(self, place: AzureStoreUrl) -> None:
        super().__init__()
        self.location = f"azure://{place.account}/{place.container}/{place.prefix}".rstrip("/")
        self._place, self._root = place, f"{place.prefix}/" if place.prefix else ""
        self._container: Any = _container_client(place)
        self.server_time()

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        from azure.core.exceptions import ResourceNotFoundError

        with self._translate_errors("read"):
            try:
                found = self._container.download_blob(f"{self._root}{key}")
                return found.readall(), found.properties.etag
            except ResourceNotFoundError as error:
                if _is_container_missing(error):
                    raise
                return None

    def store(self, key: str, content: bytes, *, new: bool = False, tag: str | None = None) -> bool:
        from azure.core import MatchConditions
        from azure.core.exceptions import (
            ResourceExistsError,
            ResourceModifiedError,
            ResourceNotFoundError,
        )

        condition: dict[str, Any] = {"overwrite": not new}
        if tag is not None:
            condition |= {"etag": tag, "match_condition": MatchConditions.IfNotModified}
        with self._translate_errors("written"):
            try:
                self._container.upload_blob(f"{self._root}{key}", content, **condition)
            except (ResourceExistsError, ResourceModifiedError):
                return False
            except ResourceNotFoundError as error:
                if tag is None or _is_container_missing(error):
                    raise
                return False
        return True

    def remove(self, keys: Sequence[str]) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        with self._translate_errors("changed"):
            for key in keys:
                try:
                    self._container.delete_blob(f"{self._root}{key}")
                except ResourceNotFoundError as error:
                    if _is_container_missing(error):
                        raise

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        start = f"{self._root}{after}" if after else None
        given = {} if start is None else {"start_from": start}
        with self._translate_errors("listed"):
            found = self._container.list_blob_names(name_starts_with=f"{self._root}{prefix}", **given)
            for name in found:
                if start is None or name > start:  # some servers include the start, others ignore it
                    yield name[len(self._root) :]

    def server_time(self) -> dt.datetime:
        dates: list[str] = []
        with self._translate_errors("reached"):
            self._container.get_container_properties(
                raw_response_hook=lambda answer: dates.append(answer.http_response.headers["Date"])
            )
        return parsedate_to_datetime(dates[-1])

    def close(self) -> None:
        super().close()
        self._container.close()

    @contextmanager
    def _translate_errors(self, done: str) -> Iterator[None]:
        from azure.core.exceptions import AzureError, ClientAuthenticationError, ResourceNotFoundError

        try:
            yield
        except ClientAuthenticationError as error:
            raise CannotConnect(
                f"the run log {self.location} cannot be {done}: {_error_text(error)}",
                next_step="give ?account_key= or ?sas_token=, set AZURE_STORAGE_KEY, or sign in; the user "
                "needs the role Storage Blob Data Contributor",
            ) from error
        except ResourceNotFoundError as error:
            raise CannotConnect(
                f"there is no container {self._place.container!r} in "
                f"{self._place.account}: {_error_text(error)}",
                next_step="create it, or fix the URL of the run log; containers are never created here",
            ) from error
        except AzureError as error:
            raise CannotConnect(
                f"the run log {self.location} cannot be {done}: {_error_text(error)}",
                next_step="check the account's name, the endpoint and the network",
            ) from error


def _container_client(place: AzureStoreUrl) -> Any:
    try:
        from azure.storage.blob import ContainerClient, LinearRetry
    except ImportError as error:
        raise ConfigError(
            f"a run log at azure://{place.account} needs the Python package 'azure-storage-blob'",
            next_step='pip install "ematix-flow-spark[azure]"',
        ) from error
    return ContainerClient(
        place.account_url,
        place.container,
        credential=_credential(place),
        # no run waits long for its record
        retry_policy=LinearRetry(backoff=1, retry_total=_RETRIES, random_jitter_range=1),
        connection_timeout=10,
        read_timeout=30,
    )


def _credential(place: AzureStoreUrl) -> Any:
    key = place.account_key or os.environ.get("AZURE_STORAGE_KEY", "")
    token = place.sas_token or os.environ.get("AZURE_STORAGE_SAS_TOKEN", "")
    for secret in (key, token):
        remember_secret(secret)
    if place.sas_token or (token and not key):
        from azure.core.credentials import AzureSasCredential

        return AzureSasCredential(token.removeprefix("?"))
    if key:
        return {"account_name": place.account, "account_key": key}
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _error_text(error: Exception) -> str:
    return str(getattr(error, "message", None) or error).strip().splitlines()[0]


def _is_container_missing(error: Exception) -> bool:
    """Whether the container is missing, rather than the blob."""
    return getattr(error, "error_code", None) == "ContainerNotFound"
