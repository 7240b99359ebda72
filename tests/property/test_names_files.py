"""Files whose columns have names that reading needs itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow import ObjectStoreLocalConnection, ematix, register_connection
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", ["_metadata", "_ematix_file", "_EMATIX_s"])
def test_a_name_that_reading_csv_needs_itself_is_refused_with_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.csv").write_text(f"id,{name}\n1,x\n")
    register_connection(ObjectStoreLocalConnection(name="files", path=str(tmp_path), format="csv"))
    out = ObjectStoreLocalConnection(name="out", path=str(tmp_path / "out"), format="parquet")
    register_connection(out)
    columns = tuple(ColumnSpec(each, DataType("text"), nullable=True) for each in ("id", name))

    @ematix.pipeline(
        target=TableSpec("main", "t", columns),
        source_connection="files",
        target_connection="out",
        name="load",
        mode="append",
    )
    def load() -> str:
        return "SELECT * FROM src"

    with pytest.raises(SourceFailed, match=r"one\.csv has a column"):
        load.sync()
