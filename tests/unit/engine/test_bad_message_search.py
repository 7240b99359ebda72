"""Which rows of a batch are to blame: found among the others, and never for what is not their fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow import errors
from ematix_flow.engine.streams import bad_message_search
from ematix_flow.engine.streams.bad_message_search import find_rejected_rows, is_row_error

REJECTED = errors.RowRejected("together")


@given(st.data())
def test_rows_that_fail_alone_or_together_are_found_and_the_first_of_them_stay(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=40))
    bad = data.draw(st.sets(st.integers(0, len(keys) - 1)))

    def attempt(rows: Sequence[int]) -> None:
        for row in rows:
            if row in bad:
                raise errors.RowRejected(f"row {row}")
        chosen = [keys[row] for row in rows]
        for row in rows:
            if chosen.count(keys[row]) > 1:
                raise errors.RowRejected(f"key {keys[row]}")

    found = find_rejected_rows(len(keys), attempt, REJECTED)
    good = [row for row in range(len(keys)) if row not in bad]
    later = {row for at, row in enumerate(good) if keys[row] in [keys[each] for each in good[:at]]}
    assert set(found) == bad | later
    assert all(found[row].what == f"row {row}" for row in bad)
    assert all(found[row].what == f"key {keys[row]}" for row in later)


NOT_OF_ROWS = [
    errors.CannotConnect("nobody answers"),
    errors.TargetFailed("the connection to the target broke"),
    errors.TargetFailed("permission denied for table events"),
    errors.SchemaMismatch("the table has another column"),
    errors.DataLost("retention took them"),
    errors.SparkFailed("staging failed: IOException: No space left on device"),
    errors.SparkFailed("a batch failed: java.lang.OutOfMemoryError: Java heap space"),
    errors.SparkFailed("a batch failed: Python worker exited unexpectedly (crashed)"),
    errors.LoadError("a batch failed: PermissionError: [Errno 13] Permission denied: 'x'"),
    errors.LoadError("a batch failed: OSError: [Errno 28] No space left on device"),
    errors.LoadError("a batch failed: ConnectionResetError: [Errno 104] Connection reset by peer"),
]


@pytest.mark.parametrize("failure", NOT_OF_ROWS, ids=lambda failure: failure.what[:40])
def test_no_row_is_blamed_for_a_failure_that_is_not_about_rows(failure: errors.FlowError) -> None:
    assert not is_row_error(failure)

    def attempt(rows: Sequence[int]) -> None:
        raise failure

    for total in (1, 2, 9):
        with pytest.raises(type(failure)):
            find_rejected_rows(total, attempt, REJECTED)


@pytest.mark.parametrize("total", [1, 2, 9])
def test_what_fails_for_every_row_is_nobodys_fault_when_no_target_refused_a_row(total: int) -> None:
    def attempt(rows: Sequence[int]) -> None:
        raise errors.SparkFailed("a batch failed: something that nobody knows")

    with pytest.raises(errors.SparkFailed):
        find_rejected_rows(total, attempt, REJECTED)


def test_a_failure_that_is_over_blames_nobody() -> None:
    assert find_rejected_rows(5, lambda _: None, REJECTED) == {}


def test_more_than_some_rows_stop_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_message_search, "MAX_REJECTED", 3)

    def attempt(rows: Sequence[int]) -> None:
        if rows:
            raise errors.RowRejected("no")

    with pytest.raises(errors.LoadError, match="more than 3 messages"):
        find_rejected_rows(10, attempt, REJECTED)
