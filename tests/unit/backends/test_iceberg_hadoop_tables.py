"""Iceberg tables in a plain folder: none is inside another, whose maintenance would delete its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow import IcebergConnection
from ematix_flow.backends.iceberg.target import IcebergTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType


def require_separate(tmp_path: Path, schema: str | None, name: str, **fields: Any) -> None:
    given = {"name": "lake", "catalog_type": "hadoop", "warehouse": str(tmp_path / "lake"), **fields}
    target = open_backend(IcebergConnection(**given)).target()
    assert isinstance(target, IcebergTarget)
    target.iceberg.require_separate(TableSpec(schema, name, (ColumnSpec("id", DataType("big_int")),)))


def make(tmp_path: Path, folder: str) -> None:
    for path in ("metadata/v1.metadata.json", "data/x.parquet"):
        (tmp_path / "lake" / folder / path).parent.mkdir(parents=True)
        (tmp_path / "lake" / folder / path).touch()


@pytest.mark.parametrize("fields", [{}, {"staging": "/tmp/elsewhere"}, {"namespace": "team"}])
def test_a_table_is_made_neither_in_another_nor_around_it(tmp_path: Path, fields: dict[str, str]) -> None:
    above = "team/" if "namespace" in fields else ""
    make(tmp_path, f"{above}sales")
    with pytest.raises(PlanError, match=r"sales.orders' and '.*sales' would be one inside the other"):
        require_separate(tmp_path, "sales", "orders", **fields)
    make(tmp_path, f"{above}shop/orders")
    with pytest.raises(PlanError, match=r"shop' and '.*shop.orders' would be one inside the other"):
        require_separate(tmp_path, None, "shop", **fields)
    require_separate(tmp_path, None, "sales", **fields)
    require_separate(tmp_path, "shop", "orders", **fields)
    require_separate(tmp_path, "shop", "others", **fields)


def test_where_a_catalog_chooses_the_folders_names_say_nothing_of_them(tmp_path: Path) -> None:
    make(tmp_path, "sales")
    require_separate(tmp_path, "sales", "orders", catalog_type="rest", uri="https://catalog/api")
