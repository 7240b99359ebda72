"""The files of an Iceberg connection: the warehouse, and the store for staging, locks and journals."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.connections.lakes import IcebergConnection, ObjectStoreS3Connection

S3_SCHEMES = ("s3", "s3a", "s3n")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def is_s3(place: str) -> bool:
    return place.partition("://")[0].lower() in S3_SCHEMES


def local_folder(place: str) -> str | None:
    """The absolute path of a local folder; None if the text is not a local path."""
    if place.lower().startswith("file:"):
        pieces = urlsplit(place)
        return os.path.abspath(unquote(pieces.path)) if pieces.netloc in ("", "localhost") else None
    if _SCHEME.match(place):
        return None
    return os.path.abspath(os.path.expanduser(place))


def spark_warehouse(connection: IcebergConnection) -> str:
    """The warehouse for Spark's settings. A local folder is made explicit, so that it never means one of a
    cluster."""
    given = connection.warehouse
    if connection.catalog_type == "hadoop" and not is_s3(given):
        folder = local_folder(given)
        return f"file:{folder}" if folder is not None else given
    # a server interprets s3:// itself; Hadoop knows only s3a://
    return re.sub(r"^s3n?://", "s3a://", given) if connection.catalog_type == "hadoop" else given


def store_location(connection: IcebergConnection) -> str | None:
    """The folder or bucket for our own files; None if the connection has none.

    The warehouse of a server may be a name that only the server understands.
    """
    if connection.staging:
        return connection.staging
    given = connection.warehouse
    if connection.catalog_type == "hadoop" or is_s3(given) or given.startswith(("/", "file:")):
        return given or None
    return None


def open_store(connection: IcebergConnection) -> Store | None:
    """Open the store at that location; None if there is none, or if it is neither a folder nor S3."""
    place = store_location(connection)
    if place is None:
        return None
    if is_s3(place):
        from ematix_flow.backends.stores.s3_store import S3Store

        return S3Store(s3_connection(connection, place))
    folder = local_folder(place)
    return LocalStore(folder) if folder is not None else None


def open_warehouse(connection: IcebergConnection) -> Store | None:
    """Open the warehouse as a store if tables are the folders of their names; None if the catalog chooses
    folders."""
    return open_store(replace(connection, staging="")) if connection.catalog_type == "hadoop" else None


def s3_connection(connection: IcebergConnection, place: str) -> ObjectStoreS3Connection:
    """The S3 connection to a location's bucket and prefix, with the Iceberg connection's credentials."""
    bucket, _, prefix = place.partition("://")[2].partition("/")
    return ObjectStoreS3Connection(
        name=connection.name,
        bucket=bucket,
        prefix=prefix.strip("/"),
        endpoint=connection.endpoint,
        region=connection.region,
        access_key_id=connection.access_key_id,
        secret_access_key=connection.secret_access_key,
        session_token=connection.session_token,
        path_style=connection.path_style,
    )
