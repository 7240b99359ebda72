"""What a target needs from the place where its tables are stored: a disk or a bucket.

`StorageRoot` is the whole place, `TableStorage` one table in it with its versions. Each kind of storage
publishes a version in its own way; the rest of a load is the same for all.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ematix_flow.backends.base import LedgerEntry, Load, Staging
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout
from ematix_flow.backends.objectstore.layout.table_paths import DataFile
from ematix_flow.backends.objectstore.table.staging import FilesStaging
from ematix_flow.backends.objectstore.table.table_state import TableState
from ematix_flow.spec.tables import TableSpec


class TableVersion(Protocol):
    """A version of a table: published, about to be published, or a user's own folder seen as a version."""

    @property
    def state(self) -> TableState: ...


class TableStorage(ABC):
    """The storage of one table. Methods that change it need the lock of `lock`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's folders, as in ``shop/orders``."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """The folder, as error messages show it."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Hold the table's lock: one process at a time makes versions of a table, in any pipeline."""

    @abstractmethod
    def current_version(self) -> TableVersion | None:
        """The published version; None if there is no folder, or if this product did not write it."""

    @abstractmethod
    def data_files(self, version: TableVersion) -> list[DataFile]:
        """The data files that readers of the version see."""

    # -------------------------------------------------------------- a folder of other programs

    @abstractmethod
    def user_files(self) -> list[DataFile]:
        """The data files of a folder that this product did not write; empty if there is no folder."""

    @abstractmethod
    def user_folders(self) -> list[str]:
        """The folders in it that are not partitions. They never hold rows of this table."""

    @abstractmethod
    def preview_version(self, state: TableState) -> TableVersion:
        """The user's folder as a version with that state; it is never published."""

    # -------------------------------------------------------------- versions

    @abstractmethod
    def adopt_user_files(self, state: TableState, files: Sequence[DataFile]) -> TableVersion:
        """Publish the user's files, which stay, as the first version: the first load starts from it.

        Without such files, readers see no table until the first load is published.
        """

    @abstractmethod
    def publish(
        self, base: TableVersion, kept_files: Sequence[str], new: Sequence[DataFile], state: TableState
    ) -> None:
        """Make the version of these files visible to readers, in one step that commits all of it."""

    @abstractmethod
    def recover(self) -> None:
        """Finish or undo what a crash interrupted."""

    @abstractmethod
    def has_batch(self, version: TableVersion, pipeline: str, target: str, batch_key: str) -> bool:
        """Whether this batch is already committed."""

    @abstractmethod
    def ledger_entries(self, version: TableVersion, pipeline: str, target: str) -> Iterator[LedgerEntry]:
        """The committed batches of a pipeline and target, newest first."""


class StorageRoot(ABC):
    """The storage of all tables of a connection. Its failures are raised as errors of this product."""

    @abstractmethod
    def explain_errors(self, state: str) -> AbstractContextManager[None]:
        """Raise storage failures in the block as TargetFailed with this state."""

    @abstractmethod
    def table_storage(self, table: TableSpec) -> TableStorage:
        """The storage of a declared table; PlanError if its name cannot be a folder."""

    @abstractmethod
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]: ...

    @abstractmethod
    def remember_target(self, home: TableStorage, pipeline: str, target: str) -> None:
        """Record where a pipeline's target is stored, so that its ledger is found by the target's name."""

    @abstractmethod
    def remembered_table(self, pipeline: str, target: str) -> TableStorage | None: ...

    @abstractmethod
    def new_staging(self, load: Load, layout: FileLayout) -> FilesStaging:
        """An empty staging area for the parts of one attempt."""

    @abstractmethod
    def drop_staging(self, staging: Staging) -> None:
        """Drop the staging area. It never fails, because the load is committed; the next run sweeps what is
        left."""

    @abstractmethod
    def sweep_staging(self, pipeline: str, target: str) -> list[str]: ...

    @abstractmethod
    def sweep_table(self, home: TableStorage, pipeline: str, target: str) -> list[str]:
        """Drop what a crashed load left of a table, except staging."""

    def remarks(self) -> tuple[str, ...]:
        return ()
