"""Compiles assertions to SQL trees: one statement of measures, the failing rows, and samples of them.

`dialects` holds what differs between engines, `bounds` what a declared value means for a column's type.
How a measure becomes a verdict is in `judging`.
"""

from __future__ import annotations

from ematix_probe.compiling.conditions import FailingRows, failing_rows
from ematix_probe.compiling.measures import compile_assertions, compile_in_statements
from ematix_probe.compiling.samples import SampledAssertion, SampleQuery, sample_columns, sample_query
from ematix_probe.compiling.statements import CompiledMeasures, Measured
from ematix_probe.compiling.trees import ROWS

__all__ = [
    "ROWS",
    "CompiledMeasures",
    "FailingRows",
    "Measured",
    "SampleQuery",
    "SampledAssertion",
    "compile_assertions",
    "compile_in_statements",
    "failing_rows",
    "sample_columns",
    "sample_query",
]
