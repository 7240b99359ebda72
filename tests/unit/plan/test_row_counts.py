"""Row counts as one value: added over targets, shown under the names that users read."""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.plan.results import RunResult, TargetResult
from ematix_flow.spec.row_counts import NO_ROWS, UNKNOWN_ROWS, RowCounts

ONE = RowCounts(read=10, inserted=4, updated=3, deleted=2, unchanged=1, outranked=2)
NAMES = ["rows_read", "rows_inserted", "rows_updated", "rows_deleted", "rows_unchanged", "rows_outranked"]


def test_counts_are_added_one_by_one() -> None:
    assert ONE + RowCounts(1, 2, 3, 4, 5, 6) == RowCounts(11, 6, 6, 6, 6, 8)
    assert ONE + NO_ROWS == ONE


def test_a_count_that_one_side_does_not_know_is_unknown() -> None:
    known_in_part = replace(ONE, unchanged=None)
    assert known_in_part + ONE == replace(ONE + ONE, unchanged=None)
    assert ONE + UNKNOWN_ROWS == UNKNOWN_ROWS


def test_a_run_shows_the_counts_of_all_targets() -> None:
    targets = tuple(
        TargetResult(name, "merge", "copy", "succeeded", rows=rows)
        for name, rows in (("a", ONE), ("b", NO_ROWS), ("c", ONE))
    )
    result = RunResult("orders", "r1", "succeeded", targets, 1.0)
    assert [getattr(result, name) for name in NAMES] == [20, 8, 6, 4, 2, 4]
    assert [getattr(targets[0], name) for name in NAMES] == [10, 4, 3, 2, 1, 2]
    for document in (result.to_json(), targets[0].to_json()):
        first = list(document).index("rows_read")
        assert list(document)[first : first + 6] == NAMES
    assert [result.to_json()[name] for name in NAMES] == [20, 8, 6, 4, 2, 4]
