"""The state of a stream's query: an embedded database that goes back to the version before a batch.

A batch changes the state in one transaction, before its rows reach a target. If the stream dies in between,
Spark brings the same batch again, and the state first goes back to where it was before that batch. Each row
of a state table records the version that made it and the version that ended it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.engine.streams.state.progress import Progress, SourceProgress
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.state.private_files import make_private_folders

if TYPE_CHECKING:
    import duckdb

LIFETIME = "since BIGINT NOT NULL, until BIGINT"  # the versions that made and ended a row
CURRENT = "until IS NULL"
_FILE = "state.duckdb"
_DEFINITION = "definition"
_FORMAT = 2  # of the tables in this module
_KEPT_VERSIONS = 100
_MEMORY = "1GB"  # larger states spill to files


class StateFile:
    """The open state of one query. Used by one thread at a time."""

    def __init__(self, folder: Path | None) -> None:
        """In memory if ``folder`` is None."""
        import duckdb

        self.path = None if folder is None else folder / _FILE
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": _MEMORY,
            "threads": 2,
            "autoinstall_known_extensions": False,
        }
        if folder is not None:
            make_private_folders(folder)
            settings["temp_directory"] = str(folder / "spill")
        try:
            self.database = duckdb.connect(str(self.path or ":memory:"), config=settings)
        except duckdb.Error as error:
            raise EngineError(
                f"the state {self.path} cannot be opened: {str(error).splitlines()[0]}",
                next_step="end the other process that uses it; if the file is damaged, restore the stream's "
                "folder from a backup",
            ) from error
        self.database.execute("CREATE TABLE IF NOT EXISTS facts (name VARCHAR PRIMARY KEY, value VARCHAR)")
        self.database.execute("CREATE TABLE IF NOT EXISTS progress (version BIGINT, value VARCHAR)")
        self._convert_format_1()
        self._progress = self._read_progress()

    def close(self) -> None:
        self.database.close()

    def _read_progress(self) -> dict[int, Progress]:
        found = self.database.execute("SELECT version, value FROM progress").fetchall()
        return {version: Progress.from_text(value) for version, value in found}

    def _convert_format_1(self) -> None:
        """Convert the progress of a state that knew one source only."""
        columns = [name for name, *_ in self.database.execute("DESCRIBE progress").fetchall()]
        if "highest" not in columns:
            return
        found = self.database.execute("SELECT version, highest, watermark, border FROM progress").fetchall()
        self.database.execute("BEGIN")
        self.database.execute("CREATE OR REPLACE TABLE progress (version BIGINT, value VARCHAR)")
        for version, highest, watermark, border in found:
            progress = Progress((SourceProgress(highest),), watermark, border)
            self.database.execute("INSERT INTO progress VALUES (?, ?)", [version, progress.to_text()])
        definition = json.loads(self.fact(_DEFINITION) or "{}")
        self.store_fact(_DEFINITION, json.dumps({**definition, "format": _FORMAT}, sort_keys=True))
        self.database.execute("COMMIT")

    def first_row(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        found = self.database.execute(sql, values).fetchall()  # an unread rest would block the connection
        return found[0] if found else None

    def require_definition(self, definition: Mapping[str, Any]) -> None:
        """Refuse a state that another definition of the stream has written."""
        own = json.dumps({"format": _FORMAT, **definition}, sort_keys=True)
        found = self.fact(_DEFINITION)
        if found is None:
            self.store_fact(_DEFINITION, own)
        elif found != own:
            changed = _changed_keys(json.loads(found), json.loads(own))
            raise Unsupported(
                f"the stream's state was written with another {', '.join(changed)}: it cannot be continued",
                state="nothing was loaded, and the state is unchanged",
                next_step="take the change back, or give the stream another name= and load into it from the "
                "beginning",
            )

    def fact(self, name: str) -> str | None:
        found = self.first_row("SELECT value FROM facts WHERE name = ?", name)
        return found[0] if found is not None else None

    def store_fact(self, name: str, value: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, value])

    @contextmanager
    def transaction(self, version: int, tables: tuple[str, ...]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction that makes this version. It begins with the state as it was before the version."""
        import duckdb

        database = self.database
        database.execute("BEGIN")
        try:
            self._go_back(version, tables)
            yield database
            database.execute("COMMIT")
        except BaseException as error:
            with suppress(duckdb.Error):  # a failed COMMIT has already ended the transaction
                database.execute("ROLLBACK")
            self._progress = self._read_progress()
            if isinstance(error, duckdb.Error):
                raise EngineError(
                    f"the state {self.path or 'in memory'} cannot be changed: {str(error).splitlines()[0]}",
                    state="the batch is not loaded; it comes again with the next start",
                    next_step="free space on its disk; if a number is too large for its column, CAST it in "
                    "transform_sql to a wider type and give the stream another name=",
                ) from error
            raise

    def _go_back(self, version: int, tables: tuple[str, ...]) -> None:
        """Undo this version and later ones, and remove rows that ended before it."""
        last = self.last_version()
        if last is not None and last > version:  # rows that this version needs are already removed
            raise EngineError(
                f"the state {self.path} is newer than the stream's checkpoint",
                state="nothing was loaded",
                next_step="bring back the stream's folder as a whole, or give the stream another name= and "
                "target to start from the beginning",
            )
        is_later = last == version
        for table in tables:
            self.database.execute(f"DELETE FROM {table} WHERE until < {version}")
            if is_later:
                self.database.execute(f"DELETE FROM {table} WHERE since >= {version}")
                self.database.execute(f"UPDATE {table} SET until = NULL WHERE until >= {version}")
        if is_later:
            self.database.execute(f"DELETE FROM progress WHERE version >= {version}")
            self._progress = {known: at for known, at in self._progress.items() if known < version}

    def progress_before(self, version: int) -> Progress:
        earlier = [known for known in self._progress if known < version]
        return self._progress[max(earlier)] if earlier else Progress()

    def last_version(self) -> int | None:
        return max(self._progress, default=None)

    def progress(self) -> Progress:
        """How far event time has come by now."""
        last = self.last_version()
        return Progress() if last is None else self._progress[last]

    def store_progress(self, version: int, progress: Progress) -> None:
        """Within a transaction. Only the newest versions are kept."""
        self._progress[version] = progress
        if len(self._progress) > _KEPT_VERSIONS:
            oldest = sorted(self._progress)[-2]
            self.database.execute(f"DELETE FROM progress WHERE version < {oldest}")
            self._progress = {known: at for known, at in self._progress.items() if known >= oldest}
        self.database.execute("INSERT INTO progress VALUES (?, ?)", [version, progress.to_text()])

    def size_bytes(self) -> int:
        """The size of the file and of its log."""
        if self.path is None:
            return 0
        files = (self.path, self.path.with_name(f"{self.path.name}.wal"))
        return sum(file.stat().st_size for file in files if file.exists())


def _changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return sorted(keys)
