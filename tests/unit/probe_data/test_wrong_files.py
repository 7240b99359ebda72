"""Files of another format or encoding than the source reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_probe import probe, source
from ematix_probe.sources.file_paths import find_files
from ematix_probe.sources.files import FileSource

NEXT = {
    "parquet": "a.csv is not a Parquet file\n  next: source.csv() reads such files",
    "csv": 'u.csv is text in UTF-16, not UTF-8\n  next: give  encoding="utf-16"',
    "text": 'next: in a text file, columns={"amount": "double"} makes the error name the wrong value',
}


@pytest.mark.parametrize("case", NEXT)
def test_a_file_that_does_not_fit_names_what_reads_it(tmp_path: Path, case: str) -> None:
    (tmp_path / "a.csv").write_text("id,amount\n1,2\n2,x\n")
    (tmp_path / "u.csv").write_text("id,amount\n1,2\n", encoding="utf-16")
    given = {
        "parquet": source.parquet(tmp_path / "a.csv"),
        "csv": source.csv(tmp_path / "u.csv"),
        "text": source.csv(tmp_path / "a.csv"),
    }[case]

    @probe.data(source=given)
    def orders(t: Any) -> None:
        t.column("amount").sum_between(0, 1)

    (result,) = orders.run().assertions
    assert result.verdict == "error"
    assert NEXT[case] in result.message


def message(given: FileSource) -> str:
    @probe.data(source=given)
    def orders(t: Any) -> None:
        t.column("amount").not_null()

    (result,) = orders.run().assertions
    assert result.verdict == "error"
    return result.message


TYPES = {"amount": "double"}
VALUES = {
    "csv": (
        "id,amount\n1,2\n2,eve@a.org\n",
        source.csv,
        TYPES,
        "line 3: a value in column 'amount' is no DOUBLE\n",
    ),
    "quote": ('id,amount\n1,2\n2,"3\neve@a.org,4\n', source.csv, TYPES, "line 3: the row cannot be read"),
    "json": (
        '{"amount": 1}\n{"amount": "eve@a.org"}\n',
        source.jsonl,
        TYPES,
        "line 2: a value cannot be read",
    ),
    "object": ('{"amount": 1}\n["eve@a.org"]\n', source.jsonl, None, "line 2: this is not an object"),
}


@pytest.mark.parametrize("samples", ["on", "off"])
@pytest.mark.parametrize("case", VALUES)
def test_a_value_that_cannot_be_read_is_named_if_rows_may_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, samples: str
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", samples)
    content, read, columns, hidden = VALUES[case]
    (tmp_path / "a.txt").write_text(content)
    said = message(read(tmp_path / "a.txt", columns=columns))
    assert ("eve@a.org" in said) == (samples == "on")
    assert (hidden in f"{said}\n") == (samples == "off")


@pytest.mark.parametrize("read", [source.csv, source.jsonl, source.parquet])
def test_a_file_that_is_gone_before_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("amount\n1\n")

    def find(*arguments: Any) -> Any:
        found = find_files(*arguments)
        path.unlink()
        return found

    monkeypatch.setattr("ematix_probe.sources.files.find_files", find)
    assert f"cannot read {path}: No such file or directory" in message(read(path))
