"""From a due slot to its end: claimed, run while the claim is kept, ended or tried again by policy.

Knows neither what a run does nor where: it is given both. Whatever dies here dies without harm. A claim
that nobody keeps expires and is taken over; what two runs of one slot load is loaded once, because the
slot names the batch.
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
from ematix_flow.schedule.due import BEFORE_FIRST_POLL, MAX_SLOTS_PER_POLL, MISSED, DueCalculator, is_missed
from ematix_flow.schedule.upstream_gate import format_utc
from ematix_flow.schedule.workflows import WorkflowSlots
from ematix_flow.spec.pipelines import RetryPolicy
from ematix_flow.state.process_liveness import format_holder, holder_is_dead
from ematix_flow.state.slots.base import MAX_CLAIM, MAX_LEASE, Claim, Slot, SlotRecord, SlotStore

LOCKED_SECONDS = 30.0  # until a pipeline that another run holds is tried again
ALREADY_LOADED = "the ledger holds its batch, though no run has said how it ended"
RESTART_DELAY_SECONDS = (
    30.0  # after a run that could not be started, or that died; doubled for each that died
)
_ENDING_SECONDS = 60.0  # that the claim of who only says how a slot goes on may last
_JITTER = 1.1  # by so much a pause is longer than asked for, at most
_CLOCK_STEP = dt.timedelta(minutes=1)
MAX_DEATHS = 3  # attempts of a slot that end without a word before it is given up
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttemptEnd:
    """What an attempt came to; one that found its pipeline ``locked`` is none."""

    succeeded: bool
    reason: str | None = None
    locked: bool = False
    attempts: int = 1


def poll_slots(
    store: SlotStore,
    agenda: DueCalculator,
    workflows: WorkflowSlots | None = None,
    names: Collection[str] | None = None,
    missed: Callable[[Slot], None] = lambda slot: None,
    ahead: Callable[[Slot, dt.datetime], None] = lambda slot, now: None,
    longest_pause: Callable[[SlotRecord], dt.timedelta] = lambda record: MAX_LEASE,
) -> list[SlotRecord]:
    """Open what has fired, and list what may be claimed now, the oldest first: of ``names``, if given.

    What nobody saw in time, and catch-up does not ask for, is told as ``missed`` by who notes it. ``ahead``
    is told of each slot that is later than now. A slot that waits for longer than its ``longest_pause`` does
    so because a clock was ahead, and waits no longer.
    """
    if workflows is not None:
        workflows.advance(store)
    now = store.now()
    due = agenda.find_due(_last_fires(store, agenda, now, ahead), now)
    if due.before_first_poll:
        store.open(due.before_first_poll, "skipped", BEFORE_FIRST_POLL)
    if due.missed:
        _note_missed(store, due.missed, missed)
    if workflows is not None:
        workflows.open_fired(store, due.to_run)
    elif due.to_run:
        store.open(due.to_run)
    if workflows is not None:  # after the jobs' own fires, which look for what is newer than the newest
        many = Counter(slot.pipeline for slot in due.to_run)
        workflows.open_jobs(
            store, now, [name for name, number in many.items() if number >= MAX_SLOTS_PER_POLL]
        )
    now = store.now()  # later than what was just opened
    found = [
        _cap_wait(store, record, now, longest_pause)
        for record in store.unended(list(agenda.entries if names is None else names))
    ]
    return [record for record in found if record.is_due(now) or _free_dead_claim(store, record, now)]


def _cap_wait(
    store: SlotStore,
    record: SlotRecord,
    now: dt.datetime,
    longest_pause: Callable[[SlotRecord], dt.timedelta],
) -> SlotRecord:
    """The slot, without the time that a clock ahead of time has added to its pause or its claim.

    A run that lives says so long before its claim ends, and then keeps it from now on.
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
    """When each schedule fired last, as of now.

    A slot that a clock ahead of time has opened stays as it is, and holds no earlier one back. One that was
    noted as missed then, and whose time has come only now, is not missed.
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
    """Let a slot that was noted as missed by a clock ahead of time run when its time comes."""
    if not store.reopen(record.slot) or record.slot.fire_time <= now:
        return
    waiting = store.get(record.slot)
    claim = None if waiting is None else store.claim(waiting, "clock", _ENDING_SECONDS)
    if claim is not None:
        store.retry_later(
            claim, (record.slot.fire_time - now).total_seconds(), "a clock was ahead", failed=False
        )


def _note_missed(store: SlotStore, slots: Sequence[Slot], missed: Callable[[Slot], None]) -> None:
    """All in one go. Another may look as well, and each is told once: by who has written its mark."""
    mark = f"missed:{uuid.uuid4().hex}"
    new = store.open(slots, "skipped", MISSED, holder=mark)
    if new == len(slots):
        mine = list(slots)
    elif new:
        mine = [slot for slot, record in store.get_many(slots).items() if record.holder == mark]
    else:
        mine = []
    for slot in mine:
        missed(slot)


def _free_dead_claim(store: SlotStore, record: SlotRecord, now: dt.datetime) -> bool:
    """Whether it may be claimed now, because its run has died on this machine and nobody has seen that.

    Who has seen it has left the claim no more than the pause before the next attempt.
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
    """Claim a slot; None when another was faster. One whose attempts die again and again is ended.

    It has succeeded when one of them had come so far that it ``is_done``. Where nobody can say (None), it is
    tried once more: a run asks the ledger as well, and better. That it is given up is told first: who dies
    in between tells it twice, and never not at all.
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
        last = f"; what was heard last: {seen.reason}" if seen.reason else ""
        reason = f"{claim.deaths} attempts ended without a word{last}"
        ended = AttemptEnd(False, reason, attempts=claim.deaths)
        tell(claim, ended)
        return ended if store.end(claim, "gave_up", reason) else None
    return claim


def conclude_attempt(
    store: SlotStore, claim: Claim, ended: AttemptEnd, policy: RetryPolicy, chance: random.Random
) -> str | None:
    """Say how an attempt ended: ``succeeded``, ``waiting`` for the next, ``gave_up``; None if too late."""
    if ended.succeeded:
        return "succeeded" if store.end(claim, "succeeded", ended.reason) else None
    if ended.locked:
        return "waiting" if store.retry_later(claim, LOCKED_SECONDS, ended.reason, failed=False) else None
    failures = claim.failures + 1
    if failures >= policy.max_attempts:
        return "gave_up" if store.end(claim, "gave_up", ended.reason) else None
    return (
        "waiting" if store.retry_later(claim, retry_delay(policy, failures, chance), ended.reason) else None
    )


def retry_delay(policy: RetryPolicy, failures: int, chance: random.Random) -> float:
    """Seconds before the next attempt, spread by a tenth so that many do not come back at once."""
    return policy.delay_seconds(failures) * chance.uniform(1.0, _JITTER)


def longest_retry_delay(policy: RetryPolicy, record: SlotRecord) -> dt.timedelta:
    """For how long a slot may wait from now on. One that was never tried waits for no time to come."""
    if not record.fence:
        return _CLOCK_STEP
    longest = max(policy.delay_seconds(1), policy.delay_seconds(policy.max_attempts))
    return max(MAX_LEASE, dt.timedelta(seconds=_JITTER * longest))


def describe_holder(record: SlotRecord) -> str:
    """Who has a slot, and until when that is believed without a word of it."""
    until = "" if record.expires_at is None else f" until {format_utc(record.expires_at, seconds=True)}"
    return (
        f"its slot of {format_utc(record.slot.fire_time)} is held by "
        f"{format_holder(record.holder or '')}{until}"
    )


def describe_next_attempt(store: SlotStore, slot: Slot) -> str:
    """When the next attempt comes, as the end of a sentence; empty when the store does not say."""
    try:
        known = store.get(slot)
    except FlowError:  # whoever looks for work next asks it again, and tells of it
        return ""
    return f", the next is at {format_utc(known.not_before, seconds=True)}" if known is not None else ""
