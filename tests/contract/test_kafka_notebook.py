"""Kafka used directly, as from a notebook."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ematix_flow._core import KafkaBackend
from ematix_flow.errors import (
    CannotConnect,
    DeclarationError,
    SourceFailed,
    SourceMissing,
    TargetFailed,
    UsageError,
)
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from tests.services.kafka import PASSWORD, USER, KafkaServer

QUICK = {"idle_timeout": 1.0}


def opened(kafka: KafkaServer, group: str = "notebook-tests", **fields: object) -> KafkaBackend:
    return KafkaBackend.open(kafka.bootstrap, group_id=group, **fields)


def test_json_messages_become_batches_of_columns(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b'{"id": 1, "name": "a"}', b'{"id": 2, "name": null}', None])
    with opened(kafka) as backend:
        assert kafka.cluster_id in backend.ping()
        batches = list(backend.iter_arrow_stream(kafka_topic, **QUICK))
    assert pa.Table.from_batches(batches).to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_what_was_written_is_read_back_with_its_key(kafka: KafkaServer, kafka_topic: str) -> None:
    rows = pa.Table.from_pylist([{"id": n, "tag": f"t{n}", "deep": {"x": [n]}} for n in range(2_500)])
    with opened(kafka) as backend:
        assert backend.write_arrow_stream(kafka_topic, rows, message_key_column="tag") == 2_500
        found = list(backend.iter_arrow_stream(kafka_topic, batch_size=1_000, **QUICK))
    assert [batch.num_rows for batch in found] == [1_000, 1_000, 500]
    assert pa.Table.from_batches(found).column("id").to_pylist() == list(range(2_500))
    assert kafka.consume_all(kafka_topic)[7].key() == b"t7"


def test_only_what_was_yielded_before_is_committed(kafka: KafkaServer, kafka_topic: str) -> None:
    group = f"g-{kafka_topic}"
    kafka.send(kafka_topic, [b'{"n": %d}' % n for n in range(10)])
    with opened(kafka, group) as backend:
        stream = backend.iter_arrow_stream(kafka_topic, batch_size=4, **QUICK)
        assert next(stream).column("n").to_pylist() == [0, 1, 2, 3]
        backend.commit_offsets()
        assert next(stream).column("n").to_pylist() == [4, 5, 6, 7]
    assert kafka.committed(group, kafka_topic) == {0: (4, None)}
    with opened(kafka, group) as backend:
        again = list(backend.iter_arrow_stream(kafka_topic, **QUICK))
        assert [n for batch in again for n in batch.column("n").to_pylist()] == list(range(4, 10))
        backend.commit_offsets()
        backend.commit_offsets()
    with opened(kafka, group) as backend:
        assert backend.read_arrow_stream(kafka_topic, **QUICK) == []


def test_columns_stay_as_the_first_batch_showed_them(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b'{"n": 1}', b'{"n": 2, "later": true}'])
    with opened(kafka) as backend:
        found = list(backend.iter_arrow_stream(kafka_topic, batch_size=1, **QUICK))
    assert [batch.schema.names for batch in found] == [["n"], ["n"]]


def test_named_columns_are_read_with_the_messages_own(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b'{"n": "7"}'], key=b"k", headers=[("h", b"x"), ("h", b"y")])
    columns = [
        ColumnSpec("n", DataType("integer"), nullable=True),
        ColumnSpec("_offset", DataType("big_int")),
        ColumnSpec("_partition", DataType("integer")),
        ColumnSpec("_headers", DataType("json"), nullable=True),
        ColumnSpec("_topic", DataType("text")),
    ]
    with opened(kafka) as backend:
        found = backend.read_arrow_stream(kafka_topic, columns=columns, **QUICK)
    row = found[0].to_pylist()[0]
    assert (row["_offset"], row["_partition"], row["_topic"]) == (0, 0, kafka_topic)
    assert row["_headers"] == '{"h": "y"}'


def test_a_message_that_cannot_be_read_stops_reading_or_is_left_out(
    kafka: KafkaServer, kafka_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.send(kafka_topic, [b'{"n": 1}', b"{broken", b'{"n": 3}'])
    with (
        opened(kafka) as backend,
        pytest.raises(SourceFailed, match=r"1 of 3 messages.*/0, position 1"),
    ):
        backend.read_arrow_stream(kafka_topic, **QUICK)
    with opened(kafka) as backend:
        found = backend.read_arrow_stream(kafka_topic, bad="skip", **QUICK)
    assert [batch.column("n").to_pylist() for batch in found] == [[1, 3]]
    assert "left out" in caplog.text


def test_raw_payloads_are_one_column_of_bytes(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"\x00\xff", b""])
    with opened(kafka, payload_format="raw_bytes") as backend:
        found = backend.read_arrow_stream(kafka_topic, **QUICK)
        assert found[0].to_pylist() == [{"value": b"\x00\xff"}, {"value": b""}]
        assert backend.write_arrow_stream(kafka_topic, pa.record_batch({"value": [b"back"]})) == 1


def test_messages_that_show_no_columns_are_reported(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"[1]", b"7"])
    with opened(kafka) as backend, pytest.raises(SourceFailed, match="none of the first 2 messages"):
        backend.read_arrow_stream(kafka_topic, **QUICK)


def test_reading_ends_at_an_empty_topic_and_begins_at_the_end_when_asked(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    with opened(kafka) as backend:
        assert backend.read_arrow_stream(kafka_topic, **QUICK) == []
    kafka.send(kafka_topic, [b'{"n": 1}'])
    with opened(kafka, "other", auto_offset_reset="latest") as backend:
        assert backend.read_arrow_stream(kafka_topic, **QUICK) == []
    with (
        opened(kafka, "third", auto_offset_reset="error") as backend,
        pytest.raises(SourceFailed, match="has no position"),
    ):
        backend.read_arrow_stream(kafka_topic, **QUICK)


def test_a_wrong_login_a_missing_topic_and_wrong_arguments_are_reported(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    login = {"sasl_plain_username": USER, "sasl_plain_password": "wrong"}
    with (
        KafkaBackend.open(kafka.address("SASL_PLAINTEXT"), **login) as backend,
        pytest.raises(CannotConnect, match="refuses user"),
    ):
        backend.ping()
    with opened(kafka) as backend:
        with pytest.raises(SourceMissing, match="no topic 'nowhere'"):
            backend.read_arrow_stream("nowhere", **QUICK)
        with pytest.raises(TargetFailed, match="no topic 'nowhere'"):
            backend.write_arrow_stream("nowhere", pa.record_batch({"n": [1]}))
        with pytest.raises(TargetFailed, match="message_key_column is 'i'"):
            backend.write_arrow_stream(kafka_topic, pa.record_batch({"id": [1]}), message_key_column="i")
        with pytest.raises(UsageError, match="batch_size is 0"):
            backend.iter_arrow_stream(kafka_topic, batch_size=0)
        with pytest.raises(UsageError, match="it takes pyarrow"):
            backend.write_arrow_stream(kafka_topic, [{"id": 1}])
    with pytest.raises(DeclarationError, match="no field 'grup_id'"):
        KafkaBackend.open(kafka.bootstrap, grup_id="x")
    with KafkaBackend.open([kafka.address("SASL_PLAINTEXT")], **{**login, "sasl_plain_password": PASSWORD}):
        pass
