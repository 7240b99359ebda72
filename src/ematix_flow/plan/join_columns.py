"""The columns that a join yields, from the columns of its two sources."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.errors import SchemaMismatch, did_you_mean
from ematix_flow.plan.window_columns import INTEGERS, NOT_TIMES, UNCOMPARABLE
from ematix_flow.spec.joins import Join
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

_TEXTS = ("text", "string")


def join_columns(
    join: Join, sides: Sequence[Sequence[ColumnSpec]], where: SourceLocation | None
) -> tuple[ColumnSpec, ...]:
    """The columns of the result. ``sides`` are those of the left and of the right source.

    Raises SchemaMismatch if a column is missing, has an unsuitable type, or comes twice.
    """
    for source, keys, columns in zip(join.named_sources, join.keys, sides, strict=True):
        types = {column.name: column.type for column in columns}
        for name in (join.event_time_column, *keys):
            if name not in types:
                raise SchemaMismatch(
                    f"the join reads column {name!r} of {source}, which has no such column."
                    f"{did_you_mean(name, list(types))}",
                    where=where,
                    next_step="correct the name in Join(…), or declare the column in Source(columns=…)",
                )
        if types[join.event_time_column].kind in NOT_TIMES:
            raise SchemaMismatch(
                f"event_time_column= names {join.event_time_column!r}, which is "
                f"{types[join.event_time_column]} in {source} and no time",
                where=where,
                next_step="name a timestamp, a date, a text in ISO format, or a number of the Unix epoch",
            )
    left, right = ({column.name: column.type for column in columns} for columns in sides)
    for one, other in zip(*join.keys, strict=True):
        if not _are_comparable(left[one], right[other]):
            raise SchemaMismatch(
                f"{join.left_source}.{one} is {left[one]} and {join.right_source}.{other} is {right[other]}: "
                "the join cannot compare them",
                where=where,
                next_step="declare both with one type in Source(columns=…)",
            )
    joined = [
        ColumnSpec(f"{prefix}{column.name}", column.type, nullable=True)
        for prefix, columns in zip(join.prefixes, sides, strict=True)
        for column in columns
    ]
    _refuse_twice(joined, where)
    return tuple(joined)


def _are_comparable(one: DataType, other: DataType) -> bool:
    if one.kind in UNCOMPARABLE or other.kind in UNCOMPARABLE:
        return False
    if one.kind == other.kind:
        return one.kind != "numeric" or one.scale == other.scale
    return any(one.kind in family and other.kind in family for family in (INTEGERS, _TEXTS))


def _refuse_twice(columns: Sequence[ColumnSpec], where: SourceLocation | None) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise SchemaMismatch(
                f"two columns of the join's result are called {column.name!r}",
                where=where,
                next_step="set another left_column_prefix= or right_column_prefix=",
            )
        seen.add(column.name.lower())
