"""Connections as values: one frozen class per kind, built by keyword, class body or TOML table.

Nothing here opens, reads or looks up anything; `config` finds and expands connections, `backends`
use them.
"""

from __future__ import annotations

from ematix_flow.spec.connections.base import (
    KINDS,
    Connection,
    DriverProperties,
    connection_from_json,
    kind_class,
    redact,
)
from ematix_flow.spec.connections.brokers import (
    KafkaConnection,
    KinesisConnection,
    PubSubConnection,
    RabbitMQConnection,
)
from ematix_flow.spec.connections.databases import (
    MEMORY,
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.spec.connections.dsn import DsnParts, dsn_parts, libpq_parameters, libpq_uri
from ematix_flow.spec.connections.formats import FORMATS, format_from_path
from ematix_flow.spec.connections.lakes import (
    DeltaLocalConnection,
    DeltaS3Connection,
    IcebergConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
)
from ematix_flow.spec.connections.mapping import (
    class_of_mapping,
    connection_from_mapping,
    infer_kind,
    kind_of_scheme,
)
from ematix_flow.spec.connections.references import ExpandedText, has_reference
from ematix_flow.spec.connections.registries import GlueSchemaRegistryConnection, SchemaRegistryConnection
from ematix_flow.spec.connections.urls import mask_url, split_url
from ematix_flow.spec.connections.warehouses import (
    BigQueryConnection,
    RedshiftConnection,
    SnowflakeConnection,
)

__all__ = [
    "FORMATS",
    "KINDS",
    "MEMORY",
    "BigQueryConnection",
    "Connection",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "DriverProperties",
    "DsnParts",
    "DuckDBConnection",
    "ExpandedText",
    "GlueSchemaRegistryConnection",
    "IcebergConnection",
    "KafkaConnection",
    "KinesisConnection",
    "MySQLConnection",
    "ObjectStoreLocalConnection",
    "ObjectStoreS3Connection",
    "PostgresConnection",
    "PubSubConnection",
    "RabbitMQConnection",
    "RedshiftConnection",
    "SQLiteConnection",
    "SchemaRegistryConnection",
    "SnowflakeConnection",
    "class_of_mapping",
    "connection_from_json",
    "connection_from_mapping",
    "dsn_parts",
    "format_from_path",
    "has_reference",
    "infer_kind",
    "kind_class",
    "kind_of_scheme",
    "libpq_parameters",
    "libpq_uri",
    "mask_url",
    "redact",
    "split_url",
]
