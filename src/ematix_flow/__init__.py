"""Declarative data pipelines in Python, exactly once, on Apache Spark.

This module only holds the public names. A name is imported when it is first used, so that ``flow --help`` is
fast; importing all of them imports neither Spark nor a driver.
"""

from typing import TYPE_CHECKING, Annotated

from ematix_flow._version import __version__

if TYPE_CHECKING:
    from ematix_flow import config, connections, errors, streaming
    from ematix_flow.api.connect import check_connection, connect
    from ematix_flow.api.connection import get_connection, register_connection, registered_connections
    from ematix_flow.api.markers import natural_key, nullable, pk
    from ematix_flow.api.namespace import ematix
    from ematix_flow.api.pipeline import Pipeline
    from ematix_flow.api.stream_options import Lookup, Source
    from ematix_flow.api.streaming import StreamingPipeline, run_pipeline, run_streaming_pipeline
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
    "Lookup",
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
    "Source",
    "StreamingPipeline",
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
    "run_pipeline",
    "run_streaming_pipeline",
    "streaming",
]

# where each name comes from, but for the modules of this package
_MODULES = ("config", "connections", "errors", "streaming")
_HOMES = {
    "ematix_flow.api.connect": "check_connection connect",
    "ematix_flow.api.connection": "get_connection register_connection registered_connections",
    "ematix_flow.api.markers": "natural_key nullable pk",
    "ematix_flow.api.namespace": "ematix",
    "ematix_flow.api.pipeline": "Pipeline",
    "ematix_flow.api.stream_options": "Lookup Source",
    "ematix_flow.api.streaming": "StreamingPipeline run_pipeline run_streaming_pipeline",
    "ematix_flow.api.tables": "ManagedTable",
    "ematix_flow.api.target": "Target",
    "ematix_flow.api.types": (
        "JSON JSONB UUID BigInt Boolean Bytes Column Date Double Float Integer Numeric SmallInt "
        "String Text Timestamp TimestampTZ"
    ),
    "ematix_flow.api.workflow": "AllOf AnyOf",
    "ematix_flow.connections": (
        "BigQueryConnection Connection DeltaLocalConnection DeltaS3Connection DuckDBConnection "
        "GlueSchemaRegistryConnection IcebergConnection KafkaConnection KinesisConnection "
        "MySQLConnection ObjectStoreLocalConnection ObjectStoreS3Connection PostgresConnection "
        "PubSubConnection RabbitMQConnection RedshiftConnection SchemaRegistryConnection "
        "SnowflakeConnection SQLiteConnection"
    ),
}

if not TYPE_CHECKING:  # a type checker reads the imports above and knows what is not there

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        for home, names in _HOMES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(home), name)
                return value
        module = import_module(__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=module)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
