"""The life of a slot: polled when due, claimed, run while the claim is renewed, ended or retried by policy.

Does not know what a run does or where it runs. A crash at any point is harmless: a claim that is not
renewed expires and is taken over, and two runs of one slot load once, because the slot is the batch key.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ematix_flow.errors import FlowError
from ematix_flow.schedule.due_slots import (
    BEFORE_FIRST_POLL,
    MAX_SLOTS_PER_POLL,
    MISSED,
    DueCalculator,
    is_missed,
)
from ematix_flow.schedule.workflows import WorkflowSlots
from ematix_flow.spec.retry_policy import MAX_JITTER_FACTOR, RetryPolicy, retry_delay
from ematix_flow.state.process_liveness import format_holder, holder_is_dead
from ematix_flow.state.slots.base import (
    CLOCK_STEP,
    ENDING_CLAIM_SECONDS,
    MAX_CLAIM,
    Claim,
    Slot,
    SlotRecord,
    SlotStore,
)
from ematix_flow.state.slots.scheduler_lease import MAX_LEASE
from ematix_flow.state.times import format_utc

LOCKED_SECONDS = 30.0  # before the next attempt at a pipeline that another run has locked
ALREADY_LOADED = "the ledger holds its batch, although no run recorded its end"
RESTART_DELAY_SECONDS = 30.0  # after a run that could not start or died; doubled for each death
MAX_DEATHS = 3  # attempts of a slot that die before it is given up
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended.

    One that found its pipeline ``locked`` does not count as an attempt. After one that was ``stopped`` on
    request no other follows.
    """

    succeeded: bool
    reason: str | None = None
    locked: bool = False
    attempts: int = 1
    stopped: bool = False


def poll_slots(
    store: SlotStore,
    agenda: DueCalculator,
    workflows: WorkflowSlots | None = None,
    names: Collection[str] | None = None,
    missed: Callable[[Slot], None] = lambda slot: None,
    ahead: Callable[[Slot, dt.datetime], None] = lambda slot, now: None,
    longest_pause: Callable[[SlotRecord], dt.timedelta] = lambda record: MAX_LEASE,
    paused: Collection[str] = (),
) -> list[SlotRecord]:
    """Open the slots that have fired, and return those that may be claimed now, oldest first.

    ``names`` limits the result to these pipelines. ``missed`` is called for each missed slot that catch-up
    ignores, by the process that records it; ``ahead`` for each slot later than now. A slot that would wait
    longer than its ``longest_pause`` does so because a clock was ahead: its wait ends now. The schedules of
    ``paused`` open no slot and their slots wait: once resumed, what was due fires by the catch-up policy.
    """
    if workflows is not None:
        workflows.advance(store)
    now = store.now()
    due = agenda.find_due(_last_fires(store, agenda, now, ahead), now)
    if paused:
        due = due.without(paused)
    if due.before_first_poll:
        store.open(due.before_first_poll, "skipped", BEFORE_FIRST_POLL)
    if due.missed:
        _note_missed(store, due.missed, missed)
    if workflows is not None:
        workflows.open_fired(store, due.to_run)
    elif due.to_run:
        store.open(due.to_run)
    if workflows is not None:  # after the jobs' own fires, which are searched after the newest slot
        many = Counter(slot.pipeline for slot in due.to_run)
        workflows.open_jobs(
            store, now, [name for name, number in many.items() if number >= MAX_SLOTS_PER_POLL]
        )
    now = store.now()  # later than the slots just opened
    found = [
        _cap_wait(store, record, now, longest_pause)
        for record in store.unfinished(list(agenda.entries if names is None else names))
    ]
    free = [record for record in found if record.slot.pipeline not in paused]
    return [record for record in free if record.is_due(now) or _free_dead_claim(store, record, now)]


def _cap_wait(
    store: SlotStore,
    record: SlotRecord,
    now: dt.datetime,
    longest_pause: Callable[[SlotRecord], dt.timedelta],
) -> SlotRecord:
    """Return the slot without the time that a wrong clock has added to its wait or its claim.

    A live run renews its claim long before it ends, and then holds it from the present time on.
    """
    if record.slot.fire_time > now:
        return record
    if record.status == "waiting" and record.not_before - now > longest_pause(record):
        return replace(record, not_before=now) if store.end_wait(record) else record
    if record.status == "claimed" and record.expires_at and record.expires_at - now > MAX_CLAIM:
        claim = Claim(record.slot, record.holder or "", record.fence, record.failures, record.deaths)
        if store.renew(claim, MAX_CLAIM.total_seconds()):
            return replace(record, expires_at=now + MAX_CLAIM)
    return record


def _last_fires(
    store: SlotStore, agenda: DueCalculator, now: dt.datetime, ahead: Callable[[Slot, dt.datetime], None]
) -> dict[str, dt.datetime]:
    """Return the last fire time of each schedule, as of now.

    A slot that was opened while a clock was ahead stays as it is and blocks no earlier one. If it was
    recorded as missed and its fire time comes only now, it is not missed.
    """
    found = store.last_fires(list(agenda.entries))
    later = [name for name, at in found.items() if at > now]
    for name, newest in store.newest(later).items() if later else ():
        ahead(newest.slot, now)
        before = store.latest(name, now)
        for record in filter(None, (newest, before)):
            if is_missed(record) and record.not_before > now:
                _reopen_for_fire_time(store, record, now)
        if before is None:
            del found[name]
        else:
            found[name] = before.slot.fire_time
    return found


