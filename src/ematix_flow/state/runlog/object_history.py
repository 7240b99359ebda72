"""Pages of a run log in an object store, from the names of its marks.

A mark's name has the order, the id, the pipeline and the status of a run, so a page reads only the runs that
it shows; a filter on anything else reads a bounded number of runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ematix_flow.state.object_store import key_part, newest_first_key, time_of_newest_first_key
from ematix_flow.state.runlog.history import RunCursor, RunFilter, RunPage, RunSummary
from ematix_flow.state.runlog.records import RunRecord, RunStatus
from ematix_flow.state.runlog.run_marks import RunMark

MOST_READ = 300  # runs that one page reads for a filter that names do not answer
MOST_SUMMARIES_READ = 600  # above, end and rows of the newest runs are left out
_ESCAPED = re.compile(r"~([0-9a-f]{2})")

ReadRuns = Callable[[Iterator[str]], Iterator[RunRecord]]


def cursor_place(cursor: RunCursor) -> str:
    """The place of a run among the marks, which are in this order."""
    return f"{newest_first_key(cursor.started_at)}-{key_part(cursor.run_id)}"


def page_of_marks(
    marks: Iterable[RunMark], wanted: RunFilter, after: RunCursor | None, limit: int, read: ReadRuns
) -> RunPage:
    """Return the page of the marks, newest first, that come after the cursor."""
    most = MOST_READ if wanted.needs_records else 10 * limit
    begin = None if after is None else cursor_place(after)
    oldest = None if wanted.since is None else newest_first_key(wanted.since)
    newest = None if wanted.until is None else newest_first_key(wanted.until)
    chosen = (
        mark
        for mark in itertools.takewhile(lambda mark: oldest is None or mark.order <= oldest, marks)
        if (begin is None or mark.place > begin)
        and (newest is None or mark.order > newest)
        # a run that was running when its mark was written may have ended since: read it
        and (wanted.status is None or mark.status in (wanted.status, "running"))
    )
    found: list[RunRecord] = []
    last: RunMark | None = None
    examined = 0
    while examined < most:
        portion = list(itertools.islice(chosen, min(limit + 1, most - examined)))
        if not portion:
            return RunPage(tuple(found), None)
        examined += len(portion)
        for record in read(mark.run_id for mark in portion):
            if len(found) == limit and wanted.matches(record):
                return RunPage(tuple(found), RunCursor.of(found[-1]))
            if wanted.matches(record):
                found.append(record)
        last = portion[-1]
    return RunPage(tuple(found), None if last is None else _cursor_of(last))


def _cursor_of(mark: RunMark) -> RunCursor:
    return RunCursor(time_of_newest_first_key(mark.order), _plain_text(mark.run_id))


def summaries_of_marks(
    marks: Sequence[Sequence[RunMark]], names: Sequence[str], read: ReadRuns
) -> dict[str, tuple[RunSummary, ...]]:
    """Return the runs of each pipeline; they are read if they are few, else known by their marks alone."""
    if sum(map(len, marks)) <= MOST_SUMMARIES_READ:
        found: dict[str, list[RunSummary]] = {}
        for record in read(mark.run_id for its in marks for mark in its):
            found.setdefault(record.pipeline, []).append(RunSummary.of(record))
        return {name: tuple(found[name]) for name in names if name in found}
    return {
        name: tuple(summary_of_mark(mark, name) for mark in its)
        for name, its in zip(names, marks, strict=True)
        if its
    }


def summary_of_mark(mark: RunMark, pipeline: str | None = None) -> RunSummary:
    """The run of a mark. The name of a long or unusual pipeline is told by the caller."""
    status: RunStatus = mark.status  # type: ignore[assignment]  # a mark is written with a status
    name = _plain_text(mark.pipeline) if pipeline is None else pipeline
    return RunSummary(_plain_text(mark.run_id), name, status, time_of_newest_first_key(mark.order))


def _plain_text(part: str) -> str:
    """The text of a part of a key, unless it was shortened."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part)
    return plain.encode("latin-1", "replace").decode("utf-8", "replace")
