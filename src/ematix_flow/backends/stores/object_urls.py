"""Opens the object store of a run log by URL: ``s3://``, ``gs://``, ``azure://``. Clients are imported on
demand."""

from __future__ import annotations

from urllib.parse import unquote

from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections.lakes import DeltaS3Connection, S3Connection
from ematix_flow.spec.connections.urls import UrlPieces, mask_url, split_url
from ematix_flow.state.object_store import ObjectStore
from ematix_flow.state.store_urls import parse_flag, split_options
from ematix_probe.redaction import remember_secret

_S3_OPTIONS = (
    *("region", "endpoint", "profile", "path_style", "verify_tls", "ca_cert_path", "anonymous"),
    *("access_key_id", "secret_access_key", "session_token"),
)
_GCS_OPTIONS = ("project", "endpoint", "credentials_path", "anonymous")
_AZURE_OPTIONS = ("account", "endpoint", "account_key", "sas_token")


def open_object_store(url: str) -> ObjectStore:
    """Open the store of a URL, connect to it, and check that it honours conditional writes."""
    pieces = split_url(url)
    if pieces.scheme == "s3":
        from ematix_flow.backends.stores.s3_objects import S3ObjectStore

        return S3ObjectStore(_s3_connection(url))
    if pieces.scheme in ("gs", "gcs"):
        from ematix_flow.backends.stores.gcs_objects import GcsObjectStore, GcsStoreUrl

        own = split_options(url, _GCS_OPTIONS, only=True)[1]
        anonymous = parse_flag("anonymous", own.pop("anonymous", None), default=False)
        bucket, *parts = _path_parts(url, pieces, 1, "gs://bucket/prefix")
        return GcsObjectStore(GcsStoreUrl(bucket, "/".join(parts), anonymous=anonymous, **own))
    from ematix_flow.backends.stores.azure_objects import AzureObjectStore, AzureStoreUrl

    own = split_options(url, _AZURE_OPTIONS, only=True)[1]
    for secret in ("account_key", "sas_token"):
        remember_secret(own.get(secret, ""))
    account = own.pop("account", None)
    if account is not None:
        container, *parts = _path_parts(url, pieces, 1, "azureblob://container/prefix?account=name")
    else:
        account, container, *parts = _path_parts(url, pieces, 2, "azureblob://account/container/prefix")
    return AzureObjectStore(AzureStoreUrl(account, container, "/".join(parts), **own))


def _s3_connection(url: str) -> S3Connection:
    _path_parts(url, split_url(url), 1, "s3://bucket/prefix")
    split_options(url, _S3_OPTIONS, only=True)
    return DeltaS3Connection(name="run_log", url=url)


def _path_parts(url: str, pieces: UrlPieces, needed: int, form: str) -> list[str]:
    """The parts between the slashes; an error if there are too few."""
    place = pieces.address + pieces.path if pieces.scheme == "s3" else pieces.location
    path = unquote(place).rstrip("/")
    parts = path.split("/") if path else []
    if len(parts) < needed or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(f"the run log URL {mask_url(url)} names no location", next_step=f"write {form}")
    return parts