def _reopen_for_fire_time(store: SlotStore, record: SlotRecord, now: dt.datetime) -> None:
    """Let a slot that was recorded as missed while a clock was ahead run at its fire time."""
    if not store.reopen(record.slot) or record.slot.fire_time <= now:
        return
    waiting = store.get(record.slot)
    claim = None if waiting is None else store.claim(waiting, "clock", ENDING_CLAIM_SECONDS)
    if claim is not None:
        store.retry_later(
            claim, (record.slot.fire_time - now).total_seconds(), "a clock was ahead", failed=False
        )


def _note_missed(store: SlotStore, slots: Sequence[Slot], missed: Callable[[Slot], None]) -> None:
    """Record all missed slots at once.

    If several processes poll, the one whose mark is stored reports a slot.
    """
    mark = f"missed:{uuid.uuid4().hex}"
    new = store.open(slots, "skipped", MISSED, holder=mark)
    if new == len(slots):
        own = list(slots)
    elif new:
        own = [slot for slot, record in store.get_many(slots).items() if record.holder == mark]
    else:
        own = []
    for slot in own:
        missed(slot)


def _free_dead_claim(store: SlotStore, record: SlotRecord, now: dt.datetime) -> bool:
    """Free a claim whose run died on this machine unnoticed; True if it may be claimed now.

    A process that noticed the death leaves the claim no longer than the delay before the next attempt.
    """
    if record.status != "claimed" or not record.begun or record.expires_at is None or record.holder is None:
        return False
    left, paused = (record.expires_at - now).total_seconds(), RESTART_DELAY_SECONDS * 2**record.deaths
    if left <= paused or not holder_is_dead(record.holder):
        return False
    claim = Claim(record.slot, record.holder, record.fence, record.failures, record.deaths)
    return store.renew(claim, 0.0, f"its process {format_holder(record.holder)} is gone")


def claim_slot(
    store: SlotStore,
    seen: SlotRecord,
    holder: str,
    seconds: float,
    policy: RetryPolicy,
    tell: Callable[[Claim, AttemptEnd], None] = lambda claim, ended: None,
    is_done: Callable[[], bool | None] = lambda: False,
) -> Claim | AttemptEnd | None:
    """Claim a slot; None if another process was faster. A slot whose attempts die repeatedly is ended.

    It has succeeded if one of them loaded it (``is_done``). If that is unknown (None), it gets one more
    attempt: a run reads the ledger too, and better. ``tell`` is called before the slot is given up: a crash
    in between reports it twice, and never loses it.
    """
    claim = store.claim(seen, holder, seconds)
    if claim is None:
        return None
    most = max(MAX_DEATHS, policy.max_attempts)
    if claim.deaths >= most:
        done = is_done()
        if done is None and claim.deaths == most:
            return claim
        if done:
            return AttemptEnd(True, ALREADY_LOADED) if store.end(claim, "succeeded", ALREADY_LOADED) else None
        last = f"; the last message: {seen.reason}" if seen.reason else ""
        reason = f"{claim.deaths} attempts died without an error{last}"
        ended = AttemptEnd(False, reason, attempts=claim.deaths)
        tell(claim, ended)
        return ended if store.end(claim, "gave_up", reason) else None
    return claim


def conclude_attempt(
    store: SlotStore, claim: Claim, ended: AttemptEnd, policy: RetryPolicy, chance: random.Random
) -> str | None:
    """Record the end of an attempt: ``succeeded``, ``waiting``, ``gave_up``; None if the claim is lost."""
    if ended.succeeded:
        return "succeeded" if store.end(claim, "succeeded", ended.reason) else None
    if ended.locked:
        return "waiting" if store.retry_later(claim, LOCKED_SECONDS, ended.reason, failed=False) else None
    failures = claim.failures + 1
    if failures >= policy.max_attempts or ended.stopped:
        return "gave_up" if store.end(claim, "gave_up", ended.reason) else None
    return (
        "waiting" if store.retry_later(claim, retry_delay(policy, failures, chance), ended.reason) else None
    )


def longest_retry_delay(policy: RetryPolicy, record: SlotRecord) -> dt.timedelta:
    """Return how long a slot may wait from now on. One without attempts has no reason to wait."""
    if not record.fence:
        return CLOCK_STEP
    longest = max(policy.delay_seconds(1), policy.delay_seconds(policy.max_attempts))
    return max(MAX_LEASE, dt.timedelta(seconds=MAX_JITTER_FACTOR * longest))


def describe_holder(record: SlotRecord) -> str:
    """Describe who holds a slot, and until when its claim lasts."""
    until = "" if record.expires_at is None else f" until {format_utc(record.expires_at, seconds=True)}"
    return (
        f"its slot of {format_utc(record.slot.fire_time)} is held by "
        f"{format_holder(record.holder or '')}{until}"
    )


def describe_next_attempt(store: SlotStore, slot: Slot) -> str:
    """Describe the time of the next attempt, as the end of a sentence; empty if the store does not answer."""
    try:
        known = store.get(slot)
    except FlowError:  # the next poll reports it
        return ""
    return f", the next is at {format_utc(known.not_before, seconds=True)}" if known is not None else ""
