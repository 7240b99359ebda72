"""Positions of streams: as a ledger keeps them, and the lowest of several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ematix_flow.backends.kafka.positions import recreated_topics, topic_ids_in
from ematix_flow.engine.streams.checkpoint import (
    Checkpoint,
    join_positions,
    lowest_position,
    split_positions,
    write_checkpoint,
)
from ematix_flow.errors import EngineError


def test_positions_of_all_sources_go_into_one_text_and_out_again() -> None:
    positions = ('{"t":{"0":3}}', None)
    assert split_positions(join_positions(positions), 2) == ('{"t": {"0": 3}}', None)


def test_a_text_of_other_sources_says_nothing() -> None:
    assert split_positions(join_positions(('{"t":{"0":3}}',)), 2) == (None, None)
    assert split_positions("broken", 1) == (None,)


def test_the_least_position_is_that_of_each_partition() -> None:
    one, other = '[{"t":{"0":12,"1":5}}]', '[{"t":{"0":9,"1":7}}]'
    assert json.loads(lowest_position([one, other])) == [{"t": {"0": 9, "1": 5}}]


def test_a_partition_that_one_has_not_begun_is_left_out() -> None:
    assert json.loads(lowest_position(['{"t":{"0":1,"1":5}}', '{"t":{"0":2}}'])) == {"t": {"0": 1}}


def test_a_version_and_the_place_within_it_are_compared_as_one() -> None:
    earlier = {"reservoirVersion": 4, "index": 9}
    later = {"reservoirVersion": 5, "index": 0}
    assert json.loads(lowest_position([json.dumps(later), json.dumps(earlier)])) == earlier


def test_a_checkpoint_tells_what_spark_wrote(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text('{"id":"6f9b0c0e-0000-4000-8000-000000000000"}')
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.is_new
    (tmp_path / "offsets" / "0").write_text('v1\n{"conf":{}}\n{"t":{"0":3}}\n-')
    (tmp_path / "offsets" / "1").write_text('v1\n{"conf":{}}\n{"t":{"0":5}}\n{"u":{"0":1}}')
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "commits" / ".0.crc").write_text("")
    assert not checkpoint.is_new
    assert checkpoint.positions(1) == ('{"t":{"0":5}}', '{"u":{"0":1}}')
    assert checkpoint.positions_before(1) == ('{"t":{"0":3}}', None)
    assert checkpoint.positions_before(0) == ()
    assert checkpoint.last_committed() == 0


def test_a_lost_checkpoint_is_written_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "new", ['{"t":{"0":3}}', '{"u":{"0":1}}'])
    checkpoint = Checkpoint(tmp_path / "new")
    assert (checkpoint.last_planned(), checkpoint.last_committed()) == (0, 0)
    assert checkpoint.positions(0) == ('{"t":{"0":3}}', '{"u":{"0":1}}')
    assert len(checkpoint.query_id()) == 36
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_damaged_checkpoint_is_reported_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("")
    with pytest.raises(EngineError, match="damaged") as raised:
        Checkpoint(tmp_path).positions(0)
    assert "ledger" in str(raised.value)


def test_the_first_batch_begins_where_kafkas_connector_noted_it(tmp_path: Path) -> None:
    for batch in ("0", "1", "5"):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / batch).write_text('v1\n{}\n{"t":{"0":9}}')
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.start_positions(0) == (None,)
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_bytes(b'\0v1\n{"t":{"0":4}}')
    assert checkpoint.start_positions(0) == ('{"t":{"0":4}}',)
    assert checkpoint.start_positions(1) == ('{"t":{"0":9}}',)
    assert checkpoint.start_positions(5) == (
        None,
    )  # the batch before it is forgotten, and it is not the first
    (tmp_path / "sources" / "0" / "0").write_bytes(b"\0v2\nsomething else")
    assert checkpoint.start_positions(0) == (None,)


def test_targets_that_know_different_ids_of_a_topic_do_not_go_on_in_either() -> None:
    old, new = '{"t":{"0":9},"place ids":{"t":"old"}}', '{"t":{"0":2},"place ids":{"t":"new"}}'
    unknown = '{"t":{"0":4}}'
    assert topic_ids_in(lowest_position([old, new])) == {"t": None}
    assert recreated_topics(topic_ids_in(lowest_position([old, new])), {"t": "new"}).keys() == {"t"}
    assert (
        topic_ids_in(lowest_position([old, unknown]))
        == topic_ids_in(lowest_position([unknown, old]))
        == {"t": "old"}
    )
    assert recreated_topics({"t": "old"}, {"t": "old"}) == recreated_topics({"t": "old"}, {}) == {}
