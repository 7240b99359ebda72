"""Which reads of CSV files tasks do themselves, and how the files are shared out. Needs no Spark."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.base import BatchSource, SourceQuery
from ematix_flow.backends.objectstore.reading import csv_copy
from ematix_flow.backends.objectstore.reading.csv_copy import PlainSelect, parse_plain_select
from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.pipelines import FileOptions


def as_batches(
    root: Path, sql: str = "SELECT * FROM t", texts: tuple[str, ...] = (), **options: Any
) -> BatchSource | None:
    source = LocalFilesSource(root, "csv", FileOptions(csv_read_options=tuple(options.items())))
    return source.with_text_columns(texts).as_batches(sql)


def read(source: BatchSource) -> list[dict[str, Any]]:
    with source.split(SourceQuery(""), {}, 2) as splits:
        return [row for split in splits for batch in split.read() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t", PlainSelect(("t",), ())),
        ("SELECT * FROM `raw/events` AS e", PlainSelect(("raw/events",), ())),
        ("SELECT a, b AS `c d` FROM shop.t", PlainSelect(("shop", "t"), (("a", "a"), ("b", "c d")))),
        ("FROM t SELECT a", PlainSelect(("t",), (("a", "a"),))),
    ],
)
def test_a_plain_select(sql: str, expected: PlainSelect) -> None:
    assert parse_plain_select(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a + 1 AS a FROM t",
        "SELECT upper(a) FROM t",
        "SELECT 1 AS a FROM t",
        "SELECT t.a FROM t",
        "SELECT t.* FROM t",
        "SELECT *, a FROM t",
        "SELECT * EXCEPT (a) FROM t",
        "SELECT a FROM t WHERE a > 1",
        "SELECT a FROM t, u",
        "SELECT a FROM t JOIN u ON true",
        "SELECT DISTINCT a FROM t",
        "SELECT a FROM t LIMIT 3",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t VERSION AS OF 3",
        "SELECT a FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT a FROM t AS u(a)",
        "SELECT a FROM range(3)",
        "SELECT a FROM (SELECT a FROM t)",
        "SELECT a FROM t UNION ALL SELECT a FROM u",
        "WITH t AS (SELECT 1 AS a) SELECT * FROM t",
        "SELECT a FROM t LATERAL VIEW explode(b) u AS c",
        "SELECT /*+ REPARTITION(3) */ a FROM t",
        "SELECT a FROM",
        "SELECT a FROM t; SELECT a FROM u",
    ],
)
def test_any_other_query_is_left_to_spark(sql: str) -> None:
    assert parse_plain_select(sql) is None


def test_values_have_the_types_that_all_cells_fit(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,price,note,code\n1,2.50,"a ""b""",007\n2,,"",1.20\n')
    source = as_batches(tmp_path)
    assert source is not None
    assert [(c.name, c.native) for c in source.describe("")] == [
        *(("id", "bigint"), ("price", "decimal(3,2)"), ("note", "string"), ("code", "string")),
    ]
    assert [row["note"] for row in read(source)] == ['a "b"', ""]


def test_a_column_of_a_text_target_stays_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n2.00,1\n3,2\n")
    source = as_batches(tmp_path, "SELECT b, a AS shown FROM t", texts=("shown",))
    assert source is not None
    assert read(source) == [{"b": 1, "shown": "2.00"}, {"b": 2, "shown": "3"}]


