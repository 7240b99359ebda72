"""Where a batch of limited size ends in a spool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ematix_flow.backends.spool.batch_limits import limited_batch_end
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.engine.streams.checkpoint import write_checkpoint
from ematix_flow.engine.streams.spool_source import SpoolStream
from tests.property.broker_model import Broker, BrokerReceiver, Log


def spool_of(folder: Path, values: int, rows: int) -> Spool:
    """Messages of a log in segments of so many rows."""
    spool = Spool(folder).open()
    spool.follow(Log([b"%d" % n for n in range(values)], {}), thread=False, max_rows=rows)
    for _ in range(-(-values // rows)):
        spool.run_once(timeout=0)
    return spool


def newest(spool: Spool) -> dict[str, Any]:
    return dict(json.loads(spool.newest_file.read_text()))


def test_a_batch_ends_before_the_segment_that_would_be_too_much(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, 30, 5)
    ends = [limited_batch_end(newest(spool), spool.segments, after, 12)["segment"] for after in range(7)]
    assert ends == [2, 3, 4, 5, 6, 6, 6]
    spool.close()


def test_the_end_of_a_limited_batch_tells_the_positions_there_and_not_those_of_the_newest(
    tmp_path: Path,
) -> None:
    spool = spool_of(tmp_path, 30, 5)
    assert newest(spool)["progress"] == {"log": "30"}
    ended = limited_batch_end(newest(spool), spool.segments, 1, 10)
    assert ended == {"segment": 3, "spool": spool.id, "progress": {"log": "15"}}
    assert limited_batch_end(newest(spool), spool.segments, 4, 10) == newest(spool)
    spool.close()


def test_a_segment_that_is_larger_than_a_batch_is_a_batch_alone(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, 20, 10)
    assert limited_batch_end(newest(spool), spool.segments, 0, 3)["segment"] == 1
    assert limited_batch_end(newest(spool), spool.segments, 1, 3)["segment"] == 2
    spool.close()


def test_a_source_without_positions_tells_none(tmp_path: Path) -> None:
    broker = Broker()
    for n in range(4):
        broker.publish(b"%d" % n)
    spool = Spool(tmp_path).open()
    spool.follow(BrokerReceiver(broker), thread=False, max_rows=2)
    spool.run_once(timeout=0)
    spool.run_once(timeout=0)
    assert limited_batch_end(newest(spool), spool.segments, 0, 2) == {"segment": 1, "spool": spool.id}
    spool.close()


def test_segments_that_are_gone_add_nothing(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, 15, 5)
    (spool.segments / spool.pending_segments()[0]).unlink()
    assert limited_batch_end(newest(spool), spool.segments, 0, 5)["segment"] == 2
    spool.close()


def test_a_limited_query_begins_after_the_last_batch_of_its_checkpoint(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", 30, 5)
    checkpoint = tmp_path / "checkpoint"
    options = {
        "newest": str(spool.newest_file),
        "segments": str(spool.segments),
        "checkpoint": str(checkpoint),
        "most": "10",
    }
    reader = SpoolStream(options).streamReader(None)
    assert reader.latestOffset()["segment"] == 2
    write_checkpoint(checkpoint, [json.dumps({"segment": 3, "spool": spool.id})])
    assert reader.latestOffset()["segment"] == 5
    (checkpoint / "offsets" / "1").write_text('v1\n{}\n{"segment": 6, "spool": "another"}')
    assert reader.latestOffset()["segment"] == 2
    del options["most"]
    assert SpoolStream(options).streamReader(None).latestOffset() == newest(spool)
    spool.close()
