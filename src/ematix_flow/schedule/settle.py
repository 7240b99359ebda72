"""Runs that ended before their time: settled from the targets' ledgers, which know what committed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ematix_flow.plan.world import World
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.state.locks import process_is_alive
from ematix_flow.state.records import RunRecord
from ematix_flow.state.runlog import RunLog


def settle_interrupted(
    spec: PipelineSpec, world: World, run_log: RunLog, own_run_id: str, note: Callable[[str], None]
) -> None:
    """Called with the pipeline's locks held: whoever is still ``running`` then is dead."""
    for record in run_log.running(spec.name):
        if record.run_id == own_run_id or _is_alive(record):
            continue
        committed = committed_targets(spec, world, record.run_id, record.batch)
        if len(committed) == len(spec.targets):
            reason = (
                "the process ended before it could say so, but the ledger holds the batch: it is committed"
            )
            if spec.transforms_post:
                reason += "; its post-load transforms may not have run"
            run_log.settle(record.run_id, "succeeded", reason)
        else:
            missing = ", ".join(t.label for t in spec.targets if t.label not in committed)
            reason = f"the process ended before it committed to {missing}; nothing of it is there"
            run_log.settle(record.run_id, "interrupted", reason)
        note(f"run {record.run_id[:8]} of {record.started_at:%Y-%m-%d %H:%M:%S} UTC: {reason}")


@dataclass(frozen=True)
class Unfinished:
    """A batch that an earlier run committed to some targets and not to others."""

    batch: str
    run: RunRecord
    committed: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        when = f"{self.run.started_at:%Y-%m-%d %H:%M:%S} UTC"
        return (
            f"run {self.run.run_id[:8]} of {when} committed to {', '.join(self.committed)} "
            f"and not to {', '.join(self.missing)}: this run finishes only what is missing"
        )


def unfinished_batch(
    spec: PipelineSpec, world: World, run_log: RunLog, unreachable: Collection[str] = ()
) -> Unfinished | None:
    """What the last run left to finish. Called with the locks held, after interrupted runs are settled.

    An incremental pipeline has nothing to finish: each target goes on from its own watermark. A target
    that is ``unreachable`` now counts as missing.
    """
    if len(spec.targets) == 1 or spec.source.watermark_column is not None:
        return None
    last = run_log.last_batch(spec.name)
    if last is None or last.batch is None or last.status in ("running", "succeeded", "skipped"):
        return None
    committed = committed_targets(spec, world, last.run_id, last.batch, unreachable)
    missing = tuple(t.label for t in spec.targets if t.label not in committed)
    return Unfinished(last.batch, last, tuple(committed), missing) if committed and missing else None


def committed_targets(
    spec: PipelineSpec,
    world: World,
    run_id: str | None,
    batch: str | None = None,
    unreachable: Collection[str] = (),
) -> list[str]:
    """The targets whose ledger holds this batch, or one of this run."""
    asked = [target for target in spec.targets if target.label not in unreachable]
    return [target.label for target in asked if _holds(spec, target, world, run_id, batch)]


def _holds(
    spec: PipelineSpec, target: TargetSpec, world: World, run_id: str | None, batch: str | None
) -> bool:
    sink = world.target(target.connection)
    if run_id is not None and sink.ledger(spec.name, target.label, run_id=run_id, limit=1):
        return True
    # the batches asked for are recent ones; what is older, the load's own transaction finds
    return batch is not None and any(e.batch_key == batch for e in sink.ledger(spec.name, target.label))


def _is_alive(record: RunRecord) -> bool:
    """A process of this machine that still exists and only waits for the lock we hold."""
    if record.host != socket.gethostname() or record.pid == os.getpid():
        return False
    return process_is_alive(record.pid)
