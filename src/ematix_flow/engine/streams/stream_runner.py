"""Runs a stream once: plan it, lock its targets, open its sources, run its queries until they end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import (
    ReceivedSource,
)
from ematix_flow.backends.state_stores.stream_states import open_stream_states
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.streams.batch_loader import BatchLoader
from ematix_flow.engine.streams.checkpoint import Checkpoint, split_positions
from ematix_flow.engine.streams.declared_changes import ANOTHER_STREAM, refuse_declared_changes
from ematix_flow.engine.streams.followed_sources import SharedPositions, SharedSpool
from ematix_flow.engine.streams.kept_targets import refuse_target_changes
from ematix_flow.engine.streams.ledger_positions import LedgerPositions
from ematix_flow.engine.streams.open_stream import OpenStream
from ematix_flow.engine.streams.plan_progress import describe_progress
from ematix_flow.engine.streams.state.mirror import restore_columns, stored_records
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.engine.streams.target_group import TargetGroup, group_label, target_groups
from ematix_flow.errors import CannotConnect, FlowError, Unsupported
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)


class StreamRunner(OpenStream):
    """Runs an open stream. ``stop`` ends it between two batches."""

    def replay_loaders(
        self, incoming: DataFrame, groups: Sequence[tuple[StreamTargetSpec, ...]]
    ) -> list[BatchLoader]:
        """One loader for each of these groups of targets, for messages that are replayed."""
        if self.spec.is_stateful:
            missed = "windows" if self.spec.join is None else "rows"
            raise Unsupported(
                f"dead letters of {self.spec.name!r} cannot be replayed: they would miss the {missed} of the "
                "running stream",
                next_step="send the messages to the source once more",
            )
        plan = self.plan()
        opened = [
            TargetGroup(self, plan, targets, n, (), (), sweep=False) for n, targets in enumerate(groups)
        ]
        return [group.loaders.build(incoming) for group in opened]

    def run(self) -> None:
        """Run until the stream is stopped or everything is loaded. Raises the failure."""
        try:
            self._run()
        except FlowError as error:
            raise error.with_location(self.spec.where) from error.__cause__

    def _run(self) -> None:
        self.folder.create()
        groups = target_groups(self.spec)
        with ExitStack() as leaving:
            leaving.callback(self.lookups.stop)
            for source in self.sources:
                leaving.callback(source.close)
            self._read_stored_state()
            if not self._is_mirrored:  # otherwise the folder may be replaced
                check_declaration(self)
            plan = self._plan(with_targets=len(groups) == 1)
            if self.spec.lookups:
                self.lookups.start()
            spools = self._open_spools(len(groups), leaving)
            positions = [SharedPositions(source, len(groups)) for source in self.sources]
            self._run_groups(
                [TargetGroup(self, plan, targets, n, spools, positions) for n, targets in enumerate(groups)]
            )

    @property
    def _is_mirrored(self) -> bool:
        return self.spec.state_store is not None and self.spec.state_store.kind == "postgres"

    def _read_stored_state(self) -> None:
        """Read what the plan needs of a state in a database. The queries restore the rest of it."""
        store = self.spec.state_store
        if store is not None and self._is_mirrored:
            with closing(open_stream_states(store)) as states:
                restore_columns(states, self.spec.name, self.folder)
                records = stored_records(states, self.spec.name)
            self.known_targets = self.known_targets.with_records(records)

    def _open_spools(self, groups: int, leaving: ExitStack) -> list[SharedSpool | None]:
        spools: list[SharedSpool | None] = []
        for number, (source, declared) in enumerate(zip(self.sources, self.spec.sources, strict=True)):
            spool = None
            if isinstance(source, ReceivedSource):
                spool = SharedSpool(
                    source,
                    self.reading_of(declared),
                    self.folder.spool(number),
                    groups,
                    self._ledger_position(),
                    getattr(self.dead_letters, "refused_in", None),
                )
                leaving.callback(spool.close)
            spools.append(spool)
        return spools

    def _ledger_position(self) -> str | None:
        """The lowest position in the ledgers, for a new spool of a received source."""
        found: list[str] = []
        for target in self.spec.targets:
            try:
                position = LedgerPositions(self, (target,)).last_position(target)
            except CannotConnect:
                if not self.spec.continue_on_target_failure:
                    raise
                return None
            own = split_positions(position, 1)[0] if position is not None else None
            if own is None:
                return None
            if "segment" not in json.loads(own):
                raise Unsupported(
                    f"the ledger of {target.label} has a position of another kind of source: stream "
                    f"{self.spec.name!r} has read another one before",
                    state="nothing was read",
                    next_step=f"declare the source as before, or {ANOTHER_STREAM}",
                )
            found.append(own)
        return min(found, key=lambda position: int(json.loads(position)["segment"]))

    def _run_groups(self, groups: Sequence[TargetGroup]) -> None:
        if len(groups) == 1:
            groups[0].run()
            return
        failures: list[list[FlowError]] = [[] for _ in groups]
        threads = [
            threading.Thread(
                target=copy_context().run,
                args=(group.run_with_retries, found),
                name=f"ematix-flow {group.label}",
            )
            for group, found in zip(groups, failures, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raised = [error for found in failures for error in found]
        if raised:
            well = [group.label for group, found in zip(groups, failures, strict=True) if not found]
            late = [group.label for group, found in zip(groups, failures, strict=True) if found]
            have = "have all batches until the stop" if self.stop.is_set() else "have everything"
            others = f"the other targets ({', '.join(well)}) {have}; " if well else ""
            catch = "catches" if len(late) == 1 else "catch"
            back = f"{others}{', '.join(late)} {catch} up at the next start"
            error = raised[0]
            error.state = f"{error.state}; {back}" if error.state else back
            raise error


def check_declaration(stream: OpenStream) -> None:
    """Refuse a stream whose checkpoints cannot continue as it is declared now."""
    for targets in target_groups(stream.spec):
        checkpoint = Checkpoint(stream.folder.checkpoint(group_label(stream.spec, targets)))
        refuse_declared_changes(stream.spec, checkpoint, stream.source_kinds)


def build_stream_plan(spec: StreamSpec, connections: Connections, folder: StreamFolder) -> StreamPlan:
    """The plan of a stream as of now. Changes nothing. Raises what a start would refuse."""
    stream = OpenStream(spec, connections, folder)
    check_declaration(stream)
    plan = stream.plan()
    progress = []
    for targets in target_groups(spec):
        label = group_label(spec, targets)
        checkpoint, ledgers = Checkpoint(folder.checkpoint(label)), LedgerPositions(stream, targets)
        own = [target for target in plan.targets if target.target in targets]
        refuse_target_changes(spec, connections, own, stream.known_targets, ledgers.last_position)
        progress.append(describe_progress(label, checkpoint, stream.known_targets.new_among(targets)))
    return replace(plan, progress=tuple(progress))
