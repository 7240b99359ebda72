"""Obstacles to a Delta table are errors that say what to do, before anything is loaded."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import (
    BigInt,
    DeltaLocalConnection,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.errors import CannotConnect, DeclarationError, PlanError, SchemaMismatch, SourceFailed

usespark = pytest.mark.usefixtures("spark")


@ematix.table(schema="sales", name="orders")
class Orders:
    order_id: Annotated[BigInt, pk()]
    note: Text | None


def pipeline(name: str = "load", partition_by: list[str] | None = None, **options: Any) -> Any:
    targets = [Target(connection="lake", table=Orders, partition_by=partition_by)]

    @ematix.pipeline(targets=targets, source_connection="shop", name=name, **options)
    def load(conn: Any) -> str:
        return "SELECT 1 AS order_id, 'a' AS note"

    return load


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    sqlite3.connect(tmp_path / "shop.db").close()
    register_connection(SQLiteConnection(name="shop", path=str(tmp_path / "shop.db")))
    register_connection(DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")))
    return tmp_path / "lake"


@usespark
def test_a_file_where_a_folder_must_be_is_named(lake: Path) -> None:
    lake.write_text("not a folder")
    for action in (pipeline("planned").plan, pipeline("run").sync):
        with pytest.raises(CannotConnect, match=rf"cannot be a folder: {lake} is a file"):
            action()
    lake.unlink()
    lake.mkdir()
    (lake / "sales").write_text("not a folder either")
    with pytest.raises(CannotConnect, match=r"sales is a file"):
        pipeline("below").plan()


@usespark
def test_a_folder_of_other_files_is_neither_loaded_into_nor_read(lake: Path) -> None:
    folder = lake / "sales" / "orders"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"order_id": [1], "note": ["theirs"]}), folder / "theirs.parquet")
    for action in (pipeline("planned").plan, pipeline("run").sync):
        with pytest.raises(PlanError, match=r"is not a Delta table and contains 'theirs\.parquet'"):
            action()

    @ematix.pipeline(target=Orders, source_connection="lake", target_connection="shop")
    def back(conn: Any) -> str:
        return "SELECT * FROM sales.orders"

    with pytest.raises(SourceFailed, match=r"has files, but is not a Delta table") as told:
        back.plan()
    assert "object_store_local" in str(told.value)


@usespark
def test_a_table_whose_protocol_lacks_what_it_uses_is_named_with_the_reason(lake: Path) -> None:
    from deltalake import write_deltalake

    schema = pa.schema([pa.field("order_id", pa.int64(), nullable=False), ("at", pa.timestamp("us"))])
    write_deltalake(str(lake / "theirs"), pa.Table.from_pylist([{"order_id": 1, "at": None}], schema=schema))

    @ematix.pipeline(
        target=Orders, target_connection="shop", source_connection="lake", name="read", mode="append"
    )
    def read() -> str:
        return "SELECT order_id, 'a' AS note FROM theirs"

    with pytest.raises(
        SourceFailed, match=r"Delta table 'theirs' cannot be read: .* protocol: invariants\n"
    ) as raised:
        read.sync()
    assert raised.value.next_step is not None and "protocol" in raised.value.next_step


@usespark
def test_partitions_other_than_those_of_the_table_are_refused_in_the_plan(lake: Path) -> None:
    with pytest.raises(DeclarationError, match=r"partition_by= names 'ordr_id'.* Did you mean 'order_id'"):
        pipeline("misspelt", ["ordr_id"])
    pipeline("first", ["note"]).sync()
    pipeline("silent").plan()
    with pytest.raises(SchemaMismatch, match=r"partitioned by \(note\) -> partitioned by \(order_id\)"):
        pipeline("other", ["order_id"]).plan()


def test_options_that_are_of_files_are_refused_at_declaration(lake: Path) -> None:
    with pytest.raises(DeclarationError, match="parquet_compression= is for parquet files"):
        Target(connection=DeltaLocalConnection(name="x", path="x"), table=Orders, parquet_compression="zstd")


MODULE = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Orders, source_connection="shop", target_connection="warehouse")
def orders(conn):
    return "SELECT 1 AS order_id"
"""


def test_without_the_jars_and_without_network_the_command_says_how_to_bring_them(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    (tmp_path / "pipelines.py").write_text(MODULE)
    (tmp_path / ".ematix-flow.toml").write_text(
        '[project]\nmodule = "pipelines"\n[connections.shop]\nkind = "sqlite"\npath = "shop.db"\n'
        '[connections.warehouse]\nkind = "delta_local"\npath = "lake"\n'
    )
    environment = {**os.environ, "EMATIX_FLOW_CACHE": str(tmp_path / "cache"), "EMATIX_FLOW_OFFLINE": "1"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("flow")), "plan", "orders"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "delta" in done.stderr
    assert "flow jars fetch delta" in done.stderr
    assert "Traceback" not in done.stderr
