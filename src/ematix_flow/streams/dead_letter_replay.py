"""Replays dead letters: leases them, runs them through their stream in portions, and records each outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ematix_flow import fault_points
from ematix_flow.engine.connections import StartSpark
from ematix_flow.errors import FlowError
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.spec.row_counts import UNKNOWN_ROWS
from ematix_flow.state.dead_letters.base import (
    LEASE_SECONDS,
    DeadLetter,
    DeadLetterStore,
    LetterLease,
    LetterSelection,
)
from ematix_flow.state.times import utc_now
from ematix_flow.streams.letter_progress import LetterProgress

# The outcome of each letter by id: None if it arrived, else the reason. No entry: it was not tried.
# Letters that a replay was loading when it died are not tried: those that have arrived have an outcome.
RunLetters = Callable[[Sequence[DeadLetter], LetterProgress], Mapping[str, str | None]]

_MAX_LISTED_FAILURES = 20


@dataclass(frozen=True)
class ReplayResult:
    """How many letters were leased, and their outcomes. ``failures`` are the first few, by id.

    ``lost`` letters arrived or failed, but the lease had ended before the outcome was recorded.
    """

    pipeline: str
    taken: int = 0
    replayed: int = 0
    failed: int = 0
    parked: int = 0
    released: int = 0
    lost: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "taken": self.taken,
            "replayed": self.replayed,
            "failed": self.failed,
            "parked": self.parked,
            "released": self.released,
            "lost": self.lost,
            "failures": dict(self.failures),
        }


def letter_runner(
    declared: DeclaredStream, wrap_spark_start: Callable[[StartSpark], StartSpark] = lambda start: start
) -> RunLetters:
    """Return a function that runs letters through this stream again, as one more batch with its own key.

    ``wrap_spark_start`` wraps the function that starts Spark.
    """
    from ematix_flow.engine.streams.letter_loader import LetterLoader
    from ematix_flow.engine.streams.stream_folder import stream_folder_for
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.pipeline import open_connections

    loader = LetterLoader(
        declared.spec, open_connections(wrap_spark_start(spark_starter())), stream_folder_for(declared.spec)
    )

    def run(letters: Sequence[DeadLetter], progress: LetterProgress) -> Mapping[str, str | None]:
        messages = [_message(letter) for letter in letters]
        if letters[0].loading is not None:
            return {letters[n].id: None for n in loader.find_loaded(messages, progress)}
        refused = loader.load(messages, progress)
        return {letter.id: refused.get(index) for index, letter in enumerate(letters)}

    return run


def _message(letter: DeadLetter) -> dict[str, Any]:
    return {
        "value": letter.payload,
        "key": letter.key,
        "topic": letter.source,
        "partition": letter.partition,
        "position": letter.position,
        "timestamp": letter.event_ts,
        "headers": letter.headers,
        "target": letter.target,
        "loading": letter.loading,
        "loaded_in": letter.targets_with_it,
    }


def replay_letters(
    pipeline_name: str,
    store: DeadLetterStore,
    selection: LetterSelection,
    run_letters: RunLetters,
    *,
    chunk: int = 100,
    lease_seconds: float = LEASE_SECONDS,
    stopping: Callable[[], bool] = lambda: False,
) -> ReplayResult:
    """Run the selected letters, oldest first, each at most once per call.

    An error of ``run_letters`` ends the replay: its portion is not recorded as failed and can be leased again
    at once. If a replay dies, the next one can take its letters when the lease ends: it first finds out which
    of them are in the targets, also of letters that it does not select.
    """
    counted = _ReplayCounts()
    began = utc_now()
    _finish_interrupted(pipeline_name, store, run_letters, lease_seconds, counted)
    left = selection.first
    while not stopping() and (left is None or left > 0):
        most = chunk if left is None else min(chunk, left)
        lease = store.lease(pipeline_name, selection, lease_seconds=lease_seconds, limit=most, before=began)
        if not lease.letters:
            break
        if left is not None:
            left -= len(lease.letters)
        counted.taken += len(lease.letters)
        progress = LetterProgress(pipeline_name, store, lease)
        fates = _run_portion(store, lease, progress, run_letters, lease_seconds)
        _record_fates(store, lease, progress, fates, counted)
        untried = [letter.id for letter in lease.letters if letter.id not in fates]
        if untried:
            counted.released += store.release(lease, untried)
            break  # run_letters takes no more now
    return ReplayResult(
        pipeline_name,
        counted.taken,
        counted.replayed,
        counted.failed,
        counted.parked,
        counted.released,
        counted.lost,
        counted.failures,
    )


def replay_recorded(
    declared: DeclaredStream, store: DeadLetterStore, selection: LetterSelection, run_log: str | None
) -> tuple[ReplayResult, str]:
    """Replay letters of a stream as a run that the run log records. Returns the result and the run's id."""
    from ematix_flow.run.recording import record_command

    spec = declared.spec
    store.max_attempts = spec.dead_letters.max_attempts
    targets = ", ".join(target.label for target in spec.targets)
    with record_command(spec.name, targets, "replay", run_log, spec.where) as recording:
        again = letter_runner(declared, recording.wrap_spark_start)
        result = replay_letters(spec.name, store, selection, again)
        recording.finish(
            "failed" if result.failed or result.lost else "succeeded" if result.taken else "skipped",
            rows=replace(UNKNOWN_ROWS, read=result.taken, inserted=result.replayed),
            metrics=result.to_json(),
        )
    return result, recording.record.run_id


