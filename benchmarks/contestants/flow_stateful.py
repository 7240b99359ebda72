"""ematix-flow: a declared window, session, join or mirror of change events. Nothing is tuned."""

from __future__ import annotations

from benchmarks.contestants import Load
from benchmarks.contestants.flow_streams import prepare_stream
from benchmarks.job import Job
from benchmarks.stateful_messages import HOUR, LATENESS, SESSION_GAP
from benchmarks.stateful_watches import TABLE
from ematix_flow import (
    CDC,
    Aggregation,
    Annotated,
    BigInt,
    Join,
    ManagedTable,
    Source,
    StateStore,
    Text,
    TimestampTZ,
    Watermark,
    Window,
    ematix,
    nullable,
    pk,
)
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.spec.connections import Connection

LONGEST_JOIN = 5_000  # milliseconds from an order to its payment
WATERMARK = Watermark(lateness_ms=LATENESS)
VIEWS = [Aggregation(agg="count", as_="views")]


class View(ManagedTable):
    id: BigInt
    page: BigInt
    referrer: Text
    amount: BigInt
    at: TimestampTZ


class Order(ManagedTable):
    order_id: BigInt
    customer: Text
    cents: BigInt
    at: TimestampTZ


class Payment(ManagedTable):
    order_id: BigInt
    method: Text
    at: TimestampTZ


class Customer(ManagedTable):
    __schema__ = "public"
    __tablename__ = TABLE
    id: Annotated[BigInt, pk()]
    name: Annotated[Text, nullable()]
    email: Annotated[Text, nullable()]
    city: Annotated[Text, nullable()]
    balance: Annotated[BigInt, nullable()]
    seq: Annotated[BigInt, nullable()]
    sent_at: Annotated[BigInt, nullable()]


def prepare(job: Job) -> Load:
    streams = {"window": windows, "session": sessions, "join": join, "cdc": mirror}
    return prepare_stream(job, streams[job.options["stream"]])


def windows(job: Job, source: Connection, target: Connection) -> StreamingPipeline:
    store = job.options.get("state store")

    @ematix.streaming_pipeline(
        source=source,
        source_query=job.options["topic"],
        source_columns=View,
        target=target,
        target_table=("public", TABLE),
        mode="merge",
        keys=("page", "window_start"),
        window=Window(
            kind="tumbling",
            duration_ms=int(job.options["window"]),
            event_time_column="at",
            group_by=("page",),
            max_groups_per_window=10_000_000,
            aggregations=VIEWS,
        ),
        watermark=WATERMARK,
        state_store=StateStore(kind="postgres", url=store) if store else None,
    )
    def views_of_pages() -> None: ...

    return views_of_pages


def sessions(job: Job, source: Connection, target: Connection) -> StreamingPipeline:
    @ematix.streaming_pipeline(
        source=source,
        source_query=job.options["topic"],
        source_columns=View,
        target=target,
        target_table=("public", TABLE),
        mode="merge",
        keys=("session_id",),
        window=Window(
            kind="session",
            gap_ms=SESSION_GAP,
            max_session_duration_ms=HOUR,
            event_time_column="at",
            group_by=("page",),
            aggregations=VIEWS,
        ),
        watermark=WATERMARK,
    )
    def visits() -> None: ...

    return visits


def join(job: Job, source: Connection, target: Connection) -> StreamingPipeline:
    orders, payments = job.options["topic"].split(",")

    @ematix.streaming_pipeline(
        sources=[
            Source(source, orders, columns=Order),
            Source(source, payments, columns=Payment),
        ],
        target=target,
        target_table=("public", TABLE),
        join=Join(
            left_source=orders,
            right_source=payments,
            left_keys=("order_id",),
            right_keys=("order_id",),
            min_delta_ms=0,
            max_delta_ms=LONGEST_JOIN,
            event_time_column="at",
        ),
        watermark=WATERMARK,
    )
    def paid_orders() -> None: ...

    return paid_orders


def mirror(job: Job, source: Connection, target: Connection) -> StreamingPipeline:
    @ematix.streaming_pipeline(
        source=source,
        source_query=job.options["topic"],
        target=Customer,
        target_connection=target,
        cdc=CDC(envelope="debezium"),
    )
    def mirror_customers() -> None: ...

    return mirror_customers
