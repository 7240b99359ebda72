"""Runs that died: settled from the target's ledger, which knows what committed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from ematix_flow.plan.world import World
from ematix_flow.spec.pipelines import PipelineSpec
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
        committed = committed_targets(spec, world, record.run_id)
        if len(committed) == len(spec.targets):
            reason = (
                "the process ended before it could say so, but the ledger holds the batch: it is committed"
            )
            if spec.transforms_post:
                reason += "; its post-load transforms may not have run"
            run_log.settle(record.run_id, "succeeded", reason)
        else:
            missing = [t.label for t in spec.targets if t.label not in committed]
            reason = f"the process ended before it committed to {', '.join(missing)}; nothing of it is there"
            run_log.settle(record.run_id, "interrupted", reason)
        note(f"run {record.run_id[:8]} of {record.started_at:%Y-%m-%d %H:%M:%S} UTC: {reason}")


def committed_targets(spec: PipelineSpec, world: World, run_id: str) -> list[str]:
    """The targets whose ledger holds a batch of this run."""
    return [
        target.label
        for target in spec.targets
        if world.target(target.connection).ledger(spec.name, target.label, run_id=run_id, limit=1)
    ]


def _is_alive(record: RunRecord) -> bool:
    """A process of this machine that still exists and only waits for the lock we hold."""
    if record.host != socket.gethostname() or record.pid == os.getpid():
        return False
    return process_is_alive(record.pid)
