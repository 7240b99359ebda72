"""A run log in memory, with the clocks of the hosts that write to it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.run.last_runs import has_ended
from ematix_flow.state.runlog.records import RunRecord, RunStatus


class RunHistory:
    """The queries of schedulers and runs to a run log, newest first by the writers' clocks."""

    def __init__(self, clock: Callable[[], dt.datetime]) -> None:
        self._clock = clock
        self.records: dict[str, RunRecord] = {}

    def start(self, record: RunRecord) -> None:
        if record.run_id in self.records:
            raise UsageError("its id is not new")
        now = self._clock()
        over = None if record.status == "running" else now
        self.records[record.run_id] = replace(record, started_at=now, finished_at=over)

    def start_all(self, records: Sequence[RunRecord]) -> None:
        for record in records:
            self.start(record)

    def get(self, run_id: str) -> RunRecord:
        return self.records[run_id]

    def finish(self, run_id: str, status: RunStatus, *, error: BaseException | None = None) -> bool:
        return self._end(run_id, status, error, None, ("running", "interrupted"))

    def settle(
        self, run_id: str, status: RunStatus, reason: str, counts: Mapping[str, Any] | None = None
    ) -> bool:
        return self._end(run_id, status, None, reason, ("running",))

    def _end(
        self,
        run_id: str,
        status: RunStatus,
        error: BaseException | None,
        reason: str | None,
        of: Sequence[str],
    ) -> bool:
        record = self.records.get(run_id)
        if record is None or record.status not in of:
            return False
        self.records[run_id] = replace(
            record,
            status=status,
            finished_at=self._clock(),
            error_type=None if error is None else type(error).__name__,
            error_message=reason if error is None else str(error),
        )
        return True

    def list(self, pipeline: str, status: RunStatus | None = None, limit: int = 20) -> tuple[RunRecord, ...]:
        found = [r for r in self.records.values() if r.pipeline == pipeline and status in (None, r.status)]
        return tuple(sorted(reversed(found), key=lambda r: r.started_at, reverse=True)[:limit])

    def running(self, pipeline: str) -> tuple[RunRecord, ...]:
        return self.list(pipeline, "running", 100)

    def newest(self, pipelines: Sequence[str], each: int = 1) -> dict[str, tuple[RunRecord, ...]]:
        found = {name: self.list(name, limit=each) for name in pipelines}
        return {name: records for name, records in found.items() if records}

    def good_ends(self, pipeline: str) -> set[str]:
        """As triggers name them."""
        return {
            f"slot:{r.slot.isoformat()}"
            for r in self.records.values()
            if r.pipeline == pipeline and r.slot and r.ended_well and has_ended(r)
        }
