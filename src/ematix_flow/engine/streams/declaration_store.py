"""Keeps the record of a query's declaration: checks it at a start, and writes what a run adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.declaration_record import (
    DeclarationRecord,
    declared_record,
    read_record,
    write_record,
)
from ematix_flow.engine.streams.declared_changes import refuse_declared_changes, refuse_lost_state
from ematix_flow.engine.streams.kept_targets import KnownTargets, loaded_targets
from ematix_flow.plan.stream_definition import StreamTargetPlan
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.state.private_files import make_private_folders


class DeclarationStore:
    """The record in the checkpoint of one query, which loads ``targets``."""

    def __init__(
        self,
        spec: StreamSpec,
        checkpoint: Checkpoint,
        targets: Sequence[StreamTargetSpec],
        known: KnownTargets,
        kinds: Sequence[str],
        note: Callable[[str], None],
    ) -> None:
        """``known`` are the targets as of the start; ``kinds`` are those of the sources' connections."""
        self._spec, self._checkpoint, self._targets, self._known = spec, checkpoint, targets, known
        self._kinds, self._note = tuple(kinds), note
        self._has_targets = False

    def check(self) -> None:
        """Refuse what the checkpoint cannot continue, and record what the stream is declared as now."""
        spec, checkpoint = self._spec, self._checkpoint
        record = refuse_declared_changes(spec, checkpoint, self._kinds)
        if spec.is_stateful:
            if checkpoint.is_new:
                make_private_folders(checkpoint.state_folder)
            if checkpoint.last_committed() is not None and not checkpoint.state_folder.is_dir():
                refuse_lost_state(spec, "the stream has a checkpoint and no state")
        before = record or DeclarationRecord()
        for label in self._known.new_among(self._targets):
            self._note(f"{label} is a new target: it gets what the stream reads from now on")
        make_private_folders(checkpoint.folder)
        labels = tuple(each.label for each in spec.targets if not self._known.is_new(each.label))
        now = replace(declared_record(spec, self._kinds), declared=labels)
        write_record(checkpoint.folder, replace(now, targets=before.targets, state_id=before.state_id))

    def record_loaded(self, plans: Sequence[StreamTargetPlan]) -> bool:
        """Record the targets that a batch was loaded into, once in a run. Returns whether that is new."""
        if self._has_targets or not plans:
            return False
        record = read_record(self._checkpoint.folder) or declared_record(self._spec, self._kinds)
        targets = {**record.targets, **loaded_targets(plans)}
        write_record(self._checkpoint.folder, replace(record, targets=targets))
        self._has_targets = True
        return targets != record.targets

    def set_checkpoint_aside(self) -> None:
        """Set the checkpoint aside. The next one begins with what is known of the targets."""
        record = read_record(self._checkpoint.folder)
        self._checkpoint.set_aside()
        if record is not None:
            make_private_folders(self._checkpoint.folder)
            write_record(self._checkpoint.folder, record)