def _finish_interrupted(
    pipeline_name: str,
    store: DeadLetterStore,
    run_letters: RunLetters,
    lease_seconds: float,
    counted: _ReplayCounts,
) -> None:
    """Record what replays had loaded that ended between a commit and its record; free their other letters."""
    while True:
        lease = store.lease_interrupted(pipeline_name, lease_seconds=lease_seconds)
        if not lease.letters:
            return
        progress = LetterProgress(pipeline_name, store, lease)
        fates = _run_portion(store, lease, progress, run_letters, lease_seconds)
        counted.taken += len(fates)
        _record_fates(store, lease, progress, fates, counted)
        progress.release([letter for letter in lease.letters if letter.id not in fates])


def _run_portion(
    store: DeadLetterStore,
    lease: LetterLease,
    progress: LetterProgress,
    run_letters: RunLetters,
    lease_seconds: float,
) -> Mapping[str, str | None]:
    try:
        with _keep_lease_alive(store, lease, lease_seconds):
            fates = run_letters(lease.letters, progress)
    except BaseException:
        with suppress(FlowError):  # the store does not answer either: the lease ends by itself
            store.release(lease)
        raise
    fault_points.point("replay.committed")
    return fates


@dataclass
class _ReplayCounts:
    taken: int = 0
    replayed: int = 0
    failed: int = 0
    parked: int = 0
    released: int = 0
    lost: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def _record_fates(
    store: DeadLetterStore,
    lease: LetterLease,
    progress: LetterProgress,
    fates: Mapping[str, str | None],
    counted: _ReplayCounts,
) -> None:
    """Record the outcomes in the store."""
    arrived = [letter.id for letter in lease.letters if fates.get(letter.id, "") is None]
    noted = store.mark_replayed(lease, arrived) if arrived else 0
    counted.replayed += noted
    counted.lost += len(arrived) - noted
    for letter in lease.letters:
        reason = fates.get(letter.id)
        if reason is None:
            continue
        status = store.mark_failed(lease, letter.id, reason, progress.loaded_in(letter))
        if status is None:
            counted.lost += 1
            continue
        counted.failed += 1
        counted.parked += status == "parked"
        if len(counted.failures) < _MAX_LISTED_FAILURES:
            counted.failures[letter.id] = reason


@contextmanager
def _keep_lease_alive(store: DeadLetterStore, lease: LetterLease, seconds: float) -> Iterator[None]:
    """Renew the lease while the block runs, so that it ends only if the process dies."""
    is_over = threading.Event()

    def keep() -> None:
        while not is_over.wait(max(seconds / 3, 0.05)):
            try:
                store.renew(lease, seconds)
            except FlowError:
                continue  # the store does not answer: the next renewal comes well before the lease ends

    thread = threading.Thread(target=keep, name="dead-letter-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
