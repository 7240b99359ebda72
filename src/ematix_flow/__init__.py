"""Declarative data pipelines in Python, exactly once, on Apache Spark.

This module holds the public names, nothing else. Importing it imports neither Spark nor a driver.
"""

from typing import Annotated

from ematix_flow import config, connections, errors
from ematix_flow._version import __version__
from ematix_flow.api.connect import check_connection, connect
from ematix_flow.api.connection import get_connection, register_connection, registered_connections
from ematix_flow.api.markers import natural_key, nullable, pk
from ematix_flow.api.namespace import ematix
from ematix_flow.api.pipeline import Pipeline
from ematix_flow.api.tables import ManagedTable
from ematix_flow.api.target import Target
from ematix_flow.api.types import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Column,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.api.workflow import AllOf, AnyOf
from ematix_flow.connections import (
    BigQueryConnection,
    Connection,
    DeltaLocalConnection,
    DeltaS3Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    IcebergConnection,
    KafkaConnection,
    KinesisConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
)

__all__ = [
    "JSON",
    "JSONB",
    "UUID",
    "AllOf",
    "Annotated",
    "AnyOf",
    "BigInt",
    "BigQueryConnection",
    "Boolean",
    "Bytes",
    "Column",
    "Connection",
    "Date",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "Double",
    "DuckDBConnection",
    "Float",
    "GlueSchemaRegistryConnection",
    "IcebergConnection",
    "Integer",
    "KafkaConnection",
    "KinesisConnection",
    "ManagedTable",
    "MySQLConnection",
    "Numeric",
    "ObjectStoreLocalConnection",
    "ObjectStoreS3Connection",
    "Pipeline",
    "PostgresConnection",
    "PubSubConnection",
    "RabbitMQConnection",
    "RedshiftConnection",
    "SQLiteConnection",
    "SchemaRegistryConnection",
    "SmallInt",
    "SnowflakeConnection",
    "String",
    "Target",
    "Text",
    "Timestamp",
    "TimestampTZ",
    "__version__",
    "check_connection",
    "config",
    "connect",
    "connections",
    "ematix",
    "errors",
    "get_connection",
    "natural_key",
    "nullable",
    "pk",
    "register_connection",
    "registered_connections",
]
