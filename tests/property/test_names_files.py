"""Files of every format whose columns have hostile names, as sources and as targets of whole pipelines."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from ematix_flow import DuckDBConnection, ObjectStoreLocalConnection, ematix, register_connection
from ematix_flow.errors import FlowError, SchemaMismatch, SourceFailed
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from tests.property.hostile_names import fitting

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]

FORMATS = ("parquet", "csv", "json_lines", "orc")
# Spark adds the first to what it reads from files; the others are like names that we add
KEPT = ("_metadata", "_ematix_file", "_EMATIX_s")

Row = dict[str, Any]


def write_file(folder: Path, format: str, names: Sequence[str]) -> list[Row]:
    """A file of another program, with a text and a null below each name."""
    rows: list[Row] = [
        {name: f"value {number}" for number, name in enumerate(names)},
        {name: None if number else "x" for number, name in enumerate(names)},
    ]
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in names]))
    if format == "parquet":
        pq.write_table(table, folder / "one.parquet")
    elif format == "orc":
        orc.write_table(table, folder / "one.orc")
    elif format == "csv":
        with (folder / "one.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerow(names)
            for row in rows:
                file.write(",".join("" if v is None else f'"{v}"' for v in row.values()) + "\r\n")
    else:
        (folder / "one.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return rows


def load(
    tmp_path: Path, format: str, names: Sequence[str], source: str, target: str, **options: Any
) -> TableSpec:
    """From the folder ``source`` to the table ``target`` of a connection: ``connection:table``."""
    connection, _, name = target.partition(":")
    columns = tuple(ColumnSpec(column, DataType("text"), nullable=True) for column in names)
    with use_registry(Registry()):
        register_connection(ObjectStoreLocalConnection(name="files", path=str(tmp_path), format=format))
        register_connection(DuckDBConnection(name="duck", path=str(tmp_path / "target.duckdb")))

        @ematix.pipeline(
            target=TableSpec("main", name, columns),
            source_connection="files",
            target_connection=connection,
            name=f"load_{name}",
            mode="append",
            **options,
        )
        def pipeline() -> str:
            chosen = ", ".join("`" + column.replace("`", "``") + "`" for column in names)
            return f"SELECT {chosen} FROM {source}"

        assert pipeline.sync().status == "succeeded"
    return TableSpec("main", name, columns)


def rows_of(tmp_path: Path, table: TableSpec) -> list[Row]:
    chosen = ", ".join('"' + name.replace('"', '""') + '"' for name in table.column_names)
    with duckdb.connect(str(tmp_path / "target.duckdb"), read_only=True) as database:
        found = database.execute(f"SELECT {chosen} FROM {table.name} ORDER BY 2 NULLS LAST").fetchall()
    return [dict(zip(table.column_names, row, strict=True)) for row in found]


@pytest.mark.parametrize("format", FORMATS)
def test_every_name_of_a_column_is_read_from_files_and_written_to_them(tmp_path: Path, format: str) -> None:
    names = fitting("`" if format == "orc" else ())
    rows = write_file(tmp_path / "src", format, names)
    load(tmp_path, format, names, "src", "files:copied")
    table = load(tmp_path, format, names, "main.copied", "duck:arrived")
    assert rows_of(tmp_path, table) == rows


def test_names_with_backticks_are_read_from_orc_and_never_written_to_it(tmp_path: Path) -> None:
    names = ["id", "a`b", "`", "``", "a"]
    rows = write_file(tmp_path / "src", "orc", names)
    table = load(tmp_path, "orc", names, "src", "duck:arrived")
    assert rows_of(tmp_path, table) == rows
    with pytest.raises(SchemaMismatch, match=r"'a`b' in main\.copied contains a backtick"):
        load(tmp_path, "orc", names, "src", "files:copied")


@pytest.mark.parametrize("format", FORMATS)
def test_an_incremental_read_takes_every_name(tmp_path: Path, format: str) -> None:
    names = ["a.b", *fitting({"a.b", "`"} if format == "orc" else {"a.b"})]
    rows = write_file(tmp_path / "src", format, names)
    table = load(tmp_path, format, names, "src", "duck:arrived", incremental=True, watermark_column="a.b")
    assert rows_of(tmp_path, table) == rows


@pytest.mark.parametrize("name", KEPT)
def test_a_name_that_reading_csv_needs_itself_is_refused_with_the_file(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / "src", "csv", ["id", name])
    with pytest.raises(SourceFailed, match=r"one\.csv has a column"):
        load(tmp_path, "csv", ["id", name], "src", "duck:arrived")


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("format", FORMATS)
def test_a_name_that_reading_needs_itself_arrives_or_is_refused_by_name(
    tmp_path: Path, format: str, name: str
) -> None:
    rows = write_file(tmp_path / "src", format, ["id", name])
    try:
        load(tmp_path, format, ["id", name], "src", "files:copied")
        table = load(tmp_path, format, ["id", name], "main.copied", "duck:arrived")
    except FlowError as error:
        assert repr(name) in error.what and error.next_step and "Spark's own log" not in error.next_step
    else:
        assert rows_of(tmp_path, table) == rows
