"""Mirrors the state of a query and its checkpoint into a state store, one transaction a version.

The folder on this machine is the working copy. A version is in the store before its rows reach a target.
Therefore a folder that is missing, or that another process has overtaken, can always be replaced by what the
store has: Spark brings the last batch again, and the targets know whether they have it.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.declaration_record import RECORD_FILE, DeclarationRecord
from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.state.table_copies import (
    changes,
    full_copy,
    restore_state,
    state_facts,
    stored_columns,
    table_columns,
)
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.errors import EngineError
from ematix_flow.state.private_files import make_private_folders, open_private, write_private
from ematix_flow.state.stream_states import StateEntry, StatePart

if TYPE_CHECKING:
    from ematix_flow.backends.postgres.stream_state import PostgresStreamStates
    from ematix_flow.engine.streams.state.table_copies import Columns

_OWNER_FILE = "state-owner"
_MAX_CHANGES = 1_000  # versions after a full copy
_CHANGED_SHARE = 4  # a full copy is due when the changes are larger than this part of it
_COLUMNS_FILE = re.compile(r"columns(-\d+)?\.json")  # those that were inferred from messages
_KEPT_BATCHES = 2  # Spark resumes from the last planned batch and the one before


class StateMirror:
    """The mirror of one query. ``query`` names it within its stream. Used by one thread at a time."""

    def __init__(
        self,
        states: PostgresStreamStates,
        stream: str,
        query: str,
        folder: StreamFolder,
        checkpoint: Checkpoint,
        interval_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.states, self.stream, self.query = states, stream, query
        self.folder, self.checkpoint = folder, checkpoint
        self._interval, self._clock, self._copied_at = interval_ms / 1000, clock, clock()
        self.owner = uuid.uuid4().hex
        self._stored: dict[int, int] = {}  # the stored versions, and the bytes of each
        self._tables: Columns = {}
        self._published: tuple[StateFile, str] | None = None

    def open(self) -> bool:
        """Take over the stored state. Returns whether this machine's folder was replaced by it."""
        entry = self.states.claim(self.stream, self.query, self.owner)
        is_restored = False
        if entry is not None and entry.version is not None:
            assert entry.facts is not None
            self._tables = stored_columns(entry.facts)
            if not self._is_newest_here(entry):
                self._restore(entry)
                is_restored = True
            self._stored = self.states.versions(self.stream, self.query)
        make_private_folders(self.checkpoint.folder)
        _replace_file(self.checkpoint.folder / _OWNER_FILE, self.owner)
        return is_restored

    def publish(self, file: StateFile, status: str) -> None:
        """Store the newest version of the state, with the checkpoint as it is now."""
        version = file.last_version()
        if version is None:
            return
        tables, before = table_columns(file), file.version_before(version)
        stored = {known: size for known, size in self._stored.items() if known < version}
        continues = bool(stored) and max(stored) == before and tables == self._tables
        is_copy = not continues or self._is_copy_due(list(stored.values()))
        parts = list(full_copy(file, version) if is_copy else changes(file, version))
        if not parts:  # nothing of the state has changed
            parts = [StatePart(version, "", "", 0, b"")]
        entry = self._entry(file, version, status)
        self.states.write(self.stream, self.query, entry, parts, is_copy=is_copy)
        size = sum(len(part.data) for part in parts)
        self._stored = {version: size} if is_copy else {**stored, version: size}
        self._tables, self._published = tables, (file, status)
        if is_copy:
            self._copied_at = self._clock()

    def seal(self) -> None:
        """Store the checkpoint as it is now: after a batch is committed, it does not come again."""
        if self._published is not None:
            file, status = self._published
            version = file.last_version()
            if version is not None and version == max(self._stored):
                self.states.write_entry(self.stream, self.query, self._entry(file, version, status))

    def close(self) -> None:
        self.states.close()

    def _entry(self, file: StateFile, version: int, status: str) -> StateEntry:
        return StateEntry(
            self.owner,
            version,
            state_facts(file),
            pack_checkpoint(self.checkpoint.folder),
            _pack_columns(self.folder),
            status,
        )

    def _is_copy_due(self, sizes: list[int]) -> bool:
        """``sizes`` are the bytes of the full copy and of each version after it."""
        if len(sizes) > _MAX_CHANGES:
            return True
        is_time = self._clock() - self._copied_at >= self._interval
        return is_time and sum(sizes[1:]) * _CHANGED_SHARE > sizes[0]

    # -------------------------------------------------------------- the folder on this machine

    def _is_newest_here(self, entry: StateEntry) -> bool:
        """Whether the process that wrote the stored version wrote this folder, too."""
        try:
            owner = (self.checkpoint.folder / _OWNER_FILE).read_text()
        except FileNotFoundError:
            return False
        if not owner or owner != entry.owner or not StateFile.exists(self.checkpoint.state_folder):
            return False
        file = StateFile(self.checkpoint.state_folder)
        try:
            last = file.last_version()
        finally:
            file.close()
        return last is not None and entry.version is not None and last >= entry.version

    def _restore(self, entry: StateEntry) -> None:
        assert entry.version is not None and entry.facts is not None and entry.checkpoint is not None
        folder = self.checkpoint.folder
        aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        try:
            make_private_folders(aside)
            unpack_checkpoint(entry.checkpoint, aside)
            parts = self.states.parts(self.stream, self.query)
            restore_state(Checkpoint(aside).state_folder, entry.facts, parts, entry.version)
            if folder.exists():  # it is kept: the database may have been brought back from an old backup
                shutil.rmtree(self.replaced_folder, ignore_errors=True)
                folder.rename(self.replaced_folder)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @property
    def replaced_folder(self) -> Path:
        """The folder that the last restore has replaced."""
        folder = self.checkpoint.folder
        return folder.with_name(f".{folder.name}.replaced")