def test_a_later_row_than_those_of_the_sample_decides_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ematix_flow.backends.objectstore.formats import plain_csv

    monkeypatch.setattr(plain_csv, "_SAMPLE_ROWS", 2)
    (tmp_path / "t.csv").write_text("a,b,c,d,e\n1,1,1.5,2024-01-01,x\n2,2,2.5,2024-01-02,y\n1e5,z,,x,3\n")
    source = as_batches(tmp_path)
    assert source is not None
    assert [c.native for c in source.describe("")] == [
        *("double", "string", "decimal(2,1)", "string", "string"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"a\n1\n",
        b"\na,b\n1,2\n",
        b"a,b\r1,2\r",
        b"a,b\r\n1,2\r\n\r\n3,4\r\n",
        b"a,b\n1,2\r\n3,4\n",
        b'a,b\n1, "x"\n',
        b'a,b\n"x" ,1\n',
        b'a,b\n"x\0",1\n',
        b'a,b\n1,"x" "y"\n',
        b'a,b\n1,"" y\n',
        b'a,b\n1,"x""" y\n',
        b'"a.b";"a,b"\n"1";"2"\n',
        b'a,b\n"x"y,1\n',
        b"a,b\n1\n",
        b"a,b\n1,2,3\n",
        b"a,b\n" + b"1,2\n" * 20_000 + b"\xff,2\n",
        b'"a\nc",b\n1,2\n',
        b'a,b\r\n"x\ny",2\r\n',
        b'a,b\n"x\ny",2\n',
        b"a,_metadata\n1,2\n",
    ],
)
def test_a_file_that_spark_reads_in_another_way_or_refuses_is_left_to_it(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert as_batches(tmp_path) is None


@pytest.mark.parametrize(
    "cell",
    ['" x"', '"x "', '"""x"" y"', '"x ""y"" z"', '"a, b"', '""""', '""', '" "', '"\t"', '"x""\ty"'],
)
def test_blanks_and_escaped_quotes_within_quotes_are_plain(tmp_path: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f"a,b\n1,{cell}\n{cell},2\n")
    source = as_batches(tmp_path)
    assert source is not None
    ((expected,),) = csv.reader([cell])
    assert next(row["b"] for row in read(source)) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"comment": "#"},
        {"null_regex": "NA"},
        {"terminator": ";"},
        {"truncated_rows_ok": True},
        {"schema_infer_max_records": 10},
        {"escape": "\\"},
    ],
)
def test_special_options_are_left_to_spark(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert as_batches(tmp_path) is not None
    assert as_batches(tmp_path, **options) is None


def test_compressed_and_partitioned_files_and_other_columns_are_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "x.csv").write_text("a,b\n1,2\n")
    assert as_batches(tmp_path.parent, f"SELECT * FROM `{tmp_path.name}`") is None
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "1.csv").write_text("a,b\n1,2\n")
    assert as_batches(tmp_path, "SELECT * FROM mixed") is not None
    assert as_batches(tmp_path, "SELECT A FROM mixed") is None  # Spark's names ignore case
    assert as_batches(tmp_path, "SELECT z FROM mixed") is None
    (tmp_path / "mixed" / "2.csv").write_text("b,a\n1,2\n")
    assert as_batches(tmp_path, "SELECT * FROM mixed") is None


def test_files_are_shared_out_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    for number, size in enumerate((40, 30, 20, 10)):
        (tmp_path / "t" / f"{number}.csv").write_text("a,b\n" + "1,2\n" * size)
    source = as_batches(tmp_path)
    assert source is not None
    with source.split(SourceQuery(""), {}, 2) as splits:
        assert len(splits) == 1  # small files
    monkeypatch.setattr(csv_copy, "_SPLIT_BYTES", 100)
    with source.split(SourceQuery(""), {}, 2) as splits:
        assert [sum(batch.num_rows for batch in split.read()) for split in splits] == [50, 50]


def test_a_file_that_changed_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    source = as_batches(tmp_path)
    assert source is not None
    path.write_text("a,b\nx,2\n")
    with pytest.raises(SourceFailed, match=r"cannot read .*t\.csv: a cell of line 2 has") as caught:
        read(source)
    assert caught.value.next_step == "run it again: the file has changed since its types were inferred"
    path.unlink()
    with pytest.raises(SourceFailed, match=r"cannot read .*t\.csv"):
        read(source)


@pytest.mark.parametrize("quoted", [True, False])
def test_a_large_file_is_read_completely(tmp_path: Path, quoted: bool) -> None:
    """Larger than the pieces that DuckDB reads at once, with and without quotes."""
    rows = 400_000
    with (tmp_path / "t.csv").open("w") as file:
        file.write("a,b,c\n")
        for number in range(rows):
            note = f'"x,;{"y" * (number % 97)}""z"' if quoted and number % 3 else "x" * (number % 131)
            file.write(f"{number},{note},{number % 7}.5\n")
    source = as_batches(tmp_path)
    assert source is not None
    assert [c.native for c in source.describe("")] == ["bigint", "string", "decimal(2,1)"]
    with source.split(SourceQuery(""), {}, 1) as splits:
        batches = list(splits[0].read())
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    assert sorted(numbers) == list(range(rows))
    texts = [text for batch in batches for text in batch.column(1).to_pylist() if text is not None]
    assert sum(map(len, texts)) == sum(n % 97 + 5 if quoted and n % 3 else n % 131 for n in range(rows))


def test_odd_names_of_files_and_columns(tmp_path: Path) -> None:
    name = "it's [1] 100%?*"
    (tmp_path / f"{name}.csv").write_text('"x ""y""",`b`,a.b\n1,2,3\n')
    source = as_batches(tmp_path, f"SELECT * FROM `{name}.csv`")
    assert source is not None
    assert read(source) == [{'x "y"': 1, "`b`": 2, "a.b": 3}]


def test_times_with_a_zone_are_in_utc_wherever_the_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    (tmp_path / "t.csv").write_text("a,b\n2024-01-01 10:00:00+02:00,1\n")
    source = as_batches(tmp_path)
    assert source is not None
    with source.split(SourceQuery(""), {}, 1) as splits:
        (batch,) = splits[0].read()
    assert str(batch.schema.field("a").type) == "timestamp[us, tz=UTC]"
    assert batch.column(0).to_pylist()[0].isoformat() == "2024-01-01T08:00:00+00:00"
