"""The few SQL functions that differ between engines, one module for each engine.

`markers` and `casts` define each normaliser once, in terms of these functions. To add an engine, write its
`SqlFunctions` and name it in `functions_for`.
"""

from __future__ import annotations

from ematix_flow.errors import Unsupported
from ematix_flow.strategies.functions.base import SqlFunctions
from ematix_flow.strategies.functions.duckdb import DuckDBFunctions
from ematix_flow.strategies.functions.mysql import MySQLFunctions
from ematix_flow.strategies.functions.postgres import PostgresFunctions
from ematix_flow.strategies.functions.spark import SparkFunctions
from ematix_flow.strategies.functions.sqlite_sql import SQLiteFunctions

_ENGINES: dict[str, type[SqlFunctions]] = {
    "postgres": PostgresFunctions,
    "mysql": MySQLFunctions,
    "duckdb": DuckDBFunctions,
    "spark": SparkFunctions,
    "sqlite": SQLiteFunctions,
}


def functions_for(dialect: str) -> SqlFunctions:
    """The functions of an engine, by sqlglot's name of its dialect."""
    engine = _ENGINES.get(dialect)
    if engine is None:
        raise Unsupported(f"normalisers and pre-transforms cannot be compiled to {dialect} SQL yet")
    return engine()
