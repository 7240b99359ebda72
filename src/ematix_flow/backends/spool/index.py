"""The spool's index on disk: its segments, their state, and how far the source was read.

Owns ``index.db`` and the files below ``segments/``, and repairs them when they are opened after a crash.
`known_messages` decides which message is new.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.errors import FlowError, PipelineLocked, SourceFailed
from ematix_flow.state.private_files import make_private_database, make_private_folders, write_private
from ematix_flow.state.state_root import next_step_for, private_directory

_TABLES = """
CREATE TABLE IF NOT EXISTS segments (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  rows INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  settled_at REAL,             -- when all targets held it
  removed INTEGER NOT NULL DEFAULT 0,
  digests BLOB                 -- of its messages that may be delivered again
);
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_MAX_PUBLISHED_POSITIONS = 500  # positions that are published with the number of the newest segment
_SEGMENT_FILES = re.compile(r"\.tmp-\d{20}\.parquet|\d{20}\.parquet|\.(\.tmp-)?\d{20}\.parquet\.crc")


@dataclass(frozen=True)
class SpoolSegment:
    """One file of messages. ``digests`` is None where the source never delivers a message again."""

    number: int
    rows: int
    size: int
    settled: bool = False
    digests: bytes | None = None

    @property
    def name(self) -> str:
        return segment_name(self.number)


def segment_name(number: int) -> str:
    """The file name of a segment. Names sort like their numbers."""
    return f"{number:020d}.parquet"


def segment_number(name: str) -> int:
    """The number of a segment, from its name or from a path or URL that ends with it."""
    return int(name.rsplit("/", 1)[-1].split(".", 1)[0])


