"""Compiles assertions to SQL trees: one statement of measures, the failing rows, and samples of them.

`dialects` holds what differs between engines, `bounds` what a declared value means for a column's type.
How a measure becomes a verdict is in `judging`.
"""

from __future__ import annotations

from ematix_probe.compiling.conditions import FailingRows, failing_rows
from ematix_probe.compiling.measures import CompiledMeasures, compile_assertions
from ematix_probe.compiling.samples import sample_columns, sample_query
from ematix_probe.compiling.trees import ROWS

__all__ = [
    "ROWS",
    "CompiledMeasures",
    "FailingRows",
    "compile_assertions",
    "failing_rows",
    "sample_columns",
    "sample_query",
]
