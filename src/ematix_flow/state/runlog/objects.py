"""The run log in an object store.

A run is one document, ``runs/<id>``, which is created once and changed by conditional writes. Everything
else is a mark that can be derived from it:

- ``running/<pipeline>/<newest first>-<id>`` while it has not ended;
- ``time/<newest first>-<id>/<pipeline>/<status>`` and ``pipelines/<pipeline>/<newest first>-<id>/<status>``
  when it has;
- ``batches/<pipeline>/<newest first>-<id>`` when it has a batch.

So the newest runs are the first names of a listing, names contain the status, and only runs that are shown
are read. A list is read in two steps, first the running and then the ended runs: a run that ends between
them is in at least one. The log of a run is ``output/<id>``.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.errors import ConfigError, FlowError, UsageError
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.object_store import (
    PARALLEL_REQUESTS,
    ObjectStore,
    key_part,
    newest_first_key,
    require_version,
)
from ematix_flow.state.runlog.base import RunLog, no_such_run, take_until_success, warn_once
from ematix_flow.state.runlog.history import RunCursor, RunFilter, RunPage, RunSummary
from ematix_flow.state.runlog.object_history import (
    cursor_place,
    page_of_marks,
    summaries_of_marks,
    summary_of_mark,
)
from ematix_flow.state.runlog.records import RunRecord, RunStatus, bounded_output
from ematix_flow.state.runlog.run_marks import RunMark
from ematix_flow.state.times import aware_utc

MOST_RUNNING = 100
_MAX_TRIES = 20
_AWAY_SECONDS = 60.0  # after a failure, only the end of a run is written before this time is over
_MAX_NAMES_READ = 3_000  # names of the newest runs, for the newest of each pipeline
_PURGE_PORTION = 500


class ObjectRunLog(RunLog):
    """A run log below the store's prefix."""

    def __init__(self, store: ObjectStore, *, read_only: bool = False) -> None:
        self.location, self._store = store.location, store
        self._away_until = 0.0
        require_version(store, read_only=read_only)

    # ------------------------------------------------------------------ writing

    def start(self, record: RunRecord) -> None:
        if not self._may_write():
            return
        try:
            if not self._store.create(_run_key(record.run_id), record.to_json()):
                raise UsageError(f"the run log already has a run {record.run_id!r}")
            self._store.mark_all(_start_marks(record))
        except UsageError:
            raise
        except FlowError as error:
            self._warn(f"the start of run {record.run_id}", error)

    def start_all(self, records: Sequence[RunRecord]) -> None:
        """Several at a time."""
        if not records or not self._may_write():
            return
        by_id = {record.run_id: record for record in records}
        marks = [mark for record in records for mark in _start_marks(record)]
        try:
            created = self._store.map_parallel(
                lambda run_id: self._store.create(_run_key(run_id), by_id[run_id].to_json()), list(by_id)
            )
            known = [run_id for run_id, is_new in zip(by_id, created, strict=True) if not is_new]
            self._store.mark_all(marks)
        except FlowError as error:
            self._warn(f"the start of {len(records):,} runs", error)
            return
        if known:
            raise UsageError(f"the run log already has a run {known[0]!r}")

    def record_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        if not self._may_write():
            return
        try:
            changed = self._change(run_id, lambda was: replace(was, batch=batch, overdue=tuple(overdue)))
            if changed is not None:
                self._store.mark(_batch_mark(changed[1]))
        except FlowError as error:
            self._warn(f"the batch of run {run_id}", error)

    def record_engine(self, run_id: str, engine: str) -> None:
        if not self._may_write():
            return
        try:
            self._change(run_id, lambda was: replace(was, engine=engine))
        except FlowError as error:
            self._warn(f"the engine of run {run_id}", error)

    def _end(
        self, run_id: str, status: RunStatus, values: Mapping[str, Any], from_status: Sequence[str]
    ) -> bool:
        def ended(was: RunRecord) -> RunRecord | None:
            if was.status not in from_status:
                return None
            return RunRecord.from_columns({**was.to_columns(), "status": status, **values})

        try:
            changed = self._change(run_id, ended)
            if changed is None:
                return False
            before, after = changed
            self._write_index_marks(after)
            self._store.remove(
                [_running_mark(before)] if before.status == "running" else _index_marks(before)
            )
            return True
        except FlowError as error:
            self._warn(f"the end of run {run_id}", error)
            return False

    def add_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        if not self._may_write():
            return

        def added(was: RunRecord) -> RunRecord:
            return replace(was, metrics={**was.metrics, **metrics})

        try:
            self._change(run_id, added)
        except FlowError as error:
            self._warn(f"a note on run {run_id}", error)

    def save_output(self, run_id: str, text: str) -> None:
        if not self._may_write():
            return
        try:
            self._store.store(_output_key(run_id), bounded_output(text).encode("utf-8"))
        except FlowError as error:
            self._warn(f"what run {run_id} logged", error)

    def _change(
        self, run_id: str, change: Callable[[RunRecord], RunRecord | None]
    ) -> tuple[RunRecord, RunRecord] | None:
        """Change a run and return it before and after; None if it does not exist or nothing changes."""
        for _ in range(_MAX_TRIES):
            found = self._store.read(_run_key(run_id))
            before = None if found is None else RunRecord.from_json(found.value)
            after = None if before is None else change(before)
            if found is None or before is None or after is None:
                return None
            if self._store.replace(_run_key(run_id), after.to_json(), found.tag):
                return before, after
        raise ConfigError(f"others kept changing run {run_id} in {self.location}")

    def _write_index_marks(self, record: RunRecord) -> None:
        self._store.mark_all(_index_marks(record))

    # ------------------------------------------------------------------ reading

    def get(self, run_id: str) -> RunRecord:
        if not run_id:
            raise no_such_run(run_id)
        found = self._store.read(_run_key(run_id))
        if found is not None:
            return RunRecord.from_json(found.value)
        keys = itertools.islice(self._store.names(_run_key(run_id)), 3)
        records = self._read(key.partition("/")[2] for key in keys)
        only = find_by_prefix("runs", run_id, {record.run_id: record for record in records})
        if only is None:
            raise no_such_run(run_id)
        return only

    def list(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 20,
        since: dt.datetime | None = None,
    ) -> tuple[RunRecord, ...]:
        last = None if since is None else newest_first_key(since)
        found = self._newest_marks(pipeline, only_running=status == "running")
        marks = itertools.takewhile(lambda mark: last is None or mark.order <= last, found)
        # a run that was running when its mark was written may have ended since: read the run
        wanted = _without_repeats(m for m in marks if status is None or m.status in (status, "running"))
        records = (
            record
            for record in self._read((mark.run_id for mark in wanted), at_once=limit)
            if (status is None or record.status == status)
            and (pipeline is None or record.pipeline == pipeline)
        )
        return tuple(itertools.islice(records, max(limit, 0)))

    def running(self, pipeline: str, target: str | None = None) -> tuple[RunRecord, ...]:
        """Also corrects marks of ended runs that a crash left behind."""
        found: list[RunRecord] = []
        for record in self._read(mark.run_id for mark in self._running_marks(pipeline)):
            if record.status != "running":
                self._write_index_marks(record)
                self._store.remove([_running_mark(record)])
            elif target is None or record.target == target:
                found.append(record)
        return tuple(found[:MOST_RUNNING])

    def last_batch(self, pipeline: str) -> RunRecord | None:
        for key in self._store.names(f"batches/{key_part(pipeline)}/"):
            found = self._store.read(f"runs/{_order_and_id(key.rpartition('/')[2])[1]}")
            if found is not None:
                return RunRecord.from_json(found.value)
        return None

    def newest(self, pipelines: Sequence[str], each: int = 1) -> dict[str, tuple[RunRecord, ...]]:
        """Read the marks of the newest runs of all pipelines; query the remaining pipelines one by one."""
        wanted = {key_part(name): name for name in pipelines}
        found: dict[str, Any] = {part: [] for part in wanted}
        unsettled = set(wanted)
        marks = itertools.islice(_without_repeats(self._newest_marks(None)), _MAX_NAMES_READ)
        while unsettled and (mark := next(marks, None)) is not None:
            if mark.pipeline in unsettled:
                found[mark.pipeline].append(mark)
                if mark.status == "succeeded" or len(found[mark.pipeline]) == each:
                    unsettled.remove(mark.pipeline)
        left = list(unsettled)
        marked = self._store.map_parallel(lambda part: self._newest_marks_of_pipeline(part, each), left)
        found.update(zip(left, marked, strict=True))
        ids = [mark.run_id for its in found.values() for mark in its]
        runs: dict[str, list[RunRecord]] = {}
        for record in self._read(iter(ids)):
            runs.setdefault(record.pipeline, []).append(record)
        return {name: take_until_success(its, each) for name, its in runs.items()}

    def _newest_marks_of_pipeline(self, part: str, most: int) -> Sequence[RunMark]:
        """Return the newest marks of one pipeline, up to the first success."""
        found: list[RunMark] = []
        running = tuple(map(_parse_running_mark, self._store.names(f"running/{part}/")))
        ended = map(_parse_pipeline_mark, self._store.names(f"pipelines/{part}/"))
        for mark in itertools.islice(_without_repeats(_merge_marks(running, ended)), most):
            found.append(mark)
            if mark.status == "succeeded":
                break
        return found

    def page(self, wanted: RunFilter, after: RunCursor | None = None, limit: int = 50) -> RunPage:
        begin = "" if after is None else cursor_place(after)
        if not begin and wanted.until is not None:
            begin = newest_first_key(wanted.until)
        marks = self._newest_marks(wanted.pipeline, only_running=wanted.status == "running", after=begin)
        return page_of_marks(_without_repeats(marks), wanted, after, limit, self._read)

    def following(self, after: RunRecord, limit: int) -> tuple[RunRecord, ...]:
        place = cursor_place(RunCursor.of(after))
        marks = _without_repeats(self._newest_marks(after.pipeline))
        newer = itertools.takewhile(lambda mark: mark.place < place, marks)
        nearest = deque(newer, maxlen=limit)
        return tuple(self._read(mark.run_id for mark in reversed(nearest)))

    def runs_of_slots(
        self, since: dt.datetime, until: dt.datetime, limit: int
    ) -> dict[tuple[str, dt.datetime], str]:
        return {}

    def newest_summaries(self, since: dt.datetime | None, limit: int) -> tuple[RunSummary, ...]:
        last = None if since is None else newest_first_key(since)
        marks = _without_repeats(self._newest_marks(None))
        newer = itertools.takewhile(lambda mark: last is None or mark.order <= last, marks)
        return tuple(map(summary_of_mark, itertools.islice(newer, limit)))

    def recent(self, pipelines: Sequence[str], each: int) -> dict[str, tuple[RunSummary, ...]]:
        names = list(dict.fromkeys(pipelines))
        if not names:
            return {}

        def newest(name: str) -> Sequence[RunMark]:
            return list(itertools.islice(_without_repeats(self._newest_marks(name)), each))

        marks = list(self._store.map_parallel(newest, names))
        return summaries_of_marks(marks, names, self._read)

    def rows_written(
        self, since: dt.datetime, until: dt.datetime, pipelines: Sequence[str] | None = None
    ) -> dict[str, int] | None:
        return None

    def output(self, run_id: str) -> str | None:
        found = self._store.fetch(_output_key(run_id))
        return None if found is None else found[0].decode("utf-8")

    # ------------------------------------------------------------------ forgetting

    def purge(
        self, before: dt.datetime, *, keep: int = 1, pipeline: str | None = None, most: int | None = None
    ) -> int:
        done = 0
        parts = self._pipelines() if pipeline is None else iter([key_part(pipeline)])
        for part in parts:
            left = None if most is None else most - done
            done += self._purge(part, newest_first_key(aware_utc("before", before)), max(keep, 1), left)
            if most is not None and done >= most:
                break
        return done

    def _pipelines(self) -> Iterator[str]:
        """Yield each pipeline that has ended runs, by one query each."""
        key = self._store.first("pipelines/")
        while key is not None:
            part = key.split("/")[1]
            yield part
            key = self._store.first("pipelines/", after=f"pipelines/{part}0")  # "0" comes right after "/"

    def _purge(self, part: str, before: str, keep: int, most: int | None) -> int:
        """Delete newest first, in the order of the names: an interrupted purge leaves the older part."""
        prefix = f"pipelines/{part}/"
        newest = itertools.islice(
            _without_repeats(map(_parse_pipeline_mark, self._store.names(prefix))), keep
        )
        stay = {mark.run_id: mark.order for mark in newest}
        stay |= dict.fromkeys(self._needed_run_ids(part), "")
        start = max(before, *stay.values())
        done, waiting = 0, list[RunMark]()
        for mark in _without_repeats(
            map(_parse_pipeline_mark, self._store.names(prefix, after=f"{prefix}{start}"))
        ):
            if mark.run_id in stay or mark.order == before:
                continue
            waiting.append(mark)
            done += 1
            if len(waiting) == _PURGE_PORTION:
                self._delete_runs(waiting)
                waiting = []
            if most is not None and done >= most:
                break
        self._delete_runs(waiting)
        return done

    def _needed_run_ids(self, part: str) -> Iterator[str]:
        batch = self._store.first(f"batches/{part}/")
        if batch is not None:
            yield _order_and_id(batch.rpartition("/")[2])[1]
        for mark in map(_parse_pipeline_mark, self._store.names(f"pipelines/{part}/")):
            if mark.status == "succeeded":
                yield mark.run_id
                return

    def _delete_runs(self, marks: Sequence[RunMark]) -> None:
        """Delete the run first: a mark without a run is ignored, and deleted by the next purge."""
        self._store.remove([f"{kind}/{mark.run_id}" for mark in marks for kind in ("runs", "output")])
        names: list[str] = []
        for mark in marks:
            name = f"{mark.order}-{mark.run_id}"
            names += [f"pipelines/{mark.pipeline}/{name}/{mark.status}", f"batches/{mark.pipeline}/{name}"]
            names += [f"time/{name}/{mark.pipeline}/{mark.status}"]
        self._store.remove(names)

    def close(self) -> None:
        self._store.close()

    # ------------------------------------------------------------------ names and runs

    def _newest_marks(
        self, pipeline: str | None, *, only_running: bool = False, after: str = ""
    ) -> Iterator[RunMark]:
        """Yield marks, newest first: of ended runs those that come after the place ``after``.

        A run whose status just changed may come twice in a row.
        """
        running = self._running_marks(pipeline)
        ended: Iterator[RunMark] = iter(())
        if not only_running:
            folder = "time/" if pipeline is None else f"pipelines/{key_part(pipeline)}/"
            parse = _parse_time_mark if pipeline is None else _parse_pipeline_mark
            ended = map(parse, self._store.names(folder, after=f"{folder}{after}" if after else ""))
        return _merge_marks(running, ended)

    def _running_marks(self, pipeline: str | None) -> Sequence[RunMark]:
        prefix = "running/" if pipeline is None else f"running/{key_part(pipeline)}/"
        return tuple(map(_parse_running_mark, self._store.names(prefix)))

    def _read(self, parts: Iterator[str], at_once: int = PARALLEL_REQUESTS) -> Iterator[RunRecord]:
        """Yield the runs with these names that exist: a mark of a deleted run may remain."""
        found = self._store.read_all((f"runs/{part}" for part in parts), at_once)
        return (RunRecord.from_json(document.value) for document in found if document is not None)

    # ------------------------------------------------------------------ the store

    def _may_write(self) -> bool:
        """A store that hangs delays a run once, not at every step."""
        return time.monotonic() >= self._away_until

    def _warn(self, lost: str, error: FlowError) -> None:
        self._away_until = time.monotonic() + _AWAY_SECONDS
        warn_once(
            self.location,
            f"the run log {self.location} could not record {lost}: {error.what}. The run goes on",
        )


