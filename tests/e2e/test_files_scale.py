"""Many files and large ones, through little memory: neither the driver nor a task ever holds the data."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.memory_watching import watched

pytestmark = [pytest.mark.slow, pytest.mark.spark]

MB = 1 << 20
PYTHON_LIMIT = 400 * MB  # of any one Python process, imports included
EXTENSIONS = {"parquet": "parquet", "csv": "csv", "json_lines": "jsonl"}

PIPELINES = """\
from ematix_flow import Target, ematix


@ematix.connection
class lake:
    kind = "object_store_local"
    path = "lake"
    format = "{format}"


@ematix.connection
class out:
    kind = "object_store_local"
    path = "out"
    format = "parquet"


@ematix.pipeline(targets=[Target(prefix="copied", connection="out")], source_connection="lake")
def load():
    return "SELECT * FROM t"
"""

RUN = """
import json, sys
from ematix_flow.engine.spark.session import stop_session
from ematix_flow.engine.spark.settings import EngineSettings
import scale_pipelines
settings = EngineSettings.resolve(config={"engine": {"mode": "local[2]", "memory": sys.argv[1]}})
result = scale_pipelines.load.sync(engine=settings)
print(json.dumps([result.status, result.rows_inserted]), flush=True)
input()
stop_session()
"""


def run(folder: Path, format: str, heap: str) -> tuple[list[Any], dict[int, int]]:
    """Load ``lake/t`` in its own process; return its output and how large its Python processes became."""
    (folder / "scale_pipelines.py").write_text(PIPELINES.format(format=format))
    told, peaks, _ = watched(RUN, heap, folder)
    return told, peaks


def write_large(path: Path, format: str, size: int) -> int:
    """A file of at least this size, made of one piece again and again; the number of its rows."""
    rows = 4_000
    ids = list(range(rows))
    texts = [f"{n:08d} " + "some text that takes its place " * 40 for n in ids]
    path.parent.mkdir(parents=True)
    if format == "parquet":
        table = pa.table({"id": ids, "price": [n / 4 for n in ids], "text": texts})
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        with path.open("wb") as file, pq.ParquetWriter(file, table.schema, **options) as writer:
            pieces = 0
            while file.tell() < size:
                writer.write_table(table, row_group_size=rows)
                pieces += 1
        return pieces * rows
    if format == "csv":
        lines = "".join(f"{n},{n / 4},{text}\n" for n, text in zip(ids, texts, strict=True))
        header = "id,price,text\n"
    else:
        parts = zip(ids, texts, strict=True)
        lines = "".join(f'{{"id": {n}, "price": {n / 4}, "text": "{text}"}}\n' for n, text in parts)
        header = ""
    piece = lines.encode()
    pieces = size // len(piece) + 1
    with path.open("wb") as file:
        file.write(header.encode())
        for _ in range(pieces):
            file.write(piece)
    return pieces * rows


def load_large(tmp_path: Path, format: str, size: int, heap: str) -> None:
    path = tmp_path / "lake" / f"t.{EXTENSIONS[format]}"
    rows = write_large(path, format, size)
    told, peaks = run(tmp_path, format, heap)
    assert told == ["succeeded", rows]
    sizes = {pid: f"{peak >> 20} MB" for pid, peak in peaks.items()}
    assert len(peaks) > 2  # the driver, and workers of Spark
    assert max(peaks.values()) < PYTHON_LIMIT, sizes
    files = list((tmp_path / "out" / "copied").rglob("*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == rows
    assert len(files) <= size // (16 * MB) + 1
    path.unlink()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("format", ["csv", pytest.param("parquet", marks=pytest.mark.long)])
def test_a_file_of_200_mb_is_loaded_with_half_a_gigabyte_for_spark(tmp_path: Path, format: str) -> None:
    load_large(tmp_path, format, 200 * MB, "512m")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ["csv", "parquet", "json_lines"])
def test_a_file_of_2_gb_is_loaded_with_a_gigabyte_for_spark(tmp_path: Path, format: str) -> None:
    load_large(tmp_path, format, 2048 * MB, "1g")


@pytest.mark.timeout(300)
def test_ten_thousand_small_files_are_read_as_one_table_and_written_as_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "t"
    folder.mkdir(parents=True)
    for number in range(100):
        first = folder / f"{number:05d}.parquet"
        pq.write_table(pa.table({"id": list(range(10)), "part": [number] * 10}), first)
        for copy in range(1, 100):
            shutil.copyfile(first, folder / f"{number + 100 * copy:05d}.parquet")
    started = time.monotonic()
    told, peaks = run(tmp_path, "parquet", "1g")
    assert told == ["succeeded", 100_000]
    assert time.monotonic() - started < 120  # on a busy machine; some twenty seconds on an idle one
    assert max(peaks.values()) < PYTHON_LIMIT
    (file,) = (tmp_path / "out" / "copied").rglob("*.parquet")
    assert sorted(set(pq.read_table(file, columns=["part"]).column(0).to_pylist())) == list(range(100))
