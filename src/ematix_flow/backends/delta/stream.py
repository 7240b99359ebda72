"""A Delta table as the source of a stream: its rows and then new rows, or its change feed.

Spark follows the table version by version. Delta streams added rows: a version that updates or deletes rows
stops the stream, unless such versions are skipped or the change feed is read.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.delta.log_versions import first_and_last_version
from ematix_flow.backends.delta.table_lookup import DeltaTables
from ematix_flow.backends.messages.base import ReadRequest, SparkStreamSource
from ematix_flow.backends.messages.source_options import bool_option, count_option, known_options
from ematix_flow.backends.spark_sql.query_tables import TableName
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import DeclarationError, FlowError, SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ours -> Delta's
_FLAGS = {
    "skip_change_commits": "skipChangeCommits",
    "ignore_changes": "ignoreChanges",
    "ignore_deletes": "ignoreDeletes",
    "change_feed": "readChangeFeed",
}
_COUNTS = {"max_files_per_trigger": "maxFilesPerTrigger"}
_SIZES = {"max_bytes_per_trigger": "maxBytesPerTrigger"}
_VERSION = "starting_version"
_OTHER_NAMES = {"readchangefeed": "change_feed"}
_SIZE = re.compile(r"[1-9][0-9]*[bkmgt]?b?", re.IGNORECASE)
_DELTA_ERROR = re.compile(r"\[((?:DELTA|DIFFERENT_DELTA)_\w+)[^\]]*\] (.*?)(?: SQLSTATE|\n===|\Z)", re.DOTALL)
_AT_VERSION = re.compile(r"at version (\d+)")


class DeltaStream(SparkStreamSource):
    """Tables under one root: ``sales.orders`` and ``sales/orders`` are the folder ``sales/orders``.

    A stream continues only from its checkpoint: a position may be inside a version, and no option can name
    that.
    """

    kind_of_rows = "columns"

    def __init__(self, store: Store) -> None:
        self._store, self._tables = store, DeltaTables(store)

    def check(self, reading: ReadRequest) -> None:
        options = _options(reading)
        folder = self._folder(reading)
        version = options.get("startingVersion", "")
        if version.isdigit():
            self._require_version(reading, folder, int(version))

    def streaming_frame(self, spark: SparkSession, reading: ReadRequest) -> DataFrame:
        options = _options(reading)
        folder = self._folder(reading)
        reader = spark.readStream.format("delta").options(**options)
        return reader.load(self._store.uri(folder))

    def explain_failure(self, reading: ReadRequest, said: str) -> FlowError | None:
        found = _DELTA_ERROR.search(said)
        if found is None:
            return None
        error, what = found[1], " ".join(found[2].split()).rstrip(".")
        at = _AT_VERSION.search(what)
        where = f"{reading.query!r}" + (f" at version {at[1]}" if at else "")
        for sign, message, step in _FAILURES:
            if error.startswith(sign):
                return SourceFailed(message.format(where=where, what=what), next_step=step)
        return SourceFailed(f"the stream of {reading.query!r} failed: {what}")

    def _folder(self, reading: ReadRequest) -> str:
        return self._tables.find_folder(_table_name(reading.query))

    def _require_version(self, reading: ReadRequest, folder: str, version: int) -> None:
        first, last = first_and_last_version(self._store, folder)
        if not first <= version <= last:
            raise SourceFailed(
                f"{reading.query!r} has no version {version}: its log has {first} to {last}",
                next_step="start with one of these, or with earliest, which begins with all current rows",
            )


def _table_name(query: str) -> TableName:
    return (query.strip("/"),) if "/" in query else tuple(query.split("."))


# ------------------------------------------------------------------ options


def _options(reading: ReadRequest) -> dict[str, str]:
    """Delta's options; DeclarationError for an unknown option or an invalid value."""
    named = {_OTHER_NAMES.get(key.replace("_", "").lower(), key): v for key, v in reading.options.items()}
    given = known_options(named, (*_FLAGS, *_COUNTS, *_SIZES, _VERSION))
    found = {delta: "true" for ours, delta in _FLAGS.items() if bool_option(given, ours)}
    if "readChangeFeed" in found and len(found) > 1:
        raise DeclarationError(
            "change_feed reads updates and deletes as they are: skip_change_commits, ignore_changes and "
            "ignore_deletes cannot be combined with it"
        )
    found |= {delta: str(count_option(given, ours, 1)) for ours, delta in _COUNTS.items() if ours in given}
    for ours, delta in _SIZES.items():
        if ours in given and not _SIZE.fullmatch(given[ours]):
            raise DeclarationError(f"the option {ours!r} is a size, as in 512m, not {given[ours]!r}")
        found |= {delta: given[ours]} if ours in given else {}
    if not reading.fail_on_data_loss:
        found["failOnDataLoss"] = "false"
    return {**found, **_start_option(reading, given)}


def _start_option(reading: ReadRequest, given: Mapping[str, str]) -> dict[str, str]:
    version = given.get(_VERSION)
    if version is not None:
        if not (version.isascii() and version.isdigit()):
            raise DeclarationError(f"the option {_VERSION!r} is a version's number, not {version!r}")
        return {"startingVersion": version}
    if isinstance(reading.starting, dt.datetime):
        moment = reading.starting.astimezone(dt.timezone.utc)
        return {"startingTimestamp": moment.strftime("%Y-%m-%d %H:%M:%S.%f")}
    return {"startingVersion": "latest"} if reading.starting == "latest" else {}


_FAILURES = (
    (
        "DELTA_SOURCE_TABLE_IGNORE_CHANGES",
        "rows of {where} were updated or replaced, and a stream reads rows that are added",
        "options={'change_feed': True} reads updates and deletes as rows; "
        "options={'skip_change_commits': True} passes over such versions. A load that replaces or merges "
        "is such a version",
    ),
    (
        "DELTA_SOURCE_IGNORE_DELETE",
        "rows of {where} were deleted, and a stream reads rows that are added",
        "options={'change_feed': True} reads deletes as rows; "
        "options={'skip_change_commits': True} passes over such versions",
    ),
    (
        "DELTA_MISSING_CHANGE_DATA",
        "the changes of {where} were not recorded: {what}",
        "let the table record them, by  ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true), "
        "and start with a later version",
    ),
    (
        "DELTA_VERSION_NOT_FOUND",
        "{where} has no longer, or not yet, the version to start with: {what}",
        "start with a version that there is, or with earliest, which begins with all rows of now",
    ),
    (
        "DELTA_TIMESTAMP_GREATER_THAN_COMMIT",
        "{where} has no version since the starting time: {what}",
        "start with an earlier time, or with latest",
    ),
    (
        "DIFFERENT_DELTA_TABLE",
        "{where} is not the table that the stream has read: it was dropped and created again",
        "give the stream another name, so that it begins with the new table",
    ),
    (
        "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
        "a column of {where} was renamed, dropped or got another type, and the stream cannot go on over that",
        "give the stream another name, so that it begins with the table as it is now",
    ),
    (
        "DELTA_SCHEMA_CHANGED",
        "the columns of {where} have changed while the stream ran: {what}",
        "start the stream again: it goes on where it was, with the new columns",
    ),
    (
        "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
        "{where} has lost versions that the stream has not read: {what}",
        "give the stream another name, so that it begins with all rows of now; keep logs for longer than a "
        "stream may rest",
    ),
)
