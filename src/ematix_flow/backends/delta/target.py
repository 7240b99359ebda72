"""Delta Lake as a target: the lake target with the column changes that Delta supports."""

from __future__ import annotations

from ematix_flow.backends.base import TableChange
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.sql.alterations import CannotAlter
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.spec.types import MAX_PRECISION, DataType

# before the point, in a Numeric that whole numbers become: as many as their files could hold
_DIGITS = {"small_int": 10, "integer": 10, "big_int": 20}


class DeltaTarget(LakeTarget):
    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        live = {c.name: c.type for c in diff.live.columns}
        for item in diff.widened:
            if not can_widen(live[item.name], item.type):
                digits = _DIGITS[live[item.name].kind]
                scale = min(item.type.scale or 0, MAX_PRECISION - digits)
                wide = DataType("numeric", precision=digits + scale, scale=scale)
                raise CannotAlter(
                    f"Delta Lake does not change column {item.name!r} from {live[item.name]} to {item.type}, "
                    f"which has fewer than {digits} digits before the point. Declare it as {wide}, or by "
                    "hand: add a column of the new type, fill it, and drop the old one"
                )
        return super().alterations(session, diff)


def can_widen(live: DataType, declared: DataType) -> bool:
    """Whether Delta can change the column's type like this without rewriting files."""
    if declared.kind != "numeric":
        return True
    return (declared.precision or 0) - (declared.scale or 0) >= _DIGITS.get(live.kind, 0)
