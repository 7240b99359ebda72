"""ematix-flow: a declared stream that runs until the harness stops it. Nothing is tuned.

In addition to Spark's report of a batch it reports the seconds of each phase, and those of the ledger's two
statements, which are timed inside the transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from benchmarks.contestants import Load
from benchmarks.contestants.flow import connection
from benchmarks.contestants.spark_streams import REMEMBERED, followed
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from ematix_flow import BigInt, Double, ManagedTable, Text, TimestampTZ, ematix
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql.load_transaction import LoadTransaction
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.spec.connections import Connection, KafkaConnection, RabbitMQConnection

T = TypeVar("T")
Declare = Callable[[Job, Connection, Connection], StreamingPipeline]


class Events(ManagedTable):
    __tablename__ = "events"

    id: BigInt
    customer: Text
    product: Text
    amount: Double
    created_at: TimestampTZ
    sent_at: BigInt


class Phases(StreamMetrics):
    """Keeps the report of each batch, and the ledger's share of its time."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, Any]] = []
        self.ledger_seconds = 0.0
        LoadTransaction._ledger_holds = self._timed(LoadTransaction._ledger_holds)  # type: ignore[method-assign]
        LoadTransaction._record_batch = self._timed(LoadTransaction._record_batch)  # type: ignore[method-assign]

    def count_batch(
        self,
        pipeline: str,
        rows_read: int,
        rows_by_target: Mapping[str, int],
        seconds_by_phase: Mapping[str, float],
        status: str = "committed",
    ) -> None:
        super().count_batch(pipeline, rows_read, rows_by_target, seconds_by_phase, status)
        began = time.monotonic() - sum(seconds_by_phase.values())
        seconds = {**seconds_by_phase, "ledger": self.ledger_seconds}
        self.batches.append({"began": began, "rows": rows_read, "seconds": seconds})
        self.ledger_seconds = 0.0

    def _timed(self, original: Callable[..., T]) -> Callable[..., T]:
        def timed(*arguments: Any) -> T:
            started = time.monotonic()
            try:
                return original(*arguments)
            finally:
                self.ledger_seconds += time.monotonic() - started

        return timed


def prepare(job: Job) -> Load:
    return prepare_stream(job, declared)


def prepare_stream(job: Job, declare: Declare) -> Load:
    """Get ready for a declared stream, which then runs until the harness stops it."""
    source, target = opened("source", job.source), opened("target", job.targets[0])
    stream = declare(job, source, target)
    groups = {*open_backend(source).jar_groups, *open_backend(target).jar_groups}
    spark = spark_starter()(sorted(groups))
    spark.range(1).count()
    for name, value in REMEMBERED.items():
        spark.conf.set(name, value)

    def load(target: Endpoint) -> dict[str, Any]:
        phases = Phases()
        if job.source.kind == "rabbitmq":  # it receives messages before Spark begins a batch
            job.mark("first batch", began=time.monotonic())
        running = stream.start(metrics=phases)

        def check() -> None:
            if not running.is_running:
                running.wait(1)
                raise RuntimeError("the stream has ended")

        told = followed(spark, job, check, lambda: sum(batch["rows"] for batch in phases.batches))
        running.stop()
        running.wait(60)
        return {**told, "phases": phases.batches}

    return load


def declared(job: Job, source: Connection, target: Connection) -> StreamingPipeline:
    options: dict[str, Any] = {"target_table": ("public", "events")}
    if job.targets[0].kind == "delta":
        options = {"target_table": "events"}
    elif job.targets[0].kind == "kafka":
        options = {"target_topic": job.options["out"]}
        if job.options["exactly once"]:
            options["delivery"] = "exactly_once"

    @ematix.streaming_pipeline(
        source=source,
        source_query=job.options["topic"],
        source_columns=Events,
        target=target,
        **options,
    )
    def events() -> None: ...

    return events


def opened(name: str, endpoint: Endpoint) -> Connection:
    if endpoint.kind == "kafka":
        return KafkaConnection(name=name, bootstrap_servers=endpoint.location)
    if endpoint.kind == "rabbitmq":
        return RabbitMQConnection(name=name, amqp_url=endpoint.location)
    return connection(name, endpoint)
