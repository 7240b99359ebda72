"""The interface of a table into which a load commits the files of its tasks as they are, without Spark."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file in a table's data folder. ``statistics`` are its `file_statistics`."""

    name: str
    bytes: int
    rows: int
    written_at: int  # milliseconds since 1970
    statistics: str


@dataclass(frozen=True)
class WrittenRows:
    """What tasks have written. Files of ``first`` have rows at the first watermark of an incremental load.

    ``highest`` are texts of the highest watermark of each part. ``nulls`` is the number of rows without a
    watermark, and ``lower`` of those below the first one.
    """

    files: Sequence[WrittenFile] = ()
    first: Sequence[WrittenFile] = ()
    highest: Sequence[str] = ()
    nulls: int = 0
    lower: int = 0

    @property
    def count(self) -> int:
        return sum(file.rows for file in (*self.files, *self.first))

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, notes: Iterable[str]) -> WrittenRows:
        """All that the texts of several tasks tell."""
        found = [json.loads(note) for note in notes if note]
        files, first = ([WrittenFile(**each) for one in found for each in one[n]] for n in ("files", "first"))
        highest = [text for one in found for text in one["highest"]]
        return cls(
            files, first, highest, sum(one["nulls"] for one in found), sum(one["lower"] for one in found)
        )


@dataclass(frozen=True)
class SparkNeeded:
    """Why a load of a table cannot commit its files as they are."""

    reason: str


NO_VERSION = -1


class DirectTable(ABC):
    """The newest version of a table. A table that does not exist yet has `NO_VERSION`, and no rows."""

    @property
    @abstractmethod
    def version(self) -> int: ...

    @property
    @abstractmethod
    def column_names(self) -> Sequence[str]:
        """All columns of the table, in its order."""

    def file_schema(self, columns: Sequence[ColumnSpec]) -> pa.Schema:
        """The schema of files with these columns of the table."""
        import pyarrow as pa

        return pa.schema([pa.field(column.name, column.type.arrow()) for column in columns])

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the table still has no newer version."""

    @abstractmethod
    def newest_load(self) -> int:
        """The highest load number in the table's newest commits; 0 if there is none."""

    @abstractmethod
    def count_rows(self) -> int | None:
        """The number of rows; None if a file does not tell."""

    def rows_at(self, mark: Watermark, columns: Sequence[ColumnSpec]) -> pa.Table | None:
        """The rows with that watermark; None if they are too many for this process or cannot be read here."""
        return None

    @abstractmethod
    def commit(self, files: Sequence[WrittenFile], commit: LakeCommit, *, replace: bool) -> None:
        """Add the files to this version in one commit; with ``replace`` they replace all other files.

        A new table is created by this commit. ConcurrentCommit if the table has a newer version.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Keep the table's log short. Called after a commit; an error does not matter to the load."""
