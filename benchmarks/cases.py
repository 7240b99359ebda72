"""What is compared: the cases of the copy benchmark and who takes part in each."""

from __future__ import annotations

from dataclasses import dataclass

FLOW = "flow"
DRIVER = "driver"

CONTESTANTS = {
    FLOW: "ematix-flow",
    "jdbc": "Spark JDBC, as written",
    "jdbc-tuned": "Spark JDBC, tuned",
    "jdbc-parquet": "Spark JDBC, Parquet, DuckDB",
    DRIVER: "drivers alone",
    "pipe": "COPY to COPY",
}
_EVERYWHERE = (FLOW, "jdbc", "jdbc-tuned", DRIVER)


@dataclass(frozen=True)
class Case:
    """One way to go, and the contestants that go it."""

    name: str
    title: str
    source: str
    target: str
    contestants: tuple[str, ...]


CASES = {
    case.name: case
    for case in (
        Case(
            "sqlite-duckdb",
            "SQLite → DuckDB",
            "sqlite",
            "duckdb",
            (*_EVERYWHERE, "jdbc-parquet"),
        ),
        Case(
            "postgres-postgres",
            "Postgres → Postgres",
            "postgres",
            "postgres",
            (*_EVERYWHERE, "pipe"),
        ),
        Case("postgres-parquet", "Postgres → Parquet", "postgres", "parquet", _EVERYWHERE),
    )
}