def _start_marks(record: RunRecord) -> list[str]:
    marks = [_running_mark(record)] if record.status == "running" else [*_index_marks(record)]
    return marks if record.batch is None else [*marks, _batch_mark(record)]


def _run_key(run_id: str) -> str:
    return f"runs/{key_part(run_id)}"


def _output_key(run_id: str) -> str:
    return f"output/{key_part(run_id)}"


def _run_name(record: RunRecord) -> str:
    return f"{newest_first_key(record.started_at)}-{key_part(record.run_id)}"


def _running_mark(record: RunRecord) -> str:
    return f"running/{key_part(record.pipeline)}/{_run_name(record)}"


def _batch_mark(record: RunRecord) -> str:
    return f"batches/{key_part(record.pipeline)}/{_run_name(record)}"


def _index_marks(record: RunRecord) -> tuple[str, str]:
    part, name = key_part(record.pipeline), _run_name(record)
    return f"time/{name}/{part}/{record.status}", f"pipelines/{part}/{name}/{record.status}"


def _parse_running_mark(key: str) -> RunMark:
    _, part, name = key.split("/")
    return RunMark(*_order_and_id(name), part, "running")


def _parse_time_mark(key: str) -> RunMark:
    _, name, part, status = key.split("/")
    return RunMark(*_order_and_id(name), part, status)


def _parse_pipeline_mark(key: str) -> RunMark:
    _, part, name, status = key.split("/")
    return RunMark(*_order_and_id(name), part, status)


def _order_and_id(name: str) -> tuple[str, str]:
    order, _, run_id = name.partition("-")
    return order, run_id


def _merge_marks(running: Sequence[RunMark], ended: Iterator[RunMark]) -> Iterator[RunMark]:
    def place(mark: RunMark) -> str:
        return mark.place

    return heapq.merge(sorted(running, key=place), ended, key=place)


def _without_repeats(marks: Iterator[RunMark]) -> Iterator[RunMark]:
    """Drop repeated marks: a run whose status changed may have two marks in a row."""
    last = ""
    for mark in marks:
        if mark.run_id != last:
            yield mark
        last = mark.run_id