class SpoolIndex:
    """Open in one process at a time. A change is durable when its method returns, unless stated otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = folder / "segments"
        self.newest_file = folder / "newest"  # the number of the last published segment
        self.id = ""  # set by `open`
        self._connection: sqlite3.Connection | None = None

    def open(self) -> list[SpoolSegment]:
        """All known segments, oldest first, after the files are repaired to match the index."""
        with self.wrap_errors("opened"):
            private_directory(self.folder, tighten=True)
            make_private_folders(self.segments, tighten=True)
            make_private_database(self.folder / "index.db")
            connection = sqlite3.connect(
                self.folder / "index.db", timeout=1, isolation_level=None, check_same_thread=False
            )
            try:
                # exclusive: no second process, and no shared memory, which a network folder may not support
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("COMMIT")
                connection.executescript(_TABLES)
                self._connection = connection
                self.id = self._read_or_create_id()
                return self._recover()
            except BaseException:
                connection.close()
                self._connection = None
                raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -------------------------------------------------------------- positions

    def progress(self) -> dict[str, str]:
        with self.wrap_errors("read"):
            return dict(self._db.execute("SELECT name, value FROM progress").fetchall())

    def positions_to_publish(self, more: Mapping[str, str] | None = None) -> dict[str, str] | None:
        """All positions, with those that are about to be stored; None when they are too many to publish."""
        found = self._db.execute(
            "SELECT name, value FROM progress LIMIT ?", (_MAX_PUBLISHED_POSITIONS + 1,)
        ).fetchall()
        few = {**dict(found), **(more or {})}
        return few if len(few) <= _MAX_PUBLISHED_POSITIONS else None

    def store_positions(self, progress: Mapping[str, str]) -> None:
        with self.wrap_errors("written"), self._transaction():
            self._upsert(progress)

    # -------------------------------------------------------------- segments

    def temporary_path(self, number: int) -> Path:
        """Where a segment is written before the index knows it; Spark ignores such names."""
        return self.segments / f".tmp-{segment_name(number)}"

    def next_number(self) -> int:
        found = self._db.execute("SELECT max(number) FROM segments").fetchone()[0]
        return int(found or 0) + 1

    def add(self, segment: SpoolSegment, progress: Mapping[str, str]) -> None:
        """Add a segment that is at its temporary path, together with the positions after it."""
        with self.wrap_errors("written"), self._transaction():
            self._db.execute(
                "INSERT INTO segments (number, name, rows, bytes, digests) VALUES (?, ?, ?, ?, ?)",
                (segment.number, segment.name, segment.rows, segment.size, segment.digests),
            )
            self._upsert(progress)

    def publish(self, segment: SpoolSegment) -> None:
        """Move a known segment to where Spark follows it."""
        with self.wrap_errors("written"):
            os.replace(self.temporary_path(segment.number), self.segments / segment.name)
            flush_to_disk(self.segments)
            self._publish_newest(segment.number)

    def _publish_newest(self, number: int) -> None:
        """Write the newest segment's number for readers in other processes, which cannot open the index.

        The source's positions are included where they are few, so that a reader that stores them can
        continue without this folder.
        """
        content: dict[str, Any] = {"segment": number, "spool": self.id}
        positions = self.positions_to_publish()
        if positions:
            content["progress"] = positions
        temporary = self.newest_file.with_suffix(".tmp")
        write_private(temporary, json.dumps(content))
        os.replace(temporary, self.newest_file)

    def _read_or_create_id(self) -> str:
        """The spool's own name, which distinguishes its positions from those of an earlier, lost spool."""
        file = self.folder / "id"
        if not file.exists():
            write_private(file, uuid.uuid4().hex)
            flush_to_disk(self.folder)
        return file.read_text()

    def settle(self, numbers: Sequence[int]) -> None:
        with self.wrap_errors("written"), self._transaction():
            self._db.executemany(
                "UPDATE segments SET settled_at = ? WHERE number = ? AND settled_at IS NULL",
                [(time.time(), number) for number in numbers],
            )

    def replace_digests(self, digests_by_segment: Mapping[int, bytes | None]) -> None:
        """Replace the digests of these segments, and forget segments without files and digests.

        The change survives a crash of the process at once, and a loss of power a little later.
        """
        with self.wrap_errors("written"), self._transaction(durable=False):
            self._db.executemany(
                "UPDATE segments SET digests = ? WHERE number = ?",
                [(digests, number) for number, digests in digests_by_segment.items()],
            )
            self._prune()

    def remove_settled(self, without: Iterable[int] = ()) -> None:
        """Delete the files of settled segments, except these."""
        excluded = set(without)
        with self.wrap_errors("written"):
            found = self._db.execute(
                "SELECT number FROM segments WHERE settled_at IS NOT NULL AND removed = 0"
            ).fetchall()
            numbers = [number for (number,) in found if number not in excluded]
            if not numbers:
                return
            for number in numbers:
                (self.segments / segment_name(number)).unlink(missing_ok=True)
            with self._transaction(durable=False):  # a missing file says the same
                self._db.executemany(
                    "UPDATE segments SET removed = 1 WHERE number = ?", [(number,) for number in numbers]
                )
                self._prune()

    # -------------------------------------------------------------- inside

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError(f"the spool {self.folder} is not open")
        return self._connection

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        """A change that is not ``durable`` reaches the disk with the next durable one."""
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _upsert(self, progress: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT INTO progress VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            list(progress.items()),
        )

    def _prune(self) -> None:
        # keep the newest: the next number follows it
        self._db.execute(
            "DELETE FROM segments WHERE removed = 1 AND digests IS NULL "
            "AND number < (SELECT max(number) FROM segments)"
        )

    def _recover(self) -> list[SpoolSegment]:
        rows = self._db.execute(
            "SELECT number, rows, bytes, settled_at IS NOT NULL, digests, removed "
            "FROM segments ORDER BY number"
        ).fetchall()
        known = [
            (SpoolSegment(n, r, b, bool(settled), d), bool(is_removed))
            for n, r, b, settled, d, is_removed in rows
        ]
        files = {entry.name for entry in os.scandir(self.segments)}
        wanted: set[str] = set()
        for segment, removed in known:
            if removed:
                continue
            wanted.add(segment.name)
            if segment.name in files:
                continue
            if self.temporary_path(segment.number).name in files:
                self.publish(segment)
            elif not segment.settled:
                raise SourceFailed(
                    f"the spool {self.folder} has lost {segment.name}, "
                    f"with {segment.rows} messages that are not in every target",
                    state="nothing was changed",
                    next_step="restore the file; or, to continue without it if the source still has the "
                    f"messages, delete {self.folder} and the stream's checkpoint",
                )
        for name in files - wanted:
            if _SEGMENT_FILES.fullmatch(name):
                (self.segments / name).unlink(missing_ok=True)
        self._publish_newest(max((segment.number for segment, _ in known), default=0))
        return [segment for segment, _ in known]

    @contextmanager
    def wrap_errors(self, deed: str) -> Iterator[None]:
        """Turn errors of the disk and of SQLite into ours; PipelineLocked when the folder is in use."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise PipelineLocked(
                    f"the spool {self.folder} is in use by another process",
                    next_step="wait until the running stream ends, or give this one its own name",
                ) from error
            raise self._failure(deed, str(error), "check the disk, and run it again") from error
        except sqlite3.DatabaseError as error:
            step = f"delete {self.folder} and the stream's checkpoint; unacknowledged messages come again"
            raise self._failure(deed, str(error), step) from error
        except OSError as error:
            step = next_step_for(error, "make it writable, and run it again")
            raise self._failure(deed, error.strerror or str(error), step) from error

    def _failure(self, deed: str, reason: str, next_step: str) -> FlowError:
        return SourceFailed(
            f"the spool {self.folder} cannot be {deed}: {reason}",
            state="messages that are not in every target are in it, or still at their source",
            next_step=next_step,
        )
