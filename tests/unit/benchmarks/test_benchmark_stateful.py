"""How stateful streams are measured: what is sent, what must arrive, and what the page shows."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import Result, Run
from benchmarks.stateful_messages import (
    HOUR,
    MARKERS,
    SESSION_GAP,
    TRAFFIC,
    WINDOW,
    Changes,
    Payments,
    Views,
    Visits,
)
from benchmarks.stateful_runs import wrong_rows
from benchmarks.stateful_watches import state_bytes
from benchmarks.tables import columns, remarks, rows


def sent(traffic, count: int) -> list[tuple[int, dict]]:
    """Topic and fields of the first messages that are no tombstones."""
    found = traffic.messages(0, count)
    return [(each.topic, json.loads(each.payload)) for each in found if each.payload is not None]


@pytest.mark.parametrize("stream", TRAFFIC)
def test_the_messages_of_a_stage_can_be_made_alone(stream: str) -> None:
    whole = TRAFFIC[stream](500, began=2_000_000_000_000, rate=10, steady=200)
    assert [*whole.messages(0, 500), *whole.messages(500, 700)] == [*whole.messages(0, 700)]


@pytest.mark.parametrize("stream", TRAFFIC)
def test_a_closing_message_is_behind_everything_before_it(stream: str) -> None:
    traffic = TRAFFIC[stream](500)
    assert traffic.stage_end() > traffic.event_time(499) + WINDOW + SESSION_GAP
    later = replace(traffic, began=traffic.stage_end() + HOUR, steady=100)
    assert later.stage_end() > later.event_time(599) + WINDOW
    assert all(each.payload for each in traffic.closing(traffic.stage_end()))


def test_views_are_counted_by_page_and_second() -> None:
    expected = Views(25_000, pages=10).expected()
    assert len(expected) == 3 * 10  # 10,000 views a second
    assert sum(views for *_, views in expected) == 25_000


def test_a_visit_is_ten_views_that_a_pause_ends() -> None:
    expected = Visits(300, users=10, views=10).expected()
    assert {views for *_, views in expected} == {10}
    assert len(expected) == 30
    assert all(end - start < 10 * 500 + SESSION_GAP for _, start, end, _ in expected)
    with_pause = sorted((start, end) for user, start, end, _ in Visits(300_000).expected() if user == 0)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(with_pause))


def test_one_order_in_ten_has_no_payment() -> None:
    traffic = Payments(400)
    messages = sent(traffic, 400)
    orders = {fields["order_id"]: fields for topic, fields in messages if topic == 0}
    paid = {fields["order_id"]: fields for topic, fields in messages if topic == 1}
    assert {(n, orders[n]["cents"], paid[n]["method"]) for n in orders if n in paid} == traffic.expected()
    assert len(traffic.expected()) == 180


def test_applied_in_order_the_changes_give_the_expected_rows() -> None:
    traffic = Changes(2_000, began=1, steady=300)
    mirror: dict[int, tuple[int, int]] = {}
    for _, fields in sent(traffic, 2_300):
        if fields["op"] == "d":
            del mirror[fields["before"]["id"]]
        else:
            row = fields["after"]
            assert (row["id"] in mirror) == (fields["op"] == "u")
            mirror[row["id"]] = (row["seq"], row["balance"])
    assert {(key, *values) for key, values in mirror.items()} == traffic.expected()


def test_a_steady_change_is_the_only_one_of_its_customer() -> None:
    traffic = Changes(3_000, began=1, steady=1_000)
    messages = [fields for _, fields in sent(traffic, 4_000)][3_000:]
    keys = [(fields["after"] or fields["before"])["id"] for fields in messages]
    assert len(set(keys)) == 1_000


def test_the_customers_that_end_two_stages_are_different() -> None:
    backlog = Changes(300)
    ends = [*backlog.closing(0), *replace(backlog, began=1, steady=10).closing(0)]
    keys = [json.loads(each.payload or b"")["after"]["id"] for each in ends]
    assert len(set(keys)) == 4 and min(keys) >= MARKERS


def test_a_missing_a_wrong_and_a_doubled_row_are_told_apart() -> None:
    expected = {(1, 10), (2, 20), (3, 30)}
    assert wrong_rows([(3, 30), (1, 10), (2, 20)], expected) is None
    assert wrong_rows([(1, 10), (2, 20)], expected) == (
        "wrong result: 1 of 3 rows are missing and 0 are wrong, as (3, 30)"
    )
    assert "0 of 3 rows are missing and 1 are wrong" in (wrong_rows([*expected, (1, 10)], expected) or "")


def test_the_state_is_that_of_spark_or_of_ematix_flow(tmp_path: Path) -> None:
    for file in ("checkpoint/state/0/0/1.zip", "state/streams/a/checkpoints/all/windows/state.duckdb"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_bytes(bytes(100))
    (tmp_path / "checkpoint" / "metadata").write_bytes(bytes(7))
    assert state_bytes(tmp_path) == 200


def result(benchmark: str, *runs: Run) -> Result:
    return Result(benchmark, "stateful-window", "Stateful", "2026-01-02", 1000, 900.0, {}, {}, "abc", runs)


def test_a_stateful_stream_has_events_a_second_its_state_and_its_latency() -> None:
    details = {
        "bytes next to the target": 3 << 19,
        "processor seconds": 3.25,
        "state bytes": {"most": 3 << 20, "at the end": 1 << 19},
        "latency": {"1000": {"p50": 0.5, "p95": 1.0, "p99": 2.0}},
    }
    found = result(
        "stateful", Run("flow", 1, 1.0, 2.0, 4.0, details=details), Run("spark-by-hand", 1, 1, 4, 5)
    )
    assert columns(found)[-3:] == ("state MB, most", "state MB, end", "ms at 1,000/s")
    assert rows(found)[0][:4] == ["ematix-flow", "500", "2.00", "2.00"]
    assert rows(found)[0][-3:] == ["3.0", "0.5", "500 / 1,000 / 2,000"]
    assert dict(zip(columns(found), rows(found)[0], strict=True))["CPU s"] == "3.25"
    assert rows(found)[1][4] == "2.00"
    assert remarks(found) == ["ematix-flow: 1.5 MB of tables next to the target"]
    assert all(len(row) == len(columns(found)) for row in rows(found))


def test_a_restart_has_the_times_to_fill_to_continue_and_to_close() -> None:
    details = {"fill seconds": 20.0, "close seconds": 3.5, "state bytes": 5 << 20}
    found = result("stateful-restart", Run("flow", 1, 1.0, 2.0, 4.0, 6.0, 7 << 20, details=details))
    told = dict(zip(columns(found), rows(found)[0], strict=True))
    assert (told["restart s"], told["fill s"], told["close s"], told["state MB"]) == (
        "2.00",
        "20.00",
        "3.50",
        "5",
    )
