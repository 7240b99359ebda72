"""A run record as a value."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ematix_flow.spec.row_counts import UNKNOWN_ROWS
from ematix_flow.state.runlog.records import LONGEST_TEXT, RunRecord, new_run_id

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)
COUNTS = ["rows_read", "rows_inserted", "rows_updated", "rows_deleted", "rows_unchanged"]


def record(**given: object) -> RunRecord:
    return RunRecord(
        **{"run_id": "r1", "pipeline": "orders", "target": "dw.orders", "mode": "append", **given}
    )  # type: ignore[arg-type]


def test_a_new_record_runs_in_this_process_since_now() -> None:
    new = record()
    assert (new.status, new.finished_at, new.duration) == ("running", None, None)
    assert new.started_at.tzinfo is dt.timezone.utc
    assert new.pid > 0
    assert new.host


def test_moments_are_kept_in_utc() -> None:
    berlin = dt.timezone(dt.timedelta(hours=1))
    kept = record(started_at=NOON.astimezone(berlin)).started_at
    assert kept == NOON
    assert kept.utcoffset() == dt.timedelta(0)


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="slot has no time zone"):
        record(slot=dt.datetime(2026, 3, 1))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"status": "done"}, "not one of"),
        ({"status": "failed"}, "contradicts"),
        ({"finished_at": NOON}, "contradicts"),
        ({"run_id": ""}, "needs a run_id"),
        ({"pipeline": ""}, "needs a pipeline"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        record(**given)


def test_no_text_of_a_record_shows_a_password() -> None:
    url = "postgres://ann:hunter22@db/x"
    kept = record(
        error_message=f"cannot reach {url}",
        source_from=url,
        metrics={"source": {"urls": [url]}, "path": Path("x"), url: url},
    )
    text = json.dumps(kept.to_json())
    assert "hunter22" not in text
    assert "ann:***@db" in text


def test_metrics_become_what_json_can_hold() -> None:
    kept = record(
        metrics={
            "n": 3,
            "share": 0.5,
            "ok": True,
            "d": decimal.Decimal("1.50"),
            "nan": float("nan"),
            "t": (1,),
        }
    )
    assert kept.metrics == {"n": 3, "share": 0.5, "ok": True, "d": "1.50", "nan": "nan", "t": [1]}


def test_an_endless_error_message_is_cut() -> None:
    kept = record(error_message="endless " * LONGEST_TEXT).error_message
    assert kept is not None
    assert len(kept) == LONGEST_TEXT


def test_a_finished_record_knows_its_duration_and_serialises() -> None:
    ended = {"finished_at": NOON + dt.timedelta(seconds=90), "status": "succeeded"}
    done = record(started_at=NOON, **ended, rows=replace(UNKNOWN_ROWS, read=5, inserted=4))
    shown = json.loads(json.dumps(done.to_json()))
    assert RunRecord.from_json(shown) == done
    assert shown["duration_seconds"] == 90
    assert shown["started_at"] == "2026-03-01T12:00:00+00:00"
    names = list(shown)
    first = names.index("rows_read")
    assert names[first - 1 : first + 6] == ["pid", *COUNTS, "source_from"]
    assert [shown[name] for name in COUNTS] == [5, 4, None, None, None]


def test_run_ids_do_not_repeat() -> None:
    assert len({new_run_id() for _ in range(100)}) == 100
