"""Records and quotes of CSV files, counted from bytes, against Python's reader and a regular grammar."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from random import Random

import pytest

from ematix_flow.backends.objectstore.formats import csv_structure
from ematix_flow.backends.objectstore.formats.csv_structure import CsvStructure, find_csv_structure
from ematix_flow.backends.objectstore.layout.source_files import local_file

CELL = r'(?:[^",\n]*|"(?:[^"]|"")*")'
WHOLE = re.compile(rf"(?:{CELL}(?:,{CELL})*(?:\n|\Z))*")


def structure(path: Path, text: str) -> CsvStructure | None:
    path.write_bytes(text.encode())
    find_csv_structure.cache_clear()
    return find_csv_structure(local_file(path), ",", '"')


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 1_000])
def test_random_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(csv_structure, "_PIECE", piece)
    rng, accepted = Random(piece), 0
    for number in range(600):
        text = "".join(rng.choice('""",,a\n') for _ in range(rng.randint(1, 14)))
        if text[0].isspace():
            continue
        found = structure(tmp_path / f"{number}.csv", text)
        assert (found is not None) == (WHOLE.fullmatch(text) is not None), repr(text)
        if found is not None:
            accepted += 1
            records = [record for record in csv.reader(io.StringIO(text, newline=""), strict=True) if record]
            spans = any("\n" in cell for record in records for cell in record)
            assert found == CsvStructure(len(records), spans), repr(text)
    assert accepted > 30


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("a,b\n1,2", 2),
        ("\ufeffa,b\n1,2\n", 2),
        ('\ufeff"a",b\r\n"1",2\r\n', 2),
        ('a,b\n\n\n"x\n\ny",2\n\n', 2),
        ("a,b\r\n1,2\r\n3,4", 3),
    ],
)
def test_marks_of_windows_and_blank_lines(tmp_path: Path, text: str, records: int) -> None:
    found = structure(tmp_path / "a.csv", text)
    assert found is not None and found.records == records


@pytest.mark.parametrize(
    "text", [" a,b\n", "\na,b\n", "a,b\r\n1,2\n", "a,b\r1,2\r", "a,b\r\n\r\n1,2\r\n", "a\0,b\n"]
)
def test_files_that_readers_take_for_different_ones(tmp_path: Path, text: str) -> None:
    assert structure(tmp_path / "a.csv", text) is None


def test_marks_of_more_than_one_byte(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a§b\n")
    assert find_csv_structure(local_file(tmp_path / "a.csv"), "§", '"') is None
