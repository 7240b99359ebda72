"""Storage of a table in a bucket: data files under keys that readers list, and numbered manifests.

A manifest holds the state of one version, including its files. A load is published by creating the manifest
with the next number, which only one writer can do. The newest manifest is the table. Before the first load
copies files, a manifest records that it has begun; until it commits, our readers see no table. Before files
are copied to where readers list, an intent records their names, so that files of a crashed load are known and
removed. Replaced files are recorded too, and are kept for a while for running readers. A user's own files are
never removed. A note in the table's folder names the root that holds the manifests, for connections with
another root.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.objectstore.layout.table_paths import (
    HIDDEN,
    DataFile,
    is_hidden,
    is_other_folder,
    safe_file_name,
)
from ematix_flow.backends.objectstore.storage.s3_staging import S3Path
from ematix_flow.backends.objectstore.table import table_state
from ematix_flow.backends.objectstore.table.table_state import (
    TableState,
    ledger_entries,
    ledger_has_batch,
    parse_state,
    sealed_lines,
)
from ematix_flow.backends.objectstore.table.table_storage import TableStorage, TableVersion
from ematix_flow.backends.stores.s3_store import S3Store
from ematix_flow.errors import FlowError, PlanError, TargetFailed

KEEP_REPLACED = dt.timedelta(minutes=10)
COPIES_AT_ONCE = 8
_LOOKS = 5
_MANIFEST, _INTENT, _REPLACED = "manifest-", "intent-", "replaced-"
_TIME = "%Y%m%dT%H%M%SZ"
_NOTE = "_ematix_flow_home"  # readers of the folder ignore it
_NOT_KNOWN = "it is not known whether it was committed; another run finds out and loads it exactly once"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class S3Version:
    """``number`` is the number of its manifest; 0 for a user's own folder."""

    number: int
    state: TableState


@dataclass(frozen=True)
class _Intent:
    """The files that a load is about to add, and those that it replaces."""

    new: tuple[str, ...]
    replaced: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"new": self.new, "replaced": self.replaced})

    @classmethod
    def from_json(cls, text: str) -> _Intent:
        value = json.loads(text)
        return cls(tuple(value["new"]), tuple(value["replaced"]))


