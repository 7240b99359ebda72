"""Declarative data pipelines in Python, exactly once, on Apache Spark.

This module only holds the public names. A name is imported when it is first used, so that ``flow --help`` is
fast; importing all of them imports neither Spark nor a driver.
"""

from typing import TYPE_CHECKING
from typing import Annotated as Annotated

from ematix_flow._version import __version__ as __version__

if TYPE_CHECKING:
    from ematix_flow import config as config
    from ematix_flow import connections as connections
    from ematix_flow import errors as errors
    from ematix_flow import streaming as streaming
    from ematix_flow.api.connection import get_connection as get_connection
    from ematix_flow.api.connection import register_connection as register_connection
    from ematix_flow.api.connection import registered_connections as registered_connections
    from ematix_flow.api.expectations import expect as expect
    from ematix_flow.api.expectations import expect_all as expect_all
    from ematix_flow.api.expectations import expect_all_or_drop as expect_all_or_drop
    from ematix_flow.api.expectations import expect_all_or_fail as expect_all_or_fail
    from ematix_flow.api.expectations import expect_or_drop as expect_or_drop
    from ematix_flow.api.expectations import expect_or_fail as expect_or_fail
    from ematix_flow.api.markers import natural_key as natural_key
    from ematix_flow.api.markers import nullable as nullable
    from ematix_flow.api.markers import pk as pk
    from ematix_flow.api.namespace import ematix as ematix
    from ematix_flow.api.pipeline_handle import Pipeline as Pipeline
    from ematix_flow.api.stream_declaration import Lookup as Lookup
    from ematix_flow.api.stream_declaration import Source as Source
    from ematix_flow.api.stream_toml import run_pipeline as run_pipeline
    from ematix_flow.api.streaming import StreamingPipeline as StreamingPipeline
    from ematix_flow.api.streaming import run_streaming_pipeline as run_streaming_pipeline
    from ematix_flow.api.tables import ManagedTable as ManagedTable
    from ematix_flow.api.target import Target as Target
    from ematix_flow.api.types import JSON as JSON
    from ematix_flow.api.types import JSONB as JSONB
    from ematix_flow.api.types import UUID as UUID
    from ematix_flow.api.types import BigInt as BigInt
    from ematix_flow.api.types import Boolean as Boolean
    from ematix_flow.api.types import Bytes as Bytes
    from ematix_flow.api.types import Column as Column
    from ematix_flow.api.types import Date as Date
    from ematix_flow.api.types import Double as Double
    from ematix_flow.api.types import Float as Float
    from ematix_flow.api.types import Integer as Integer
    from ematix_flow.api.types import Numeric as Numeric
    from ematix_flow.api.types import SmallInt as SmallInt
    from ematix_flow.api.types import String as String
    from ematix_flow.api.types import Text as Text
    from ematix_flow.api.types import Timestamp as Timestamp
    from ematix_flow.api.types import TimestampTZ as TimestampTZ
    from ematix_flow.api.udfs import apply_udaf_to_batch as apply_udaf_to_batch
    from ematix_flow.api.udfs import apply_udf_to_batch as apply_udf_to_batch
    from ematix_flow.api.udfs import udaf as udaf
    from ematix_flow.api.udfs import udf as udf
    from ematix_flow.api.workflow import AllOf as AllOf
    from ematix_flow.api.workflow import AnyOf as AnyOf
    from ematix_flow.connections import BigQueryConnection as BigQueryConnection
    from ematix_flow.connections import Connection as Connection
    from ematix_flow.connections import DeltaLocalConnection as DeltaLocalConnection
    from ematix_flow.connections import DeltaS3Connection as DeltaS3Connection
    from ematix_flow.connections import DuckDBConnection as DuckDBConnection
    from ematix_flow.connections import GlueSchemaRegistryConnection as GlueSchemaRegistryConnection
    from ematix_flow.connections import IcebergConnection as IcebergConnection
    from ematix_flow.connections import KafkaConnection as KafkaConnection
    from ematix_flow.connections import KinesisConnection as KinesisConnection
    from ematix_flow.connections import MySQLConnection as MySQLConnection
    from ematix_flow.connections import ObjectStoreLocalConnection as ObjectStoreLocalConnection
    from ematix_flow.connections import ObjectStoreS3Connection as ObjectStoreS3Connection
    from ematix_flow.connections import PostgresConnection as PostgresConnection
    from ematix_flow.connections import PubSubConnection as PubSubConnection
    from ematix_flow.connections import RabbitMQConnection as RabbitMQConnection
    from ematix_flow.connections import RedshiftConnection as RedshiftConnection
    from ematix_flow.connections import SchemaRegistryConnection as SchemaRegistryConnection
    from ematix_flow.connections import SnowflakeConnection as SnowflakeConnection
    from ematix_flow.connections import SQLiteConnection as SQLiteConnection
    from ematix_flow.run.connect import check_connection as check_connection
    from ematix_flow.run.connect import connect as connect
    from ematix_flow.spec.cdc import CDC as CDC
    from ematix_flow.spec.joins import Join as Join
    from ematix_flow.spec.udfs import PythonAggregateUdfHandle as PythonAggregateUdfHandle
    from ematix_flow.spec.udfs import PythonScalarUdfHandle as PythonScalarUdfHandle
    from ematix_flow.spec.windows import Aggregation as Aggregation
    from ematix_flow.spec.windows import StateStore as StateStore
    from ematix_flow.spec.windows import Watermark as Watermark
    from ematix_flow.spec.windows import Window as Window

