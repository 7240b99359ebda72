"""RabbitMQ into PostgreSQL by hand: pika, and psycopg's ``executemany``, up to 1,000 messages at once.

Messages are acknowledged after the commit: a process that dies between the two loads them twice.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pika
import psycopg

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

MESSAGES, WAIT_SECONDS = 1_000, 0.1  # a transaction ends at the first of these limits
INSERT = (
    "INSERT INTO events VALUES (%(id)s, %(customer)s, %(product)s, %(amount)s, %(created_at)s, %(sent_at)s)"
)


def prepare(job: Job) -> Load:
    def load(target: Endpoint) -> dict[str, Any]:
        connection = pika.BlockingConnection(pika.URLParameters(job.source.location))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2 * MESSAGES)
        stop, waiting, last, since = Path(job.options["stop"]), list[dict[str, Any]](), 0, 0.0
        job.mark("first batch", began=time.monotonic())
        with psycopg.connect(target.location) as database, database.cursor() as cursor:
            for method, _, body in channel.consume(job.options["topic"], inactivity_timeout=WAIT_SECONDS):
                if method is not None:
                    since = since if waiting else time.monotonic()
                    waiting.append(orjson.loads(body))
                    last = method.delivery_tag
                due = len(waiting) >= MESSAGES or time.monotonic() > since + WAIT_SECONDS
                if waiting and due:
                    cursor.executemany(INSERT, waiting)
                    database.commit()
                    channel.basic_ack(last, multiple=True)
                    waiting.clear()
                if method is None and stop.exists():
                    break
        connection.close()
        return {}

    return load
