"""``.sync()`` writes to Python's log, so that its caller can show the messages."""

from __future__ import annotations

import datetime as dt
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow import BigInt, Pipeline, SQLiteConnection, ematix
from ematix_flow.errors import DeclarationError, SourceFailed
from ematix_flow.observe import run_logging
from ematix_flow.observe.listener import Attempt, Progress
from ematix_flow.observe.run_logging import LoggingListener, event_fields


def pipeline(folder: Path, sql: str) -> Pipeline:
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1), (2)")

    @ematix.table
    class Copied:
        id: BigInt

    @ematix.pipeline(
        target=Copied, target_connection=SQLiteConnection(name="shop", path=str(folder / "shop.db"))
    )
    def copied() -> str:
        return sql

    return copied


def test_a_run_is_in_the_log_of_its_caller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ematix_flow")
    slot = dt.datetime(2026, 1, 1, 3, tzinfo=dt.timezone.utc)
    result = pipeline(tmp_path, "SELECT id FROM orders").sync(slot=slot)
    records = [record for record in caplog.records if record.name == "ematix_flow.runs"]
    assert records[0].getMessage() == "copied: started"
    assert records[-1].getMessage().startswith("copied: succeeded, 2 rows inserted in ")
    fields = event_fields(records[-1])
    assert fields is not None
    assert (fields["run_id"], fields["slot"], fields["rows"]) == (result.run_id, slot.isoformat(), 2)


def test_a_failure_that_is_raised_is_no_error_in_the_log_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ematix_flow")
    with pytest.raises(SourceFailed):
        pipeline(tmp_path, "SELECT id FROM nowhere").sync()
    assert caplog.records[-1].getMessage().startswith("copied: ")
    assert "no such table: nowhere" in caplog.records[-1].getMessage()
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_progress_is_reported_every_five_seconds_and_in_full_when_the_stage_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ematix_flow")
    now = [100.0]
    monkeypatch.setattr(run_logging.time, "monotonic", lambda: now[0])
    run = LoggingListener().run_started(Attempt("orders", "r-1"))
    run.stage_started("db:orders", "copy")
    for second in range(1, 13):
        now[0] += 1.0
        run.progress("db:orders", Progress(1_000 * second, 8_000 * second, 20_000))
    run.stage_finished("db:orders", "copy", 12.0)
    told = [event_fields(record) or {} for record in caplog.records]
    assert [fields["rows"] for fields in told if fields["event"] == "progress"] == [5_000, 10_000]
    assert {fields["expected_rows"] for fields in told if fields["event"] == "progress"} == {20_000}
    assert (told[-1]["event"], told[-1]["rows"], told[-1]["bytes"]) == ("stage_finished", 12_000, 96_000)


def test_a_slot_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="slot= needs a time zone") as refused:
        pipeline(tmp_path, "SELECT id FROM orders").sync(slot=dt.datetime(2026, 1, 1))
    assert "datetime.timezone.utc" in (refused.value.next_step or "")
