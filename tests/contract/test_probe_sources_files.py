"""What a data probe does with files: globs, partitions, one reading, bounded memory, errors with a place."""

from __future__ import annotations

import datetime as dt
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from ematix_probe import source
from ematix_probe.report import RunReport
from ematix_probe.sources.base import Source, Subject
from ematix_probe.sources.duckdb_scan import ScanSource, Workspace
from ematix_probe.sources.scans import BatchScan, Scan
from ematix_probe.tester import Tester
from tests.contract.probe_setup import only, probe, verdicts
from tests.services.s3 import S3Server

FORMATS = ("parquet", "orc", "csv", "jsonl")
WRITERS = {
    "parquet": lambda table, path: pq.write_table(table, path),
    "orc": lambda table, path: orc.write_table(table, path),
    "csv": lambda table, path: path.write_text(_csv(table)),
    "jsonl": lambda table, path: path.write_text(_json(table)),
}


def _csv(table: pa.Table) -> str:
    lines = [",".join(table.column_names)]
    lines += [",".join("" if v is None else str(v) for v in row.values()) for row in table.to_pylist()]
    return "".join(f"{line}\n" for line in lines)


def _json(table: pa.Table) -> str:
    import json

    return "".join(f"{json.dumps(row, default=str)}\n" for row in table.to_pylist())


