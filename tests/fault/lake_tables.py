"""Tables of files and lakes as fault tests load them, read by other programs.

Each says which rows are there (None: there is no table), how many batches its ledger holds, and what lies
there that no run needs any more.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fault.databases import Database
from tests.services.s3 import S3Server

Row = tuple[Any, ...]
Seen = tuple[int, list[Row] | None]


def _plain(table: Any, query: str) -> list[Row]:
    def value(found: Any) -> Any:
        if isinstance(found, bool):
            return int(found)
        if isinstance(found, dt.datetime) and found.tzinfo is not None:
            return found.astimezone(dt.timezone.utc).replace(tzinfo=None)
        return found

    names = query.split(", ")
    return [tuple(value(row[name]) for name in names) for row in table.select(names).to_pylist()]


@dataclass(frozen=True)
class LocalFiles(Database):
    """A folder of Parquet files."""

    kind: str = "object_store_local"
    where: str = ""

    def look(self, schema: str, name: str, query: str) -> Seen:
        import pyarrow.dataset as ds

        table = Path(self.where, schema, name)
        if not table.is_symlink() and not table.exists():
            return 0, None
        data = table.resolve()  # the version that is current now
        state = json.loads((data.parent / "state.json").read_text())
        if not any(data.iterdir()):
            return len(state["ledger"]), []
        return len(state["ledger"]), _plain(ds.dataset(data, format="parquet").to_table(), query)

    def left_behind(self, schema: str, name: str) -> list[str]:
        hidden = Path(self.where, ".ematix_flow")
        current = Path(self.where, schema, name).resolve().parent
        known = {current.name, *(r["version"] for r in _state(current)["replaced"])}
        versions = {path.name for path in hidden.glob("tables/*/*") if path.is_dir()}
        return sorted([str(path) for path in hidden.glob("staging/*")] + list(versions - known))


def _state(version: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((version / "state.json").read_text())
    return found


@dataclass(frozen=True)
class FilesInBucket(Database):
    """Parquet files below the prefix ``where`` of a bucket; the newest manifest names those of the table."""

    kind: str = "object_store_s3"
    where: str = ""
    server: S3Server = field(kw_only=True)
    bucket: str = field(kw_only=True)

    @property
    def fields(self) -> str:
        found = {**self.server.connection_fields(self.bucket), "prefix": self.where, "format": "parquet"}
        return "; ".join([f"kind = {self.kind!r}", *(f"{key} = {value!r}" for key, value in found.items())])

    def look(self, schema: str, name: str, query: str) -> Seen:
        import pyarrow as pa

        state = self._newest_manifest()
        if state is None or state.get("begun"):
            return 0, None
        tables = [self._table(f"{schema}/{name}/{file}") for file in state["files"]]
        return len(state["ledger"]), _plain(pa.concat_tables(tables), query) if tables else []

    def left_behind(self, schema: str, name: str) -> list[str]:
        state = self._newest_manifest()
        assert state is not None
        files = [key for key in self._keys(f"{schema}/{name}/") if not key.rpartition("/")[2].startswith("_")]
        replaced = {
            file for key in self._hidden() if "/replaced-" in key for file in json.loads(self._read(key))
        }
        known = {f"{schema}/{name}/{file}" for file in {*state["files"], *replaced}}
        ours = [key for key in self._hidden() if "/intent-" in key or "/staging/" in key]
        return sorted([*(set(files) - known), *ours])

    def _newest_manifest(self) -> dict[str, Any] | None:
        keys = sorted(key for key in self._hidden() if "/manifest-" in key)
        return json.loads(self._read(keys[-1])) if keys else None

    def _table(self, key: str) -> Any:
        import pyarrow.parquet as pq

        return pq.read_table(io.BytesIO(self._read(key)))

    def _hidden(self) -> list[str]:
        return self._keys(".ematix_flow/")

    def _keys(self, below: str) -> list[str]:
        start = f"{self.where}/"
        return [key[len(start) :] for key in self.server.keys_in(self.bucket, start + below)]

    def _read(self, key: str) -> bytes:
        answer = self.server.client().get_object(Bucket=self.bucket, Key=f"{self.where}/{key}")
        found: bytes = answer["Body"].read()
        return found


@dataclass(frozen=True)
class _Lake(Database):
    def look(self, schema: str, name: str, query: str) -> Seen:
        found = self._rows_and_tokens(schema, name, query)
        if found is None:
            return 0, None
        rows, tokens = found
        folder = Path(self.where, schema, name, "_ematix_flow")
        marked = {path.stem.rpartition("-")[2] for path in folder.glob("*.done")}
        entries = {path.stem.rpartition("-")[2] for path in folder.glob("*-*.json")}
        return len(entries & {*tokens, *marked}), rows

    def _rows_and_tokens(self, schema: str, name: str, query: str) -> tuple[list[Row], Sequence[str]] | None:
        raise NotImplementedError

    def left_behind(self, schema: str, name: str) -> list[str]:
        return [str(p) for p in Path(self.where, ".ematix_flow/staging").rglob("*") if p.is_file()]


@dataclass(frozen=True)
class DeltaFolder(_Lake):
    """Delta tables in a folder, read by delta-rs."""

    kind: str = "delta_local"
    where: str = ""

    def _rows_and_tokens(self, schema: str, name: str, query: str) -> tuple[list[Row], Sequence[str]] | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(str(Path(self.where, schema, name)))
        except TableNotFoundError:
            return None
        tokens = [each["userMetadata"] for each in table.history() if each.get("userMetadata")]
        return _plain(table.to_pyarrow_table(), query), tokens


@dataclass(frozen=True)
class IcebergFolder(_Lake):
    """Iceberg tables of a folder that is its own catalog, read by pyiceberg."""

    kind: str = "iceberg"
    where: str = ""

    @property
    def fields(self) -> str:
        return f'kind = "iceberg"; catalog_type = "hadoop"; warehouse = {self.where!r}'

    def _rows_and_tokens(self, schema: str, name: str, query: str) -> tuple[list[Row], Sequence[str]] | None:
        from tests.iceberg_reading import static_table

        table = static_table(Path(self.where), schema, name)
        if table is None:
            return None
        summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
        tokens = [s["ematix_flow.token"] for s in summaries if s and "ematix_flow.token" in s]
        return _plain(table.scan().to_arrow(), query), tokens
