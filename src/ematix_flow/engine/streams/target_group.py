"""A group of targets that share one query of a stream: where it resumes, and what it loads."""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from ematix_flow.backends.messages.base import ReadRequest, SparkStreamSource
from ematix_flow.backends.state_stores.stream_states import open_stream_states
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.worker_warmup import warm_workers
from ematix_flow.engine.streams.batch_report import BatchReport
from ematix_flow.engine.streams.checkpoint import (
    Checkpoint,
    lowest_position,
    split_positions,
    write_checkpoint,
)
from ematix_flow.engine.streams.declaration_store import DeclarationStore
from ematix_flow.engine.streams.declared_changes import refuse_lost_state
from ematix_flow.engine.streams.followed_sources import (
    FollowedSource,
    SharedPositions,
    SharedSpool,
    SparkFollowedSource,
)
from ematix_flow.engine.streams.ledger_positions import LedgerPositions
from ematix_flow.engine.streams.loader_factory import LoaderFactory
from ematix_flow.engine.streams.open_stream import OpenStream
from ematix_flow.engine.streams.query import StreamQuery
from ematix_flow.engine.streams.resource_ids import (
    current_ids,
    positions_with_ids,
    recorded_ids,
    replaced_topics,
)
from ematix_flow.engine.streams.state.mirror import StateMirror
from ematix_flow.errors import FlowError, Unsupported
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.state.private_files import make_private_folders

_log = logging.getLogger(__name__)
_GOOD_SECONDS = 60.0  # a group that ran this long did not fail at the start
_QUIET_SECONDS = 15.0  # a waiting batch would have begun by then


def target_groups(spec: StreamSpec) -> list[tuple[StreamTargetSpec, ...]]:
    """The groups of targets that share a query. A target that may fail alone forms its own group."""
    return [(target,) for target in spec.targets] if spec.continue_on_target_failure else [spec.targets]


def group_label(spec: StreamSpec, group: tuple[StreamTargetSpec, ...]) -> str:
    """The name of a group's query, and of its checkpoint."""
    return group[0].label if len(spec.targets) > 1 and len(group) == 1 else "all"


