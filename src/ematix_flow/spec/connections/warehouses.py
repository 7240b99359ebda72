"""Cloud warehouses: Snowflake, BigQuery and Redshift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.spec.connections.base import Connection, decode_url_piece
from ematix_flow.spec.connections.databases import SSL_MODES
from ematix_flow.spec.connections.references import has_reference
from ematix_flow.spec.connections.urls import UrlPieces


@dataclass(frozen=True, kw_only=True, repr=False)
class SnowflakeConnection(Connection):
    """A Snowflake account, by password or by private key (the PEM text, or the path of its file)."""

    kind: ClassVar[str] = "snowflake"
    schemes: ClassVar[tuple[str, ...]] = ("snowflake",)
    required: ClassVar[tuple[str, ...]] = ("account", "user")

    account: str = ""
    user: str = ""
    password: str = ""
    private_key: str = ""
    private_key_path: str = ""
    private_key_password: str = ""
    warehouse: str = ""
    database: str = ""
    schema: str = ""
    role: str = ""

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        """``snowflake://user:password@account/database/schema?warehouse=…&role=…``"""
        database, _, schema = url.path.strip("/").partition("/")
        return {
            "account": url.address,
            "user": decode_url_piece(url.user),
            "password": decode_url_piece(url.password),
            "database": decode_url_piece(database),
            "schema": decode_url_piece(schema),
        }

    def _check(self) -> None:
        if self.url_has_reference:
            return
        given = [n for n in ("password", "private_key", "private_key_path") if getattr(self, n)]
        if not given:
            raise self._error("it needs password, private_key or private_key_path")
        if len(given) > 1:
            raise self._error(f"give {' or '.join(given)}, not both")
        if self.private_key_password and given == ["password"]:
            raise self._error("private_key_password is given without a private key")


@dataclass(frozen=True, kw_only=True, repr=False)
class BigQueryConnection(Connection):
    """A BigQuery dataset. Without ``credentials_path`` Google's default credentials are used."""

    kind: ClassVar[str] = "bigquery"
    schemes: ClassVar[tuple[str, ...]] = ("bigquery",)
    required: ClassVar[tuple[str, ...]] = ("project", "dataset")

    project: str = ""
    dataset: str = ""
    credentials_path: str = ""
    location: str = ""
    endpoint: str = ""
    anonymous_auth: bool = False

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {"project": url.address, "dataset": decode_url_piece(url.path.strip("/"))}


@dataclass(frozen=True, kw_only=True, repr=False)
class RedshiftConnection(Connection):
    """A Redshift database; loads go through ``s3_staging_dir`` with ``iam_role``."""

    kind: ClassVar[str] = "redshift"
    schemes: ClassVar[tuple[str, ...]] = ("redshift",)
    required: ClassVar[tuple[str, ...]] = ("host", "database", "user", "password")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"sslmode": SSL_MODES}

    host: str = ""
    port: int = 5439
    database: str = ""
    user: str = ""
    password: str = ""
    s3_staging_dir: str = ""
    iam_role: str = ""
    sslmode: str = ""
    ssl_root_cert: str = ""

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        host, port = url.hosts[0] if url.hosts else ("", "")
        return {
            "host": host,
            "port": port,
            "database": decode_url_piece(url.path.strip("/")),
            "user": decode_url_piece(url.user),
            "password": decode_url_piece(url.password),
        }

    def _check(self) -> None:
        staging = self.s3_staging_dir
        if staging and not has_reference(staging) and not staging.startswith(("s3://", "s3a://")):
            raise self._error("s3_staging_dir must begin with s3://")
