"""A folder of files as a target: what readers see, what a crash leaves, what a disk refuses."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Load, SameDatabaseRows, StagedPart, StagedRows
from ematix_flow.backends.objectstore.backend import LocalFilesBackend
from ematix_flow.backends.objectstore.storage import local_versions
from ematix_flow.backends.objectstore.table import table_state
from ematix_flow.backends.objectstore.target import LocalFilesTarget
from ematix_flow.errors import (
    CannotConnect,
    FlowError,
    PlanError,
    RowRejected,
    SchemaMismatch,
    TargetFailed,
    Unsupported,
)
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import PIPELINE, TARGET, load_incremental, load_rows, new_load, prepare
from ematix_flow.testing.samples import every_type, every_value

ID = ColumnSpec("id", DataType("big_int"), primary_key=True)
NAME = ColumnSpec("name", DataType("text"), nullable=True)
TABLE = TableSpec("shop", "orders", (ID, NAME))


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}"} for i in range(first, last)]


def ids(root: Path, table: str = "shop/orders") -> list[int]:
    found: list[int] = ds.dataset(root / table, format="parquet").to_table(columns=["id"])["id"].to_pylist()
    return sorted(found)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def target(root: Path) -> LocalFilesTarget:
    return LocalFilesTarget(root, "parquet")


# ------------------------------------------------------------------ what readers see


def test_a_table_is_a_folder_of_data_files_alone(root: Path, target: LocalFilesTarget) -> None:
    load_rows(target, new_load(TABLE), rows(0, 3))
    load_rows(target, new_load(TABLE), rows(3, 5))
    assert sorted(os.listdir(root)) == [".ematix_flow", "shop"]
    folder = root / "shop" / "orders"
    assert all(name.endswith(".parquet") for name in os.listdir(folder))
    assert ids(root) == [0, 1, 2, 3, 4]
    glob = str(folder / "*.parquet")
    with duckdb.connect() as connection:
        assert connection.sql(f"SELECT count(*) FROM '{glob}'").fetchall() == [(5,)]
    assert len(pq.read_table(folder)) == 5


def test_a_lake_that_is_moved_stays_whole(root: Path, target: LocalFilesTarget) -> None:
    load_rows(target, new_load(TABLE), rows(0, 3))
    moved = root.with_name("elsewhere")
    os.rename(root, moved)
    assert ids(moved) == [0, 1, 2]
    again = LocalFilesTarget(moved, "parquet")
    assert len(again.ledger(PIPELINE, TARGET)) == 1
    load_rows(again, new_load(TABLE), rows(3, 4))
    assert ids(moved) == [0, 1, 2, 3]


@pytest.mark.parametrize("reader", ["duckdb", "pyarrow"])
def test_a_polling_reader_never_sees_a_state_between(
    root: Path, target: LocalFilesTarget, reader: str
) -> None:
    load_rows(target, new_load(TABLE), rows(0, 10))
    folder, stop, seen = root / "shop" / "orders", threading.Event(), set()
    problems: list[BaseException] = []

    def count_rows(path: str) -> int:
        if reader == "pyarrow":
            return int(ds.dataset(path, format="parquet").count_rows())
        with duckdb.connect() as engine:
            return int(
                engine.execute("SELECT count(*) FROM read_parquet(?)", [f"{path}/*.parquet"]).fetchall()[0][0]
            )

    def poll() -> None:
        while not stop.is_set():
            try:
                seen.add(count_rows(os.path.realpath(folder)))  # one read of the link, then of its version
            except BaseException as error:
                problems.append(error)
                return

    def poll_the_link() -> None:
        """Listed before and opened after a refresh, the old files are gone: an error, never a mixture.

        PyArrow opens each listed name through the link again, and treats a folder as empty if the link
        has moved since.
        """
        while not stop.is_set():
            with suppress(FileNotFoundError, duckdb.IOException):
                found = count_rows(str(folder))
                if found or reader != "pyarrow":
                    seen.add(found)

    pollers = [threading.Thread(target=poll), threading.Thread(target=poll_the_link)]
    for poller in pollers:
        poller.start()
    expected = {10}
    for turn in range(6):
        load_rows(target, new_load(TABLE, "truncate"), rows(0, 10), parts=2)
        load_rows(target, new_load(TABLE), rows(10, 15 + turn), parts=3)
        expected |= {10, 15 + turn}
    stop.set()
    for poller in pollers:
        poller.join()
    assert problems == []
    assert seen <= expected


def test_a_reader_that_has_begun_can_finish_after_the_table_was_replaced(
    root: Path, target: LocalFilesTarget
) -> None:
    load_rows(target, new_load(TABLE), rows(0, 3))
    begun = ds.dataset(os.path.realpath(root / "shop" / "orders"), format="parquet")
    load_rows(target, new_load(TABLE, "truncate"), rows(5, 8))
    assert sorted(begun.to_table()["id"].to_pylist()) == [0, 1, 2]


def test_versions_are_removed_once_they_are_old(
    root: Path, target: LocalFilesTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(4):
        load_rows(target, new_load(TABLE), rows(turn, turn + 1))
    home = next((root / ".ematix_flow" / "tables").iterdir())
    assert len(list(home.iterdir())) == 5  # the empty one that was made first, and four loads
    monkeypatch.setattr(local_versions, "KEEP_REPLACED", dt.timedelta(0))
    load_rows(target, new_load(TABLE), rows(4, 5))
    assert len(list(home.iterdir())) == 2
    assert ids(root) == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------ ledger


def test_old_ledger_entries_are_sealed_and_still_keep_a_batch_single(
    root: Path, target: LocalFilesTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_versions, "SEALED_ENTRIES", 3)
    for number in range(8):
        load_rows(target, new_load(TABLE, batch_key=f"slot:{number}"), rows(number, number + 1))
    keys = [entry.batch_key for entry in target.ledger(PIPELINE, TARGET)]
    assert keys == [f"slot:{number}" for number in reversed(range(8))]
    assert [e.batch_key for e in target.ledger(PIPELINE, TARGET, limit=4)] == keys[:4]
    assert load_rows(target, new_load(TABLE, batch_key="slot:0"), rows(9, 10)).duplicate
    assert load_rows(target, new_load(TABLE, batch_key="slot:7"), rows(9, 10)).duplicate
    other = new_load(TABLE, batch_key="slot:0", pipeline="another")
    assert not load_rows(target, other, rows(9, 10)).duplicate
    assert ids(root) == [*range(8), 9]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99}'])
def test_a_damaged_state_is_a_clear_error_and_the_data_stays(
    root: Path, target: LocalFilesTarget, text: str
) -> None:
    load_rows(target, new_load(TABLE), rows(0, 3))
    state = Path(os.path.realpath(root / "shop" / "orders")).parent / table_state.STATE_FILE
    state.write_text(text)
    with pytest.raises(TargetFailed, match="cannot read the table's state") as caught:
        target.inspect(TABLE)
    assert caught.value.next_step is not None
    assert ids(root) == [0, 1, 2]


def test_two_pipelines_may_load_one_table(root: Path, target: LocalFilesTarget) -> None:
    prepare(target, TABLE)
    one, two = new_load(TABLE, pipeline="one"), new_load(TABLE, pipeline="two")
    staged = []
    for load, first in ((one, 0), (two, 10)):
        staging = target.create_staging(load, TABLE.arrow_schema())
        batch = pa.RecordBatch.from_pylist(rows(first, first + 2), schema=TABLE.arrow_schema())
        staged.append((load, staging, staging.write("p", [batch])))
    for load, staging, part in staged:
        target.apply(load, StagedRows(staging, (part,)))
    assert ids(root) == [0, 1, 10, 11]
    assert len(target.ledger("one", TARGET)) == len(target.ledger("two", TARGET)) == 1


# ------------------------------------------------------------------ a folder that was there before


def users_folder(root: Path, count: int = 2) -> Path:
    folder = root / "shop" / "orders"
    folder.mkdir(parents=True)
    for number in range(count):
        table = pa.table({"id": [100 + number], "name": ["theirs"], "extra": [1.5]})
        pq.write_table(table, folder / f"theirs{number}.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def test_a_users_folder_is_adopted_and_its_originals_stay(root: Path, target: LocalFilesTarget) -> None:
    users_folder(root)
    live = target.inspect(TABLE)
    assert live is not None
    assert [c.name for c in live.columns] == ["id", "name", "extra"]
    plan = target.plan_table(TABLE, live)
    assert plan.differences == ()
    assert "its 2 files stay" in plan.changes[0].subject
    load_rows(target, new_load(TABLE), rows(0, 2))
    assert ids(root) == [0, 1, 100, 101]
    (original,) = (root / ".ematix_flow" / "adopted").iterdir()
    assert sorted(os.listdir(original)) == ["_SUCCESS", "theirs0.parquet", "theirs1.parquet"]
    table = ds.dataset(root / "shop" / "orders", format="parquet").to_table().to_pylist()
    assert {row["extra"] for row in table if row["id"] < 100} == {None}


def test_a_refresh_of_a_users_folder_keeps_the_originals_aside(root: Path, target: LocalFilesTarget) -> None:
    users_folder(root)
    applied = load_rows(target, new_load(TABLE, "truncate"), rows(0, 3))
    assert (applied.rows.deleted, applied.rows.inserted) == (2, 3)
    assert ids(root) == [0, 1, 2]
    (original,) = (root / ".ematix_flow" / "adopted").iterdir()
    assert (original / "theirs1.parquet").exists()


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("point", ["files.version_written", "files.before_publish", "files.after_publish"])
def test_a_crash_while_a_folder_is_adopted_loses_nothing(
    root: Path, target: LocalFilesTarget, point: str, swaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    users_folder(root)
    if not swaps:
        monkeypatch.setattr(local_versions.ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        load_rows(target, new_load(TABLE), rows(0, 2))
    assert ids(root) == [100, 101]
    load_rows(target, new_load(TABLE), rows(0, 2))
    assert ids(root) == [0, 1, 100, 101]
    assert len(list((root / ".ematix_flow" / "adopted").iterdir())) == 1


def test_files_of_another_format_or_folders_of_other_tables_are_not_adopted(
    root: Path, target: LocalFilesTarget
) -> None:
    folder = users_folder(root)
    (folder / "more.csv").write_text("id\n1\n")
    with pytest.raises(SchemaMismatch, match=r"csv files \(more.csv\)"):
        target.inspect(TABLE)
    (folder / "more.csv").unlink()
    (folder / "archive").mkdir()
    with pytest.raises(SchemaMismatch, match="not partitions: archive"):
        target.inspect(TABLE)


def test_files_that_disagree_name_the_file_and_the_column(root: Path, target: LocalFilesTarget) -> None:
    folder = users_folder(root)
    pq.write_table(pa.table({"id": ["text"]}), folder / "z.parquet")
    with pytest.raises(SchemaMismatch, match=r"column 'id' is Text in z.* and BigInt in theirs0"):
        target.inspect(TABLE)


def test_a_csv_folder_with_its_own_delimiter_is_recognised(root: Path) -> None:
    folder = root / "shop" / "orders"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id;name\n7;seven\n")
    target = LocalFilesTarget(root, "csv")
    with pytest.raises(SchemaMismatch, match="delimiter ';'"):
        load_rows(target, new_load(TABLE), rows(0, 1))
    load_rows(target, new_load(TABLE, files=FileOptions(csv_delimiter=";")), rows(0, 1))
    texts = sorted(path.read_text().splitlines()[1][:4] for path in folder.iterdir())
    assert texts == ["0;n0", "7;se"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,name\n7,café\n".encode("latin-1"), "it is not UTF-8"),
        (b"id," + b"n" * 200_000 + b"\n", "field larger than field limit"),
    ],
)
def test_csv_of_others_that_cannot_be_read_is_named(root: Path, content: bytes, words: str) -> None:
    folder = root / "shop" / "orders"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_bytes(content)
    with pytest.raises(TargetFailed, match=f"cannot read {re.escape(str(folder))}.*a.csv: {words}") as caught:
        LocalFilesTarget(root, "csv").inspect(TABLE)
    assert caught.value.next_step


@pytest.mark.parametrize("header", [True, False])
def test_columns_of_adopted_csv_that_are_not_declared_are_text(root: Path, header: bool) -> None:
    folder = root / "shop" / "orders"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,zip,phone\n" * header + "1,01234,+491\n")
    table = replace(TABLE, columns=(ID,))
    options = FileOptions(csv_read_options=(("has_header", header),))
    target = LocalFilesTarget(root, "csv").with_files(options)
    load_rows(target, new_load(table, files=options), [{"id": 2}])
    live = target.inspect(table)
    assert live is not None
    assert [c.type.kind for c in live.columns][:3] == ["big_int", "text", "text"]


def test_csv_whose_header_names_its_partition_column_is_not_adopted(root: Path) -> None:
    folder = root / "shop" / "orders" / "name=n7"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,Name,note\n7,n7,x\n")
    target = LocalFilesTarget(root, "csv")
    with pytest.raises(SchemaMismatch, match="has the column 'Name', and so has the name of its partition"):
        load_rows(target, new_load(TABLE, partition_by=("name",)), rows(0, 1))
    assert os.listdir(folder) == ["a.csv"]


def test_a_table_of_another_root_is_refused_and_keeps_its_ledger(root: Path) -> None:
    narrow, wide = LocalFilesTarget(root / "raw", "parquet"), LocalFilesTarget(root, "parquet")
    there, table = TableSpec(None, "events", (ID, NAME)), TableSpec("raw", "events", (ID, NAME))
    load_rows(narrow, new_load(there, batch_key="slot:1"), rows(0, 3))
    for attempt in (wide.inspect, lambda table: load_rows(wide, new_load(table), rows(3, 5))):
        with pytest.raises(PlanError, match="loaded through a connection with path") as raised:
            attempt(table)
        assert repr(str(root / "raw")) in raised.value.what
        assert "load it through one connection" in (raised.value.next_step or "")
    assert load_rows(narrow, new_load(there, batch_key="slot:1"), rows(0, 3)).duplicate
    assert ids(root, "raw/events") == [0, 1, 2]


def test_a_first_load_through_another_root_that_came_in_between_is_not_replaced(root: Path) -> None:
    narrow, wide = LocalFilesTarget(root / "raw", "parquet"), LocalFilesTarget(root, "parquet")
    there, table = TableSpec(None, "events", (ID, NAME)), TableSpec("raw", "events", (ID, NAME))
    to_come = [rows(3, 5)]

    def meanwhile() -> None:
        if to_come:
            load_rows(wide, new_load(table), to_come.pop())

    with (
        fault_points.inject("files.before_publish", meanwhile),
        pytest.raises(PlanError, match="loaded through a connection with path"),
    ):
        load_rows(narrow, new_load(there), rows(0, 3))
    assert ids(root, "raw/events") == [3, 4]
    assert len(wide.ledger(PIPELINE, TARGET)) == 1


def test_a_moved_table_is_never_cleaned_up(root: Path, target: LocalFilesTarget) -> None:
    load_rows(target, new_load(TABLE), rows(0, 3))
    os.rename(root / "shop" / "orders", root / "shop" / "orders_old")
    load_rows(target, new_load(TABLE), rows(5, 6))
    target.sweep_staging(PIPELINE, TARGET)
    assert ids(root) == [5]
    assert ids(root, "shop/orders_old") == [0, 1, 2]


# ------------------------------------------------------------------ layouts


def test_partitions_are_hive_folders_without_their_column(root: Path, target: LocalFilesTarget) -> None:
    table = replace(TABLE, columns=(ID, NAME, ColumnSpec("day", DataType("date"), nullable=True)))
    batch = [{"id": i, "name": "x", "day": None if i == 3 else dt.date(2026, 1, 1 + i % 2)} for i in range(4)]
    load_rows(target, new_load(table, partition_by=("day",)), batch)
    folder = root / "shop" / "orders"
    assert sorted(os.listdir(folder)) == [
        "day=2026-01-01",
        "day=2026-01-02",
        "day=__HIVE_DEFAULT_PARTITION__",
    ]
    query = f"SELECT id, day FROM read_parquet('{folder}/*/*.parquet', hive_partitioning=true)"
    with duckdb.connect() as connection:
        found = connection.sql(query).fetchall()
    assert sorted(found) == [(row["id"], row["day"]) for row in batch]
    file = next((folder / "day=2026-01-01").iterdir())
    assert "day" not in pq.read_schema(file).names
    with pytest.raises(SchemaMismatch, match=r"partitioned by \(day\)"):
        load_rows(target, new_load(table), batch)
    load_rows(target, new_load(table, "truncate"), batch)
    assert "day" in pq.read_schema(next(folder.iterdir())).names


def test_ties_are_matched_in_partitioned_tables_too(root: Path, target: LocalFilesTarget) -> None:
    table = TableSpec(None, "events", (ColumnSpec("day", DataType("date")), NAME))
    day = dt.date(2026, 1, 1)
    source = [{"day": day, "name": "a"}, {"day": day, "name": None}]

    def run() -> int:
        from ematix_flow.spec.watermarks import SourceRange

        low = target.watermark(PIPELINE, TARGET, "day")
        load = new_load(table, range=SourceRange("day", low), batch_key=None, partition_by=("day",))
        read = [row for row in source if low is None or row["day"] >= low.value]
        return load_rows(target, load, read).rows.inserted

    assert run() == 2
    source += [{"day": day, "name": "a"}, {"day": dt.date(2026, 1, 2), "name": "b"}]
    assert run() == 2
    assert run() == 0


def test_wrong_partition_columns_are_refused(target: LocalFilesTarget) -> None:
    amount = ColumnSpec("amount", DataType("double"))
    table = replace(TABLE, columns=(ID, amount))
    for names, words in (
        (("nope",), "not one of its columns"),
        (("amount",), "cannot be a folder"),
        (("id", "id"), "twice"),
    ):
        with pytest.raises(PlanError, match=words):
            target.create_staging(new_load(table, partition_by=names), table.arrow_schema())
    with pytest.raises(RowRejected, match="distinguished from a null"):
        load_rows(target, new_load(TABLE, partition_by=("name",)), [{"id": 1, "name": ""}])


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "zstd"])
def test_parquet_is_compressed_as_declared(root: Path, target: LocalFilesTarget, compression: str) -> None:
    load_rows(target, new_load(TABLE, files=FileOptions(parquet_compression=compression)), rows(0, 3))
    file = next((root / "shop" / "orders").iterdir())
    assert pq.read_metadata(file).row_group(0).column(0).compression == compression.upper()


def test_small_batches_become_large_row_groups(
    root: Path, target: LocalFilesTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ematix_flow.backends.objectstore.formats import file_writers

    monkeypatch.setattr(file_writers, "ROW_GROUP_ROWS", 100_500)
    prepare(target, TABLE)
    load = new_load(TABLE)
    staging = target.create_staging(load, TABLE.arrow_schema())
    batch = pa.RecordBatch.from_pylist(rows(0, 1_000), schema=TABLE.arrow_schema())
    part = staging.write("p", (batch for _ in range(200)))
    target.apply(load, StagedRows(staging, (part,)))
    (file,) = (root / "shop" / "orders").iterdir()
    metadata = pq.read_metadata(file)
    assert (metadata.num_rows, metadata.num_row_groups) == (200_000, 2)


def test_files_are_rolled_and_open_files_are_bounded(
    root: Path, target: LocalFilesTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ematix_flow.backends.objectstore.formats import file_writers

    monkeypatch.setattr(file_writers, "FILE_BYTES", 20_000)
    monkeypatch.setattr(file_writers, "ROW_GROUP_ROWS", 1_000)
    monkeypatch.setattr(file_writers, "OPEN_FILES", 3)
    monkeypatch.setattr(file_writers, "BUFFERED_BYTES", 5_000)
    table = replace(TABLE, columns=(ID, NAME, ColumnSpec("part", DataType("integer"))))
    load = new_load(table, partition_by=("part",))
    staging = target.create_staging(load, table.arrow_schema())
    batches = (
        pa.RecordBatch.from_pylist(
            [{"id": i, "name": uuid.uuid4().hex, "part": i % 7} for i in range(start, start + 700)],
            schema=table.arrow_schema(),
        )
        for start in range(0, 14_000, 700)
    )
    target.apply(load, StagedRows(staging, (staging.write("p", batches),)))
    assert ids(root) == list(range(14_000))
    assert len(list((root / "shop" / "orders").rglob("*.parquet"))) > 14


def test_a_csv_table_keeps_its_dialect_and_the_order_of_its_columns(root: Path) -> None:
    target = LocalFilesTarget(root, "csv")
    options = FileOptions(
        csv_delimiter=";", csv_header=False, csv_quote="'", csv_escape="\\", csv_null_value="\\N"
    )
    load_rows(
        target, new_load(TABLE, files=options), [{"id": 1, "name": "it's; \\N"}, {"id": 2, "name": None}]
    )
    (file,) = (root / "shop" / "orders").iterdir()
    first, second = file.read_text().splitlines()
    assert first.startswith("1;'it\\'s; \\\\N';20")
    assert second.startswith("2;\\N;20")
    with pytest.raises(SchemaMismatch, match="this load would write with delimiter ','"):
        load_rows(target, new_load(TABLE), rows(0, 1))
    turned = replace(TABLE, columns=(NAME, ID, ColumnSpec("new", DataType("integer"), nullable=True)))
    load_rows(target, new_load(turned, files=options), [{"id": 3, "name": "x", "new": 9}])
    newest = min((root / "shop" / "orders").iterdir())
    assert newest.read_text().startswith("3;x;20")
    assert newest.read_text().endswith(";9\n")


@pytest.mark.parametrize(
    ("null", "row", "told"),
    [
        ("NULL", {"id": 8, "name": "NULL"}, "column 'name', row 3 of what was read: the value 'NULL'"),
        ("\\N", {"id": 8, "name": "\\N"}, "column 'name', row 3 of what was read: the value '\\\\N'"),
        ("0", {"id": 0, "name": "x"}, "column 'id', row 3 of what was read: the value '0'"),
    ],
)
def test_a_value_that_csv_readers_would_take_for_a_null_is_refused(
    root: Path, null: str, row: dict[str, Any], told: str
) -> None:
    target = LocalFilesTarget(root, "csv")
    load = new_load(TABLE, files=FileOptions(csv_null_value=null))
    fine = [{"id": 1, "name": None}, {"id": 2, "name": "null"}]
    with pytest.raises(RowRejected) as caught:
        load_rows(target, load, [*fine, row])
    assert caught.value.what.startswith(told)
    assert "csv_null_value=" in str(caught.value.next_step)
    load_rows(target, new_load(TABLE, files=FileOptions(csv_null_value=null)), fine)


# ------------------------------------------------------------------ incremental


@pytest.mark.parametrize("format", ["parquet", "csv", "json_lines", "orc"])
def test_only_files_that_may_hold_the_last_watermark_are_read_again(
    root: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ematix_flow.backends.objectstore.writing import boundary_rows

    table = TableSpec(None, "events", (ColumnSpec("seq", DataType("integer")), NAME))
    target = LocalFilesTarget(root, format)
    source = [{"seq": i, "name": "x"} for i in range(3)]
    load_incremental(target, table, "seq", source)
    source.append({"seq": 3, "name": "x"})
    load_incremental(target, table, "seq", source)
    read: list[str] = []
    original = boundary_rows.read_rows

    def noting(file: Any, *rest: Any) -> Any:
        read.append(file.name)
        return original(file, *rest)

    monkeypatch.setattr(boundary_rows, "read_rows", noting)
    source.append({"seq": 3, "name": None})
    assert load_incremental(target, table, "seq", source).rows.inserted == 1
    assert len(read) == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("date", (dt.date(2026, 1, 1), dt.date(2026, 1, 2))),
        ("timestamp", (dt.datetime(2026, 1, 1, 0, 0, 0, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 2))),
        ("timestamp_tz", tuple(dt.datetime(2026, 1, 1, 0, 0, 0, n, dt.timezone.utc) for n in (1, 2))),
        ("text", ("a", "é")),
        ("small_int", (-5, 7)),
    ],
)
@pytest.mark.parametrize("format", ["parquet", "csv", "json_lines", "orc"])
def test_ties_of_every_watermark_type_are_matched_in_every_format(
    root: Path, format: str, kind: str, values: tuple[Any, Any]
) -> None:
    table = TableSpec(None, "events", (ColumnSpec("mark", DataType(kind)), NAME))
    target = LocalFilesTarget(root, format)
    source = [
        {"mark": values[0], "name": "low"},
        {"mark": values[1], "name": "a"},
        {"mark": values[1], "name": ""},
    ]
    assert load_incremental(target, table, "mark", source).rows.inserted == 3
    source.append({"mark": values[1], "name": "a"})
    assert load_incremental(target, table, "mark", source).rows.inserted == 1
    assert load_incremental(target, table, "mark", source).rows.inserted == 0
    mark = target.watermark(PIPELINE, TARGET, "mark")
    assert mark is not None
    assert mark.value == values[1]


@pytest.mark.parametrize("format", ["parquet", "csv", "json_lines", "orc"])
def test_whole_rows_of_every_type_are_recognised_in_every_format(root: Path, format: str) -> None:
    keyless = replace(
        every_type(), columns=tuple(replace(c, primary_key=False) for c in every_type().columns)
    )
    rows = [{**row, "id": 1} for row in every_value()]
    rows.append({**rows[3], "a_double": float("nan"), "a_float": float("inf"), "a_numeric": Decimal("1e-10")})
    if format == "orc":
        early = ("a_date", "a_timestamp", "a_timestamp_tz")
        rows = [{**row, **dict.fromkeys(early)} for row in rows]
    target = LocalFilesTarget(root, format)
    assert load_incremental(target, keyless, "id", rows).rows.inserted == 5
    assert load_incremental(target, keyless, "id", [*rows, rows[0], rows[4]]).rows.inserted == 2
    assert load_incremental(target, keyless, "id", [*rows, rows[0], rows[4]]).rows.inserted == 0


# ------------------------------------------------------------------ refusals


def staged_load(target: LocalFilesTarget, load: Load) -> tuple[StagedRows, StagedPart]:
    prepare(target, load.table)
    staging = target.create_staging(load, load.table.arrow_schema())
    part = staging.write("p", [pa.RecordBatch.from_pylist(rows(0, 2), schema=load.table.arrow_schema())])
    return StagedRows(staging, (part,)), part


def test_staging_that_differs_from_the_report_of_its_task_is_not_applied(
    root: Path, target: LocalFilesTarget
) -> None:
    load = new_load(TABLE)
    staged, part = staged_load(target, load)
    with pytest.raises(TargetFailed, match="holds 2 rows; its task reported 3"):
        target.apply(load, replace(staged, parts=(replace(part, rows=3),)))
    with pytest.raises(TargetFailed, match="'lost'"):
        target.apply(load, replace(staged, parts=(replace(part, part="lost"),)))
    assert target.ledger(PIPELINE, TARGET) == []


def test_a_worker_that_does_not_see_the_folder_says_what_is_needed(
    root: Path, target: LocalFilesTarget
) -> None:
    staged, _ = staged_load(target, new_load(TABLE))
    target.drop_staging(staged.staging)
    with pytest.raises(TargetFailed, match="does not see") as caught:
        staged.staging.write("p", [])
    assert "share" in str(caught.value.next_step)


def test_columns_that_another_load_changed_meanwhile_stop_this_one(
    root: Path, target: LocalFilesTarget
) -> None:
    load = new_load(TABLE)
    staged, _ = staged_load(target, load)
    wider = replace(TABLE, columns=(*TABLE.columns, ColumnSpec("new", DataType("integer"), nullable=True)))
    load_rows(target, new_load(wider, pipeline="another"), [{"id": 9, "name": "x", "new": 1}])
    with pytest.raises(TargetFailed, match="another load changed the columns"):
        target.apply(load, staged)
    assert ids(root) == [9]


def test_partitions_that_a_first_load_chose_meanwhile_stop_a_load_with_others(
    root: Path, target: LocalFilesTarget
) -> None:
    """Both began when there was no table: files of both kinds in one folder could not be read together."""
    load = new_load(TABLE)
    staged, _ = staged_load(target, load)
    load_rows(target, new_load(TABLE, pipeline="another", partition_by=("name",)), [{"id": 9, "name": "x"}])
    with pytest.raises(TargetFailed, match="another load changed the partitions"):
        target.apply(load, staged)
    assert ids(root) == [9]


def test_what_files_cannot_do_is_refused(target: LocalFilesTarget) -> None:
    with pytest.raises(Unsupported):
        target.run_sql("DELETE FROM x")
    with pytest.raises(Unsupported):
        target.apply(new_load(TABLE), SameDatabaseRows("SELECT 1"))
    with pytest.raises(Unsupported, match="merge"):
        target.create_staging(new_load(TABLE, "merge"), TABLE.arrow_schema())


def test_a_path_below_a_file_is_a_clear_error_everywhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    connection = ObjectStoreLocalConnection(
        name="lake", path=str(tmp_path / "file" / "lake"), format="parquet"
    )
    backend = LocalFilesBackend(connection)
    target = backend.target()
    with pytest.raises(CannotConnect, match="is a file"):
        backend.check()
    for act in (
        lambda: prepare(target, TABLE),
        lambda: target.create_staging(new_load(TABLE), TABLE.arrow_schema()),
        lambda: target.lock(PIPELINE, TARGET, uuid.uuid4()).__enter__(),
    ):
        with pytest.raises(TargetFailed, match="Not a directory") as caught:
            act()
        assert caught.value.next_step is not None
    assert target.watermark(PIPELINE, TARGET, "id") is None
    assert target.ledger(PIPELINE, TARGET) == []
    assert target.sweep_staging(PIPELINE, TARGET) == []
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_full_disk_leaves_the_table_as_it_was(root: Path, target: LocalFilesTarget) -> None:
    """A limit on the size of files simulates a full disk: the system refuses the write in the same way."""
    import resource

    load_rows(target, new_load(TABLE), rows(0, 3))
    noise = [{"id": i, "name": uuid.uuid4().hex} for i in range(20_000)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for format_target in (target, LocalFilesTarget(root.with_name("csv"), "csv")):
        prepare(format_target, TABLE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(TargetFailed) as caught:
                load_rows(format_target, new_load(TABLE), noise)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "File too large" in caught.value.what
        assert caught.value.next_step is not None
    assert ids(root) == [0, 1, 2]
    assert target.sweep_staging(PIPELINE, TARGET) != []
    assert target.sweep_staging(PIPELINE, TARGET) == []


@pytest.mark.parametrize("point", ["apply.rows_written", "files.before_publish", "files.after_publish"])
def test_an_ordinary_failure_cleans_up_after_itself_and_never_removes_what_is_published(
    root: Path, target: LocalFilesTarget, point: str
) -> None:
    load_rows(target, new_load(TABLE), rows(0, 3))
    load = new_load(TABLE)
    with pytest.raises(fault_points.InjectedFailure), fault_points.inject(point, "raise"):
        load_rows(target, load, rows(3, 5))
    committed = bool(target.ledger(PIPELINE, TARGET, run_id=str(load.run_id)))
    assert committed == (point == "files.after_publish")
    assert ids(root) == ([0, 1, 2, 3, 4] if committed else [0, 1, 2])
    assert target.sweep_staging(PIPELINE, TARGET) == []


def test_a_dry_run_of_a_table_that_is_not_there_counts_and_leaves_no_table(
    root: Path, target: LocalFilesTarget
) -> None:
    load = new_load(TABLE, dry_run=True)
    staging = target.create_staging(load, TABLE.arrow_schema())
    part = staging.write("p", [pa.RecordBatch.from_pylist(rows(0, 2), schema=TABLE.arrow_schema())])
    applied = target.apply(load, StagedRows(staging, (part,)))
    target.drop_staging(staging)
    assert applied.rows.inserted == 2
    assert target.inspect(TABLE) is None
    assert target.ledger(PIPELINE, TARGET) == []


def test_a_dry_run_over_a_users_folder_counts_its_rows_and_leaves_it_alone(
    root: Path, target: LocalFilesTarget
) -> None:
    folder = users_folder(root)
    load = new_load(TABLE, "truncate", dry_run=True)
    staging = target.create_staging(load, TABLE.arrow_schema())
    part = staging.write("p", [pa.RecordBatch.from_pylist(rows(0, 3), schema=TABLE.arrow_schema())])
    applied = target.apply(load, StagedRows(staging, (part,)))
    assert (applied.rows.inserted, applied.rows.deleted) == (3, 2)
    assert not folder.is_symlink()


# ------------------------------------------------------------------ the backend


def test_a_backend_says_what_it_reaches(tmp_path: Path) -> None:
    def backend(path: str) -> LocalFilesBackend:
        return LocalFilesBackend(ObjectStoreLocalConnection(name="lake", path=path, format="csv"))

    assert backend(str(tmp_path)).check() == f"csv files in {tmp_path}"
    assert "does not exist yet" in backend(str(tmp_path / "a" / "b")).check()
    (tmp_path / "link").symlink_to(tmp_path)
    assert backend(str(tmp_path / "link")).identity() == backend(str(tmp_path / "x" / "..")).identity()


def test_errors_survive_the_way_from_a_task(root: Path, target: LocalFilesTarget) -> None:
    import pickle

    staged, _ = staged_load(target, new_load(TABLE))
    again = pickle.loads(pickle.dumps(staged.staging))
    target.drop_staging(staged.staging)
    with pytest.raises(FlowError) as caught:
        again.write("p", [])
    told = pickle.loads(pickle.dumps(caught.value))
    assert (told.what, told.next_step) == (caught.value.what, caught.value.next_step)


def test_the_state_is_readable_json(root: Path, target: LocalFilesTarget) -> None:
    load_rows(target, new_load(TABLE, batch_key="slot:1"), rows(0, 3))
    version = Path(os.path.realpath(root / "shop" / "orders")).parent
    state = json.loads((version / "state.json").read_text())
    assert state["table"] == "shop/orders"
    assert [column["name"] for column in state["layout"]["columns"]] == [
        "id",
        "name",
        "_loaded_at",
        "_batch_id",
    ]
    assert [entry["batch_key"] for entry in state["ledger"]] == ["slot:1"]
    assert sum(facts["rows"] for facts in state["files"].values()) == 3
