"""File modes after a run: only the user can read state; the umask decides who can read tables."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import ematix, register_connection
from ematix_flow.backends.lake.journal import FOLDER
from ematix_flow.backends.objectstore.layout.table_paths import HIDDEN
from ematix_flow.spec.connections import (
    Connection,
    DeltaLocalConnection,
    DuckDBConnection,
    IcebergConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.state.state_root import state_root
from tests.stream_runs import load, stream

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def targets(root: Path) -> dict[str, Connection]:
    return {
        "sqlite": SQLiteConnection(name="target", path=str(root / "shop.db")),
        "duckdb": DuckDBConnection(name="target", path=str(root / "shop.duckdb")),
        "files": ObjectStoreLocalConnection(name="target", path=str(root), format="parquet"),
        "delta": DeltaLocalConnection(name="target", path=str(root)),
        "iceberg": IcebergConnection(name="target", catalog_type="hadoop", warehouse=str(root)),
    }


def is_open(path: Path, root: Path) -> bool:
    """Whether others can read a file, or a folder that is no more than a way to one, below the root."""
    above = [folder for folder in path.parents if folder != root and root in folder.parents]
    if any(not folder.stat().st_mode & stat.S_IXOTH for folder in above):
        return False
    return bool(path.stat().st_mode & stat.S_IROTH)


def is_state(path: Path, root: Path) -> bool:
    """Whether the file under a target's root is state. The hidden folder also has the versions of tables."""
    parts = path.relative_to(root).parts
    if FOLDER in parts:
        return True
    return HIDDEN in parts and parts[parts.index(HIDDEN) + 1 : parts.index(HIDDEN) + 2] != ("tables",)


def files_below(root: Path) -> list[Path]:
    return [Path(above, name) for above, _, names in os.walk(root) for name in names]


def assert_private(root: Path) -> None:
    """The root of a target: its state is closed, everything else is open."""
    found = files_below(root)
    assert any(is_state(path, root) for path in found) and any(not is_state(path, root) for path in found)
    for path in found:
        assert is_open(path, root) != is_state(path, root), path


def assert_state_root_private() -> None:
    root = state_root(os.environ)
    assert files_below(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for path in files_below(root):
        assert not is_open(path, root), path
        if "checkpoints" not in path.parts:  # Spark writes there, into a folder that is closed
            assert not path.stat().st_mode & 0o077, path


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "files", "delta", "iceberg"])
def test_a_run_leaves_its_state_to_its_user_and_its_tables_to_all(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "target"
    root.mkdir()
    with sqlite3.connect(tmp_path / "source.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO orders VALUES (?)", [(1,), (2,)])
    register_connection(SQLiteConnection(name="source", path=str(tmp_path / "source.db")))
    register_connection(targets(root)[kind])
    table = TableSpec("shop", "orders", (ColumnSpec("id", DataType("big_int"), primary_key=True),))

    @ematix.pipeline(target=table, source_connection="source", target_connection="target", name="orders")
    def orders(conn: Any) -> str:
        return "SELECT id FROM orders"

    orders.sync()
    assert_private(root)
    assert_state_root_private()


def test_a_stream_leaves_its_state_to_its_user(tmp_path: Path) -> None:
    root = tmp_path / "target"
    root.mkdir()
    (tmp_path / "inbox" / "raw").mkdir(parents=True)
    (tmp_path / "inbox" / "raw" / "1.json").write_text(json.dumps({"id": 1}))
    source = ObjectStoreLocalConnection(name="inbox", path=str(tmp_path / "inbox"), format="json_lines")
    result = load(
        stream(source=source, source_query="raw/", target=targets(root)["sqlite"], target_table="events")
    )
    assert result.total_rows == 1
    assert_private(root)
    assert_state_root_private()