def restore_columns(states: PostgresStreamStates, stream: str, folder: StreamFolder) -> None:
    """Bring back the columns that were inferred from the first messages: the plan needs them."""
    for entry in states.read_all(stream).values():
        if entry.version is not None and entry.columns is not None:
            for name, text in json.loads(entry.columns).items():
                if not _COLUMNS_FILE.fullmatch(name):
                    raise EngineError(f"the state in Postgres is damaged: {name!r} is no file of columns")
                _replace_file(folder.folder / name, text)
            return


def stored_records(states: PostgresStreamStates, stream: str) -> list[DeclarationRecord]:
    """What the queries of a stream were declared as when they last ran, on any machine."""
    found = []
    for entry in states.read_all(stream).values():
        files = json.loads(entry.checkpoint) if entry.checkpoint is not None else {}
        if RECORD_FILE in files:
            try:
                found.append(DeclarationRecord.from_text(base64.b64decode(files[RECORD_FILE]).decode()))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise EngineError(
                    f"the state in Postgres is damaged: {RECORD_FILE} of stream {stream!r}: {error}",
                    state="nothing was loaded",
                    next_step="bring the tables of the state store back from a backup",
                ) from error
    return found


def _pack_columns(folder: StreamFolder) -> str:
    found = [path for path in folder.folder.glob("*") if _COLUMNS_FILE.fullmatch(path.name)]
    return json.dumps({path.name: path.read_text() for path in sorted(found)})


def pack_checkpoint(folder: Path) -> str:
    """The files of a checkpoint from which Spark resumes, as text."""
    found = [folder / "metadata", folder / "place-ids.json", folder / RECORD_FILE]
    found += [path for path in sorted((folder / "sources").rglob("*")) if not path.name.startswith(".")]
    for log in ("offsets", "commits"):
        numbered = [path for path in (folder / log).glob("*") if path.name.isdigit()]
        found += sorted(numbered, key=lambda path: int(path.name))[-_KEPT_BATCHES:]
    return json.dumps(
        {
            path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode()
            for path in found
            if path.is_file()
        }
    )


def unpack_checkpoint(text: str, folder: Path) -> None:
    for name, data in json.loads(text).items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise EngineError(f"the state in Postgres is damaged: {name!r} is not a file of a checkpoint")
        make_private_folders(path.parent)
        with open_private(path, "wb") as file:
            file.write(base64.b64decode(data))


def _replace_file(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_private(aside, text)
    aside.replace(path)
