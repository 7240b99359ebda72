"""Which class serves which kind of connection. Adding a backend is adding one line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ematix_flow.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from ematix_flow.backends.base import Backend
    from ematix_flow.spec.connections import Connection

# kind -> (module:class, the extra that brings its driver)
_BACKENDS: dict[str, tuple[str, str | None]] = {
    "postgres": ("ematix_flow.backends.postgres.backend:PostgresBackend", "postgres"),
    "mysql": ("ematix_flow.backends.mysql.backend:MySQLBackend", "mysql"),
    "sqlite": ("ematix_flow.backends.sqlite.backend:SQLiteBackend", None),
    "duckdb": ("ematix_flow.backends.duckdb.backend:DuckDBBackend", None),
    "delta_local": ("ematix_flow.backends.delta.backend:DeltaBackend", None),
    "delta_s3": ("ematix_flow.backends.delta.backend:DeltaS3Backend", "s3"),
    "iceberg": ("ematix_flow.backends.iceberg.backend:IcebergBackend", None),
    "object_store_local": ("ematix_flow.backends.objectstore.backend:LocalFilesBackend", None),
    "object_store_s3": ("ematix_flow.backends.objectstore.s3backend:S3FilesBackend", "s3"),
    "rabbitmq": ("ematix_flow.backends.rabbitmq.backend:RabbitMQBackend", "rabbitmq"),
    "pubsub": ("ematix_flow.backends.pubsub.backend:PubSubBackend", "pubsub"),
    "kinesis": ("ematix_flow.backends.kinesis.backend:KinesisBackend", "kinesis"),
    "kafka": ("ematix_flow.backends.kafka.backend:KafkaBackend", "kafka"),
}


def supported_kinds() -> tuple[str, ...]:
    return tuple(_BACKENDS)


def open_backend(connection: Connection) -> Backend:
    """The backend of an expanded connection. Imports its driver, connects to nothing yet."""
    if connection.kind not in _BACKENDS:
        raise Unsupported(
            f"connection {connection.name!r} is a {connection.kind!r}, which batch pipelines cannot use yet",
            next_step=f"kinds that can be used: {', '.join(_BACKENDS)}",
        )
    path, extra = _BACKENDS[connection.kind]
    module_name, class_name = path.split(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if extra is None or (error.name or "").startswith("ematix_flow"):
            raise
        raise ConfigError(
            f"connection {connection.name!r} needs the Python package {error.name!r}, which is not installed",
            next_step=f'pip install "ematix-flow-spark[{extra}]"',
        ) from error
    backend: Backend = getattr(module, class_name)(connection)
    return backend
