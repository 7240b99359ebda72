"""Generated contents of files, loaded by a pipeline: right rows, or an error that names the file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from ematix_flow import ObjectStoreLocalConnection, Target, ematix
from ematix_flow.errors import FlowError
from ematix_flow.graph.registry import Registry, use_registry
from tests.property.fuzzed_contents import (
    Content,
    Unreadable,
    columnar_content,
    columnar_rows,
    csv_content,
    csv_rows,
    equals,
    json_content,
    json_rows,
    means,
    says,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES = 32  # of each kind; one takes about half a second
_folders = itertools.count()
_READERS: dict[str, tuple[Callable[[Content], list[dict[str, Any]]], Callable[[Any, Any], bool]]] = {
    "csv": (csv_rows, means),
    "json_lines": (json_rows, says),
    "parquet": (columnar_rows, equals),
    "orc": (columnar_rows, equals),
}


def load(base: Path, content: Content) -> list[dict[str, Any]]:
    """The rows that a pipeline loads from the file into Parquet, in the types that it finds."""
    folder = base / f"case{next(_folders)}"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / content.name).write_bytes(content.data)
    with use_registry(Registry()):
        source = ObjectStoreLocalConnection(name="files", path=str(folder / "in"), format=content.format)
        target = ObjectStoreLocalConnection(name="out", path=str(folder / "out"), format="parquet")

        @ematix.pipeline(targets=[Target(connection=target, prefix="loaded")], source_connection=source)
        def copied() -> str:
            return "SELECT * FROM t"

        copied.sync()
    files = sorted((folder / "out" / "loaded").rglob("*.parquet"))
    rows = ds.dataset(files).to_table().to_pylist() if files else []
    return [{key: value for key, value in row.items() if key not in _CONTROL} for row in rows]


_CONTROL = ("_loaded_at", "_batch_id")


def require_right_rows_or_refusal(base: Path, content: Content) -> None:
    shown = f"{content.made}: {content.data!r}"
    read, same = _READERS[content.format]
    try:
        expected: list[dict[str, Any]] | None = read(content)
    except Unreadable:
        expected = None
    try:
        rows = load(base, content)
    except FlowError as error:
        assert error.advice, f"{error}\n{shown}"
        assert re.search(r"\bt\.(csv|json|parquet|orc)|files of 't'", error.what), f"{error}\n{shown}"
        assert not re.search(r"Traceback|py4j|\w+Exception|java\.", str(error)), f"{error}\n{shown}"
        assert not any(expected or ()) or content.made != "as it is", f"{error}\n{shown}"
        return
    assert expected is not None, f"{rows}\n{shown}"
    assert len(rows) == len(expected), f"{rows}\n{shown}"
    left = list(rows)
    for wanted in expected:
        hit = next((row for row in left if _is_same(wanted, row, same)), None)
        assert hit is not None, f"{wanted} is not among {left}\n{shown}"
        left.remove(hit)


def _is_same(wanted: dict[str, Any], row: dict[str, Any], same: Any) -> bool:
    empty = "" if same is means else None
    return all(same(wanted.get(name, empty), row.get(name)) for name in {*wanted, *row})


# each was once loaded wrong, or refused with an unhelpful error
FOUND_BEFORE = [
    Content("t.csv", b'a,b\n"x""y,1\n"z"",2\n', "after quote"),
    Content("t.csv", b'a,b\n1,"x" "y"\n', "after quote"),
    Content("t.json", b'{"a": 1} {"a": 2}\n', "wrong line"),
    Content("t.json", b'{"a": 1}, {"a": 2}\n', "wrong line"),
    Content("t.json", b'{"a": {"b": 1}} {"a": {"b": 2}}\n', "wrong line"),
    Content("t.json", b'{"a": [{"b": 1}, {"b": 2}], "c": "{x} y"}\n', "as it is"),
    Content("t.json", b'{"a": 1.5, "b": [1e-400]}\n{"a": -1e400, "b": [0.5]}\n', "as it is"),
]


@pytest.mark.parametrize("content", FOUND_BEFORE, ids=lambda content: content.name)
def test_contents_that_once_were_loaded_wrong_or_refused_badly(
    spark: SparkSession, tmp_path: Path, content: Content
) -> None:
    require_right_rows_or_refusal(tmp_path, content)


# not Hypothesis: of as few cases as Spark can load in a minute it repeats many, and leaves out many
@pytest.mark.parametrize("content", [csv_content, json_content, columnar_content])
def test_a_file_of_any_content_is_loaded_right_or_refused(
    spark: SparkSession, tmp_path: Path, content: Callable[[int, Random], Content]
) -> None:
    for number in range(CASES):
        require_right_rows_or_refusal(tmp_path, content(number, Random(number)))


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("content", [csv_content, json_content, columnar_content])
def test_many_files_of_any_content_are_loaded_right_or_refused(
    spark: SparkSession, tmp_path: Path, content: Callable[[int, Random], Content]
) -> None:
    for number in range(1_000):
        require_right_rows_or_refusal(tmp_path, content(number, Random()))
