"""Replays dead letters: leases them, runs them through their stream in portions, and records each outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.engine.connections import StartSpark
from ematix_flow.errors import FlowError
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.state.dead_letters.base import (
    LEASE_SECONDS,
    DeadLetter,
    DeadLetterStore,
    LetterLease,
    LetterSelection,
)
from ematix_flow.state.times import utc_now

# The outcome of each letter by id: None if it arrived, else the reason. No entry: it was not tried.
RunLetters = Callable[[Sequence[DeadLetter]], Mapping[str, str | None]]

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

    ``watched`` wraps the function that starts Spark.
    """
    from ematix_flow.engine.streams.replay_loader import ReplayLoader
    from ematix_flow.engine.streams.stream_folder import stream_folder_for
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.pipeline import open_connections

    loader = ReplayLoader(
        declared.spec, open_connections(wrap_spark_start(spark_starter())), stream_folder_for(declared.spec)
    )

    def run(letters: Sequence[DeadLetter]) -> Mapping[str, str | None]:
        attempt = " ".join(f"{letter.id}:{letter.attempt}" for letter in letters)
        refused = loader.load([_message(letter) for letter in letters], attempt)
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
    }


def replay_letters(
    pipeline_name: str,
    store: DeadLetterStore,
    selection: LetterSelection,
    run_one: RunLetters,
    *,
    chunk: int = 100,
    lease_seconds: float = LEASE_SECONDS,
    stopping: Callable[[], bool] = lambda: False,
) -> ReplayResult:
    """Run the selected letters, oldest first, each at most once per call.

    An error of ``run_one`` ends the replay: its portion is not recorded as failed and can be leased again at
    once. If a replay dies, the next one can take its letters when the lease ends.
    """
    counted = _ReplayCounts()
    began = utc_now()
    left = selection.first
    while not stopping() and (left is None or left > 0):
        most = chunk if left is None else min(chunk, left)
        lease = store.lease(pipeline_name, selection, lease_seconds=lease_seconds, limit=most, before=began)
        if not lease.letters:
            break
        if left is not None:
            left -= len(lease.letters)
        counted.taken += len(lease.letters)
        try:
            with _keep_lease_alive(store, lease, lease_seconds):
                fates = run_one(lease.letters)
        except BaseException:
            with suppress(FlowError):  # the store does not answer either: the lease ends by itself
                store.release(lease)
            raise
        untried = _record_fates(store, lease, fates, counted)
        if untried:
            break  # run_one takes no more now
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
    store: DeadLetterStore, lease: LetterLease, fates: Mapping[str, str | None], counted: _ReplayCounts
) -> Sequence[str]:
    """Record the outcomes in the store. Returns the ids without an outcome, which are released."""
    ids = [letter.id for letter in lease.letters]
    arrived = [id for id in ids if id in fates and fates[id] is None]
    noted = store.mark_replayed(lease, arrived) if arrived else 0
    counted.replayed += noted
    counted.lost += len(arrived) - noted
    for id in ids:
        reason = fates.get(id)
        if reason is None:
            continue
        status = store.mark_failed(lease, id, reason)
        if status is None:
            counted.lost += 1
            continue
        counted.failed += 1
        counted.parked += status == "parked"
        if len(counted.failures) < _MAX_LISTED_FAILURES:
            counted.failures[id] = reason
    untried = [id for id in ids if id not in fates]
    if untried:
        counted.released += store.release(lease, untried)
    return untried


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
