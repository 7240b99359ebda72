"""The questions that tests of direct loads put to a lake in a folder. Other readers answer them."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import Backend
from ematix_flow.backends.iceberg.target import IcebergTarget
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.matched_loads import table_of
from tests.iceberg_reading import static_table
from tests.lakes import lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SMALL = table_of("small", {}, {"id": DataType("big_int"), "name": DataType("text")})
_THEIRS = {"name": "theirs", "_loaded_at": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), "_batch_id": "x"}


@dataclass(frozen=True)
class DirectLake(ABC):
    root: Path
    spark: SparkSession | None = None

    kind = ""
    committer = ""
    data = ""  # the folder of a table's files, in its own
    commits = ""  # that of its commits
    needs_spark = ""  # a property for which Spark commits

    @property
    def folder(self) -> Path:
        """The folder of the table `SMALL`."""
        return self.table_folder("small")

    def table_folder(self, name: str) -> Path:
        return self.root / "contract" / name

    def backend(self) -> Backend:
        return lake_backend(self.kind, self.root)

    def by_spark(self) -> LakeTarget:
        assert self.spark is not None
        return lake_target(self.backend(), self.spark)

    def data_files(self) -> set[str]:
        """The files that direct loads have written."""
        return {path.name for path in (self.folder / self.data).glob("*.zstd.parquet")}

    def is_there(self) -> bool:
        return (self.folder / self.commits).exists()

    def ids(self) -> list[int]:
        return sorted(self.read("small").column("id").to_pylist())

    def read_by_spark(self, name: str) -> pa.Table:
        target = self.by_spark()
        return target.spark().table(self.sql_name(target, name)).toArrow()

    def read_by_duckdb(self, name: str) -> pa.Table:
        """The files that the table names, as DuckDB reads them: its extensions cannot be had here."""
        import duckdb

        with duckdb.connect() as database:
            return database.read_parquet(self.files_of(name)).to_arrow_table()

    def schema_of_spark(self, name: str) -> StructType:
        target = self.by_spark()
        return target.spark().table(self.sql_name(target, name)).schema

    def count_by_spark(self, name: str, condition: str) -> int:
        target = self.by_spark()
        return target.spark().table(self.sql_name(target, name)).where(condition).count()

    def set_property(self, name: str, definition: str) -> None:
        target = self.by_spark()
        target.spark().sql(f"ALTER TABLE {self.sql_name(target, name)} SET TBLPROPERTIES ({definition})")

    def sql_name(self, target: LakeTarget, name: str) -> str:
        target.name_table(table_of(name, {}, {"id": DataType("big_int")}))
        return target.dialect.render(target.dialect.table("contract", name))

    def committed_files(self) -> set[str]:
        """The files of direct loads that the table names."""
        names = {path.rpartition("/")[2] for path in self.files_of("small")}
        return {name for name in names if name.endswith(".zstd.parquet")}

    @abstractmethod
    def read(self, name: str) -> pa.Table:
        """The newest version, by a library without Spark."""

    @abstractmethod
    def files_of(self, name: str) -> list[str]:
        """The paths of the files of the newest version."""

    @abstractmethod
    def commit_files(self) -> list[str]:
        """The names of the files that are the table's versions, from the first on."""

    @abstractmethod
    def rows_after(self, commits: int) -> int:
        """The rows of the table `SMALL` after so many commits, of which the first made it."""

    @abstractmethod
    def write_by_another(self, *numbers: int) -> None:
        """Add rows by a program that takes no lock of ours."""

    @abstractmethod
    def create_by_another(self) -> None:
        """Create the table `SMALL` without rows by such a program."""


class DeltaLake(DirectLake):
    kind, committer, data, commits = "delta", "delta-rs", ".", "_delta_log"
    needs_spark = "'delta.autoOptimize.optimizeWrite' = 'true'"

    def read(self, name: str) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(str(self.table_folder(name))).to_pyarrow_table()

    def files_of(self, name: str) -> list[str]:
        from deltalake import DeltaTable

        return [path.removeprefix("file://") for path in DeltaTable(str(self.table_folder(name))).file_uris()]

    def commit_files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / self.commits).glob("*"))

    def rows_after(self, commits: int) -> int:
        from deltalake import DeltaTable

        return len(DeltaTable(str(self.folder), version=commits - 1).to_pyarrow_table())

    def write_by_another(self, *numbers: int) -> None:
        from deltalake import DeltaTable, write_deltalake

        schema = pa.schema(DeltaTable(str(self.folder)).schema().to_arrow())
        rows = [{**_THEIRS, "id": number} for number in numbers]
        write_deltalake(str(self.folder), pa.Table.from_pylist(rows, schema=schema), mode="append")

    def create_by_another(self) -> None:
        from deltalake import DeltaTable

        columns = [pa.field(c.name, c.type.arrow()) for c in SMALL.with_load_columns().columns]
        DeltaTable.create(str(self.folder), pa.schema(columns))


class IcebergLake(DirectLake):
    kind, committer, data, commits = "iceberg", "pyiceberg", "data", "metadata"
    needs_spark = "'write.metadata.metrics.default' = 'full'"

    def read(self, name: str) -> pa.Table:
        table = static_table(self.root, "contract", name)
        assert table is not None
        return table.scan().to_arrow()

    def files_of(self, name: str) -> list[str]:
        table = static_table(self.root, "contract", name)
        assert table is not None
        return [task.file.file_path.removeprefix("file:") for task in table.scan().plan_files()]

    def commit_files(self) -> list[str]:
        names = [path.name for path in (self.folder / self.commits).glob("v*.metadata.json")]
        return sorted(names, key=lambda name: int(name[1:].split(".")[0]))

    def rows_after(self, commits: int) -> int:
        from pyiceberg.table import StaticTable

        path = self.folder / self.commits / f"v{commits}.metadata.json"
        return len(StaticTable.from_metadata(str(path)).scan().to_arrow())

    def write_by_another(self, *numbers: int) -> None:
        rows = ", ".join(f"({number}, 'theirs', TIMESTAMP '2026-01-01', 'x')" for number in numbers)
        self.sql("INSERT INTO {} (id, name, _loaded_at, _batch_id) VALUES " + rows)

    def create_by_another(self) -> None:
        columns = "id BIGINT, name STRING, _loaded_at TIMESTAMP NOT NULL, _batch_id STRING NOT NULL"
        self.sql(f"CREATE TABLE {{}} ({columns}) USING iceberg")

    def sql(self, statement: str) -> Any:
        """Run a statement of Spark on the table `SMALL`."""
        target = self.by_spark()
        assert isinstance(target, IcebergTarget)
        return target.spark().sql(statement.format(self.sql_name(target, "small"))).collect()


LAKES = {"delta": DeltaLake, "iceberg": IcebergLake}


def named(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def record_batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return cast_batch(pa.RecordBatch.from_pylist(list(rows), schema=SMALL.arrow_schema()), SMALL)


def load(target: LakeTarget, rows: Sequence[dict[str, Any]], mode: str = "append", **changes: Any) -> Any:
    made = new_load(changes.pop("table", SMALL), mode, **changes)  # type: ignore[arg-type]
    return load_rows(target, made, rows, change=False)
