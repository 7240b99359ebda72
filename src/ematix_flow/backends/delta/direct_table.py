"""Delta tables into which files are committed by delta-rs.

A commit carries the same marks as one of Spark's (`commits`): our load number as ``txn``, and the token as
user metadata. It is for exactly the next version, so that of two writers only one succeeds.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.delta.direct_rules import (
    plain_fields,
    reason_for_spark,
    reason_to_create_by_spark,
    table_schema,
)
from ematix_flow.backends.delta.log_access import log_access
from ematix_flow.backends.delta.log_versions import LOG, has_version, is_table, list_versions
from ematix_flow.backends.delta.marked_commits import APPLICATION, load_number, newest_load
from ematix_flow.backends.delta.rows_at_watermark import read_rows_at
from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.backends.lake.direct_table import NO_VERSION, DirectTable, SparkNeeded, WrittenFile
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.table_format import ConcurrentCommit, TableField
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)
_INTERVAL, _CLEANUP = "delta.checkpointInterval", "delta.enableExpiredLogCleanup"
_COMMITS_PER_CHECKPOINT = 10  # as Spark's Delta, if the table does not say


@dataclass
class _OpenTable:
    """A table as it was read, with the text of its newest commit, by which it is known to be the same."""

    table: DeltaTable
    uri: str
    options: Mapping[str, str]
    newest_commit: str | None

    def open_again(self) -> None:
        """Read the table from its newest checkpoint.

        A table that is only updated keeps reading all commits since the checkpoint that it was opened with.
        """
        from deltalake import DeltaTable

        version = self.table.version()
        self.table = DeltaTable(self.uri, version, storage_options=dict(self.options) or None)

    def is_newest(self, store: Store, folder: str) -> bool:
        """Whether the folder still has this table, without newer commits."""
        version = self.table.version()
        commit = read_commit(store, folder, version)
        return (
            commit is not None
            and commit == self.newest_commit
            and not has_version(store, folder, version + 1)
        )


class DeltaDirectTables:
    """The tables of one store. Between two loads a table stays open, and only new commits are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, _OpenTable] = {}

    def find(
        self, folder: str, columns: Sequence[ColumnSpec], *, replaces: bool, may_be_old: bool = False
    ) -> DirectTable | SparkNeeded:
        """The table in a folder, or why Spark must write these columns into it.

        ``may_be_old``: an open table may lack newer commits.
        """
        there = self._open.get(folder) if may_be_old else None
        found = there or self._find_open(folder)
        if found is None:
            return self._find_new(folder, columns)
        if isinstance(found, SparkNeeded):
            return found
        reason = reason_for_spark(found.table, columns, replaces=replaces)
        return SparkNeeded(reason) if reason else DeltaDirectTable(self._store, folder, found)

    def fields(self, folder: str) -> Sequence[TableField] | None:
        """The columns of the table, if they are all plain."""
        found = self._find_open(folder)
        return plain_fields(found.table) if isinstance(found, _OpenTable) else None

    def _find_new(self, folder: str, columns: Sequence[ColumnSpec]) -> DirectTable | SparkNeeded:
        reason = reason_to_create_by_spark(columns)
        if is_table(self._store, folder):
            reason = "its log has a checkpoint and no commits"
        access = log_access(self._store, folder)
        if isinstance(access, SparkNeeded) or reason is not None:
            return access if isinstance(access, SparkNeeded) else SparkNeeded(str(reason))
        return DeltaNewTable(self._store, folder, columns, access)

    def _find_open(self, folder: str) -> _OpenTable | SparkNeeded | None:
        """The table as it is now; None if there is no table."""
        if importlib.util.find_spec("deltalake") is None:
            return SparkNeeded('deltalake is not installed (pip install "ematix-flow-spark[delta]")')
        access = log_access(self._store, folder)
        there = self._open.pop(folder, None)
        is_same = there is not None and not isinstance(access, SparkNeeded) and there.options == access[1]
        if there is not None and is_same and there.is_newest(self._store, folder):
            self._open[folder] = there
            return there
        if not list_versions(self._store, folder):
            return None
        if isinstance(access, SparkNeeded):
            return access
        uri, options = access
        from deltalake import DeltaTable

        try:
            table = DeltaTable(uri, storage_options=options or None)
        except Exception as error:  # Spark may read what delta-rs cannot
            return SparkNeeded(f"delta-rs cannot read the table: {str(error).splitlines()[0]}")
        text = read_commit(self._store, folder, table.version())
        self._open[folder] = _OpenTable(table, uri, options, text)
        return self._open[folder]