class TargetGroup:
    """The targets of a stream that share a query: all of them, or a single one."""

    def __init__(
        self,
        stream: OpenStream,
        plan: StreamPlan,
        group: tuple[StreamTargetSpec, ...],
        number: int,
        spools: Sequence[SharedSpool | None],
        shared_positions: Sequence[SharedPositions],
        *,
        sweep: bool = True,
    ) -> None:
        """Without ``sweep`` the staging of other runs stays: one of them may be active."""
        self.stream, self.targets, self.number = stream, group, number
        self.spools, self.shared_positions = spools, shared_positions
        self._is_failing, self._started = False, 0.0
        self.label = group_label(stream.spec, group)
        self.checkpoint = Checkpoint(stream.folder.checkpoint(self.label))
        self.declaration = DeclarationStore(
            stream.spec, self.checkpoint, group, stream.known_targets, stream.source_kinds, stream.note
        )
        self.ledgers = LedgerPositions(stream, group)
        self.loaders = LoaderFactory(
            *(stream, plan, group, self.ledgers.last_position),
            sweep=sweep,
            state_folder=self.checkpoint.state_folder,
        )
        for place, (spool, shared) in enumerate(zip(spools, shared_positions, strict=True)):
            shared.resume(number, self.checkpoint, place)
            if spool is not None:
                spool.resume(number, self.checkpoint)

    def run(self) -> None:
        with ExitStack() as leaving:
            run_id = uuid.uuid4()
            for target in self.targets:
                leaving.enter_context(self.stream.lock_target(target, run_id))
            self._open_mirror(leaving)
            self._run()

    def _open_mirror(self, leaving: ExitStack) -> None:
        """Take over the state in a database, and restore the folder from it if it is missing or older."""
        stream, store = self.stream, self.stream.spec.state_store
        if store is None or store.kind != "postgres":
            return
        mirror = StateMirror(
            open_stream_states(store),
            stream.spec.name,
            self.label,
            stream.folder,
            self.checkpoint,
            store.checkpoint_interval_ms,
        )
        leaving.callback(mirror.close)
        if mirror.open():
            stream.note("the checkpoint and the state are restored from Postgres")
            if mirror.replaced_folder.exists():
                stream.note(f"those that were on this machine are kept in {mirror.replaced_folder}")
            for place, shared in enumerate(self.shared_positions):
                shared.resume(self.number, self.checkpoint, place)
        self.loaders.mirror = mirror

    def _run(self) -> None:
        stream, spark = self.stream, self.stream.connections.spark()
        if self.loaders.plan.columns is None:  # the sinks are opened only with the first messages
            self._check_message_targets()
        warm_workers(spark)
        self.declaration.check()
        sources = self._follow_sources()
        query = StreamQuery(
            f"{stream.spec.name} {self.label}",
            sources,
            self.checkpoint,
            self.loaders.build,
            self.loaders.renew,
            loader=self.loaders.from_known_columns(),
            once=stream.once,
            idle_pause_ms=stream.spec.idle_pause_ms,
            report=self._report_batch,
            alive=lambda: self._heartbeat(query.is_idle),
            stop=stream.stop,
            lag=lambda lag, unit: stream.report_lag(stream.group_lags.update(self.label, lag), unit),
            gate=stream.gate,
        )
        try:
            query.start(spark, self._translate_error)
            self._started = time.monotonic()
            query.wait()
        finally:
            query.close()

    def _check_message_targets(self) -> None:
        """Raise TargetMissing if a broker does not have the topic, queue or stream to send to."""
        for target in self.targets:
            messages = self.stream.connections.backend(target.connection).message_target()
            if messages is not None:
                messages.check_destination(target.topic or target.queue or "")

    def _report_batch(self, batch: BatchReport) -> None:
        self._report_recovery()
        is_loaded = any(batch.rows_written.values())  # a batch without rows does not create a table
        if is_loaded and self.declaration.record_loaded(self.loaders.planned_targets):
            self._mirror_record()
        self.stream.report(replace(batch, lag=self.stream.group_lags.update(self.label, batch.lag)))

    def _mirror_record(self) -> None:
        """Let a state in a database have the record now: the next batch may be loaded by another machine."""
        if self.loaders.mirror is None:
            return
        try:
            self.loaders.mirror.seal()
        except FlowError as error:  # the next batch stores it
            _log.warning(
                "the state store lacks the loaded targets of %s: %s", self.stream.spec.name, error.what
            )

    def _heartbeat(self, is_idle: bool) -> None:
        """Send a heartbeat. A group that failed and then idles for a while has recovered."""
        if self._is_failing and is_idle and time.monotonic() - self._started > _QUIET_SECONDS:
            self._report_recovery()
        self.stream.heartbeat()

    def _report_recovery(self) -> None:
        if self._is_failing:
            self._is_failing = False
            self.stream.report_failing(self.label, None)

    def _translate_error(self, error: Exception) -> FlowError:
        """The error of a source that recognises Spark's message, or else Spark's error."""
        stream = self.stream
        message = f"{error}\n{error.__cause__}" if error.__cause__ is not None else str(error)
        for source, declared in zip(stream.sources, stream.spec.sources, strict=True):
            found = source.explain_failure(stream.reading_of(declared), message)
            if found is not None:
                return found
        return translate_spark_error(error, what=f"stream {stream.spec.name!r}", source=True)

    def run_with_retries(self, failures: list[FlowError]) -> None:
        """Run with retries. A failing target does not stop the others, and catches up later."""
        delay = 1.0
        while not self.stream.stop.is_set():
            started = time.monotonic()
            try:
                return self.run()
            except Exception as raised:
                error = self._translate_error(raised)
                self._is_failing = True
                self.stream.report_failing(self.label, error)
                if self.stream.once:
                    self.stream.note(f"{self.label}: {error.what}")
                    failures.append(error)
                    return
            if time.monotonic() - started > _GOOD_SECONDS:
                delay = 1.0
            self.stream.note(f"{self.label}: {error.what}; the next try in {delay:g} s")
            self.stream.stop.wait(delay)
            delay = min(delay * 2, 60.0)

    def _follow_sources(self) -> list[FollowedSource]:
        stream = self.stream
        self._set_aside_stale_checkpoint()
        resource_ids = current_ids(stream.sources, self._readings())
        resume = (
            self._resume_from_ledger()
            if self.checkpoint.is_new
            else self._resume_after_source_change(resource_ids)
        )
        if resume[0] is not None and self._resumes_by_checkpoint_only(resume[0]):
            shutil.rmtree(self.checkpoint.folder, ignore_errors=True)
            make_private_folders(self.checkpoint.folder.parent)
            write_checkpoint(self.checkpoint.folder, [resume[0]])
            resume = (None,)
        sends_on = any(target.is_broker for target in self.targets)
        followed: list[FollowedSource] = []
        for declared, position, spool, shared, ids in zip(
            stream.spec.sources, resume, self.spools, self.shared_positions, resource_ids, strict=True
        ):
            if spool is not None:
                followed.append(
                    spool.open_share(
                        self.number, self.loaders.plan.columns, self.checkpoint, in_order=sends_on
                    )
                )
            else:
                reading = stream.reading_of(declared, position)
                followed.append(
                    SparkFollowedSource(
                        shared,
                        self.number,
                        replace(reading, has_checkpoint=not self.checkpoint.is_new),
                        left=self._dropped_positions(len(followed)),
                        in_order=sends_on,
                        resource_ids=ids,
                    )
                )
        return followed

    def _resume_after_source_change(
        self, resource_ids: Sequence[Mapping[str, str]]
    ) -> tuple[str | None, ...]:
        """Set the checkpoint aside if the topics changed or one was created again.

        Unchanged topics then resume at their recorded position.
        """
        stream = self.stream
        newest = self.checkpoint.last_planned()
        assert newest is not None
        planned, remembered = self.checkpoint.positions(newest), self.ledgers.lowest()
        if len(planned) != len(stream.sources):
            raise Unsupported(
                f"stream {stream.spec.name!r} had {len(planned)} sources and has {len(stream.sources)} now: "
                "it is not known which position belongs to which source",
                state="nothing was read",
                next_step="declare the sources as before, or give the stream another name to start from the "
                "beginning",
            )
        ids = recorded_ids(stream.sources, self.checkpoint, remembered)
        replaced = replaced_topics(stream.sources, self._readings(), ids, resource_ids)
        if not replaced and all(
            not isinstance(source, SparkStreamSource)
            or known is None
            or source.continues_checkpoint(known, position, stream.reading_of(declared))
            for source, declared, known, position in zip(
                stream.sources, stream.spec.sources, planned, remembered, strict=True
            )
        ):
            return (None,) * len(stream.sources)
        if not any(remembered):
            done = self.checkpoint.last_committed()
            remembered = self.checkpoint.positions(done) if done is not None else remembered
        remembered = positions_with_ids(stream.sources, remembered, ids)
        if replaced:
            return self._restart_replaced_topics(replaced, remembered)
        if len(set(self.ledgers.of_targets())) > 1:
            raise Unsupported(
                "source_query names other topics than before, and the targets have not read equally far",
                state="nothing was read",
                next_step="run it once with the topics as they were, until all targets have the same; "
                "then change them",
            )
        refuse_lost_state(self.stream.spec, "source_query names other topics than before")
        self.declaration.set_checkpoint_aside()
        stream.note("source_query names other topics than before: each topic continues where it stopped")
        return remembered

    def _restart_replaced_topics(
        self, replaced: Sequence[str], remembered: tuple[str | None, ...]
    ) -> tuple[str | None, ...]:
        refuse_lost_state(self.stream.spec, "; ".join(replaced))
        self.declaration.set_checkpoint_aside()
        message = f"{'; '.join(replaced)}: it is read from its beginning, as fail_on_data_loss=False allows"
        _log.warning("stream %r: %s", self.stream.spec.name, message)
        self.stream.note(message)
        if len(set(self.ledgers.of_targets())) > 1:
            self.stream.note(
                "the targets have not read equally far: some of them may get messages of other topics again "
                "that they already have"
            )
        return remembered

    def _readings(self) -> list[ReadRequest]:
        return [self.stream.reading_of(declared) for declared in self.stream.spec.sources]

    def _dropped_positions(self, place: int) -> str | None:
        """The recorded positions of a source's topics that are no longer declared."""
        source, reading = self.stream.sources[place], self.stream.reading_of(self.stream.spec.sources[place])
        if not isinstance(source, SparkStreamSource):
            return None
        known = [
            split_positions(each, len(self.stream.sources))[place]
            for each in self.ledgers.of_targets()
            if each
        ]
        left = [source.dropped_position(position, reading) for position in known if position is not None]
        found = [position for position in left if position is not None]
        return lowest_position(found) if found else None

    def _resumes_by_checkpoint_only(self, position: str) -> bool:
        """Whether a lost checkpoint must be written again: Delta and spools resume only from a checkpoint."""
        first, spool = self.stream.sources[0], self.spools[0]
        if spool is not None:
            return bool(json.loads(position).get("spool") == spool.spool.id)
        return isinstance(first, SparkStreamSource) and first.kind_of_rows == "columns"

    def _set_aside_stale_checkpoint(self) -> None:
        """Set the checkpoint aside if a target's ledger has newer batches of another query.

        This happens if targets moved separately for a while, or if an old folder was restored.
        """
        if self.checkpoint.is_new or not all(isinstance(s, SparkStreamSource) for s in self.stream.sources):
            return
        own = f"stream:{self.checkpoint.query_id()}:"
        for target in self.targets:
            newest = self.ledgers.newest_batch_key(target)
            if newest is not None and newest.startswith(own):
                planned = self.checkpoint.last_planned()
                if planned is not None and int(newest.removeprefix(own).partition(".")[0]) > planned:
                    refuse_lost_state(
                        self.stream.spec, f"the checkpoint is older than the ledger of {target.label}"
                    )
            if newest is not None and not newest.startswith(own):
                refuse_lost_state(
                    self.stream.spec, f"the checkpoint is older than the ledger of {target.label}"
                )
                self.declaration.set_checkpoint_aside()
                self.stream.note(
                    f"the checkpoint is older than the ledger of {target.label}: it is put aside"
                )
                return

    def _resume_from_ledger(self) -> tuple[str | None, ...]:
        """Without a checkpoint, resume from the positions in the ledgers."""
        found = self.ledgers.of_targets()
        if len(set(found)) > 1:
            self.stream.note(
                "the checkpoint is missing, and the targets have not read equally far: some of them may get "
                "messages again that they already have"
            )
        remembered = self.ledgers.lowest()
        if any(remembered):
            refuse_lost_state(
                self.stream.spec, "there is no checkpoint, and the target has rows of this stream"
            )
            self.stream.note("there is no checkpoint: the stream continues from the target's ledger")
        return remembered