class S3TableStorage(TableStorage):
    """The storage of the table in the folder ``parts`` of a store."""

    def __init__(self, store: S3Store, parts: tuple[str, ...]) -> None:
        self.store, self.parts = store, parts

    @property
    def name(self) -> str:
        return "/".join(self.parts)

    @property
    def display_name(self) -> str:
        return self.store.uri(self.name)

    @property
    def _folder(self) -> str:
        return f"{HIDDEN}/tables/{safe_file_name(self.name)}"

    def lock(self) -> AbstractContextManager[None]:
        return self.store.table_lock(self.name)

    # -------------------------------------------------------------- what is there

    def current_version(self) -> S3Version | None:
        newest = self.newest_version()
        return None if newest is None or newest.state.begun else newest

    def has_uncommitted_first_load(self) -> bool:
        """Whether the first load is running or has crashed: the files in the folder are not a table yet."""
        newest = self.newest_version()
        return newest is not None and newest.state.begun

    def newest_version(self) -> S3Version | None:
        """The version of the newest manifest, even of a first load that has not committed."""
        for _ in range(_LOOKS):
            numbers = self._manifest_numbers()
            if not numbers:
                return None
            path = self._manifest_path(numbers[-1])
            try:
                return S3Version(numbers[-1], parse_state(self.store.read(path), self.store.uri(path)))
            except FileNotFoundError:  # other loads have replaced it meanwhile
                continue
        raise TargetFailed(
            f"the manifests of {self.display_name} change faster than they can be read",
            next_step="run it again when fewer loads write to this table",
        )

    def _manifest_numbers(self) -> list[int]:
        names = self.store.names(self._folder)
        found = [name[len(_MANIFEST) : -len(".json")] for name in names if name.startswith(_MANIFEST)]
        return sorted(int(number) for number in found)

    def _manifest_path(self, number: int) -> str:
        return f"{self._folder}/{_MANIFEST}{number:012d}.json"

    def data_files(self, version: TableVersion) -> list[DataFile]:
        return [self._data_file(name) for name in sorted(version.state.files)]

    def _data_file(self, name: str) -> DataFile:
        return DataFile(S3Path(self.store, f"{self.name}/{name}"), name)

    def user_files(self) -> list[DataFile]:
        if self.has_uncommitted_first_load():
            return []
        names = (path for path, _ in self.store.files_below(self.name))
        return [self._data_file(name) for name in sorted(names) if _is_data_file(name)]

    def user_folders(self) -> list[str]:
        below = (path.split("/")[0] for path, _ in self.store.files_below(self.name) if "/" in path)
        return sorted({folder for folder in below if is_other_folder(folder)})

    def preview_version(self, state: TableState) -> S3Version:
        return S3Version(0, state)

    def has_batch(self, version: TableVersion, pipeline: str, target: str, batch_key: str) -> bool:
        return ledger_has_batch(
            self._sealed_reader(version.state), version.state, pipeline, target, batch_key
        )

    def ledger_entries(self, version: TableVersion, pipeline: str, target: str) -> Iterator[LedgerEntry]:
        return ledger_entries(self._sealed_reader(version.state), version.state, pipeline, target)

    def _sealed_reader(self, state: TableState) -> table_state.ReadSealed:
        return lambda number: self.store.read(f"{self._folder}/{state.sealed_as[number - 1]}")

    # -------------------------------------------------------------- a table of another root

    def storage_in_other_root(self) -> S3TableStorage | None:
        """The storage of the same folder under another root; None if there is none."""
        return self._storage_of_note(self._read_root_note())

    def require_own_root(self) -> None:
        """Refuse a table that belongs to another root: its ledger and watermarks are stored there."""
        self._refuse_other_root(self.storage_in_other_root())

    def _write_root_note(self) -> None:
        """Write the note that names the root. It may be missing, or be wrong in a copied folder."""
        noted = self._read_root_note()
        if noted != self._path_to_root:
            self._refuse_other_root(self._storage_of_note(noted))
            self.store.put(f"{self.name}/{_NOTE}", self._path_to_root)

    def _refuse_other_root(self, other: S3TableStorage | None) -> None:
        if other is not None:
            raise PlanError(
                f"{self.display_name} is a table that is loaded through a connection with prefix "
                f"{other.store.root!r}",
                state=f"{self.name} is unchanged",
                next_step="load it through one connection: its ledger and watermarks are below that prefix",
            )

    @property
    def _path_to_root(self) -> str:
        """The relative path from the folder to the root: it stays right when the whole root is copied."""
        return "/".join([".."] * len(self.parts))

    def _read_root_note(self) -> str | None:
        path = "/".join((*self.parts, _NOTE))
        try:
            self.store.object_at(
                path
            )  # a user who may list only part of a bucket gets 403 for missing objects
            return self.store.read(path)
        except FileNotFoundError:
            return None

    def _storage_of_note(self, noted: str | None) -> S3TableStorage | None:
        folders, up = self.store.key(self.name).split("/"), (noted or "").count("..")
        if noted == self._path_to_root or not 0 < up <= len(folders):
            return None
        root = replace(self.store.connection, prefix="/".join(folders[:-up]))
        home = S3TableStorage(S3Store(root), tuple(folders[-up:]))
        return home if home.newest_version() is not None else None

    # -------------------------------------------------------------- publishing

    def adopt_user_files(self, state: TableState, files: Sequence[DataFile]) -> S3Version:
        """The user's files stay where they are; from now on the manifest lists the files of the table."""
        newest = self.newest_version()
        if newest is not None:  # a first load crashed
            return S3Version(newest.number, state)
        self.store.require_locks_held()
        self._write_root_note()
        adopted = tuple(file.name for file in files)
        version = self._create_manifest(1, replace(state, adopted=adopted, begun=not files))
        return replace(version, state=replace(version.state, begun=False))

    def publish(
        self, base: TableVersion, kept_files: Sequence[str], new: Sequence[DataFile], state: TableState
    ) -> None:
        there = _as_s3_version(base)
        gone = set(there.state.files) - set(kept_files)
        theirs = gone & set(there.state.adopted)
        replaced = tuple(sorted(gone - theirs))
        state = replace(state, adopted=tuple(name for name in state.adopted if name in state.files))
        intent = _Intent(tuple(file.name for file in new), replaced)
        noted = f"{self._folder}/{_INTENT}{uuid.uuid4().hex}.json"
        self.store.create(noted, intent.to_json())
        try:
            self._copy_files(new)
            fault_points.point("files.version_written")
            fault_points.point("apply.rows_written")
            state = self._seal_ledger(state)
            fault_points.point("apply.ledger_written")
            fault_points.point("apply.before_commit")
            fault_points.point("files.before_publish")
            self._write_root_note()
            self.store.require_locks_held()
        except Exception:
            self._remove_uncommitted(noted, intent, there.state)
            raise
        # A manifest that was sent may appear late, even after an error. So nothing is removed from
        # here on: the intent stays, and the next load blocks the manifest before it removes files.
        self._create_manifest(there.number + 1, state)
        fault_points.point("files.after_publish")
        fault_points.point("apply.after_commit")
        if theirs:
            message = "%s: %d files of other programs stay, but are no longer part of the table"
            _log.warning(message, self.display_name, len(theirs))
        try:  # the load is committed: the next load removes what cannot be removed now
            self._note_replaced(intent.replaced)
            self._drop_manifests(there.number)
            self.store.remove(noted)
            self.remove_expired_files()
        except FlowError as error:
            _log.warning("%s still has files that it no longer needs: %s", self.display_name, error.what)

    def _copy_files(self, files: Sequence[DataFile]) -> None:
        """Copy files to where readers list: the server copies staged files; local files are uploaded."""

        def copy_file(file: DataFile) -> None:
            to = f"{self.name}/{file.name}"
            if isinstance(file.path, S3Path):
                self.store.copy(file.path.path, to)
            else:
                self.store.upload(file.local_path, to)

        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            for _ in pool.map(copy_file, files):
                pass

    def _seal_ledger(self, state: TableState) -> TableState:
        if len(state.ledger) < table_state.SEALED_ENTRIES:
            return state
        name = f"ledger-{state.sealed + 1:06d}-{uuid.uuid4().hex}.jsonl"
        self.store.create(f"{self._folder}/{name}", sealed_lines(state.ledger))
        return replace(state, ledger=(), sealed=state.sealed + 1, sealed_as=(*state.sealed_as, name))

    def _create_manifest(self, number: int, state: TableState) -> S3Version:
        """Create the manifest of that number, which commits the load."""
        text = json.dumps(state.to_json(), ensure_ascii=False)
        try:
            self.store.create(self._manifest_path(number), text)
        except FileExistsError as error:
            raise TargetFailed(
                f"another load changed {self.display_name} while this one ran",
                state=f"{self.name} is as that load left it",
                next_step="run it again",
            ) from error
        except FlowError as error:
            if not self._was_committed(number, text):
                error.state = error.state or _NOT_KNOWN
                raise
            _log.info("the response to a commit was lost, but the commit succeeded: %s", error.what)
        self._require_newest(number)
        return S3Version(number, state)

    def _require_newest(self, number: int) -> None:
        """Fail if the manifest arrived so late that others had already used and dropped its number."""
        try:
            there = self._manifest_numbers()
        except FlowError as error:
            error.state = error.state or _NOT_KNOWN
            raise
        if there[-1:] != [number] or (number > 1 and number - 1 not in there):
            # it stays: a newer manifest is the table, and the next load drops those below
            raise TargetFailed(
                f"other loads changed {self.display_name} while this one was being "
                "committed: it lost its lock",
                state=_NOT_KNOWN,
                next_step="run it again",
            )

    def _was_committed(self, number: int, text: str) -> bool:
        """Whether a commit succeeded although its response was lost."""
        path = self._manifest_path(number)
        try:
            return self.store.read(path) == text
        except FileNotFoundError:
            return False
        except FlowError as error:
            raise TargetFailed(
                f"the S3 server stopped answering while a load of {self.display_name} "
                f"was committed: {error.what}",
                state=_NOT_KNOWN,
                next_step="run it again once the server answers",
            ) from error

    def _remove_uncommitted(self, noted: str, intent: _Intent, state: TableState) -> None:
        """Remove the files of a load that will not be committed; the next load removes what is left."""
        try:
            self._remove_files([name for name in intent.new if name not in state.files])
            self.store.remove(noted)
        except FlowError as error:
            _log.warning(
                "files of a failed load stay in %s until the next load: %s", self.display_name, error.what
            )

    # -------------------------------------------------------------- after a crash

    def recover(self) -> None:
        self.clear_intents()

    def has_intents(self) -> bool:
        return bool(self._intents())

    def _intents(self) -> list[str]:
        return [name for name in self.store.names(self._folder) if name.startswith(_INTENT)]

    def clear_intents(self) -> list[str]:
        """Remove the files of crashed loads, record what they replaced, and return the names of removed
        files.

        Under the table's lock no other load has an intent, unless it lost its lock unnoticed. A new manifest
        makes sure that such a load can no longer commit.
        """
        intents = self._intents()
        version = self.newest_version() if intents else None
        if version is None:
            return []
        self.store.require_locks_held()
        self._create_manifest(version.number + 1, version.state)
        self._drop_manifests(version.number)
        there = {path for path, _ in self.store.files_below(self.name)}
        left: list[str] = []
        for name in intents:
            intent = _Intent.from_json(self.store.read(f"{self._folder}/{name}"))
            gone = there - set(version.state.files)
            found = sorted(gone & set(intent.new))
            self._remove_files(found)
            self._note_replaced(sorted(gone & set(intent.replaced)))
            self.store.remove(f"{self._folder}/{name}")
            left += found
        return left

    def has_expired_files(self) -> bool:
        """Whether there are replaced files that no reader needs any more."""
        return bool(self._expired_notes())

    def _expired_notes(self) -> list[str]:
        old = f"{_REPLACED}{(dt.datetime.now(dt.timezone.utc) - KEEP_REPLACED).strftime(_TIME)}"
        return [name for name in self.store.names(self._folder) if name.startswith(_REPLACED) and name <= old]

    def remove_expired_files(self) -> None:
        """Remove the replaced files that no reader needs any more."""
        notes = self._expired_notes()
        version = self.current_version() if notes else None
        if version is None:
            return
        for note in notes:
            names = json.loads(self.store.read(f"{self._folder}/{note}"))
            self._remove_files([name for name in names if name not in version.state.files])
            self.store.remove(f"{self._folder}/{note}")

    def _note_replaced(self, names: Sequence[str]) -> None:
        if names:
            since = dt.datetime.now(dt.timezone.utc).strftime(_TIME)
            note = f"{self._folder}/{_REPLACED}{since}-{uuid.uuid4().hex}.json"
            self.store.create(note, json.dumps(names))

    def _remove_files(self, names: Sequence[str]) -> None:
        self.store.remove_all([f"{self.name}/{name}" for name in names])

    def _drop_manifests(self, before: int) -> None:
        """Drop the manifests below a number; the last one stays for readers that have already listed it."""
        old = [number for number in self._manifest_numbers() if number < before]
        self.store.remove_all([self._manifest_path(number) for number in old])


def _is_data_file(name: str) -> bool:
    """Whether it is a data file: not hidden, in the table's folder or a partition folder."""
    *folders, file = name.split("/")
    return not is_hidden(file) and all("=" in folder and not is_hidden(folder) for folder in folders)


def _as_s3_version(version: TableVersion) -> S3Version:
    assert isinstance(version, S3Version)
    return version
