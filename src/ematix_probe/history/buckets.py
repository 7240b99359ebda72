"""Opens the bucket of a history: S3, Google Cloud Storage, Azure Blob Storage.

Keys come from the URL's options, else from where each cloud's programs find them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ematix_probe.errors import CannotConnect, HistoryError
from ematix_probe.history.locations import split_options
from ematix_probe.redaction import mask

_OPTIONS = {
    "s3": (
        "region",
        "endpoint",
        "access_key_id",
        "secret_access_key",
        "session_token",
        "anonymous",
        "ca_cert_path",
    ),
    "gs": ("endpoint", "anonymous", "project"),
    "az": ("account", "endpoint", "account_key", "sas_token"),
}
_FORMS = {
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "az": "az://account/container/prefix  or  az://container/prefix?account=name",
}
_SECRETS = ("secret_access_key", "session_token", "account_key", "sas_token")


@dataclass(frozen=True)
class Bucket:
    """A prefix of a bucket: pyarrow's file system of it, and the path in that."""

    files: Any  # pyarrow.fs.FileSystem
    path: str
    lists_folders: bool = True


def location_of(url: str, kind: str) -> str:
    """The place of a history without the options of the URL, checked."""
    plain, _ = split_options(url, _OPTIONS[kind], only=True)
    place = unquote(plain.partition("://")[2]).strip("/")
    _, options = split_options(url, _OPTIONS[kind])
    needed = 2 if kind == "az" and "account" not in options else 1
    parts = place.split("/") if place else []
    if len(parts) < needed or any(part in ("", ".", "..") for part in parts):
        raise HistoryError(f"the history {mask(plain)} names no place", next_step=f"write  {_FORMS[kind]}")
    return f"{kind}://{place}"


def open_bucket(url: str, kind: str) -> Bucket:
    from pyarrow import fs

    place = location_of(url, kind).partition("://")[2]
    _, options = split_options(url, _OPTIONS[kind])
    try:
        if kind == "s3":
            return Bucket(fs.S3FileSystem(**_s3_arguments(options)), place)
        if kind == "gs":
            # it reads the whole prefix for every list, and shows no folder that nobody made
            return Bucket(fs.GcsFileSystem(**_gcs_arguments(options)), place, lists_folders=False)
        account = options.get("account")
        if account is None:
            account, _, place = place.partition("/")
        return Bucket(fs.AzureFileSystem(**_azure_arguments(account, options)), place)
    except AttributeError as error:  # a pyarrow that was built without it
        raise HistoryError(
            f"this pyarrow cannot open {kind}:// addresses", next_step='pip install --upgrade "pyarrow>=18"'
        ) from error
    except (OSError, ValueError) as error:
        raise CannotConnect(
            f"the history {kind}://{place} cannot be opened: {error}",
            next_step="check the options of its URL",
        ) from error


def secrets_of(url: str) -> list[str]:
    """The keys in the URL's options, which no message may show."""
    _, options = split_options(url, _SECRETS)
    return [value for value in options.values() if value]


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    named: dict[str, Any] = {
        "region": options.get("region"),
        "access_key": options.get("access_key_id"),
        "secret_key": options.get("secret_access_key"),
        "session_token": options.get("session_token"),
        "anonymous": _flag(options.get("anonymous")) or None,
        "tls_ca_file_path": options.get("ca_cert_path"),
        **_address(options, "scheme", "endpoint_override"),
    }
    if named.get("endpoint_override") and not named["region"]:
        named["region"] = "us-east-1"  # a server that is not Amazon's takes any
    return {name: value for name, value in named.items() if value is not None}


def _gcs_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    import datetime as dt

    named: dict[str, Any] = {
        "anonymous": _flag(options.get("anonymous")) or None,
        "project_id": options.get("project"),
        "retry_time_limit": dt.timedelta(seconds=30),
        **_address(options, "scheme", "endpoint_override"),
    }
    return {name: value for name, value in named.items() if value is not None}


def _azure_arguments(account: str, options: Mapping[str, str]) -> dict[str, Any]:
    named: dict[str, Any] = {
        "account_name": account,
        "account_key": options.get("account_key"),
        "sas_token": options.get("sas_token"),
        **_address(options, "blob_storage_scheme", "blob_storage_authority"),
    }
    if named.get("blob_storage_authority"):
        named["dfs_storage_scheme"] = named["blob_storage_scheme"]
        named["dfs_storage_authority"] = named["blob_storage_authority"]
    return {name: value for name, value in named.items() if value is not None}


def _address(options: Mapping[str, str], scheme: str, authority: str) -> dict[str, str]:
    endpoint = options.get("endpoint")
    if not endpoint:
        return {}
    pieces = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    return {scheme: pieces.scheme, authority: pieces.netloc}


def _flag(text: str | None) -> bool:
    return (text or "").lower() in ("true", "yes", "on", "1")