# The public names by the module that defines them; tests/unit/test_public_names.py compares them with the
# imports above, which are for type checkers.
_MODULES = ("config", "connections", "errors", "streaming")
_NAMES_BY_MODULE = {
    "ematix_flow.api.connection": "get_connection register_connection registered_connections",
    "ematix_flow.api.expectations": (
        "expect expect_all expect_all_or_drop expect_all_or_fail expect_or_drop expect_or_fail"
    ),
    "ematix_flow.api.markers": "natural_key nullable pk",
    "ematix_flow.api.namespace": "ematix",
    "ematix_flow.api.pipeline_handle": "Pipeline",
    "ematix_flow.api.stream_declaration": "Lookup Source",
    "ematix_flow.api.stream_toml": "run_pipeline",
    "ematix_flow.api.streaming": "StreamingPipeline run_streaming_pipeline",
    "ematix_flow.api.tables": "ManagedTable",
    "ematix_flow.api.target": "Target",
    "ematix_flow.api.types": (
        "JSON JSONB UUID BigInt Boolean Bytes Column Date Double Float Integer Numeric SmallInt "
        "String Text Timestamp TimestampTZ"
    ),
    "ematix_flow.api.udfs": "apply_udaf_to_batch apply_udf_to_batch udaf udf",
    "ematix_flow.api.workflow": "AllOf AnyOf",
    "ematix_flow.connections": (
        "BigQueryConnection Connection DeltaLocalConnection DeltaS3Connection DuckDBConnection "
        "GlueSchemaRegistryConnection IcebergConnection KafkaConnection KinesisConnection "
        "MySQLConnection ObjectStoreLocalConnection ObjectStoreS3Connection PostgresConnection "
        "PubSubConnection RabbitMQConnection RedshiftConnection SchemaRegistryConnection "
        "SnowflakeConnection SQLiteConnection"
    ),
    "ematix_flow.run.connect": "check_connection connect",
    "ematix_flow.spec.cdc": "CDC",
    "ematix_flow.spec.udfs": "PythonAggregateUdfHandle PythonScalarUdfHandle",
    "ematix_flow.spec.joins": "Join",
    "ematix_flow.spec.windows": "Aggregation StateStore Watermark Window",
}

if not TYPE_CHECKING:  # a type checker reads the imports above and reports unknown names
    __all__ = sorted(
        [
            "Annotated",
            "__version__",
            *_MODULES,
            *(name for names in _NAMES_BY_MODULE.values() for name in names.split()),
        ]
    )

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        for home, names in _NAMES_BY_MODULE.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(home), name)
                return value
        module = import_module(__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=module)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
