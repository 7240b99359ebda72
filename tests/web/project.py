"""A small project for the pages: pipelines, a stream, a workflow, and runs with every status."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.state_stores.run_logs import open_run_log, open_slots
from ematix_flow.errors import LoadError
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot

HOSTILE = "<img src=x onerror=alert(1) />"
MODULE = f'''
from ematix_flow import Annotated, BigInt, Text, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"

@ematix.connection
class bus:
    kind = "kafka"
    bootstrap_servers = "127.0.0.1:1"

@ematix.table(schema="main")
class Orders:
    id: Annotated[BigInt, pk()]
    note: Text

LOADS = dict(target=Orders, target_connection="warehouse", source_connection="shop")

@ematix.pipeline(**LOADS, source_table="main.orders", schedule="*/15 * * * *", incremental=True,
                 watermark_column="id", freshness_sla="1h", tags=["hourly"], mode="append")
def orders():
    """New orders of the shop."""

@ematix.pipeline(**LOADS, source_table="main.customers", schedule="0 * * * *", mode="truncate",
                 tags=["hourly"])
def customers():
    """Customers with their addresses."""

@ematix.pipeline(**LOADS, depends_on=["orders", "customers"], mode="truncate", name="daily_revenue")
def daily_revenue(conn):
    """Revenue of each day."""
    return "SELECT 1 AS id, 'a' AS note"

@ematix.pipeline(**LOADS, mode="truncate", name="payments")
def payments(conn):
    """Payments of the bank."""
    return "SELECT 1 AS id, 'a' AS note"

@ematix.pipeline(**LOADS, mode="truncate", name={HOSTILE!r})
def hostile(conn):
    """{HOSTILE}"""
    return "SELECT 1 AS id, 'a' AS note"

@ematix.streaming_pipeline(source="bus", source_query="clicks", target=Orders, target_connection="warehouse")
def clicks():
    """Clicks of the shop, as they come."""

ematix.workflow("nightly", jobs=["daily_revenue"], triggered_by="orders")
'''


@dataclass(frozen=True)
class Project:
    """The ids of runs that tests open."""

    succeeded: str
    failed: str
    running: str


def fill_run_log(url: str) -> Project:
    """Write runs of the last two days, and slots of each kind."""
    now = dt.datetime.now(dt.timezone.utc)
    with open_run_log(url, env=os.environ) as log:
        for hours in range(30, 0, -1):
            _add_run(log, "orders", now - dt.timedelta(hours=hours), seconds=2 + hours % 5, rows=40 * hours)
            _add_run(log, "customers", now - dt.timedelta(hours=hours, minutes=20), seconds=1.5, rows=300)
        _add_run(log, HOSTILE, now - dt.timedelta(hours=2), error=HOSTILE)
        succeeded = _add_run(log, "daily_revenue", now - dt.timedelta(hours=1), seconds=61, rows=12_345)
        failed = _add_run(
            log, "payments", now - dt.timedelta(minutes=9), error="the column amount is not a number: 'n/a'"
        )
        running = _add_run(log, "orders", now - dt.timedelta(minutes=1), seconds=None)
        _add_run(log, "clicks", now - dt.timedelta(hours=3), seconds=600, rows=90_000, trigger="consume")
    _add_slots(url, now)
    return Project(succeeded, failed, running)


def _add_run(
    log: RunLog,
    pipeline: str,
    started_at: dt.datetime,
    *,
    seconds: float | None = 1.0,
    rows: int = 5,
    error: str | None = None,
    trigger: str = "schedule",
) -> str:
    record = RunRecord(
        uuid.uuid4().hex, pipeline, "warehouse:main.orders", "merge", trigger=trigger, started_at=started_at
    )
    log.start(record)
    if seconds is None:
        return record.run_id
    problem = (
        LoadError(error, state="the target is as before", next_step="correct the source") if error else None
    )
    log.save_output(record.run_id, "read begins\nWARNING slow\n<b>not bold</b>\n")
    log.finish(
        record.run_id,
        "failed" if error else "succeeded",
        error=problem,
        rows=RowCounts(read=rows, inserted=rows),
        metrics=_metrics(seconds, has_failed=error is not None),
        finished_at=started_at + dt.timedelta(seconds=seconds),
    )
    return record.run_id


def _metrics(seconds: float, *, has_failed: bool) -> dict[str, Any]:
    target = "warehouse:main.orders"
    shares = {"plan": (0.0, 0.1), "read": (0.1, 0.5), "apply": (0.6, 0.4)}
    return {
        "stages": [
            {
                "target": target,
                "stage": name,
                "at": round(at * seconds, 3),
                "seconds": round(share * seconds, 3),
                "ended": not (has_failed and name == "apply"),
            }
            for name, (at, share) in shares.items()
        ],
        "post": [{"label": "analyze", "status": "succeeded", "seconds": 0.4}],
    }


def _add_slots(url: str, now: dt.datetime) -> None:
    """Slots that waited too long, were given up, and succeeded."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    with open_slots(url, env=os.environ) as store:
        store.open([Slot("customers", hour - dt.timedelta(hours=back)) for back in range(2, 20)], "succeeded")
        store.open([Slot("orders", hour - dt.timedelta(hours=3))], "gave_up", "attempt 3 of 3 failed")
        store.open([Slot("customers", hour - dt.timedelta(hours=1))])
