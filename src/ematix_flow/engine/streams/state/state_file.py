"""The state of a stream's query: an embedded database that goes back to the version before a batch.

A batch changes the state in one transaction, before its rows reach a target. If the stream dies in between,
Spark brings the same batch again, and the state first goes back to where it was before that batch. Each row
of a state table records the version that made it and the version that ended it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
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
_ID = "id"
FORMAT = 2  # of the tables in this module
_KEPT_VERSIONS = 100
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "1GB",  # larger states spill to files
    "threads": 2,
    "autoinstall_known_extensions": False,
}


class StateFile:
    """The open state of one query. Used by one thread at a time."""

    def __init__(self, folder: Path, *, in_memory: bool = False) -> None:
        """``in_memory`` writes no file. All states of one folder that are open in memory are the same one."""
        import duckdb

        self.path = None if in_memory else folder / _FILE
        memory = hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest()
        self._name = f":memory:{memory}" if self.path is None else str(self.path)
        self._settings = settings = _SETTINGS.copy()
        if not in_memory:
            make_private_folders(folder)
            settings["temp_directory"] = str(folder / "spill")
        try:
            self.database = duckdb.connect(self._name, config=settings)
        except duckdb.Error as error:
            raise EngineError(
                f"the state {self.path} cannot be opened: {str(error).splitlines()[0]}",
                state="nothing was loaded, and the targets are unchanged",
                next_step="end the other process that uses it; if the file is damaged, restore the stream's "
                "folder from a backup",
            ) from error
        self.database.execute("CREATE TABLE IF NOT EXISTS facts (name VARCHAR PRIMARY KEY, value VARCHAR)")
        self.database.execute("CREATE TABLE IF NOT EXISTS progress (version BIGINT, value VARCHAR)")
        self._convert_format_1()
        self._progress = self._read_progress()

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / _FILE).exists()

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def kept_in_memory(self) -> Iterator[None]:
        """Keep a state in memory until the block ends, although it is closed in between and opened again."""
        import duckdb

        if self.path is not None:
            yield
            return
        with closing(duckdb.connect(self._name, config=self._settings)):
            yield

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
        self.store_fact(_DEFINITION, json.dumps({**definition, "format": FORMAT}, sort_keys=True))
        self.database.execute("COMMIT")

    def first_row(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        found = self.database.execute(sql, values).fetchall()  # an unread rest would block the connection
        return found[0] if found else None

    def require_definition(self, definition: Mapping[str, Any]) -> None:
        """Refuse a state that another definition of the stream has written."""
        own = json.dumps({"format": FORMAT, **definition}, sort_keys=True)
        found = self.fact(_DEFINITION)
        if found is None:
            self.store_fact(_DEFINITION, own)
        elif json.loads(found).get("format", 1) > FORMAT:
            raise Unsupported(
                f"the stream's state has format {json.loads(found)['format']}, and this version knows "
                f"formats up to {FORMAT}: a newer version of ematix-flow has written it",
                state="nothing was loaded, and the state is unchanged",
                next_step="run the stream with that version or a newer one",
            )
        elif found != own:
            before = json.loads(found)
            changed = _changed_keys(before, json.loads(own))
            values = "; ".join(
                f"{key} was {json.dumps(before.get(key))} and is {json.dumps(json.loads(own).get(key))}"
                for key in changed
            )
            raise Unsupported(
                f"the stream's state was written with another {', '.join(changed)}: it cannot be continued "
                f"({values})",
                state="nothing was loaded, and the state is unchanged",
                next_step="take the change back, or give the stream another name= and target: it then reads "
                "the source from the beginning",
            )

    def id(self) -> str:
        """The state's own id, which its copies have too. A state of an earlier version gets one now."""
        found = self.fact(_ID)
        if found is None:
            found = uuid.uuid4().hex
            self.store_fact(_ID, found)
        return found

    def fact(self, name: str) -> str | None:
        found = self.first_row("SELECT value FROM facts WHERE name = ?", name)
        return found[0] if found is not None else None

    def store_fact(self, name: str, value: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, value])

    def facts(self) -> dict[str, str]:
        return dict(self.database.execute("SELECT name, value FROM facts ORDER BY name").fetchall())

    def restore_facts(self, facts: Mapping[str, str], progress: Sequence[tuple[int, str]]) -> None:
        """Set the facts and the progress of a new state to those of a copied one."""
        for name, value in facts.items():
            self.store_fact(name, value)
        for version, text in progress:
            self.database.execute("INSERT INTO progress VALUES (?, ?)", [version, text])
        self._progress = self._read_progress()

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

    def end_rows(self, table: str, version: int, condition: str) -> None:
        """End the current rows of a condition, within the transaction of a version.

        Rows of this version and earlier ones have a statement each: one that changes both can miss some of
        them in DuckDB 2.0.
        """
        for made in (f"since < {version}", f"since = {version}"):
            self.database.execute(
                f"UPDATE {table} SET until = {version} WHERE {made} AND {CURRENT} AND {condition}"
            )

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
        earlier = self.version_before(version)
        return Progress() if earlier is None else self._progress[earlier]

    def version_before(self, version: int) -> int | None:
        return max((known for known in self._progress if known < version), default=None)

    def newest_progress(self, versions: int) -> list[tuple[int, str]]:
        """The progress of the newest versions, as text."""
        newest = sorted(self._progress)[-versions:]
        return [(version, self._progress[version].to_text()) for version in newest]

    def progress_at(self, version: int) -> Progress:
        """The progress after a version that the state has."""
        return self._progress[version]

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
