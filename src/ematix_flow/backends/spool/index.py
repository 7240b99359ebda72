"""The spool's memory on disk: which segments there are, what became of them, and how far the source was read.

Owns ``index.db`` and the files below ``segments/``, and what is repaired when they are opened after a crash.
Which message belongs into which segment is `spool_intake`'s subject.
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

from ematix_flow.errors import FlowError, PipelineLocked, SourceFailed
from ematix_flow.state.private_files import make_private_database, make_private_folders, write_private
from ematix_flow.state.state_root import next_step_for, private_directory

_TABLES = """
CREATE TABLE IF NOT EXISTS segments (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  rows INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  settled_at REAL,             -- since when all targets hold it
  removed INTEGER NOT NULL DEFAULT 0,
  digests BLOB                 -- of its messages that may come again
);
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_MAX_PUBLISHED_POSITIONS = 500  # positions that are told beside the number of the newest segment
_SEGMENT_FILES = re.compile(r"\.tmp-\d{20}\.parquet|\d{20}\.parquet|\.(\.tmp-)?\d{20}\.parquet\.crc")


@dataclass(frozen=True)
class SpoolSegment:
    """One file of messages. ``digests`` is None where nothing comes again by itself."""

    number: int
    rows: int
    size: int
    settled: bool = False
    digests: bytes | None = None

    @property
    def name(self) -> str:
        return segment_name(self.number)


def segment_name(number: int) -> str:
    """Names sort as numbers do."""
    return f"{number:020d}.parquet"


def segment_number(name: str) -> int:
    """The number behind a name, or behind a path or URL that ends with one."""
    return int(name.rsplit("/", 1)[-1].split(".", 1)[0])


