"""The watch of the stream benchmark on a real table: it must miss no row, or the benchmark never ends."""

from __future__ import annotations

import psycopg

from benchmarks.endpoint import Endpoint
from benchmarks.stream_messages import POSTGRES_TABLE
from benchmarks.stream_watches import watch


def test_rows_of_a_slow_transaction_are_counted_when_it_commits(pg_database: str) -> None:
    fill = "INSERT INTO events (id, amount, sent_at) SELECT n, 0, 0 FROM generate_series(%s, %s) AS n"
    with psycopg.connect(pg_database) as slow, psycopg.connect(pg_database, autocommit=True) as quick:
        quick.execute(POSTGRES_TABLE)  # type: ignore[call-overload]
        looking = watch(Endpoint("postgres", pg_database), "")
        slow.execute(fill, (0, 49_999))
        for first in range(50_000, 80_000, 10_000):
            quick.execute(fill, (first, first + 9_999))
            assert looking.poll() == first - 40_000
        slow.commit()
        assert looking.poll() == 80_000
        assert len(looking.latencies(49_990, 50_010)) == 20
        assert looking.sums() == (80_000, sum(range(80_000)), 0)
        looking.close()
