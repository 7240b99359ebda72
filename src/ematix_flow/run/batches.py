"""Under which batch a run loads: its own, or that of the run before it, when that left targets out.

A run that follows a partly failed one finishes it: the targets that are missing load under the old batch,
the others are left alone. It does so once. A target that is missing again is overdue, and no later run
holds the others back for it: they load all there is under batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ematix_flow.engine.connections import Connections
from ematix_flow.errors import FlowError
from ematix_flow.run.recovery import committed_targets
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.run_records import RunRecord
from ematix_flow.state.runlog.base import RunLog


@dataclass(frozen=True)
class RunBatch:
    """The key to load under, and the targets for which the next run does not hold the others back."""

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
        """Whether what is missing had its second chance."""
        return set(self.missing) <= set(self.last_run.overdue)

    def __str__(self) -> str:
        when = f"{self.last_run.started_at:%Y-%m-%d %H:%M:%S} UTC"
        told = (
            f"run {self.last_run.run_id[:8]} of {when} committed to {', '.join(self.committed)} "
            f"and not to {', '.join(self.missing)}"
        )
        if self.is_overdue:
            return f"{told}, as the run before it: this run loads all targets anew"
        return f"{told}: this run finishes only what is missing"


def choose_batch(
    spec: PipelineSpec,
    world: Connections,
    run_log: RunLog,
    own: str,
    earlier_attempts: Collection[str],
    unreachable: Collection[str],
    note: Callable[[str], None],
) -> RunBatch:
    """``own``, or what the last run left to finish. Called with the locks held, after settling."""
    if len(spec.targets) == 1:
        return RunBatch(own)
    try:
        last = run_log.last_batch(spec.name)
    except FlowError as error:
        if spec.source.watermark_column is None:  # a ledger does not know which batch is to be finished
            error.state = (
                "nothing was loaded: whether an earlier run left targets out is not known, and those that it "
                "did load could be loaded twice"
            )
            raise
        note(f"which batch was the last is not known: {error.what}")
        return RunBatch(own)
    if last is not None and last.batch is not None and last.run_id in earlier_attempts:
        return RunBatch(last.batch, last.overdue)
    left = unfinished_batch(spec, world, last, unreachable)
    if left is None:
        return RunBatch(own)
    note(str(left))
    if left.is_overdue:
        return RunBatch(own, left.missing)
    return RunBatch(left.batch, tuple(t.label for t in spec.targets))


def unfinished_batch(
    spec: PipelineSpec, world: Connections, last: RunRecord | None, unreachable: Collection[str]
) -> UnfinishedBatch | None:
    """What the last run left to finish. The locks are held: if it is still ``running``, it is dead.

    An incremental pipeline has nothing to finish: each target goes on from its own watermark. A target
    that is ``unreachable`` now counts as missing.
    """
    if last is None or last.batch is None or last.status in ("succeeded", "skipped", "locked"):
        return None
    if spec.source.watermark_column is not None:
        return None
    committed = committed_targets(spec, world, last.run_id, last.batch, unreachable)
    missing = tuple(t.label for t in spec.targets if t.label not in committed)
    return UnfinishedBatch(last.batch, last, tuple(committed), missing) if committed and missing else None
