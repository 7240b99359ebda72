"""SQL by hand: COPY of the changes into a temporary table, then the statements that an engineer writes."""

from __future__ import annotations

from typing import Any

from benchmarks.contestants import Load
from benchmarks.datasets import ORDERS
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

KEY = ORDERS.key[0]
NAMES = (*ORDERS.names, "updated_at")
COLUMNS = ", ".join(NAMES)


def merge_statements(staged: str) -> list[str]:
    """One statement: insert, or update what differs."""
    others = [name for name in NAMES if name != KEY]
    sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
    old, new = (", ".join(f"{side}.{name}" for name in others) for side in ("t", "EXCLUDED"))
    return [
        f"INSERT INTO orders AS t ({COLUMNS}) SELECT {COLUMNS} FROM {staged}"
        f" ON CONFLICT ({KEY}) DO UPDATE SET {sets} WHERE ({old}) IS DISTINCT FROM ({new})"
    ]


def version_statements(staged: str) -> list[str]:
    """Close the versions that changed, and insert their new versions and those of new keys."""
    compared = [name for name in ORDERS.names if name != KEY]
    old, new = (", ".join(f"{side}.{name}" for name in compared) for side in ("t", "s"))
    picked = ", ".join(f"s.{name}" for name in NAMES)
    return [
        f"UPDATE orders AS t SET valid_to = s.updated_at, is_current = false FROM {staged} AS s"
        f" WHERE t.{KEY} = s.{KEY} AND t.is_current AND ({old}) IS DISTINCT FROM ({new})",
        f"INSERT INTO orders ({COLUMNS}, valid_from, valid_to, is_current)"
        f" SELECT {picked}, s.updated_at, NULL, true FROM {staged} AS s WHERE NOT EXISTS"
        f" (SELECT 1 FROM orders AS t WHERE t.{KEY} = s.{KEY} AND t.is_current)",
    ]


def statements(strategy: str, staged: str) -> list[str]:
    return merge_statements(staged) if strategy == "merge" else version_statements(staged)


def prepare(job: Job) -> Load:
    import psycopg

    after = job.options["after"]
    outgoing_sql = (
        f"COPY (SELECT {COLUMNS} FROM orders WHERE updated_at > '{after}') TO STDOUT (FORMAT binary)"
    )

    def load(target: Endpoint) -> dict[str, Any]:
        with psycopg.connect(job.source.location) as reading, psycopg.connect(target.location) as writing:
            writing.execute(f"CREATE TEMPORARY TABLE staged AS SELECT {COLUMNS} FROM orders LIMIT 0".encode())
            with (
                reading.cursor().copy(outgoing_sql.encode()) as outgoing,
                writing.cursor().copy(
                    f"COPY staged ({COLUMNS}) FROM STDIN (FORMAT binary)".encode()
                ) as staged,
            ):
                for block in outgoing:
                    staged.write(block)
            writing.execute("ANALYZE staged")
            for statement in statements(job.options["strategy"], "staged"):
                writing.execute(statement.encode())
        return {}

    return load
