"""Loads of files that are killed for real at every commit point, the one that makes the table too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.databases import file_database
from tests.fault.forked_runs import ForkedRuns, forked_runs
from tests.fault.histories import BY_NAME, History
from tests.fault.lake_tables import LocalFiles

pytestmark = pytest.mark.fault

POINTS = (
    "staging.created",
    "task.staged",
    "staging.loaded",
    "apply.began",
    "files.version_written",
    "apply.rows_written",
    "apply.ledger_written",
    "apply.before_commit",
    "files.before_publish",
    "files.after_publish",
    "apply.after_commit",
    "staging.dropped",
    "runlog.before_finish",
)
LOADS = ("append_all", "append_new", "replace_all")


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


@pytest.mark.parametrize("point", POINTS)
def test_a_load_of_files_that_is_killed_shows_the_table_before_or_after(
    tmp_path: Path, runs: ForkedRuns, point: str
) -> None:
    """Before the first load there is no table; the next run is exact, and leaves nothing of the dead one."""
    load = BY_NAME[LOADS[POINTS.index(point) % len(LOADS)]]
    source, target = file_database("sqlite", tmp_path, "source"), LocalFiles(where=str(tmp_path / "lake"))
    history = History(load, source, target)
    history.write_module(tmp_path)
    history.create()
    for number in range(2):
        history.advance(number)
        assert runs.run(tmp_path, slot=history.slot(number), fault=f"{point}=kill").killed
        batches, rows = history.seen()
        assert batches in (number, number + 1)
        assert rows == history.must_hold(batches - 1)
        assert history.is_there() == (batches > 0)
        again = runs.run(tmp_path, slot=history.slot(number))
        assert again.code == 0, again.told
        assert history.seen() == (number + 1, history.must_hold(number))
    assert target.left_behind("loads", load.name) == []
