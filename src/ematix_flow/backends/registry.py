"""The backend class of each kind of connection. A new backend adds one line here."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from ematix_flow.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from ematix_flow.backends.base import Backend
    from ematix_flow.spec.connections import Connection

# kind -> (module:class, its driver, the extra that installs the driver)
_BACKENDS: dict[str, tuple[str, str | None, str | None]] = {
    "postgres": ("ematix_flow.backends.postgres.backend:PostgresBackend", "psycopg", "postgres"),
    "mysql": ("ematix_flow.backends.mysql.backend:MySQLBackend", "pymysql", "mysql"),
    "sqlite": ("ematix_flow.backends.sqlite.backend:SQLiteBackend", None, None),
    "duckdb": ("ematix_flow.backends.duckdb.backend:DuckDBBackend", "duckdb", None),
    "delta_local": ("ematix_flow.backends.delta.backend:DeltaBackend", None, None),
    "delta_s3": ("ematix_flow.backends.delta.backend:DeltaS3Backend", "boto3", "s3"),
    "iceberg": ("ematix_flow.backends.iceberg.backend:IcebergBackend", None, None),
    "object_store_local": ("ematix_flow.backends.objectstore.backend:LocalFilesBackend", None, None),
    "object_store_s3": ("ematix_flow.backends.objectstore.s3_backend:S3FilesBackend", "boto3", "s3"),
    "rabbitmq": ("ematix_flow.backends.rabbitmq.backend:RabbitMQStreamBackend", "pika", "rabbitmq"),
    "pubsub": ("ematix_flow.backends.pubsub.backend:PubSubStreamBackend", "google.cloud.pubsub_v1", "pubsub"),
    "kinesis": ("ematix_flow.backends.kinesis.backend:KinesisStreamBackend", "boto3", "kinesis"),
    "kafka": ("ematix_flow.backends.kafka.backend:KafkaStreamBackend", "confluent_kafka", "kafka"),
}


def supported_kinds() -> tuple[str, ...]:
    return tuple(_BACKENDS)


def open_backend(connection: Connection) -> Backend:
    """The backend of an expanded connection. It imports the driver and does not connect."""
    if connection.kind not in _BACKENDS:
        raise Unsupported(
            f"connection {connection.name!r} is a {connection.kind!r}, which batch pipelines cannot use yet",
            next_step=f"kinds that can be used: {', '.join(_BACKENDS)}",
        )
    path, _, _ = _BACKENDS[connection.kind]
    module_name, class_name = path.split(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if (error.name or "").startswith("ematix_flow"):
            raise
        raise _missing_driver_error(connection, error.name) from error
    backend: Backend = getattr(module, class_name)(connection)
    return backend


def require_driver(connection: Connection, called: str | None = None) -> None:
    """ConfigError when the driver of a connection is not installed. It does not import the driver."""
    driver = _BACKENDS[connection.kind][1] if connection.kind in _BACKENDS else None
    if driver is None:
        return
    try:
        found = importlib.util.find_spec(driver)
    except ModuleNotFoundError:  # not even the package that it is in
        found = None
    if found is None:
        raise _missing_driver_error(connection, driver, called)


def _missing_driver_error(
    connection: Connection, package: str | None, called: str | None = None
) -> ConfigError:
    extra = _BACKENDS[connection.kind][2]
    user = called or f"connection {connection.name!r}"
    return ConfigError(
        f"{user} needs the Python package {package!r}, which is not installed",
        next_step=f'pip install "ematix-flow-spark[{extra}]"' if extra else "pip install ematix-flow-spark",
    )
