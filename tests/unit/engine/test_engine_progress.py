"""How tasks report their progress to the driver."""

from __future__ import annotations

import pyarrow as pa

from ematix_flow.engine.execution.progress import count_batches, watch_progress
from ematix_flow.observe.listener import Progress


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(rows), pa.int64())})


def test_the_last_sums_of_all_parts_are_reported_when_the_work_is_done() -> None:
    told: list[Progress] = []
    with watch_progress(told.append, expected_rows=40) as folder:
        for part in ("a", "b"):
            assert sum(each.num_rows for each in count_batches([batch(10), batch(5)], folder, part)) == 15
    assert told[-1] == Progress(30, 30 * 8, 40)


def test_a_part_that_is_just_being_written_keeps_its_earlier_count(tmp_path) -> None:
    told: list[Progress] = []
    with watch_progress(told.append) as folder:
        list(count_batches([batch(10)], folder, "a"))
        while not told:
            pass
        with open(f"{folder}/a", "wb"):
            list(count_batches([batch(1)], folder, "b"))
    assert told[-1] == Progress(11, 88)


def test_without_rows_nothing_is_reported() -> None:
    told: list[Progress] = []
    with watch_progress(told.append) as folder:
        list(count_batches([], folder, "a"))
    assert told == []


def test_a_folder_of_another_machine_is_left_alone(tmp_path) -> None:
    assert [each.num_rows for each in count_batches([batch(2)], str(tmp_path / "elsewhere"), "a")] == [2]
    assert list(tmp_path.iterdir()) == []
