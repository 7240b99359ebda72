"""Which file options may be declared together."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.files import check_file_options
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import FileOptions


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("parquet", FileOptions()),
        (None, FileOptions()),
        ("parquet", FileOptions(parquet_compression="uncompressed")),
        ("csv", FileOptions(csv_delimiter=";", csv_header=False, csv_quote="'", csv_escape="\\")),
        ("csv", FileOptions(csv_null_value="\\N")),
        ("csv", FileOptions(csv_read_options=(("has_header", True), ("null_regex", r"^(NA|\\N)$")))),
        ("json_lines", FileOptions(json_read_options=(("batch_size", 8192),))),
        (
            "csv",
            FileOptions(csv_read_options=(("comment", "#"),), json_read_options=(("batch_size", 1),)),
        ),
    ],
)
def test_options_that_fit_the_format_are_accepted(format: str | None, options: FileOptions) -> None:
    check_file_options(format, options)


@pytest.mark.parametrize(
    ("format", "options", "words"),
    [
        ("csv", {"parquet_compression": "zstd"}, "parquet_compression= is for parquet files"),
        ("parquet", {"csv_delimiter": ";"}, "the connection's format is parquet"),
        ("parquet", {"csv_read_options": (("has_header", True),)}, "csv_read_options= is for csv"),
        ("orc", {"json_read_options": (("batch_size", 1),)}, "json_read_options= is for json_lines"),
        (None, {"csv_header": True}, "the connection holds no files"),
        ("parquet", {"parquet_compression": "zst"}, "Did you mean 'zstd'?"),
        ("csv", {"csv_delimiter": "::"}, "one ASCII character"),
        ("csv", {"csv_delimiter": "→"}, "one ASCII character"),
        ("csv", {"csv_quote": "\n"}, "one ASCII character"),
        ("csv", {"csv_delimiter": '"'}, "no reader could tell them apart"),
        ("csv", {"csv_delimiter": "\\", "csv_escape": "\\"}, "csv_escape are both"),
        ("csv", {"csv_null_value": "a,b"}, "holds the delimiter"),
        ("csv", {"csv_null_value": "a\rb"}, "holds a line end"),
        ("csv", {"csv_header": 1}, "True or False"),
        ("csv", {"csv_read_options": (("has_headers", True),)}, "Did you mean 'has_header'?"),
        ("csv", {"csv_read_options": (("has_header", "yes"),)}, "True or False"),
        ("csv", {"csv_read_options": (("schema_infer_max_records", True),)}, "a whole number"),
        ("csv", {"csv_read_options": (("schema_infer_max_records", 0),)}, "1 or more"),
        ("csv", {"csv_read_options": (("null_regex", "("),)}, "no regular expression"),
        ("json_lines", {"json_read_options": (("batchsize", 1),)}, "Did you mean 'batch_size'?"),
    ],
)
def test_a_wrong_mix_is_refused_with_the_reason(
    format: str | None, options: dict[str, Any], words: str
) -> None:
    where = SourceLocation("lake.py", 7)
    with pytest.raises(DeclarationError) as caught:
        check_file_options(format, FileOptions(**options), where)
    assert words in str(caught.value)
    assert caught.value.where == where
