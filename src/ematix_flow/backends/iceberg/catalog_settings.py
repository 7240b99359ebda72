"""The name and settings of an Iceberg connection as a Spark catalog. The settings contain secrets."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from ematix_flow.backends.iceberg.warehouse import is_s3, s3_connection, spark_warehouse, store_location
from ematix_flow.spec.connections.lakes import IcebergConnection

_HADOOP_FILES = "org.apache.iceberg.hadoop.HadoopFileIO"
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


_settings_by_name: dict[str, list[Mapping[str, str]]] = {}
_lock = threading.Lock()


def catalog_name(connection: IcebergConnection) -> str:
    """The name of the catalog in SQL: the same for the same connection.

    A session keeps a catalog as it was on first use. So when a connection gets other settings (a renewed
    token, for example), its catalog gets another name.
    """
    stem = "iceberg_" + re.sub(r"\W", "_", connection.name, flags=re.ASCII)
    settings = catalog_settings(connection)
    with _lock:
        known = _settings_by_name.setdefault(stem, [])
        if settings not in known:
            known.append(settings)
        number = known.index(settings) + 1
    return stem if number == 1 else f"{stem}_{number}"


def storage_settings(connection: IcebergConnection) -> dict[str, str]:
    """Settings with which Spark reads staging. They contain secrets, under names that Spark hides."""
    place = store_location(connection)
    return _bucket_settings(connection, place) if place is not None and is_s3(place) else {}


def uses_s3(connection: IcebergConnection) -> bool:
    """Whether the connection's files are in S3."""
    places = (connection.warehouse, connection.staging)
    s3_fields = (connection.endpoint, connection.region, connection.access_key_id)
    return connection.catalog_type == "glue" or any(map(is_s3, places)) or any(s3_fields)


def token_address(connection: IcebergConnection) -> str:
    """The address that exchanges a REST catalog's credential for a token: a property or the catalog."""
    given = connection.properties.get("oauth2-server-uri")
    return given or f"{connection.uri.rstrip('/')}/v1/oauth/tokens"


def catalog_settings(connection: IcebergConnection) -> dict[str, str]:
    """The catalog's settings. They contain secrets."""
    settings = {
        "type": connection.catalog_type,
        "uri": connection.uri,
        "warehouse": spark_warehouse(connection),
        "token": connection.token,
        "cache-enabled": "false",  # always read the current state of a table
        "use-nullable-query-schema": "false",  # a table that is made with its first rows keeps NOT NULL
        "io-impl": _HADOOP_FILES,
        **_credential(connection),
    }
    if uses_s3(connection):
        settings |= _s3_settings(connection)
    settings |= connection.properties
    return {key: value for key, value in settings.items() if value}


def _credential(connection: IcebergConnection) -> dict[str, str]:
    if connection.catalog_type == "rest" and connection.credential:
        return {"credential": connection.credential, "oauth2-server-uri": token_address(connection)}
    if connection.catalog_type != "jdbc":
        return {}
    user, _, password = connection.credential.partition(":")
    # version 1 of the catalog's own tables: Spark asks for views, which version 0 does not know
    return {"jdbc.user": user, "jdbc.password": password, "jdbc.schema-version": "V1"}


def _s3_settings(connection: IcebergConnection) -> dict[str, str]:
    """S3 settings for every bucket that the catalog names, also for locations with s3://."""
    one = _bucket_settings(connection, "s3://any")
    any_bucket = {key.replace("fs.s3a.bucket.any.", "fs.s3a.", 1): value for key, value in one.items()}
    known = {f"fs.{scheme}.impl": _S3A for scheme in ("s3", "s3n")}
    settings = {f"hadoop.{key}": value for key, value in (any_bucket | known).items()}
    if connection.region:
        settings["client.region"] = connection.region
    return settings


def _bucket_settings(connection: IcebergConnection, place: str) -> dict[str, str]:
    from ematix_flow.backends.stores.s3a_settings import s3a_settings

    return s3a_settings(s3_connection(connection, place))
