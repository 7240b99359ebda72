"""ematix-flow: an incremental pipeline that merges, or keeps versions. Nothing is tuned."""

from __future__ import annotations

from typing import Annotated, Any

from benchmarks.contestants import Load
from benchmarks.contestants.flow import connection, get_ready
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from ematix_flow import (
    BigInt,
    Date,
    Integer,
    ManagedTable,
    Numeric,
    Text,
    Timestamp,
    ematix,
    pk,
    register_connection,
)


class Orders(ManagedTable):
    __tablename__ = "orders"

    o_orderkey: Annotated[BigInt, pk()]
    o_custkey: BigInt
    o_orderstatus: Text
    o_totalprice: Numeric[15, 2]  # type: ignore[type-arg, valid-type]
    o_orderdate: Date
    o_orderpriority: Text
    o_clerk: Text
    o_shippriority: Integer
    o_comment: Text
    updated_at: Timestamp


def prepare(job: Job) -> Load:
    strategy = job.options["strategy"]
    register_connection(connection("shop", job.source))
    register_connection(connection("warehouse", job.targets[0]))
    by_event = {"event_timestamp_column": "updated_at"} if strategy == "scd2" else {}
    names = ", ".join(column.name for column in job.dataset.columns)

    @ematix.pipeline(
        name="changes",
        target=Orders,
        source_connection="shop",
        target_connection="warehouse",
        mode=strategy,
        incremental=True,
        watermark_column="updated_at",
        **by_event,
    )
    def changes(conn: Any) -> str:
        return f"SELECT {names}, updated_at FROM {job.options['from']}"

    if job.source != job.targets[0]:
        get_ready(job)

    def load(target: Endpoint) -> dict[str, Any]:
        result = changes.sync()
        return {"path": result.path, "stages": dict(result.targets[0].seconds)}

    return load
