"""Files that come into a prefix of a bucket, received one by one from a real S3 server."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.messages.base import ReadRequest, Receiver
from ematix_flow.backends.objectstore.s3_backend import S3FilesBackend
from ematix_flow.backends.objectstore.stream import FilesStream
from ematix_flow.backends.stores import s3_client
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from tests.contract.s3_files import S3Lake
from tests.services.s3 import S3Server
from tests.services.s3_proxy import proxied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = ColumnSpec("id", DataType("big_int"), nullable=True)
DAY = ColumnSpec("day", DataType("text"), nullable=True)
READING = ReadRequest("raw/orders/", options={"poll_seconds": "0"})


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> Iterator[str]:
    name = s3.create_bucket("streams")
    yield name
    s3.drop_bucket(name)


@pytest.fixture
def lake(s3: S3Server, bucket: str) -> S3Lake:
    return S3Lake(s3, bucket, "csv")


def put(lake: S3Lake, name: str, body: bytes = b"id\n1\n") -> None:
    key = f"{lake.prefix}/raw/orders/{name}"
    lake.server.client().put_object(Bucket=lake.bucket, Key=key, Body=body)


def stream(backend: S3FilesBackend) -> FilesStream:
    found = backend.stream_source()
    assert isinstance(found, FilesStream)
    return found


def receive(
    lake: S3Lake, progress: Mapping[str, str] | None = None, reading: ReadRequest = READING
) -> Receiver:
    return stream(lake.backend()).receiver(reading, progress or {})


def names(receiver: Receiver, most: int = 1_000) -> list[str]:
    found = (message.value or b"" for message in receiver.poll(most, 0))
    return [value.decode().removeprefix("raw/orders/") for value in found]


def test_a_file_is_new_in_any_order_of_names_and_comes_once(lake: S3Lake) -> None:
    receiver = receive(lake)
    assert names(receiver) == []
    put(lake, "m.csv")
    assert names(receiver) == ["m.csv"]
    stored = dict(receiver.progress())
    put(lake, "a b ü.csv")
    put(lake, "day=2026-01-01/a=b.csv")
    assert sorted(names(receiver)) == ["a b ü.csv", "day=2026-01-01/a=b.csv"]
    assert names(receiver) == []
    assert sorted(names(receive(lake, stored))) == ["a b ü.csv", "day=2026-01-01/a=b.csv"]


def test_markers_temporary_and_hidden_objects_are_passed_over(lake: S3Lake) -> None:
    for name in ("_SUCCESS", ".hidden.csv", "_temporary/0/a.csv", "a.csv.tmp", "folder/", "other/b.csv"):
        put(lake, name)
    assert names(receive(lake)) == []
    everywhere = replace(READING, options={"poll_seconds": "0", "recursive": "true"})
    assert names(receive(lake, reading=everywhere)) == ["other/b.csv"]


def test_an_object_that_changes_is_named_once_and_not_read_again(
    lake: S3Lake, caplog: pytest.LogCaptureFixture
) -> None:
    put(lake, "a.csv")
    receiver = receive(lake)
    assert names(receiver) == ["a.csv"]
    put(lake, "a.csv", b"id\n2\n")
    with caplog.at_level(logging.WARNING, "ematix_flow"):
        assert names(receiver) == names(receiver) == []
    assert [message for message in caplog.messages if "raw/orders/a.csv" in message] == caplog.messages
    assert len(caplog.messages) == 1


def test_more_objects_than_one_answer_lists_come_once_each(lake: S3Lake) -> None:
    wanted = [f"{number:04}.csv" for number in range(2_300)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: put(lake, name, b""), wanted))
    receiver = receive(lake)
    found: list[str] = []
    while not receiver.is_drained():
        found += names(receiver)
    assert sorted(found) == wanted


def test_what_a_load_has_not_published_is_none_of_the_tables_files(lake: S3Lake) -> None:
    table = TableSpec("raw", "orders", (ID,))
    target = lake.backend().target()
    load_rows(target, new_load(table), [{"id": 1}])
    receiver = receive(lake)
    first = names(receiver)
    assert first == lake.published(table)
    seen: list[list[str]] = []
    with fault_points.inject("files.before_publish", lambda: seen.append(names(receiver))):
        load_rows(target, new_load(table), [{"id": 2}])
    assert seen == [[]]
    assert names(receiver) == sorted(set(lake.published(table)) - set(first))


def test_a_server_that_is_away_and_a_bucket_that_is_not_there_are_reported(
    lake: S3Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    away = stream(lake.backend(endpoint="http://127.0.0.1:1"))
    with pytest.raises(CannotConnect, match="cannot reach the S3 server"):
        away.check(READING)
    with pytest.raises(CannotConnect, match="cannot reach the S3 server"):
        away.receiver(READING, {}).poll(1, 0)
    with pytest.raises(CannotConnect, match="there is no bucket"):
        stream(lake.backend(bucket="not-there-at-all")).check(READING)
    stream(lake.backend()).check(READING)  # a prefix needs no objects to be followed


def test_a_receiver_goes_on_after_the_server_was_away(
    s3: S3Server, lake: S3Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    with proxied(s3.port) as proxy:
        receiver = stream(lake.backend(endpoint=proxy.endpoint)).receiver(READING, {})
        put(lake, "a.csv")
        assert names(receiver) == ["a.csv"]
        put(lake, "b.csv")
        with proxy.failing(503), pytest.raises(CannotConnect, match="503"):
            receiver.poll(1, 0)
        assert names(receiver) == ["b.csv"]


def test_exactly_the_named_objects_are_read_and_one_that_is_gone_is_named(
    spark: SparkSession, lake: S3Lake
) -> None:
    put(lake, "day=7/a b.csv", b"id\n1\n2\n")
    put(lake, "day=07/ü 10:00.csv", b"id\n3\n")
    put(lake, "day=8/not asked for.csv", b"id\nx\n")
    backend = lake.backend()
    own = spark.newSession()
    for key, value in backend.spark_conf().items():
        own.conf.set(key, value)
    files = stream(backend)
    paths = ["raw/orders/day=7/a b.csv", "raw/orders/day=07/ü 10:00.csv"]
    rows = files.read_files(own, paths, READING, (ID, DAY)).toArrow().to_pylist()
    assert sorted((row["id"], row["day"]) for row in rows) == [(1, "7"), (2, "7"), (3, "07")]
    with pytest.raises(SourceFailed, match=r"gone.csv no longer exists") as told:
        files.read_files(own, [*paths, "raw/orders/gone.csv"], READING, (ID, DAY))
    assert "put it back" in str(told.value)
