"""Which file options may be declared together."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.file_options import (
    CsvReadOptions,
    check_file_options,
    check_folder_options,
    null_pattern,
)
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
        ("csv", FileOptions(csv_read_options=(("null_regex", r"(?i)^na$"), ("terminator", ";")))),
        ("csv", FileOptions(csv_read_options=(("terminator", "\r\n"), ("quote", "'"), ("escape", "'")))),
        ("csv", FileOptions(csv_delimiter=";", csv_read_options=(("delimiter", ";"),))),
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
        ("csv", {"csv_null_value": "a,b"}, "contains the delimiter"),
        ("csv", {"csv_null_value": "a\rb"}, "contains a line end"),
        ("csv", {"csv_header": 1}, "True or False"),
        ("csv", {"csv_read_options": (("has_headers", True),)}, "Did you mean 'has_header'?"),
        ("csv", {"csv_read_options": (("has_header", "yes"),)}, "True or False"),
        ("csv", {"csv_read_options": (("schema_infer_max_records", True),)}, "a whole number"),
        ("csv", {"csv_read_options": (("schema_infer_max_records", 0),)}, "1 or more"),
        ("csv", {"csv_read_options": (("null_regex", "("),)}, "is wrong: missing )"),
        ("csv", {"csv_read_options": (("null_regex", "(?=x)"),)}, "(?…) that is not portable"),
        ("csv", {"csv_read_options": (("terminator", "||"),)}, "one ASCII character, or"),
        ("csv", {"csv_read_options": (("terminator", ","),)}, "'terminator' are both ','"),
        ("csv", {"csv_read_options": (("delimiter", '"'),)}, "'quote' are both"),
        ("csv", {"csv_read_options": (("comment", "#"), ("delimiter", "#"))}, "'comment' are both '#'"),
        (
            "csv",
            {"csv_delimiter": ";", "csv_read_options": (("delimiter", ","),)},
            "the files of one folder need the same value for writing and reading",
        ),
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


def test_line_ends_that_every_reader_knows_are_not_a_terminator() -> None:
    for given in ("\n", "\r\n"):
        assert (
            CsvReadOptions.from_file_options(FileOptions(csv_read_options=(("terminator", given),)))
            == CsvReadOptions()
        )
    assert (
        CsvReadOptions.from_file_options(FileOptions(csv_read_options=(("terminator", "|"),))).terminator
        == "|"
    )


def test_the_pattern_of_nulls_is_written_for_each_engine() -> None:
    assert null_pattern(r"^(NA|\\N)$", "java") == r"^(NA|\\N)\z"
    assert null_pattern("(?i)^na$", "re2") == r"(?i)^na\z"


@pytest.mark.parametrize(
    ("kind", "prefix", "partition_by", "words"),
    [
        ("postgres", "events", (), "prefix= is for files"),
        ("delta_local", "events", (), "prefix= is for files"),
        ("sqlite", None, ("day",), "partition_by= is for files and lake tables"),
    ],
)
def test_a_folder_in_a_system_without_folders_is_refused(
    kind: str, prefix: str | None, partition_by: tuple[str, ...], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        check_folder_options(kind, prefix, partition_by)
    check_folder_options("object_store_local", "events", ("day",))
