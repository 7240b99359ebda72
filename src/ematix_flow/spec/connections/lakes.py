"""Files and lake tables: object stores and Delta Lake, on a local disk or in S3, and Iceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import unquote

from ematix_flow.spec.connections.base import Connection, DriverProperties, decode_url_piece
from ematix_flow.spec.connections.formats import FORMAT_ALIASES, FORMATS, format_from_path
from ematix_flow.spec.connections.references import has_reference
from ematix_flow.spec.connections.urls import UrlPieces

_WEB = re.compile(r"https?://.", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}|arn:\S+")  # the second form is an access point


@dataclass(frozen=True, kw_only=True, repr=False)
class _LocalConnection(Connection):
    required: ClassVar[tuple[str, ...]] = ("path",)

    path: str = ""

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {"path": unquote(url.location)}


@dataclass(frozen=True, kw_only=True, repr=False)
class S3Connection(Connection):
    """A bucket. Without keys the default credential chain is used: environment, profile, role.

    ``endpoint`` is for servers that are not Amazon's; ``path_style`` is then true unless given.
    ``anonymous`` sends requests without a signature, for public buckets; with ``requester_pays``
    this account pays for the requests, not the owner of the bucket.
    """

    required: ClassVar[tuple[str, ...]] = ("bucket",)

    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    profile: str = ""
    path_style: bool | None = None
    verify_tls: bool = True
    ca_cert_path: str = ""
    anonymous: bool = False
    requester_pays: bool = False

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {
            "bucket": url.address,
            "prefix": unquote(url.path.strip("/")),
            "access_key_id": decode_url_piece(url.user),
            "secret_access_key": decode_url_piece(url.password),
        }

    def _check(self) -> None:
        self._require_all_or_none("access_key_id", "secret_access_key")
        if self.session_token and not self.access_key_id:
            raise self._error("session_token is given without access_key_id")
        if self.profile and self.access_key_id:
            raise self._error("give profile or access keys, not both")
        if self.anonymous and (self.profile or self.access_key_id):
            raise self._error("give anonymous or credentials, not both")
        if self.endpoint and not has_reference(self.endpoint) and not _WEB.match(self.endpoint):
            raise self._error("endpoint needs http:// or https://", next_step='write  endpoint = "https://…"')
        if self.bucket and not has_reference(self.bucket) and not _BUCKET.fullmatch(self.bucket):
            raise self._error(
                f"{self.bucket!r} cannot be the name of a bucket",
                next_step='write the name alone:  bucket = "my-bucket", and the rest as  prefix = "…"',
            )
        parts = self.prefix.strip("/").split("/")
        if self.prefix.strip("/") and not has_reference(self.prefix) and {"", ".", ".."} & set(parts):
            # a key may contain such parts, but Spark drops them from a path and would read elsewhere
            raise self._error(
                f"prefix {self.prefix!r} has a part that is empty, '.' or '..'",
                next_step='write the folders alone, as in  prefix = "raw/events"',
            )

    @property
    def uses_path_style(self) -> bool:
        """Whether a request has the bucket in its path instead of its host name."""
        if self.path_style is not None:
            return self.path_style
        return bool(self.endpoint) and not self.endpoint.rstrip("/").endswith(".amazonaws.com")


@dataclass(frozen=True, kw_only=True, repr=False)
class DeltaLocalConnection(_LocalConnection):
    """A folder of Delta tables."""

    kind: ClassVar[str] = "delta_local"
    schemes: ClassVar[tuple[str, ...]] = ("delta", "delta+file", "file")


@dataclass(frozen=True, kw_only=True, repr=False)
class DeltaS3Connection(S3Connection):
    """Delta tables under a prefix of a bucket."""

    kind: ClassVar[str] = "delta_s3"
    schemes: ClassVar[tuple[str, ...]] = ("delta+s3", "delta+s3a", "s3", "s3a")


@dataclass(frozen=True, kw_only=True, repr=False)
class ObjectStoreLocalConnection(_LocalConnection):
    """A folder of files. The default ``format`` is that of the path's extension, else Parquet."""

    kind: ClassVar[str] = "object_store_local"
    schemes: ClassVar[tuple[str, ...]] = ("file",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"format": FORMATS}
    aliases: ClassVar[Mapping[str, str]] = FORMAT_ALIASES

    format: str = ""

    def _check(self) -> None:
        if not self.format and not self.url_has_reference and not has_reference(self.path):
            self._set("format", format_from_path(self.path) or "parquet")


@dataclass(frozen=True, kw_only=True, repr=False)
class ObjectStoreS3Connection(S3Connection):
    """Files under a prefix of a bucket. The default ``format`` is that of its extension, else Parquet."""

    kind: ClassVar[str] = "object_store_s3"
    schemes: ClassVar[tuple[str, ...]] = ("s3", "s3a")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"format": FORMATS}
    aliases: ClassVar[Mapping[str, str]] = FORMAT_ALIASES

    format: str = ""

    def _check(self) -> None:
        super()._check()
        if not self.format and not self.url_has_reference and not has_reference(self.prefix):
            self._set("format", format_from_path(self.prefix) or "parquet")


@dataclass(frozen=True, kw_only=True, repr=False)
class IcebergConnection(Connection):
    """An Iceberg catalog: ``rest``, ``hive``, ``glue``, ``jdbc``, or ``hadoop`` for a plain folder.

    ``properties`` are passed to the catalog unchanged. ``staging`` is the folder or ``s3://`` URL for staged
    rows, locks and journals; without it they are in the warehouse, if that is a folder or ``s3://`` URL.
    """

    kind: ClassVar[str] = "iceberg"
    schemes: ClassVar[tuple[str, ...]] = ("iceberg", "iceberg+http", "iceberg+https", "iceberg+thrift")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "catalog_type": ("rest", "hive", "glue", "jdbc", "hadoop")
    }

    catalog_type: str = "rest"
    uri: str = ""
    warehouse: str = ""
    namespace: str = ""
    staging: str = ""
    token: str = ""
    credential: str = ""
    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    path_style: bool | None = None
    properties: Mapping[str, str] = DriverProperties()

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        """``iceberg+https://host/path`` is a REST catalog, ``iceberg:///folder`` a Hadoop warehouse."""
        transport = url.scheme.partition("+")[2]
        if not transport:
            return {"catalog_type": "hadoop", "warehouse": unquote(url.location)}
        credential = (
            "" if url.user is None else f"{decode_url_piece(url.user)}:{decode_url_piece(url.password)}"
        )
        catalog_type = "hive" if transport == "thrift" else "rest"
        return {
            "catalog_type": catalog_type,
            "uri": f"{transport}://{url.address}{url.path}",
            "credential": credential,
        }

    def _check(self) -> None:
        if self.url_has_reference or has_reference(self.catalog_type):
            return
        needed = {"rest": "uri", "hive": "uri", "jdbc": "uri", "glue": "warehouse", "hadoop": "warehouse"}
        name = needed[self.catalog_type]
        if not getattr(self, name):
            raise self._error(f"a {self.catalog_type} catalog needs {name}", next_step=f'add  {name} = "…"')
        if self.token and self.credential:
            raise self._error("give token or credential, not both")
        self._require_all_or_none("access_key_id", "secret_access_key")