class SpoolIndex:
    """Open in one process at a time. A change is durable when its method returns, unless that says else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = folder / "segments"
        self.newest_file = folder / "newest"  # the number of the last segment that is in its place
        self.id = ""  # known when it is open
        self._connection: sqlite3.Connection | None = None

    def open(self) -> list[SpoolSegment]:
        """Everything that is still known, oldest first, with the files as the index says."""
        with self.wrap_errors("opened"):
            private_directory(self.folder, tighten=True)
            make_private_folders(self.segments, tighten=True)
            make_private_database(self.folder / "index.db")
            connection = sqlite3.connect(
                self.folder / "index.db", timeout=1, isolation_level=None, check_same_thread=False
            )
            try:
                # exclusive: no second process, and no shared memory, which a network's folder may lack
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
        """All positions, with these that are about to be stored; None when they are too many to be told."""
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
        """Where a segment is written before the index knows it; Spark overlooks such names."""
        return self.segments / f".tmp-{segment_name(number)}"

    def next_number(self) -> int:
        found = self._db.execute("SELECT max(number) FROM segments").fetchone()[0]
        return int(found or 0) + 1

    def add(self, segment: SpoolSegment, progress: Mapping[str, str]) -> None:
        """Know a segment that lies at its temporary place, together with the positions after it."""
        with self.wrap_errors("written"), self._transaction():
            self._db.execute(
                "INSERT INTO segments (number, name, rows, bytes, digests) VALUES (?, ?, ?, ?, ?)",
                (segment.number, segment.name, segment.rows, segment.size, segment.digests),
            )
            self._upsert(progress)

    def publish(self, segment: SpoolSegment) -> None:
        """Put a known segment where it is followed."""
        with self.wrap_errors("written"):
            os.replace(self.temporary_path(segment.number), self.segments / segment.name)
            sync_folder(self.segments)
            self._publish_newest(segment.number)

    def _publish_newest(self, number: int) -> None:
        """For who follows from another process: the index itself is open in this one alone.

        With the positions of the source, where they are few: whoever remembers them can go on without this
        folder.
        """
        told: dict[str, Any] = {"segment": number, "spool": self.id}
        few = self.positions_to_publish()
        if few:
            told["progress"] = few
        aside = self.newest_file.with_suffix(".tmp")
        write_private(aside, json.dumps(told))
        os.replace(aside, self.newest_file)

    def _read_or_create_id(self) -> str:
        """A spool's own name, by which positions in it are told from those in one that is gone."""
        file = self.folder / "id"
        if not file.exists():
            write_private(file, uuid.uuid4().hex)
            sync_folder(self.folder)
        return file.read_text()

    def settle(self, numbers: Sequence[int]) -> None:
        with self.wrap_errors("written"), self._transaction():
            self._db.executemany(
                "UPDATE segments SET settled_at = ? WHERE number = ? AND settled_at IS NULL",
                [(time.time(), number) for number in numbers],
            )

    def replace_digests(self, kept: Mapping[int, bytes | None]) -> None:
        """Replace the digests of these segments, and forget segments that nothing is known of any more.

        Outlives the process at once, a loss of power a little later.
        """
        with self.wrap_errors("written"), self._transaction(durable=False):
            self._db.executemany(
                "UPDATE segments SET digests = ? WHERE number = ?",
                [(digests, number) for number, digests in kept.items()],
            )
            self._prune()

    def remove_settled(self, without: Iterable[int] = ()) -> None:
        """Delete the files of settled segments but of these."""
        kept = set(without)
        with self.wrap_errors("written"):
            found = self._db.execute(
                "SELECT number FROM segments WHERE settled_at IS NOT NULL AND removed = 0"
            ).fetchall()
            gone = [number for (number,) in found if number not in kept]
            if not gone:
                return
            for number in gone:
                (self.segments / segment_name(number)).unlink(missing_ok=True)
            with self._transaction(durable=False):  # a file that is missing says it as well
                self._db.executemany(
                    "UPDATE segments SET removed = 1 WHERE number = ?", [(number,) for number in gone]
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
        """What is not ``durable`` is on disk with the next that is."""
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
        # the newest stays: the next number comes after it
        self._db.execute(
            "DELETE FROM segments WHERE removed = 1 AND digests IS NULL "
            "AND number < (SELECT max(number) FROM segments)"
        )

    def _recover(self) -> list[SpoolSegment]:
        rows = self._db.execute(
            "SELECT number, rows, bytes, settled_at IS NOT NULL, digests, removed "
            "FROM segments ORDER BY number"
        ).fetchall()
        known = [(SpoolSegment(n, r, b, bool(settled), d), bool(gone)) for n, r, b, settled, d, gone in rows]
        there = {entry.name for entry in os.scandir(self.segments)}
        wanted: set[str] = set()
        for segment, removed in known:
            if removed:
                continue
            wanted.add(segment.name)
            if segment.name in there:
                continue
            if self.temporary_path(segment.number).name in there:
                self.publish(segment)
            elif not segment.settled:
                raise SourceFailed(
                    f"the spool {self.folder} has lost {segment.name}, "
                    f"with {segment.rows} messages that are not in every target",
                    state="nothing was changed",
                    next_step="bring the file back; or, to go on without it where the source still has the "
                    f"messages, delete {self.folder} and the stream's checkpoint",
                )
        for name in there - wanted:
            if _SEGMENT_FILES.fullmatch(name):
                (self.segments / name).unlink(missing_ok=True)
        self._publish_newest(max((segment.number for segment, _ in known), default=0))
        return [segment for segment, _ in known]

    @contextmanager
    def wrap_errors(self, deed: str) -> Iterator[None]:
        """What the disk or SQLite says, in words; a folder that is in use is PipelineLocked."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise PipelineLocked(
                    f"the spool {self.folder} is in use by another process",
                    next_step="let the stream that runs already end, or give this one a name of its own",
                ) from error
            raise self._failure(deed, str(error), "look at the disk, and run it again") from error
        except sqlite3.DatabaseError as error:
            step = f"delete {self.folder} and the stream's checkpoint; what is unacknowledged comes again"
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


def sync_folder(folder: Path) -> None:
    """Make what was created or renamed in a folder last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
