"""The engines whose SQL the compiler writes, by sqlglot's names."""

from __future__ import annotations

from functools import cache

from ematix_probe.compiling.dialects.base import ProbeDialect


@cache
def dialect_named(name: str) -> ProbeDialect:
    from ematix_probe.compiling.dialects.duckdb import DuckDBDialect
    from ematix_probe.compiling.dialects.mysql import MySQLDialect
    from ematix_probe.compiling.dialects.postgres import PostgresDialect
    from ematix_probe.compiling.dialects.spark import SparkDialect
    from ematix_probe.compiling.dialects.sqlite import SQLiteDialect

    known: dict[str, type[ProbeDialect]] = {
        each.name: each
        for each in (PostgresDialect, MySQLDialect, SQLiteDialect, DuckDBDialect, SparkDialect)
    }
    if name not in known:
        raise ValueError(f"there is no dialect {name!r}; known are {', '.join(known)}")
    return known[name]()
