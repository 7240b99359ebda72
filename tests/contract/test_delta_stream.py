"""Delta tables followed by Spark's streams, for real."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import DeltaLocalConnection
from ematix_flow.backends.delta.stream import DeltaStream
from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.streams.checkpoint import write_checkpoint
from ematix_flow.errors import FlowError, SourceFailed, SourceMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]


class Table:
    """A table of a lake, and streams over it. A run takes what is there, and ends."""

    def __init__(self, spark: SparkSession, root: Path, *, records_changes: bool = False) -> None:
        self.spark, self.root = spark, root
        self.path = root / "lake" / "sales" / "orders"
        source = open_backend(DeltaLocalConnection(name="lake", path=str(root / "lake"))).stream_source()
        assert isinstance(source, DeltaStream)
        self.stream = source
        self.create(records_changes)

    def create(self, records_changes: bool = False) -> None:
        told = "TBLPROPERTIES (delta.enableChangeDataFeed = true)" if records_changes else ""
        self.sql(f"CREATE TABLE {{t}} (id BIGINT, name STRING) USING delta {told}")

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("{t}", f"delta.`{self.path}`"))

    def add(self, *ids: int) -> None:
        self.sql(
            "INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES " + ", ".join(f"({n}, 'x')" for n in ids)
        )

    def run(
        self, checkpoint: str, options: Mapping[str, str] | None = None, **reading: Any
    ) -> list[list[Row]]:
        """The rows of each batch, sorted."""
        wanted = ReadRequest("sales.orders", options=options or {}, **reading)
        self.stream.check(wanted)
        batches: list[list[Row]] = []
        try:
            query = (
                self.stream.streaming_frame(self.spark, wanted)
                .writeStream.foreachBatch(lambda rows, _: batches.append(sorted(map(tuple, rows.collect()))))
                .option("checkpointLocation", str(self.root / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        except FlowError:
            raise
        except Exception as error:
            told = self.stream.explain_failure(wanted, str(error))
            if told is None:
                raise
            raise told from error
        return [batch for batch in batches if batch]

    def position(self, checkpoint: str) -> str:
        names = [path.name for path in (self.root / checkpoint / "offsets").iterdir()]
        last = max(int(name) for name in names if name.isdigit())
        return (self.root / checkpoint / "offsets" / str(last)).read_text().splitlines()[-1]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return Table(spark, tmp_path)


@pytest.mark.long
def test_rows_that_are_there_come_first_and_added_ones_after_a_restart(table: Table) -> None:
    table.add(1, 2)
    assert table.run("c") == [[(1, "x"), (2, "x")]]
    assert table.run("c") == []
    table.add(3)
    assert table.run("c") == [[(3, "x")]]
    assert table.run("latest", starting="latest") == []
    assert table.run("v2", {"starting_version": "2"}) == [[(3, "x")]]
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    assert table.run("moment", starting=long_ago) == [[(1, "x"), (2, "x"), (3, "x")]]


@pytest.mark.long
def test_an_update_stops_the_stream_and_says_what_to_do(table: Table) -> None:
    table.add(1)
    table.run("c")
    table.sql("UPDATE {t} SET name = 'y'")
    with pytest.raises(SourceFailed, match=r"rows of 'sales.orders' at version 2 were updated") as told:
        table.run("c")
    assert "change_feed" in str(told.value)
    assert "skip_change_commits" in str(told.value)
    table.add(2)
    assert table.run("c", {"skip_change_commits": "true"}) == [[(2, "x")]]


@pytest.mark.long
def test_changes_are_separate_rows_if_they_are_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path, records_changes=True)
    table.add(1)
    changes = {"change_feed": "true"}
    assert [row[:4] for row in table.run("c", changes)[0]] == [(1, "x", "insert", 1)]
    table.sql("UPDATE {t} SET name = 'y'")
    table.sql("DELETE FROM {t}")
    assert [row[:4] for batch in table.run("c", changes) for row in batch] == [
        (1, "x", "update_preimage", 2),
        (1, "y", "delete", 3),
        (1, "y", "update_postimage", 2),
    ]


@pytest.mark.long
def test_changes_that_were_not_recorded_and_starts_that_are_not_there_are_reported(table: Table) -> None:
    table.add(1)
    with pytest.raises(SourceFailed, match="were not recorded") as told:
        table.run("c1", {"change_feed": "true"})
    assert "delta.enableChangeDataFeed" in str(told.value)
    with pytest.raises(SourceFailed, match="has no version 9: its log has 0 to 1"):
        table.run("c2", {"starting_version": "9"})
    with pytest.raises(SourceFailed, match="no version since the starting time"):
        table.run("c3", starting=dt.datetime(2200, 1, 1, tzinfo=dt.timezone.utc))
    with pytest.raises(SourceMissing, match=r"no Delta table 'sales.order'.* Did you mean 'sales.orders'"):
        table.stream.check(ReadRequest("sales.order"))


def test_a_stream_does_not_continue_with_a_table_that_was_dropped_and_created_again(table: Table) -> None:
    table.add(1)
    table.run("c")
    shutil.rmtree(table.path)
    table.create()
    table.add(5)
    with pytest.raises(SourceFailed, match="is not the table that the stream has read"):
        table.run("c")


def test_a_lost_checkpoint_is_written_again_from_a_position_within_a_version(table: Table) -> None:
    table.add(1)
    table.add(2)
    one_file = {"max_files_per_trigger": "1"}
    first, second = table.run("c", one_file)
    offsets = table.root / "c" / "offsets"
    within = (offsets / "0").read_text().splitlines()[-1]
    assert json.loads(within)["index"] == 0
    write_checkpoint(table.root / "again", [within])
    assert table.run("again", one_file) == [second]
    write_checkpoint(table.root / "at the end", [table.position("c")])
    assert table.run("at the end") == []
    table.add(3)
    assert table.run("at the end") == [[(3, "x")]]
    assert sorted(first + second) == [(1, "x"), (2, "x")]
