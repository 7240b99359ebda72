"""Registers an Iceberg catalog in a Spark session.

With each job, Spark writes every setting of a session that begins with ``spark.`` into its event log,
including the catalog's settings and their secrets. So the catalog is opened, which reads the settings, and
they are removed at once. A cloned session, such as that of a stream, needs the catalog registered again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ematix_flow.backends.iceberg.catalog_settings import catalog_name, catalog_settings
from ematix_flow.errors import CannotConnect, FlowError, Unsupported
from ematix_flow.spec.connections.lakes import IcebergConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS = "org.apache.iceberg.spark.SparkCatalog"
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[a-z][\w$]*\.)+([A-Z][\w$]*(?:: .*)?)$", re.MULTILINE)
_NO_CLASSES = ("Cannot find constructor", "NoClassDefFoundError", "ClassNotFoundException")
_CLASS_PATH = '"spark.driver.extraClassPath" = "/path/to/it.jar"  under [engine.conf]'

_opened: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
_lock = threading.Lock()


def open_catalog(spark: SparkSession, connection: IcebergConnection) -> str:
    """Register the catalog in the session unless it is registered; return its name."""
    name = catalog_name(connection)
    with _lock:
        if name not in _opened.setdefault(spark, set()):
            try:
                _register_catalog(spark, name, catalog_settings(connection))
            except Exception as error:
                raise _failure(error, connection) from error
            _opened[spark].add(name)
    return name


def _register_catalog(spark: SparkSession, name: str, settings: Mapping[str, str]) -> None:
    catalog = f"spark.sql.catalog.{name}"
    session_settings = {catalog: _CLASS, **{f"{catalog}.{key}": value for key, value in settings.items()}}
    try:
        for key, value in session_settings.items():
            spark.conf.set(key, value)
        spark.catalog.databaseExists(f"{name}.default")  # any query opens it
    finally:
        for key in session_settings:
            spark.conf.unset(key)


def _failure(error: Exception, connection: IcebergConnection) -> FlowError:
    text = f"{error}\n{getattr(error, '_stackTrace', None) or getattr(error, '_stacktrace', None) or ''}"
    catalog = f"the {connection.catalog_type} catalog of connection {connection.name!r}"
    if "No suitable driver" in text:
        return Unsupported(
            f"{catalog} needs the JDBC driver of its database, and Spark does not have it",
            next_step=f"put the driver's jar on Spark's class path:  {_CLASS_PATH}",
        )
    if any(sign in text for sign in _NO_CLASSES):
        return Unsupported(
            f"{catalog} needs classes that Spark does not have: {_innermost_cause(text)}",
            next_step=f"put their jar (for glue: iceberg-aws-bundle) on Spark's class path:  {_CLASS_PATH}",
        )
    return CannotConnect(
        f"{catalog} cannot be opened: {_innermost_cause(text)}",
        next_step=f"flow connections check {connection.name}",
    )


def _innermost_cause(text: str) -> str:
    """The innermost cause of a Java stack trace, in one line."""
    causes = _CAUSE.findall(text) or [line for line in text.splitlines() if line.strip()][:1]
    return causes[-1] if causes else "no reason given"
