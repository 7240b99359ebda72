"""How streams are measured: what is sent, what a watcher counts, and what the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.endpoint import Endpoint
from benchmarks.results import Result, Run
from benchmarks.stream_loads import percentile, summed
from benchmarks.stream_messages import message, sums
from benchmarks.stream_watches import DeltaWatch, watch
from benchmarks.tables import columns, remarks, rows


def test_a_message_has_six_fields_in_about_150_bytes() -> None:
    payload = message(499_999, 1_700_000_000_000)
    fields = json.loads(payload)
    assert list(fields) == ["id", "customer", "product", "amount", "created_at", "sent_at"]
    assert (fields["id"], fields["sent_at"]) == (499_999, 1_700_000_000_000)
    assert 130 <= len(payload) <= 170


def test_the_sums_are_those_of_the_messages() -> None:
    sent = [json.loads(message(number, 0)) for number in range(5_000)]
    cents = sum(round(one["amount"] * 100) for one in sent)
    assert sums(5_000) == (len(sent), sum(one["id"] for one in sent), cents)


@pytest.mark.parametrize(("percent", "expected"), [(50, 5.0), (95, 10.0), (99, 10.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: int, expected: float) -> None:
    assert percentile([float(n) for n in range(1, 11)], percent) == expected


def test_the_phases_of_batches_add_up() -> None:
    batches = [{"rows": 2, "seconds": {"stage": 0.5}}, {"rows": 3, "seconds": {"stage": 0.25, "apply": 0.1}}]
    assert summed(batches) == {"batches": 2, "rows": 5, "seconds": {"stage": 0.75, "apply": 0.1}}


def test_a_delta_table_is_counted_commit_by_commit(tmp_path: Path) -> None:
    looking = watch(Endpoint("delta", str(tmp_path)), "")
    assert isinstance(looking, DeltaWatch)
    assert looking.poll() == 0
    log = tmp_path / "events" / "_delta_log"
    log.mkdir(parents=True)
    for version, ids in enumerate([[0, 1], [2]]):
        rows_of = pa.table({"id": ids, "sent_at": [0] * len(ids)})
        pq.write_table(rows_of, tmp_path / "events" / f"{version}.parquet")
        (log / f"{version:020}.json").write_text(json.dumps({"add": {"path": f"{version}.parquet"}}))
        assert looking.poll() == ids[-1] + 1
    assert len(looking.latencies(1, 3)) == 2


def measured(*runs: Run) -> Result:
    return Result(
        "streams", "stream-kafka-postgres", "Stream", "2026-01-02", 1000, 900.0, {}, {}, "abc", runs
    )


def run(name: str, number: int, load: float, p50: float) -> Run:
    latency = {"10": {"p50": p50, "p95": 2 * p50, "p99": 1.0}, "1": {"p50": 0.1, "p95": 0.2, "p99": 0.3}}
    phases = {"batches": 2, "rows": 2, "seconds": {"stage": 0.4, "apply": 0.02, "ledger": 0.004}}
    details = {"latency": latency, "batches": {"1": {"phases": phases}}}
    return Run(name, number, 1.0, load, load + 1.5, details=details)


def test_a_stream_has_rows_a_second_and_a_latency_for_every_rate() -> None:
    result = measured(run("flow", 1, 2.0, 0.5), run("flow", 2, 4.0, 0.7), run("pika", 1, 1.0, 0.25))
    assert columns(result)[-2:] == ("ms, 1 row", "ms at 10/s")
    table = rows(result)
    assert table[0][:5] == ["pika and psycopg", "1,000", "1.00", "1.00", "0.50"]
    assert table[1][:5] == ["ematix-flow", "500", "2.00", "3.00", "1.00"]
    assert table[1][-2:] == ["100 / 200 / 300", "600 / 1,200 / 1,000"]


def test_the_cost_of_one_row_is_shown_with_the_share_of_the_ledger() -> None:
    [told] = [line for line in remarks(measured(run("flow", 1, 2.0, 0.5))) if "one row" in line]
    assert told == (
        "ematix-flow: a batch of one row takes stage 200.0 ms, apply 10.0 ms; "
        "the ledger's statements are 2.0 ms of it"
    )