def write(path: Path, **columns: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[path.suffix[1:]](pa.table(columns), path)
    return path


def opened(format: str, path: Any, **options: Any) -> Source:
    return getattr(source, format)(path, **options)  # type: ignore[no-any-return]


def rows_of(given: Source, **subject: Any) -> int:
    result = only(probe(given, lambda t: t.row_count(at_least=10_000), **subject))
    assert result.verdict == "fail", result
    return int(result.measures["row_count"] or 0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_a_glob_and_a_folder_are_one_table_each(tmp_path: Path, format: str) -> None:
    for number, name in enumerate(("2024-01", "2024-02", "_temporary", ".hidden", "[1]")):
        write(tmp_path / "sales" / f"{name}.{format}", id=list(range(number + 1)))
    folder = tmp_path / "sales"
    (folder / "_SUCCESS").write_text("")
    (folder / "notes.md").write_text("no data")
    assert rows_of(opened(format, folder / f"2024-02.{format}")) == 2
    assert rows_of(opened(format, folder / f"2024-*.{format}")) == 3
    assert rows_of(opened(format, folder / f"[[]1].{format}")) == 5
    assert rows_of(opened(format, folder / f"[1].{format}")) == 5
    assert rows_of(opened(format, folder)) == 8
    assert rows_of(opened(format, tmp_path), table="sales") == 8
    assert rows_of(opened(format, tmp_path), table="2024-01", schema="sales") == 1
    assert rows_of(opened(format, folder), query='SELECT * FROM "2024-02" WHERE id > 0') == 1


@pytest.mark.parametrize("format", FORMATS)
def test_partition_folders_are_columns_with_types_and_nulls(tmp_path: Path, format: str) -> None:
    days = ("2024-01-01", "2024-01-02")
    for place, ids in {
        f"day={days[0]}/shop=1/kind=a%20b": [1, 2],
        f"day={days[0]}/shop=2/kind=null": [3],
        f"day={days[1]}/shop=2/kind=__HIVE_DEFAULT_PARTITION__": [4],
    }.items():
        write(tmp_path / "sales" / place / f"part.{format}", id=ids)

    def declare(t: Tester) -> None:
        t.schema_match({"id": "bigint", "day": "date", "shop": "bigint", "kind": "text"})
        t.column("day").between(dt.date(2024, 1, 2), None)
        t.column("shop").is_in([2])
        t.column("kind").not_null().is_in(["a b"]).cardinality_between(2, 2)
        t.expression("shop = 2", where="day = DATE '2024-01-01'")

    report = probe(opened(format, tmp_path / "sales"), declare)
    assert [(each.verdict, each.failing) for each in report.assertions] == [
        ("pass", None),
        ("fail", 3),
        ("fail", 2),
        ("fail", 1),
        ("fail", 1),
        ("pass", None),
        ("fail", 2),
    ], report
    assert report.assertions[1].samples[0] == {"day": dt.date(2024, 1, 1)}


@pytest.mark.parametrize("format", FORMATS)
def test_files_whose_columns_differ_are_read_by_name(tmp_path: Path, format: str) -> None:
    write(tmp_path / f"a.{format}", id=[1, 2], old=["x", "y"])
    write(tmp_path / f"b.{format}", new=["z"], id=[3])
    report = probe(opened(format, tmp_path), lambda t: t.unique(["id"]).column("new").null_share(at_most=0.5))
    assert verdicts(report) == ["pass", "fail"]
    assert report.assertions[1].failing == 2


def test_compressed_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id;name\n1;x\n2;\n"))
    result = only(probe(source.csv(tmp_path / "a.csv.gz"), lambda t: t.column("name").not_null()))
    assert (result.failing, result.checked) == (1, 2)


def test_rows_with_nan_in_parquet_are_found_though_its_statistics_leave_them_out(tmp_path: Path) -> None:
    values = [None, float("nan"), 0.0, 1.0]
    pq.write_table(pa.table({"x": values, "f": pa.array(values, pa.float32())}), tmp_path / "a.parquet")

    def declare(t: Tester) -> None:
        for name in ("x", "f"):
            t.column(name).between(0, 1)
            t.expression(f"{name} <= 1")
            t.column(name).is_in([0, 1])
            t.column(name).unique(where=f"{name} > 100 OR {name} = 0")

    report = probe(source.parquet(tmp_path / "a.parquet"), declare)
    assert [each.failing for each in report.assertions] == [1, 1, 1, 0] * 2
    assert [len(each.samples) for each in report.assertions] == [1, 1, 1, 0] * 2


# --- one reading ---


@dataclass
class CountedBatches(BatchScan):
    """Batches that tell which columns were read."""

    table: pa.Table
    costly: bool = False
    readings: list[tuple[str, ...]] = field(default_factory=list)

    def schema(self) -> pa.Schema:
        return self.table.schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            self.readings.append(tuple(columns))
            yield from self.table.select(list(columns)).to_batches()

        return pa.RecordBatchReader.from_batches(self.table.select(list(columns)).schema, batches())


@dataclass(frozen=True)
class CountedSource(ScanSource):
    counted: CountedBatches
    kind = "counted"

    @property
    def label(self) -> str:
        return "counted"

    def scan(self, subject: Subject, workspace: Workspace) -> Scan:
        return self.counted


def numbers(costly: bool) -> CountedBatches:
    return CountedBatches(pa.table({name: list(range(100)) for name in ("id", "a", "b", "unused")}), costly)


def test_batches_are_read_once_and_only_the_columns_that_assertions_name() -> None:
    def declare(t: Tester) -> None:
        t.row_count(at_least=100).schema_match(["id", "a", "b", "unused"])
        t.column("a").between(0, 99).cardinality_between(100, 100).percentile_between(0.5, 0, 99).not_null()
        t.column("b").sum_between(0, 10_000, where="id >= 0")

    counted = numbers(costly=False)
    assert set(verdicts(probe(CountedSource(counted), declare))) == {"pass"}
    assert counted.readings == [("id", "a", "b")]


def test_what_is_costly_to_read_is_read_once_also_for_repeated_keys_and_references() -> None:
    def declare(t: Tester) -> None:
        t.column("a").not_null().unique()
        t.unique(["a", "b"]).foreign_key("b", references="orders", referenced_columns=["id"])

    counted = numbers(costly=True)
    assert set(verdicts(probe(CountedSource(counted), declare))) == {"pass"}
    assert counted.readings == [("id", "a", "b")]


def test_more_different_texts_than_the_memory_holds_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_MEMORY", "64MB")
    rows = 600_000  # of 120 bytes each
    ids = pa.array([f"{i:0120d}" for i in range(rows)])
    pq.write_table(
        pa.table({"id": pa.concat_arrays([ids, ids[:1]])}), tmp_path / "a.parquet", row_group_size=50_000
    )
    report = probe(source.parquet(tmp_path / "a.parquet"), lambda t: t.column("id").unique().not_null())
    assert [each.failing for each in report.assertions] == [2, 0]


# --- a bucket ---


@pytest.fixture
def access(s3: S3Server, s3_bucket: str) -> dict[str, Any]:
    given = s3.connection_fields(s3_bucket)
    names = {
        "endpoint": "endpoint_url",
        "region": "region",
        "access_key_id": "access_key",
        "secret_access_key": "secret_key",
    }
    return {names[name]: value for name, value in given.items() if name in names}


@pytest.mark.parametrize("format", FORMATS)
def test_a_bucket_is_read_by_key_glob_and_prefix(
    tmp_path: Path, format: str, s3: S3Server, s3_bucket: str, access: dict[str, Any]
) -> None:
    for day in (1, 2):
        here = write(tmp_path / f"part.{format}", id=list(range(day)))
        s3.client().upload_file(str(here), s3_bucket, f"sales/day=2024-01-0{day}/part.{format}")
    base = f"s3://{s3_bucket}/sales"
    assert rows_of(opened(format, f"{base}/day=2024-01-02/part.{format}", **access)) == 2
    assert rows_of(opened(format, f"{base}/*/part.{format}", **access)) == 3
    report = probe(opened(format, base, **access), _of_the_second_day)
    assert [(each.verdict, each.failing) for each in report.assertions] == [("fail", 1), ("pass", 0)]


def _of_the_second_day(t: Tester) -> None:
    t.column("day").between(dt.date(2024, 1, 2), None)
    t.column("id").unique(where="id > 0")


def test_wrong_keys_of_a_bucket_are_an_error_that_does_not_show_them(
    s3_bucket: str, access: dict[str, Any]
) -> None:
    access |= {"access_key": "geheim-name", "secret_key": "geheim-key"}
    said = told(source.parquet(f"s3://{s3_bucket}/sales", **access))
    assert "cannot read" in said
    assert "check the keys" in said


def test_a_missing_key_of_a_bucket_is_an_error(s3_bucket: str, access: dict[str, Any]) -> None:
    assert "no object is there" in told(source.parquet(f"s3://{s3_bucket}/nowhere", **access))


# --- what cannot be read ---


def told(given: Source, **subject: Any) -> str:
    """The message that all assertions have; it shows no secret and no code."""
    report: RunReport = probe(given, lambda t: t.row_count(at_least=0).column("id").not_null(), **subject)
    assert verdicts(report) == ["error", "error"]
    message = report.assertions[1].message
    assert report.assertions[0].message == message
    assert "geheim" not in message
    assert "SELECT" not in message and "LINE 1" not in message
    return message


@pytest.mark.parametrize("format", FORMATS)
def test_a_missing_file_is_an_error_that_suggests_a_name(tmp_path: Path, format: str) -> None:
    write(tmp_path / f"orders.{format}", id=[1])
    said = told(opened(format, tmp_path / f"ordres.{format}"))
    assert f"there is no file {tmp_path / f'ordres.{format}'}. Did you mean 'orders.{format}'?" in said
    assert "no file matches" in told(opened(format, tmp_path / f"none-*.{format}"))
    (tmp_path / "empty").mkdir()
    assert "the folder has no file to read" in told(opened(format, tmp_path / "empty"))


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, format: str) -> None:
    write(tmp_path / f"a.{format}", id=[1])
    (tmp_path / f"b.{format}").write_bytes(b"no such format")
    assert f"b.{format}" in told(opened(format, tmp_path))


def test_a_text_that_cannot_be_read_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,x\n2,y,z\n")
    assert f"{tmp_path / 'a.csv'}, line 3: the row has 3 values, and there are 2 columns" in told(
        source.csv(tmp_path / "a.csv")
    )
    (tmp_path / "b.csv").write_text("id\n1\nx\n")
    typed = source.csv(tmp_path / "b.csv", columns={"id": "bigint"})
    count, unreadable = probe(typed, lambda t: t.row_count(at_least=2).column("id").not_null()).assertions
    assert (count.verdict, unreadable.verdict) == ("pass", "error")  # to count the rows reads no value
    assert f"{tmp_path / 'b.csv'}, line 3: 'x' in column 'id' is no BIGINT" in unreadable.message
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": \n')
    assert f"{tmp_path / 'a.jsonl'}, line 2: this is no JSON: Expecting value at character 7" in told(
        source.jsonl(tmp_path / "a.jsonl")
    )
    assert 'columns= names "key", and the file has no such column' in told(
        source.csv(tmp_path / "b.csv", columns={"key": "bigint"})
    )


def test_partition_folders_of_two_layouts_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "day=1" / "a.parquet", id=[1])
    write(tmp_path / "shop=1" / "a.parquet", id=[1])
    assert "different partition folders: day and shop" in told(source.parquet(tmp_path))


def test_an_empty_text_file_is_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    report = probe(
        source.csv(tmp_path / "a.csv", columns={"id": "bigint"}), lambda t: t.column("id").not_null()
    )
    assert only(report).message == "there are no rows to check"
