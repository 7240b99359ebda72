"""Chooses the batch key of a run: its own, or that of the previous run if it did not load every target.

A run that follows a partly failed one finishes it: the missing targets load under the old batch key, and
the others are left alone. This happens once. A target that is missing again is overdue: later runs load
every target under their own batch key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ematix_flow.engine.connections import Connections
from ematix_flow.errors import FlowError
from ematix_flow.run.recovery import committed_targets
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord

SHARED_BATCH = "shared_batch"  # the metric that names the key which the runs of an action share
_LOOKBACK_RUNS = 100


@dataclass(frozen=True)
class RunBatch:
    """The batch key to load under, and the targets that the next run does not wait for."""

    key: str
    overdue: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnfinishedBatch:
    """A batch that an earlier run committed to some targets and not to others."""

    batch: str
    last_run: RunRecord
    committed: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_overdue(self) -> bool:
        """Whether the missing targets already had a second run."""
        return set(self.missing) <= set(self.last_run.overdue)

    def __str__(self) -> str:
        when = f"{self.last_run.started_at:%Y-%m-%d %H:%M:%S} UTC"
        summary = (
            f"run {self.last_run.run_id[:8]} of {when} committed to {', '.join(self.committed)} "
            f"and not to {', '.join(self.missing)}"
        )
        if self.is_overdue:
            return f"{summary}, like the run before it: this run loads all targets again"
        return f"{summary}: this run finishes only what is missing"


def choose_batch(
    spec: PipelineSpec,
    connections: Connections,
    run_log: RunLog,
    own: str,
    is_shared: bool,
    earlier_attempts: Collection[str],
    unreachable: Collection[str],
    note: Callable[[str], None],
) -> RunBatch:
    """Return ``own``, or the batch that the last run left unfinished.

    If other runs share ``own`` (``is_shared``), the batch that the newest of them had chosen: they load once.
    Call it with the target locks held, after interrupted runs are settled.
    """
    if len(spec.targets) == 1:
        return RunBatch(own)
    try:
        shared = _last_sharing(spec, run_log, own) if is_shared else None
        last = shared or run_log.last_batch(spec.name)
    except FlowError as error:
        if spec.source.watermark_column is None:  # a ledger does not know which batch is unfinished
            error.state = (
                "nothing was loaded: it is not known whether an earlier run left targets out, and targets "
                "that it did load could be loaded twice"
            )
            raise
        note(f"the last batch is not known: {error.what}")
        return RunBatch(own)
    if last is not None and last.batch is not None and (shared or last.run_id in earlier_attempts):
        return RunBatch(last.batch, last.overdue)
    left = unfinished_batch(spec, connections, last, unreachable)
    if left is None:
        return RunBatch(own)
    note(str(left))
    if left.is_overdue:
        return RunBatch(own, left.missing)
    return RunBatch(left.batch, tuple(t.label for t in spec.targets))


def _last_sharing(spec: PipelineSpec, run_log: RunLog, own: str) -> RunRecord | None:
    """Return the newest run of those that share the batch key ``own`` which has chosen its batch."""
    runs = run_log.list(spec.name, limit=_LOOKBACK_RUNS)
    return next((run for run in runs if run.batch and run.metrics.get(SHARED_BATCH) == own), None)


def unfinished_batch(
    spec: PipelineSpec, connections: Connections, last: RunRecord | None, unreachable: Collection[str]
) -> UnfinishedBatch | None:
    """Return the batch that the last run left unfinished, if any.

    The locks are held, so a last run with the status ``running`` is dead. An incremental pipeline has
    nothing to finish: each target continues from its own watermark. An ``unreachable`` target counts as
    missing.
    """
    if last is None or last.batch is None or last.status in ("succeeded", "skipped", "locked"):
        return None
    if spec.source.watermark_column is not None:
        return None
    committed = committed_targets(spec, connections, last.run_id, last.batch, unreachable)
    missing = tuple(t.label for t in spec.targets if t.label not in committed)
    return UnfinishedBatch(last.batch, last, tuple(committed), missing) if committed and missing else None
