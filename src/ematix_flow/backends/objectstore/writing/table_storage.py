"""What a target needs of the place where tables of files live: a disk, or a bucket.

`FilesRoot` is the place as a whole, `TableHome` one table in it with its versions. How a version becomes
what readers see is the home's own; what a load is about is the same everywhere.
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
from ematix_flow.backends.objectstore.writing.staging import FilesStaging
from ematix_flow.backends.objectstore.writing.table_state import TableState
from ematix_flow.spec.tables import TableSpec


class TableVersion(Protocol):
    """A version of a table, published or about to be; or a user's own folder as if it were one."""

    @property
    def state(self) -> TableState: ...


class TableStorage(ABC):
    """One table's folder. What changes it is called with `locked` held."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's folders, as in ``shop/orders``."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """The folder, as a person is told of it."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """One process at a time makes versions of a table, whatever pipeline it runs."""

    @abstractmethod
    def current_version(self) -> TableVersion | None:
        """The published version; None when there is no folder, or one that is not ours."""

    @abstractmethod
    def data_files(self, version: TableVersion) -> list[DataFile]:
        """The data files that readers of the version see."""

    # -------------------------------------------------------------- a folder that is not ours

    @abstractmethod
    def user_files(self) -> list[DataFile]:
        """The data files of a folder that we did not write; none when there is no folder."""

    @abstractmethod
    def user_folders(self) -> list[str]:
        """The folders in it that are no partitions: never rows of this table."""

    @abstractmethod
    def preview_version(self, state: TableState) -> TableVersion:
        """The user's folder as it would be with that state, to look at and not to publish."""

    # -------------------------------------------------------------- versions

    @abstractmethod
    def adopt_user_files(self, state: TableState, files: Sequence[DataFile]) -> TableVersion:
        """What the first load starts from: the user's files, which stay, published as the first version.

        Without such files readers see no table until the load itself is published.
        """

    @abstractmethod
    def publish(
        self, base: TableVersion, kept: Sequence[str], new: Sequence[DataFile], state: TableState
    ) -> None:
        """Make the version of these files what readers see, in one step that commits all of it."""

    @abstractmethod
    def recover(self) -> None:
        """Finish or undo what a crash interrupted."""

    @abstractmethod
    def has_batch(self, version: TableVersion, pipeline: str, target: str, batch_key: str) -> bool:
        """Whether the batch was committed before."""

    @abstractmethod
    def ledger_entries(self, version: TableVersion, pipeline: str, target: str) -> Iterator[LedgerEntry]:
        """The committed batches of a pipeline and target, newest first."""


class StorageRoot(ABC):
    """A place for tables. What fails in it is told as an error of ours."""

    @abstractmethod
    def explain_errors(self, state: str) -> AbstractContextManager[None]:
        """What the place refuses within the block is raised with the state that remains."""

    @abstractmethod
    def table_storage(self, table: TableSpec) -> TableStorage:
        """The home of a declared table; PlanError for a name that cannot be one."""

    @abstractmethod
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]: ...

    @abstractmethod
    def remember_target(self, home: TableStorage, pipeline: str, target: str) -> None:
        """Note where a pipeline's target lives, so that its ledger is found by the target's name."""

    @abstractmethod
    def remembered_table(self, pipeline: str, target: str) -> TableStorage | None: ...

    @abstractmethod
    def new_staging(self, load: Load, layout: FileLayout) -> FilesStaging:
        """An empty place for one attempt's parts."""

    @abstractmethod
    def drop_staging(self, staging: Staging) -> None:
        """Never an error: a load that is committed must not be called failed. The next run sweeps."""

    @abstractmethod
    def sweep_staging(self, pipeline: str, target: str) -> list[str]: ...

    @abstractmethod
    def sweep_table(self, home: TableStorage, pipeline: str, target: str) -> list[str]:
        """Drop what a crashed load left of a table, beside staging."""

    def remarks(self) -> tuple[str, ...]:
        return ()