class DeltaDirectTable(DirectTable):
    def __init__(self, store: Store, folder: str, found: _OpenTable) -> None:
        self._store, self._folder, self._found = store, folder, found

    @property
    def version(self) -> int:
        return int(self._found.table.version())

    @property
    def column_names(self) -> Sequence[str]:
        return [field.name for field in self._found.table.schema().fields]

    def is_current(self) -> bool:
        return not has_version(self._store, self._folder, self.version + 1)

    def newest_load(self) -> int:
        return load_number(self._found.newest_commit or "") or newest_load(self._store, self._folder)

    def count_rows(self) -> int | None:
        import pyarrow as pa

        files = pa.table(self._found.table.get_add_actions(flatten=True))
        if not files.num_rows:
            return 0
        if "num_records" not in files.column_names or files.column("num_records").null_count:
            return None
        return int(sum(files.column("num_records").to_pylist()))

    def rows_at(self, mark: Watermark, columns: Sequence[ColumnSpec]) -> pa.Table | None:
        import pyarrow as pa

        try:
            return read_rows_at(self._found.table, self._store, self._folder, mark, columns)
        except (
            pa.ArrowException,
            OverflowError,
            FileNotFoundError,
        ) as error:  # Spark reads it, or tells why not
            _log.info("%s is read by Spark: %s", self._store.uri(self._folder), error)
            return None

    def commit(self, files: Sequence[WrittenFile], commit: LakeCommit, *, replace: bool) -> None:
        table = self._found.table
        with _commit_of_next_version(self._store, self._folder, self.version):
            table.create_write_transaction(
                _add_actions(files),
                "overwrite" if replace else "append",
                table.schema(),
                **_commit_options(commit),
            )

    def tidy(self) -> None:
        try:
            table = self._found.table
            table.update_incremental()
            self._found.newest_commit = read_commit(self._store, self._folder, self.version)
            if self.version % self._commits_per_checkpoint() == 0:
                table.create_checkpoint()
                if self._property(_CLEANUP) != "false":
                    table.cleanup_metadata()
                self._found.open_again()
        except Exception as error:  # the load is committed: the next one reads the table again
            self._found.newest_commit = None
            _log.warning("the log of %s is not shortened: %s", self._store.uri(self._folder), error)

    def _property(self, key: str) -> str:
        return str(self._found.table.metadata().configuration.get(key) or "")

    def _commits_per_checkpoint(self) -> int:
        declared = self._property(_INTERVAL)
        return max(int(declared), 1) if declared.isdigit() else _COMMITS_PER_CHECKPOINT


class DeltaNewTable(DirectTable):
    """A table that does not exist yet."""

    version = NO_VERSION

    def __init__(
        self, store: Store, folder: str, columns: Sequence[ColumnSpec], access: tuple[str, dict[str, str]]
    ) -> None:
        self._store, self._folder, self._columns, self._access = store, folder, columns, access

    @property
    def column_names(self) -> Sequence[str]:
        return [column.name for column in self._columns]

    def is_current(self) -> bool:
        return not list_versions(self._store, self._folder)

    def newest_load(self) -> int:
        return 0

    def count_rows(self) -> int:
        return 0

    def rows_at(self, mark: Watermark, columns: Sequence[ColumnSpec]) -> pa.Table:
        import pyarrow as pa

        return pa.schema([pa.field(c.name, c.type.arrow()) for c in columns]).empty_table()

    def commit(self, files: Sequence[WrittenFile], commit: LakeCommit, *, replace: bool) -> None:
        from deltalake.transaction import create_table_with_add_actions

        uri, options = self._access
        with _commit_of_next_version(self._store, self._folder, NO_VERSION):
            create_table_with_add_actions(
                uri,
                table_schema(self._columns),
                _add_actions(files),
                storage_options=options or None,
                **_commit_options(commit),
            )

    def tidy(self) -> None:
        return


def _add_actions(files: Sequence[WrittenFile]) -> Any:
    from deltalake.transaction import AddAction

    return [AddAction(file.name, file.bytes, {}, file.written_at, True, file.statistics) for file in files]


def _commit_options(commit: LakeCommit) -> dict[str, Any]:
    from deltalake import CommitProperties, PostCommitHookProperties, Transaction

    return {
        "commit_properties": CommitProperties(
            custom_metadata={"userMetadata": commit.token},
            max_commit_retries=0,
            app_transactions=[Transaction(APPLICATION, commit.number, time.time_ns() // 1_000_000)],
        ),
        # `tidy` does this, after the journal's mark
        "post_commithook_properties": PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    }


@contextmanager
def _commit_of_next_version(store: Store, folder: str, version: int) -> Iterator[None]:
    """Commit in the block. ConcurrentCommit if it fails and there is a newer version."""
    try:
        yield
    except Exception as error:
        if list_versions(store, folder)[-1:] > [version]:
            raise ConcurrentCommit from error
        raise
    if isinstance(store, LocalStore):
        log = Path(store.uri(f"{folder}/{LOG}"))
        flush_to_disk(log / f"{version + 1:020d}.json")
        flush_to_disk(log)


def read_commit(store: Store, folder: str, version: int) -> str | None:
    """The text of a commit; None if the log has it no more."""
    try:
        return store.read(f"{folder}/{LOG}/{version:020d}.json")
    except FileNotFoundError:
        return None


def commits_after(store: Store, folder: str, version: int) -> str | None:
    """The text of all commits after a version; None if the log has some of them no more."""
    versions = list_versions(store, folder)
    newest = versions[-1] if versions else -1
    if newest < version:  # another table by now
        version = -1
    texts = [read_commit(store, folder, number) for number in range(version + 1, newest + 1)]
    return None if None in texts else "".join(text for text in texts if text)
