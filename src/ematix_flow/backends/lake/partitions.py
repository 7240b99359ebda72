"""How the files of a lake table are divided, against what is declared: it is so from the first load on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ematix_flow.backends.base import DiffLine, TablePlan
from ematix_flow.spec.tables import TableSpec


def with_partitions(
    plan: TablePlan, table: TableSpec, declared: Sequence[str], there: Sequence[str] | None
) -> TablePlan:
    """The plan with the difference in it; ``there`` is None for a table that is yet to be made."""
    if there is None:
        return replace(plan, diff=(*plan.diff, DiffLine("+", _shown(declared))))
    if set(there) == set(declared):
        return plan
    told = (
        f"{table.label} is {_shown(there)}, and partition_by= says ({', '.join(declared)}): "
        "leave partition_by= out or make it the same; to divide it anew, load another table"
    )
    line = DiffLine("!", "partitions", _shown(there), _shown(declared))
    return replace(
        plan,
        differences=(*plan.differences, told),
        diff=(*plan.diff, line),
        stops=(*plan.stops, told),
    )


def _shown(names: Sequence[str]) -> str:
    return f"partitioned by ({', '.join(names)})" if names else "not partitioned"
