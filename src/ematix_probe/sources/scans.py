"""What one table of a scan is made of: SQL that DuckDB reads itself, or Arrow batches that can be read again.

A scan says where rows come from. It holds no connection; `duckdb_scan` puts it into one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp

if TYPE_CHECKING:
    import pyarrow as pa

TypeWords = Mapping[str, str]


class Scan:
    """The rows of one table."""

    not_null: frozenset[str] = frozenset()  # the columns that the source itself says hold no NULL
    costly: bool = False  # a second reading costs more than a copy: text, and what is in a bucket

    def explain(self, message: str) -> str:
        """DuckDB's message in the words of the source, such as the name of the object in a bucket."""
        return message


@dataclass(frozen=True)
class SqlScan(Scan):
    """Rows that DuckDB reads itself. ``query`` is a SELECT in DuckDB's SQL."""

    query: exp.Query
    not_null: frozenset[str] = frozenset()
    costly: bool = False
    rename: Callable[[str], str] = field(default=str)

    def explain(self, message: str) -> str:
        return self.rename(message)


class BatchScan(Scan, ABC):
    """Rows as Arrow batches. Each call of `read` starts from the first row."""

    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        """The batches, with these columns only, in this order."""


@dataclass(frozen=True)
class SpooledScan(Scan):
    """Rows that can be read only once: they are copied into DuckDB first, which spills to the disk."""

    reader: Any  # has __arrow_c_stream__


@dataclass(frozen=True)
class DatasetScan(BatchScan):
    """A dataset of pyarrow, such as files in a bucket or ORC."""

    dataset: Any
    not_null: frozenset[str] = frozenset()
    costly: bool = False
    rename: Callable[[str], str] = field(default=str)

    def schema(self) -> pa.Schema:
        return self.dataset.schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        scanner = self.dataset.scanner(
            columns=list(columns), batch_size=_BATCH_ROWS, batch_readahead=4, fragment_readahead=2
        )
        return scanner.to_reader()

    def explain(self, message: str) -> str:
        return self.rename(message)


_BATCH_ROWS = 65_536
