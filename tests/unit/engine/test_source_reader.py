"""Which columns of a source's result stay text, by what the targets declare."""

from __future__ import annotations

from typing import Any

from ematix_flow.engine.planning.source_reader import text_columns
from ematix_flow.normalize import derive, sql, trim
from ematix_flow.spec.pipelines import PipelineSpec, SourceSpec, TargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.transforms import Limit
from ematix_flow.spec.types import DataType


def target(name: str = "t", column_map: Any = (), **kinds: str) -> TargetSpec:
    columns = tuple(ColumnSpec(column, DataType(kind)) for column, kind in kinds.items())
    return TargetSpec("warehouse", table=TableSpec(None, name, columns), column_map=column_map)


def found(*targets: TargetSpec, source: SourceSpec | None = None, **options: Any) -> frozenset[str]:
    return text_columns(PipelineSpec("load", "m:load", targets, source=source or SourceSpec(), **options))


def test_columns_that_every_target_keeps_as_text_stay_text() -> None:
    assert found(target(a="text", b="integer", c="jsonb", d="uuid")) == {"a", "c", "d"}
    assert found(target(a="text", b="text"), target("u", a="text", b="double")) == {"a"}
    assert found(target(a="text"), TargetSpec("files", prefix="raw")) == frozenset()


def test_renamed_columns_are_known_by_both_names() -> None:
    assert found(target(a="text", column_map=(("a", "x"),))) == {"a", "x"}
    assert found(target(a="text", x="integer", column_map=(("a", "x"), ("x", "a")))) == frozenset()


def test_what_is_computed_with_or_compared_keeps_its_type() -> None:
    assert found(target(a="text"), source=SourceSpec(watermark_column="a")) == frozenset()
    assert found(target(a="text"), transforms_pre=(Limit(3),)) == frozenset()
    columns = (
        ColumnSpec("email", DataType("text"), normalizers=(trim(),)),
        ColumnSpec("b", DataType("text"), normalizers=(sql("{value} + 1"),)),
        ColumnSpec("c", DataType("text"), normalizers=(derive("D * 2"),)),
        ColumnSpec("d", DataType("text")),
    )
    assert found(TargetSpec("warehouse", table=TableSpec(None, "t", columns))) == {"email"}
