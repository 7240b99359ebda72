"""Connections as sources of probes: ``@probe.data(source="warehouse", table="orders")``.

`ematix_probe` finds `resolve_connection` by the entry point group ``ematix_probe.connections``, and never
imports this package. A name means the same connection as in a pipeline. Its references are replaced when a
probe runs, so that a file of probes can be listed where no secret is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from ematix_flow.errors import FlowError
from ematix_flow.spec.connections import (
    MEMORY,
    Connection,
    DeltaLocalConnection,
    DeltaS3Connection,
    DriverProperties,
    DuckDBConnection,
    IcebergConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    SQLiteConnection,
    has_reference,
)
from ematix_flow.spec.connections.lakes import S3Connection
from ematix_probe.errors import CannotConnect, DeclarationError, ProbeError
from ematix_probe.sources.base import OpenSubject, Source, Subject

if TYPE_CHECKING:
    from ematix_flow.spec.location import SourceLocation
    from ematix_probe.sources.files import FileSource
    from ematix_probe.sources.iceberg import IcebergSource
    from ematix_probe.sources.s3 import S3Access

_PROBED = ("postgres", "mysql", "sqlite", "duckdb", "iceberg", "delta_*", "object_store_*")
_BROKERS = ("kafka", "rabbitmq", "pubsub", "kinesis")
_FORMATS = {"parquet": "parquet", "csv": "csv", "json_lines": "jsonl", "orc": "orc"}
_ICEBERG_TYPES = {"rest": "rest", "hive": "hive", "glue": "glue"}  # as pyiceberg calls them


def resolve_connection(given: object) -> Source | None:
    """The connection in force for a name, or a connection object, as a source; None for anything else.

    DeclarationError if there is none of that name, or probes cannot read it.
    """
    from ematix_flow.graph.connections import resolve_with_origin

    if not isinstance(given, (str, Connection)):
        return None
    with _as_probe_error(DeclarationError):
        found = resolve_with_origin(given)
    _refuse_unreadable(found.connection)
    return ConnectionSource(found.connection, found.origin.where)


@dataclass(frozen=True)
class ConnectionSource(Source):
    """A connection as it is declared, and where."""

    connection: Connection
    where: SourceLocation | None = None

    @property
    def kind(self) -> str:  # type: ignore[override]
        kind, format = self.connection.kind, _FORMATS.get(getattr(self.connection, "format", ""), "parquet")
        of_files = {
            "object_store_local": format,
            "object_store_s3": f"s3_{format}",
            "delta_local": "delta",
            "delta_s3": "s3_delta",
        }
        return of_files.get(kind, kind)

    @property
    def label(self) -> str:
        return f"{self.connection.name} ({self.connection.kind})"

    @property
    def default_subject(self) -> Subject | None:
        """The file or Delta table that the connection leads to; a folder or database has several tables."""
        found = self._known_source()
        return found.default_subject if found is not None and found.is_single else None

    @property
    def is_single(self) -> bool:
        found = self._known_source()
        return found is not None and found.is_single

    def _known_source(self) -> Source | None:
        """The source, if the connection can be read without replacing references."""
        single = (ObjectStoreLocalConnection, ObjectStoreS3Connection, DeltaLocalConnection)
        if not isinstance(self.connection, single) or _has_references(self.connection):
            return None
        return source_of(self.connection)

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        from ematix_flow.config.interpolate import expand_connection

        with _as_probe_error(CannotConnect):
            expanded = expand_connection(self.connection, where=self.where)
            _refuse_unreadable(expanded)
            source = source_of(expanded)
        if isinstance(expanded, IcebergConnection):
            subject = _in_namespace(subject, expanded)
        with source.open(subject) as opened:
            yield opened


def source_of(connection: Connection) -> Source:
    """The source of an expanded connection."""
    match connection:
        case PostgresConnection():
            from ematix_flow.spec.connections import libpq_uri
            from ematix_probe.sources.postgres import PostgresSource

            return PostgresSource(libpq_uri(connection))
        case MySQLConnection():
            from ematix_probe.sources.mysql import MySQLSource

            return MySQLSource(_mysql_url(connection))
        case SQLiteConnection():
            from ematix_probe.sources.sqlite import SQLiteSource

            return SQLiteSource(connection.path)
        case DuckDBConnection():
            from ematix_probe.sources.duckdb import DuckDBSource

            return DuckDBSource(connection.path)
        case ObjectStoreLocalConnection():
            return _file_source(connection.format, connection.path, None)
        case ObjectStoreS3Connection():
            return _file_source(connection.format, _s3_url(connection), _s3_access(connection))
        case DeltaLocalConnection():
            from ematix_probe.sources.delta import DeltaSource

            return DeltaSource(connection.path)
        case DeltaS3Connection():
            from ematix_probe.sources.delta import DeltaSource

            return DeltaSource(_s3_url(connection), access=_s3_access(connection))
        case IcebergConnection():
            return _iceberg_source(connection)
    raise AssertionError(connection.kind)  # _refuse_unreadable knows the kinds


def _refuse_unreadable(connection: Connection) -> None:
    """DeclarationError for a connection that no source of probes can read."""
    name, kind = connection.name, connection.kind
    refused: str | None = None
    step = f"kinds that can be probed: {', '.join(_PROBED)}"
    if kind in _BROKERS:
        refused = "which has messages and no tables"
        step = "check messages with expectations= of the stream, or probe the table that it loads"
    elif not isinstance(connection, _READABLE):
        refused = "which probes cannot read"
    elif getattr(connection, "path", "") == MEMORY:
        refused, step = "in the memory of one process, which probes cannot read", "give it the path of a file"
    elif isinstance(connection, S3Connection) and connection.verify_tls is False:
        refused = "with verify_tls = false: probes verify certificates"
        step = "give the server's certificate as ca_cert_path"
    elif isinstance(connection, S3Connection) and connection.requester_pays is True:
        refused, step = "with requester_pays = true, which probes cannot send", "probe a copy of the data"
    elif isinstance(connection, IcebergConnection) and connection.catalog_type == "jdbc":
        refused = "with a jdbc catalog, which only Spark reads"
        step = "probe the table with source.spark(session), or use a rest catalog"
    if refused:
        raise DeclarationError(f"connection {name!r} is a {kind} connection {refused}", next_step=step)


_READABLE = (
    *(PostgresConnection, MySQLConnection, SQLiteConnection, DuckDBConnection, IcebergConnection),
    *(ObjectStoreLocalConnection, ObjectStoreS3Connection, DeltaLocalConnection, DeltaS3Connection),
)


@contextmanager
def _as_probe_error(kind: type[ProbeError]) -> Iterator[None]:
    """Within the block, an error of this package becomes one of `ematix_probe`."""
    try:
        yield
    except FlowError as error:
        where = str(error.where) if error.where else None
        raise kind(error.what, where=where, state=error.state, next_step=error.next_step) from None


def _has_references(connection: Connection) -> bool:
    return any(has_reference(getattr(connection, field.name)) for field in fields(connection))


def _mysql_url(connection: MySQLConnection) -> str:
    from ematix_flow.backends.mysql.address import parse_address

    address = parse_address(connection)
    # `allow`, the default on this machine, leaves TLS to the server; with an authority it is verified
    lenient = "verify-ca" if "sslrootcert" in address.tls else "prefer"
    mode = lenient if address.sslmode == "allow" else address.sslmode
    options = {**address.tls, "sslmode": mode, "connect_timeout": str(address.connect_timeout)}
    if address.unix_socket:
        options["unix_socket"] = address.unix_socket
    user = quote(address.user or "", safe="")
    password = f":{quote(address.password, safe='')}" if address.password else ""
    host = f"[{address.host}]" if ":" in address.host else quote(address.host, safe="")
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
    database = quote(address.database or "", safe="")
    return f"mysql://{user}{password}@{host}:{address.port}/{database}?{query}"


def _file_source(format: str, path: str, access: S3Access | None) -> FileSource:
    from ematix_probe.sources.files import FileSource
    from ematix_probe.sources.text_options import CsvOptions, JsonOptions

    match format:
        case "csv":
            return FileSource(path, "csv", CsvOptions(), access)
        case "json_lines":
            return FileSource(path, "jsonl", JsonOptions(), access)
        case "orc":
            return FileSource(path, "orc", None, access)
    return FileSource(path, "parquet", None, access)


def _s3_url(connection: S3Connection) -> str:
    prefix = connection.prefix.strip("/")
    return f"s3://{connection.bucket}{'/' if prefix else ''}{prefix}"


def _s3_access(connection: S3Connection) -> S3Access:
    from ematix_probe.sources.s3 import S3Access

    key, secret, token = connection.access_key_id, connection.secret_access_key, connection.session_token
    if connection.profile:
        from ematix_flow.backends.stores.s3_client import frozen_credentials

        key, secret, token = frozen_credentials(connection)
    return S3Access(
        region=connection.region or None,
        endpoint_url=connection.endpoint.rstrip("/") or None,
        access_key=key or None,
        secret_key=secret or None,
        session_token=token or None,
        anonymous=connection.anonymous,
        path_style=connection.uses_path_style,
        ca_cert_path=connection.ca_cert_path or None,
    )


def _iceberg_source(connection: IcebergConnection) -> IcebergSource:
    from ematix_flow.backends.iceberg.catalog_settings import token_address
    from ematix_flow.backends.iceberg.warehouse import local_folder, s3_connection
    from ematix_probe.sources.iceberg import IcebergSource

    # the bucket is in the warehouse or known to the catalog alone; keys and endpoint are the connection's
    access = _s3_access(s3_connection(connection, "s3://any"))
    if connection.catalog_type == "hadoop":
        return IcebergSource(local_folder(connection.warehouse) or connection.warehouse, access=access)
    given = {
        "type": _ICEBERG_TYPES[connection.catalog_type],
        "uri": connection.uri,
        "warehouse": connection.warehouse,
        "token": connection.token,
        "client.region": connection.region,
        "client.access-key-id": connection.access_key_id,
        "client.secret-access-key": connection.secret_access_key,
        "client.session-token": connection.session_token,
    }
    if connection.catalog_type == "rest" and connection.credential:
        given |= {"credential": connection.credential, "oauth2-server-uri": token_address(connection)}
    properties = {name: value for name, value in given.items() if value} | dict(connection.properties)
    return IcebergSource(properties=DriverProperties(properties), access=access)


def _in_namespace(subject: Subject, connection: IcebergConnection) -> Subject:
    """The subject below the connection's own namespace."""
    if not connection.namespace or subject.query is not None:
        return subject
    separator = "/" if connection.catalog_type == "hadoop" else "."
    levels = [*connection.namespace.split("."), *([subject.schema] if subject.schema else [])]
    return replace(subject, schema=separator.join(levels))
